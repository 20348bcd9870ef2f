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


class Memory(Enum):
    """Which processors see a buffer. SHARED is one memory where CPU and GPU have one in common, else one on each side, with the
    same layout, between which TO_DEVICE and TO_HOST copy."""

    HOST = 0
    DEVICE = 1
    SHARED = 2


class StepKind(Enum):
    """What a step does. SHAPE, CHECK, BRANCH and JUMP make no kernel run; their dims and argument are described per kind.

    SHAPE sets symbol number ``target``, within its bounds: with an argument (int64) to its element number ``dims[0]``, without one
    to ``dims[0]``. CHECK fails the run unless ``dims[0]`` equals ``dims[1]``. BRANCH continues at step number ``target``: with an
    argument (bool) when that is false, without one unless ``dims[0] < dims[1]``. JUMP always continues at step ``target``. A target
    may lie before the step and may be the number of steps, which ends the run. Where a KERNEL's ``target`` is not 0, its tasks come
    in rounds of so many: all of a round are done before those of the next begin.

    LAUNCH runs a CUDA kernel: ``kernel`` counts in ``ExecutionPlan.cuda_kernels``, ``dims`` are the kernel's and then the three
    extents of the grid. DEVICE_COPY is COPY on the device. TO_DEVICE makes the contents of its arguments, as the host sees them,
    what the device sees; TO_HOST does the opposite and waits for the device. DELIVER ends a run: the contents of outputs, which lie
    on the device where ``target`` is 1, get to the caller's memory.
    """

    KERNEL = 0
    COPY = 1
    SHAPE = 2
    CHECK = 3
    BRANCH = 4
    JUMP = 5
    LAUNCH = 6
    DEVICE_COPY = 7
    TO_DEVICE = 8
    TO_HOST = 9
    DELIVER = 10


DEVICE_STEPS = frozenset({StepKind.LAUNCH, StepKind.DEVICE_COPY})
"""Steps that the device executes, one after the other, while the host goes on."""

CROSSINGS = frozenset({StepKind.TO_DEVICE, StepKind.TO_HOST, StepKind.DELIVER})


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
    """A piece of an arena of ``size`` bytes, in use from step ``first_step`` to ``last_step``, both included.

    ``offset``: its place in the arena, fixed when the entry point's sizes are all static; ``None``: the session plans it. A buffer
    whose size is dynamic is memory of its own, outside the arena, and has none; it keeps its content while it grows. Each ``memory``
    has an arena of its own; buffers of dynamic size are the host's.
    """

    size: Dim
    first_step: int
    last_step: int
    offset: int | None = None
    memory: Memory = Memory.HOST


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
    """Something a session can run. ``arena_size`` is in bytes, of the host's arena, ``None`` where the session plans per shape;
    ``arena_lower_bound`` is the largest sum of its buffers that are alive at once, which no planner can undercut. ``fallback``: the
    number of the entry point that runs instead where there is no device for this one; such entry points stand last."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    values: tuple[Value, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    arena_size: int | None
    arena_lower_bound: int | None
    symbols: tuple[Symbol, ...] = ()
    fallback: int | None = None

    def arena(self, memory: Memory) -> int:
        """Bytes of the arena of ``memory`` where sizes are static: where its last buffer ends."""
        return max(
            (b.offset + b.size for b in self.buffers if b.memory is memory and b.offset is not None and isinstance(b.size, int)), default=0
        )


@dataclass(frozen=True, slots=True)
class Kernel:
    """The C function ``int32_t symbol(void *x buffers, int32_t x dims, int32_t begin, int32_t end)``; 0 is success."""

    symbol: str
    buffers: int
    dims: int


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """The CUDA function ``symbol(T *x buffers, int32_t x dims)`` for blocks of ``block`` threads with ``shared_bytes`` of dynamic
    shared memory. ``cubins``: where its code stands in ``ExecutionPlan.cubins``, once for each compute capability, PTX last."""

    symbol: str
    buffers: int
    dims: int
    block: tuple[int, int, int]
    shared_bytes: int
    cubins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cubin:
    """Code for one compute capability (87 for sm_87): ``size`` bytes from ``offset`` in the cubins' blob. ``ptx``: it is PTX, of which
    the driver makes code for that compute capability and all above, when it has no other."""

    sm: int
    offset: int
    size: int
    ptx: bool = False


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
    """All that a built file can run. Entry point 0 is what a session runs by default; all of them share ``states``. CUDA kernels
    read the first ``device_weights`` bytes of the weights blob and no others."""

    entry_points: tuple[EntryPoint, ...]
    kernels: tuple[Kernel, ...]
    states: tuple[State, ...] = ()
    cuda_kernels: tuple[CudaKernel, ...] = ()
    cubins: tuple[Cubin, ...] = ()
    device_weights: int = 0

    @property
    def visible_entry_points(self) -> tuple[EntryPoint, ...]:
        """Those that users see: not the fallbacks of others."""
        hidden = {entry.fallback for entry in self.entry_points}
        return tuple(entry for number, entry in enumerate(self.entry_points) if number not in hidden)
