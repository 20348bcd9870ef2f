"""A fused function while its loops are being written: which stages are inlined, where buffers live, flat expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.stmt import ForKind
from tvm_ffi import StructuralKey
from tvm_ffi.structural import structural_mutate, structural_walk

from aotc.targets.base import Target
from aotc.targets.schedules.address import collapsed, is_unit, merged
from aotc.targets.schedules.base import SCRATCH
from aotc.targets.schedules.loops import const, known, lanes_loop, loop, sequence
from aotc.targets.schedules.regions import Box, axis_of
from aotc.targets.schedules.rewrite import Computation, Rewriter, flat_index, local_buffer, read, substitute, write
from aotc.targets.schedules.stages import Stage, loads_of, read_stages, size_of

Expr = Any

EXPENSIVE = 12
"""Operations from which on a value is kept rather than computed twice: more than a store and a load from the cache cost."""
MANY = 8
"""Evaluations per element from which on even a cheap value is kept."""


@dataclass(frozen=True)
class Place:
    """Where a buffer lives: a flat buffer, in which ``base`` is the offset and the first ``skip`` indices do not count."""

    buffer: tirx.Buffer
    base: Expr | None = None
    skip: int = 0


class Program:
    def __init__(self, func: tirx.PrimFunc, target: Target) -> None:
        self.func, self.target = func, target
        self.stages = read_stages(func)
        self.buffers = [param for param in func.params if tirx.is_buffer_var(param)]
        self.places = {buffer: Place(tirx.decl_buffer([_elements(buffer)], buffer.dtype, buffer.name)) for buffer in self.buffers}
        self.params = [self.places[param].buffer if param in self.places else param for param in func.params]
        self.allocated: list[tirx.Buffer] = []
        self.producers = {output: stage for stage in self.stages for output in stage.outputs}
        self.inlined: dict[tirx.Buffer, Stage] = {}
        self._choose_inlined()
        self.kept = [stage for stage in self.stages if stage.output not in self.inlined and not _is_empty(stage)]
        self.values = {id(stage): self._whole_values(stage) for stage in self.kept}

    def _choose_inlined(self) -> None:
        """Consumers first, so that it is known how often each value would be computed."""
        evaluations: dict[tirx.Buffer, float] = {}
        pinned = set(self.buffers)
        for stage in reversed(self.stages):
            if stage.opaque is not None:
                pinned |= {load.source for load in loads_of(stage.opaque)}
                continue
            size, count = size_of(stage.axes), evaluations.get(stage.output, 0)
            fixed = stage.kept or stage.reduction or len(stage.outputs) > 1 or stage.output in pinned
            if fixed or _worth_keeping(operations(stage.values[0]), count / max(size, 1)):
                count = size_of((*stage.axes, *stage.reduction))
            else:
                self.inlined[stage.output] = stage
            for buffer, loads in _distinct_loads(stage.values).items():
                evaluations[buffer] = evaluations.get(buffer, 0) + loads * count

    def _whole_values(self, stage: Stage) -> tuple[Expr, ...]:
        """A stage's values over all that it inlines."""
        rewriter = Rewriter(tirx.BufferLoad, self.inlined)
        return tuple(rewriter.expression(value, {}) for value in stage.values)

    def inline(self, expr: Expr) -> Expr:
        return Rewriter(tirx.BufferLoad, self.inlined).expression(expr, {})

    def place(self, buffer: tirx.Buffer) -> Place:
        """Where a buffer lives; a new one in memory of its own where it has no place yet."""
        if buffer not in self.places:
            self.places[buffer] = Place(self.scratch(_elements(buffer), buffer))
        return self.places[buffer]

    def opaque(self, stage: Stage) -> tirx.Stmt:
        """A stage that is a statement, over flat buffers."""
        assert stage.opaque is not None

        def load(node: tvm.ir.TensorLoad, mutator: Any) -> Expr:
            indices = [mutator.mutate(index) for index in node.indices]
            buffer, at = self._address(node.source, indices, local)
            return read(buffer, at[0], str(node.ty)) if len(at) == 1 else tirx.BufferLoad(buffer, at)

        def store(node: tirx.stmt.BufferStore, mutator: Any) -> tirx.Stmt:
            indices = [mutator.mutate(index) for index in node.indices]
            buffer, at = self._address(node.buffer, indices, local)
            value = mutator.mutate(node.value)
            return write(buffer, at[0], value) if len(at) == 1 else tirx.BufferStore(buffer, value, at)

        local: set[tirx.Buffer] = set()
        structural_walk(stage.opaque, (tirx.AllocBuffer, lambda alloc: local.add(alloc.buffer)))
        return structural_mutate(stage.opaque, [(tvm.ir.TensorLoad, load), (tirx.stmt.BufferStore, store)])

    def _address(self, buffer: tirx.Buffer, indices: list[Expr], local: set[tirx.Buffer]) -> tuple[tirx.Buffer, list[Expr]]:
        if buffer in local:
            return buffer, indices
        return self.place(buffer).buffer, [flat_index(indices, buffer.shape)]

    def scratch(self, size: Expr, like: tirx.Buffer) -> tirx.Buffer:
        """Memory of ``size`` elements that the runtime provides."""
        buffer = local_buffer(str(like.dtype), size, f"{SCRATCH}{len(self.allocated)}")
        self.allocated.append(buffer)
        return buffer

    def finished(self, nests: Sequence[tirx.Stmt]) -> tirx.PrimFunc:
        """The scheduled function: root nests in order, over flat parameters."""
        body = sequence(nests) if nests else loop(0, lambda _: tirx.Evaluate(const(0)), ForKind.PARALLEL)
        block = tvm.s_tir.SBlock([], [], [], "root", body, None, self.allocated)
        return tirx.PrimFunc(self.params, tvm.s_tir.SBlockRealize([], True, block), self.func.ret_type, self.func.attrs)


class StageCode:
    """A stage whose first ``leading`` axes are fixed from outside: its other axes, merged, and its values at flat addresses."""

    def __init__(self, program: Program, stage: Stage, leading: int = 0, box: Box | None = None) -> None:
        self.program, self.stage = program, stage
        values, spatial = program.values[id(stage)], stage.axes[leading:]
        self.places = {axis.var: axis.var for axis in stage.axes}
        if box is not None:
            moved = [axis_of(axis, box.ranges[axis.var]) for axis in stage.axes]
            self.places = {axis.var: place for axis, (_, place) in zip(stage.axes, moved, strict=True)}
            values, spatial = (substitute(box.value, self.places),), tuple(axis for axis, _ in moved)
        stored = tirx.BufferLoad(stage.output, [self.places[axis.var] for axis in stage.axes])
        self.axes, runs = merged(spatial, [*values, stored])
        self.reduction, reduction_runs = merged(stage.reduction, values)
        self.runs = {**runs, **reduction_runs}
        self.units = {a.var: const(0) for a in (*stage.axes, *spatial, *stage.reduction) if is_unit(a.extent)}
        self.accumulators = tuple(tirx.Var(f"acc{i}", str(out.dtype)) for i, out in enumerate(stage.outputs))
        self.values = tuple(self._flat(value) for value in values)
        self.lanes = self._lanes()
        self.computation = Computation(self.values)

    def _flat(self, expr: Expr) -> Expr:
        return Rewriter(self._load).expression(expr, self.units)

    def _load(self, buffer: tirx.Buffer, indices: list[Expr]) -> Expr:
        if buffer in self.stage.outputs and self.stage.reduction:
            return self.accumulators[[out.same_as(buffer) for out in self.stage.outputs].index(True)]
        place = self.program.place(buffer)
        return read(place.buffer, self._offset(place, buffer, indices), str(buffer.dtype))

    def _offset(self, place: Place, buffer: tirx.Buffer, indices: Sequence[Expr]) -> Expr:
        offset = flat_index(*collapsed(indices[place.skip :], buffer.shape[place.skip :], self.runs))
        return offset if place.base is None else place.base + offset

    def stored(self, which: int) -> tvm.ir.TensorLoad:
        """The place that an output's element is stored to, as a load."""
        place = self.program.place(self.stage.outputs[which])
        indices = [substitute(self.places[axis.var], self.units) for axis in self.stage.axes]
        return tirx.BufferLoad(place.buffer, [self._offset(place, self.stage.outputs[which], indices)])

    def flat_source(self, expr: Expr) -> Expr:
        """Part of the stage's own expression, inlined and flat."""
        return self._flat(self.program.inline(expr))

    def store(self, which: int, env: Mapping[tirx.Var, Expr], value: Expr) -> tirx.Stmt:
        """Stores ``value`` at the place that ``env`` gives."""
        target = self.stored(which)
        return write(target.source, substitute(target.indices[0], env), value)

    def store_all(self, env: Mapping[tirx.Var, Expr]) -> tirx.Stmt:
        """Computes and stores an element of a stage without reduction."""
        buffers = self.computation.temporaries(1)
        return sequence([*map(tirx.AllocBuffer, buffers), *self._stored(env, buffers, const(0))])

    def store_lanes(self, lanes: int, env: Callable[[Expr], Mapping[tirx.Var, Expr]]) -> tirx.Stmt:
        """As ``store_all`` for a vector; ``env`` maps a lane to its indices."""
        buffers = self.computation.temporaries(lanes)
        vector = lanes_loop(lanes, lambda lane: sequence(self._stored(env(lane), buffers, lane)))
        return sequence([*map(tirx.AllocBuffer, buffers), vector])

    def _stored(self, env: Mapping[tirx.Var, Expr], buffers: Sequence[tirx.Buffer], at: Expr) -> list[tirx.Stmt]:
        statements, values = self.computation.emit(env, buffers, at)
        return [*statements, *(self.store(i, env, value) for i, value in enumerate(values))]

    def _lanes(self) -> int:
        """Vector lanes that suit the widest type computed with."""
        widest = max(_bits(str(buffer.dtype)) for buffer in self.stage.outputs)
        for value in self.values:
            found: list[str] = []
            structural_walk(value, ((tvm.ir.TensorLoad, tirx.Cast), lambda node, found=found: found.append(str(node.ty))))
            widest = max(widest, *map(_bits, found)) if found else widest
        return max(1, self.program.target.vector_bits // widest)


def _bits(dtype: str) -> int:
    return 8 if dtype == "bool" else int(dtype.lstrip("uintfloa"))


def _is_empty(stage: Stage) -> bool:
    """Whether a stage has no elements at all: then nothing reads them either."""
    return stage.opaque is None and any(known(axis.extent) == 0 for axis in stage.axes)


def _elements(buffer: tirx.Buffer) -> Expr:
    """The size of a buffer; at least 1, since TVM has no empty buffers."""
    size: Expr = const(1)
    for extent in buffer.shape:
        size = size * extent
    return const(1) if known(size) == 0 else size


def _worth_keeping(cost: int, repeats: float) -> bool:
    if cost == 0 or repeats <= 1.25:
        return False
    return cost >= EXPENSIVE or repeats >= MANY


def _distinct_loads(values: Sequence[Expr]) -> dict[tirx.Buffer, int]:
    """How many different elements of each buffer one evaluation reads, as far as the indices tell."""
    seen: dict[tirx.Buffer, set[StructuralKey]] = {}
    for value in values:
        for load in loads_of(value):
            seen.setdefault(load.source, set()).add(StructuralKey(list(load.indices)))  # type: ignore[call-arg]
    return {buffer: len(keys) for buffer, keys in seen.items()}


_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max, tirx.Select, tirx.Cast)


def operations(expr: Expr) -> int:
    """Arithmetic operations on values; index arithmetic is free, a condition counts as a few."""
    count = 0

    def visit(node: Any) -> None:
        nonlocal count
        if isinstance(node, tvm.ir.Call):
            count += 3 if "if_then_else" in str(node.op.name) else 8
        elif not str(node.ty).startswith("int32"):
            count += 1

    structural_walk(expr, ((*_ARITHMETIC, tvm.ir.Call), visit))
    return count
