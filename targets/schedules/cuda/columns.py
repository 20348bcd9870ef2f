"""Sums with results side by side: depthwise convolutions, pools and sums over blocked channels, sums of columns.

A thread takes a vector of neighbouring results of up to 16 bytes and runs through all that is summed: each access is a whole vector,
and conditions (padding) are asked once a vector. What follows element by element is done before the results are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx

from aotc.targets.schedules.address import unravel
from aotc.targets.schedules.cuda.elementwise import VECTOR_BYTES, VectorLoads, aligned, move, size, steps
from aotc.targets.schedules.cuda.launch import Launch, address, allocated, call, itemsize, threads_over, unrolled
from aotc.targets.schedules.loops import const, known, nest, sequence
from aotc.targets.schedules.program import Place, Program, StageCode
from aotc.targets.schedules.reduction import ReductionCode, combiner_of
from aotc.targets.schedules.rewrite import Computation, local_buffer, read, substitute, write
from aotc.targets.schedules.rowwise import Group
from aotc.targets.schedules.stages import Axis, Stage, extent_of, loads_of

Expr = Any
Env = Mapping[tirx.Var, Expr]

LANE = tirx.Var("lane", "int32")
"""The number of a result in its thread's vector."""
LONGEST = 256
"""Steps of a sum up to which one thread does it whatever the number of results."""
ENOUGH = 8192
"""Vectors of results from which on it does longer ones, too."""


def launch(program: Program, group: Group, later: set[tirx.Buffer]) -> Launch | None:
    """``None`` for a group that is not one sum and what follows it element by element, or whose vectors are none."""
    first = group.stages[0]
    if not first.reduction or combiner_of(first) is None or any(stage.reduction or stage.opaque is not None for stage in group.stages[1:]):
        return None
    if any(len(stage.axes) != group.leading or len(stage.outputs) != 1 for stage in group.stages) or not first.axes:
        return None
    if any(output in later and output not in program.places for stage in group.stages for output in stage.outputs):
        return None
    column = _Column(program, group)
    if column.lanes == 1 or not _suits(group, column.lanes):
        column.restore()
        return None
    inner = first.axes[-1]
    unit = Axis(tirx.Var("unit", "int32"), const(extent_of(inner.extent) // column.lanes))
    axes = [*first.axes[:-1], unit]

    def body(at: Expr) -> tirx.Stmt:
        env = unravel(at, axes)
        return column.emit({**{axis.var: env[axis.var] for axis in first.axes[:-1]}, inner.var: env[unit.var] * const(column.lanes)})

    found = replace(threads_over(size(axes), body), written=column.written)
    column.restore()
    return found


def _suits(group: Group, lanes: int) -> bool:
    """Whether one thread may do a whole sum: it is short, or there are many."""
    first = group.stages[0]
    length, results = known(size(first.reduction)), known(size(first.axes))
    return (length is not None and length <= LONGEST) or results is None or results // lanes >= ENOUGH


class _Column:
    """The statements of one thread, which has ``lanes`` results."""

    def __init__(self, program: Program, group: Group) -> None:
        self.program, self.group, self.leading = program, group, group.stages[0].axes
        self.held = {stage: local_buffer(str(stage.output.dtype), VECTOR_BYTES, f"column{i}") for i, stage in enumerate(group.stages)}
        self.outer = {stage: program.places[stage.output] for stage in group.stages if stage.output in program.places}
        self.stored = {stage: self._code(stage).stored(0) for stage in self.outer}
        self.written = tuple(place.buffer for place in self.outer.values())
        for stage in group.stages:  # results are stored at the very end: until then they are only in the thread's vectors
            program.places[stage.output] = Place(self.held[stage], LANE, group.leading)
        self.lanes = self._lanes()

    def restore(self) -> None:
        """Results that are stored lie where they did, for the launches behind this one."""
        for stage in self.group.stages:
            del self.program.places[stage.output]
        self.program.places.update({stage.output: place for stage, place in self.outer.items()})

    def _code(self, stage: Stage) -> StageCode:
        return StageCode(self.program, stage, self.group.leading)

    def _lanes(self) -> int:
        """As many results as are one vector wherever they are read or written."""
        extent = known(self.leading[-1].extent)
        if extent is None:
            return 1
        moving: list[tuple[Any, tirx.Var]] = []
        for stage in self.group.stages:
            code, var = self._code(stage), stage.axes[-1].var
            found = [load for value in code.values for load in loads_of(value) if load.source not in self.held.values()]
            moving += [(load, var) for load in found if steps(load, var) != 0]
            moving += [(self.stored[stage], var)] if stage in self.stored else []
        lanes = min((VECTOR_BYTES // itemsize(str(load.source.dtype)) for load, _ in moving), default=1)
        while lanes > 1 and (extent % lanes or not all(aligned(load, var, lanes) for load, var in moving)):
            lanes //= 2
        return lanes

    def emit(self, env: Env) -> tirx.Stmt:
        parts = [self._sum(self.group.stages[0], env)]
        parts += [self._element(stage, env) for stage in self.group.stages[1:]]
        return allocated(list(self.held.values()), *parts, *self._stores(env))

    def _at(self, stage: Stage, env: Env) -> dict[tirx.Var, Expr]:
        return {own.var: env[axis.var] for axis, own in zip(self.leading, stage.axes, strict=True)}

    def _sum(self, stage: Stage, env: Env) -> tirx.Stmt:
        code = self._code(stage)
        reduction = ReductionCode(code)
        held, here, inner = self.held[stage], self._at(stage, env), stage.axes[-1].var
        combine = reduction.combiner
        assert combine is not None

        def step(reduced: Sequence[Expr]) -> tirx.Stmt:
            at = {**here, **dict(zip((axis.var for axis in code.reduction), reduced, strict=True))}
            loader = VectorLoads(inner, self.lanes, at)
            computation = Computation([loader.expression(reduction.source, {})])
            parts = computation.temporaries(1)

            def one(lane: Expr) -> tirx.Stmt:
                statements, (value,) = computation.emit({**at, inner: at[inner] + lane, loader.lane: lane}, parts, const(0))
                total = read(held, lane, str(stage.output.dtype))
                return allocated(parts, *statements, write(held, lane, combine(total, value)))

            return allocated(loader.buffers, *loader.statements, unrolled(self.lanes, one, "lane"))

        start = unrolled(self.lanes, lambda lane: write(held, lane, stage.inits[0]), "lane")
        return sequence([start, nest([axis.extent for axis in code.reduction], step)])

    def _element(self, stage: Stage, env: Env) -> tirx.Stmt:
        code = self._code(stage)
        here, inner = self._at(stage, env), stage.axes[-1].var
        loader = VectorLoads(inner, self.lanes, here)
        computation = Computation([loader.expression(value, {}) for value in code.values])
        parts = computation.temporaries(1)

        def one(lane: Expr) -> tirx.Stmt:
            at = {**here, inner: here[inner] + lane, loader.lane: lane, LANE: lane}
            statements, (value,) = computation.emit(at, parts, const(0))
            return allocated(parts, *statements, write(self.held[stage], lane, value))

        return allocated(loader.buffers, *loader.statements, unrolled(self.lanes, one, "lane"))

    def _stores(self, env: Env) -> list[tirx.Stmt]:
        stores = []
        for stage, target in self.stored.items():
            held, place = self.held[stage], address(target.source, substitute(target.indices[0], self._at(stage, env)))
            stores.append(call(move(str(held.dtype), self.lanes), place, address(held, const(0))))
        return stores
