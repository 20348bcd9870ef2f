"""The execution plan: what the C runtime executes, as plain data.

A plan holds entry points (what a session runs) and a table of kernels that all of them share. An entry point is a list of
steps over values; a value is a tensor in the caller's memory, in the weights, in the arena or in a state. Dims and byte sizes
are ``Dim``: integers where they are known at build, expressions over the entry point's symbols otherwise. Most symbols are dims of
inputs; a dynamic one is set by a step while the entry point runs, and the expressions over it are evaluated by the steps that use
them. ``packaging.planfile`` writes a plan as the bytes that the runtime maps, and reads them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aotc.ir.dims import Dim

ALIGNMENT = 64
"""Bytes: buffers of the arena and weights start at multiples of it. The caller's memory need only suit its element type."""


DYNAMIC = -1
"""The input of a symbol that no input's shape gives."""


class Storage(Enum):
    """Where a value lives."""

    INPUT = 0
    OUTPUT = 1
    WEIGHT = 2
    ARENA = 3
    STATE = 4  # kept in the session from run to run


class StepKind(Enum):
    """What a step does. SHAPE, CHECK, BRANCH and JUMP make no kernel run; their dims and argument are described per kind.

    SHAPE sets symbol number ``target``, within its bounds: with an argument (int64) to its element number ``dims[0]``, without one
    to ``dims[0]``. CHECK fails the run unless ``dims[0]`` equals ``dims[1]``. BRANCH continues at step number ``target``: with an
    argument (bool) when that is false, without one unless ``dims[0] < dims[1]``. JUMP always continues at step ``target``. A target
    may lie before the step and may be the number of steps, which ends the run.
    """

    KERNEL = 0
    COPY = 1
    SHAPE = 2
    CHECK = 3
    BRANCH = 4
    JUMP = 5


@dataclass(frozen=True, slots=True)
class Symbol:
    """A dim known at run time: its value is dim ``axis`` of input number ``input``, checked to be in [lower, upper].

    ``input`` is ``DYNAMIC`` where a SHAPE step sets the symbol instead."""

    name: str
    lower: int
    upper: int | None  # None: without bound
    input: int
    axis: int


@dataclass(frozen=True, slots=True)
class Value:
    """A dense row-major tensor. ``index`` is the number of the input, output, buffer or state (0 for a weight); ``offset``
    counts bytes from its start, for a weight from the start of the weights blob (a multiple of ``ALIGNMENT``)."""

    dtype: str
    shape: tuple[Dim, ...]
    storage: Storage
    index: int = 0
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of the arena of ``size`` bytes, in use from step ``first_step`` to ``last_step``, both included.

    ``offset``: its place in the arena, fixed when the entry point's sizes are all static; ``None``: the session plans it. A buffer
    whose size is dynamic is memory of its own, outside the arena, and has none; it keeps its content while it grows.
    """

    size: Dim
    first_step: int
    last_step: int
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel over its task range, one copy of argument 0 into argument 1, or what ``StepKind`` says of the other kinds.

    ``arguments`` are ids of values in the kernel's parameter order: inputs, scratch, then the ``outputs`` values it writes.
    ``dims`` are the kernel's integer parameters, ``tasks`` the extent of its outermost loop (1 when serial). ``source`` is the
    user's name of the node, ``label`` the operators fused into it. ``flops``: floating-point operations of one run.
    """

    kind: StepKind
    arguments: tuple[int, ...]
    outputs: int
    kernel: int = 0
    dims: tuple[Dim, ...] = ()
    tasks: Dim = 1
    source: str = ""
    label: str = ""
    flops: Dim = 0
    target: int = 0


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output as the user sees it."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """Something a session can run. ``arena_size`` is in bytes, ``None`` where the session plans per shape;
    ``arena_lower_bound`` is the largest sum of buffers that are alive at once, which no planner can undercut."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    values: tuple[Value, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    arena_size: int | None
    arena_lower_bound: int | None
    symbols: tuple[Symbol, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """The C function ``int32_t symbol(void *x buffers, int32_t x dims, int32_t begin, int32_t end)``; 0 is success."""

    symbol: str
    buffers: int
    dims: int


@dataclass(frozen=True, slots=True)
class State:
    """A tensor that a session keeps from run to run. ``initial``: where its first value lies in the weights blob, ``None`` for
    zeros."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    initial: int | None = None


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """All that a built file can run. Entry point 0 is what a session runs by default; all of them share ``states``."""

    entry_points: tuple[EntryPoint, ...]
    kernels: tuple[Kernel, ...]
    states: tuple[State, ...] = ()
