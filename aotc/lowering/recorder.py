"""Writes down an entry point's values, buffers and steps as they come, and keeps the lifetimes of buffers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np

from aotc.errors import UnsupportedModel
from aotc.ir.arrays import pieces
from aotc.ir.dims import Dim, DimExpr, Symbol, symbol, symbols_of
from aotc.ir.types import TensorType
from aotc.lowering import memory, plan
from aotc.lowering.plan import CROSSINGS, DEVICE_STEPS, Memory, StepKind, Storage

MAX_ELEMENTS = 2**31 - 1


@dataclass(slots=True)
class Weights:
    """Arrays by offset in the weights blob; equal arrays are kept once."""

    arrays: list[tuple[int, np.ndarray]]
    offsets: dict[bytes, int]
    size: int = 0

    def add(self, array: np.ndarray | np.generic) -> int:
        """The byte offset of ``array``, a multiple of the alignment."""
        array = np.ascontiguousarray(array)
        hashed = hashlib.sha256()
        for piece in pieces(array):
            hashed.update(piece)
        digest = hashed.digest() + array.nbytes.to_bytes(8, "little")
        if digest not in self.offsets:
            offset = memory.align(self.size)
            self.offsets[digest] = offset
            self.arrays.append((offset, array))
            self.size = offset + array.nbytes
        return self.offsets[digest]


@dataclass(slots=True)
class _PendingBuffer:
    size: Dim
    first: int
    last: int
    host: bool = False
    device: bool = False

    @property
    def memory(self) -> Memory:
        """What the processors that use it see."""
        return (Memory.SHARED if self.host else Memory.DEVICE) if self.device else Memory.HOST


@dataclass(frozen=True, slots=True)
class Place:
    """Memory that a result is wanted in."""

    storage: Storage
    index: int
    offset: Dim = 0


@dataclass(slots=True)
class Recorder:
    """One entry point in the making. ``dynamic`` are the symbols that SHAPE steps set; such a step's ``target`` counts in it.
    ``outputs`` are the shapes of the entry point's outputs."""

    values: list[plan.Value] = field(default_factory=list)
    steps: list[plan.Step] = field(default_factory=list)
    buffers: list[_PendingBuffer] = field(default_factory=list)
    dynamic: dict[str, Symbol] = field(default_factory=dict)
    outputs: list[tuple[Dim, ...]] = field(default_factory=list)

    def value(self, type_: TensorType, place: Place) -> int:
        """Raises UnsupportedModel for a tensor of 2^31 elements or more: kernels count in int32."""
        if isinstance(type_.size, int) and type_.size > MAX_ELEMENTS:
            raise UnsupportedModel(f"a tensor of {type_} has 2^31 elements or more; kernels count in int32: split it")
        self.values.append(plan.Value(type_.dtype, type_.shape, place.storage, place.index, place.offset))
        return len(self.values) - 1

    def buffer(self, type_: TensorType, size: Dim | None = None) -> int:
        """A value in a new buffer, in use from here on. ``size`` in bytes, by default that of the tensor."""
        here = len(self.steps)
        self.buffers.append(_PendingBuffer(type_.size * type_.itemsize if size is None else size, here, here))
        return self.value(type_, Place(Storage.ARENA, len(self.buffers) - 1))

    def view(self, value: int, type_: TensorType, offset: Dim = 0) -> int:
        """The memory of ``value``, from ``offset`` bytes on, as another type."""
        held = self.values[value]
        return self.value(type_, Place(held.storage, held.index, held.offset + offset))

    def place(self, value: int) -> Place:
        held = self.values[value]
        return Place(held.storage, held.index, held.offset)

    def use(self, *values: int, until: int | None = None) -> None:
        """Keeps the buffers of ``values`` until step ``until``, by default the latest."""
        last = len(self.steps) - 1 if until is None else until
        for value in values:
            if self.values[value].storage is Storage.ARENA:
                pending = self.buffers[self.values[value].index]
                pending.last = max(pending.last, last)

    def step(self, step: plan.Step) -> int:
        self.steps.append(step)
        self.use(*step.arguments)
        for value in step.arguments:
            if self.values[value].storage is Storage.ARENA:
                pending = self.buffers[self.values[value].index]
                pending.host |= step.kind not in DEVICE_STEPS
                pending.device |= step.kind in DEVICE_STEPS or step.kind in CROSSINGS
        return len(self.steps) - 1

    def copy(self, source: int, target: int, origin: str, on_device: bool = False) -> None:
        kind = StepKind.DEVICE_COPY if on_device else StepKind.COPY
        self.step(plan.Step(kind, (source, target), 1, source=origin, label="copy"))

    def set_symbol(self, name: Symbol, dim: Dim, origin: str, value: int | None = None) -> None:
        """Symbol := ``dim``, or, of an int64 ``value``, its element number ``dim``."""
        self.dynamic.setdefault(name.name, name)
        target = list(self.dynamic).index(name.name)
        arguments = () if value is None else (value,)
        self.step(plan.Step(StepKind.SHAPE, arguments, 0, dims=(dim,), source=origin, label=name.name, target=target))

    def fresh_symbol(self) -> DimExpr:
        """A symbol for a value in passing."""
        count = len(self.dynamic)
        while f"t{count}" in self.dynamic:
            count += 1
        made = symbol(f"t{count}")
        self.dynamic.update(symbols_of(made))
        return made

    def check(self, left: Dim, right: Dim, origin: str) -> None:
        self.step(plan.Step(StepKind.CHECK, (), 0, dims=(left, right), source=origin, label=f"{left} = {right}"))

    def branch_unless(self, origin: str, condition: int | None = None, less: tuple[Dim, Dim] | None = None) -> int:
        """A branch whose target is still open: taken when ``condition`` is false, or not ``less[0] < less[1]``."""
        arguments = () if condition is None else (condition,)
        return self.step(plan.Step(StepKind.BRANCH, arguments, 0, dims=less or (), source=origin, label="branch"))

    def jump(self, origin: str, target: int = 0) -> int:
        return self.step(plan.Step(StepKind.JUMP, (), 0, source=origin, label="jump", target=target))

    def land(self, *steps: int) -> None:
        """The next step becomes the target of branches and jumps."""
        for number in steps:
            self.steps[number] = replace(self.steps[number], target=len(self.steps))

    def is_dynamic(self, *dims: Dim) -> bool:
        return any(name in self.dynamic for name in symbols_of(*dims))

    def is_growing(self, value: int) -> bool:
        """Whether the memory that ``value`` is in, or is a part of, has a size that only a run tells: it is the host's."""
        held = self.values[value]
        if held.storage is Storage.OUTPUT:
            return self.is_dynamic(*self.outputs[held.index])
        return held.storage is Storage.ARENA and self.is_dynamic(self.buffers[held.index].size)

    def placed(self) -> tuple[tuple[plan.Buffer, ...], int | None, int | None]:
        """Buffers with offsets, the size of the host's arena and its lower bound; without them where sizes are symbolic."""
        in_arena = [b for b in self.buffers if not self.is_dynamic(b.size)]
        if not all(isinstance(b.size, int) for b in in_arena):
            return tuple(plan.Buffer(b.size, b.first, b.last, None, b.memory) for b in self.buffers), None, None
        offsets: dict[int, int] = {}
        for each in Memory:
            held = [b for b in in_arena if b.memory is each]
            lifetimes = [memory.Lifetime(b.size, b.first, b.last) for b in held if isinstance(b.size, int)]
            arena = memory.place(lifetimes)
            offsets.update(zip(map(id, held), arena.offsets, strict=True))
            if each is Memory.HOST:
                size, bound = arena.size, memory.lower_bound(lifetimes)
        buffers = tuple(plan.Buffer(b.size, b.first, b.last, offsets.get(id(b)), b.memory) for b in self.buffers)
        return buffers, size, bound
