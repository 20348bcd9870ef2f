"""Reductions, softmax, the norms: threads in teams, a team for each row (one value of the axes that a group of stages shares).

A team is one thread, a warp, or the whole block. Its threads share the elements of a stage, and the steps of a sum: partial
results are combined by shuffles within a warp and through shared memory between warps, always in the same order. What
passes between the stages of a row lies in shared memory where it fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.stmt import ForKind

from aotc.targets.schedules.address import stride, unravel
from aotc.targets.schedules.cuda.elementwise import VECTOR_BYTES, VectorLoads, aligned, size, steps
from aotc.targets.schedules.cuda.launch import (
    BLOCK,
    THREAD,
    WARP,
    Launch,
    allocated,
    barrier,
    itemsize,
    shared,
    strided,
    threads_over,
    unrolled,
    warp_barrier,
)
from aotc.targets.schedules.loops import const, known, loop, nest, sequence
from aotc.targets.schedules.program import Place, Program, StageCode
from aotc.targets.schedules.reduction import ReductionCode
from aotc.targets.schedules.rewrite import Computation, local_buffer, read, write
from aotc.targets.schedules.rowwise import Group, row_env, work_of
from aotc.targets.schedules.stages import Axis, extent_of, loads_of, size_of

Expr = Any
Env = Mapping[tirx.Var, Expr]

SHARED_BYTES = 32 << 10
"""What the rows of a block take at most in shared memory that needs no opt-in; sums in flight come on top."""
WARP_WORK = 2048
"""Element operations of a row up to which a warp does it; longer ones get a block."""
BLOCK_THREADS = 256
ENOUGH_ROWS = 4096
"""Rows from which on there are threads enough with one each."""


@dataclass(frozen=True)
class Team:
    """``size`` threads that work on one row: 1, 32 or those of the whole block, of which there are ``threads``."""

    size: int
    threads: int

    @property
    def lane(self) -> Expr:
        return const(0) if self.size == 1 else THREAD if self.size == self.threads else tirx.truncmod(THREAD, const(self.size))

    @property
    def number(self) -> Expr:
        """Which team of its block it is."""
        return THREAD if self.size == 1 else const(0) if self.size == self.threads else tirx.truncdiv(THREAD, const(self.size))

    @property
    def count(self) -> int:
        return self.threads // self.size

    def wait(self) -> list[tirx.Stmt]:
        return [] if self.size == 1 else [warp_barrier() if self.size == WARP else barrier()]


def launch(program: Program, group: Group, later: set[tirx.Buffer]) -> Launch:
    """One launch for a group of stages. ``later`` are buffers that other launches read."""
    leading = group.stages[0].axes[: group.leading]
    rows = size(leading)
    team = _team(program, group, rows)
    buffers = _places(program, group, later, team, rows)
    parts: list[tirx.Stmt] = []

    def body(row: Expr) -> tirx.Stmt:
        for i, stage in enumerate(group.stages):
            code = StageCode(program, stage, group.leading)
            parts.extend(_stage(code, row_env(leading, stage, row), team))
            if i < len(group.stages) - 1:
                parts.extend(team.wait())
        return sequence(parts)

    if team.size == 1:
        return threads_over(rows, lambda row: sequence([*map(tirx.AllocBuffer, buffers), body(row)]))
    row = BLOCK * const(team.count) + team.number
    work = body(row)
    count = known(rows)
    if team.count > 1 and not (count is not None and count % team.count == 0):
        work = tirx.IfThenElse(row < rows, work, None)
    blocks = const(-(-count // team.count)) if count is not None else tirx.floordiv(rows + const(team.count - 1), const(team.count))
    return Launch(sequence([*map(tirx.AllocBuffer, buffers), work]), blocks, team.threads)


def _team(program: Program, group: Group, rows: Expr) -> Team:
    count = known(rows)
    row_work = sum(work_of(program, stage) for stage in group.stages) / max(size_of(group.stages[0].axes[: group.leading]), 1)
    enough = count is None or count >= ENOUGH_ROWS
    if row_work <= WARP or (enough and _along_rows(program, group) and row_work <= WARP_WORK):
        return Team(1, BLOCK_THREADS)
    if row_work <= WARP_WORK and (count is None or count > 1):
        return Team(WARP, 4 * WARP)
    return Team(BLOCK_THREADS, BLOCK_THREADS)


def _along_rows(program: Program, group: Group) -> bool:
    """Whether neighbouring rows read neighbouring elements, and nothing is left over from stage to stage but single values."""
    for stage in group.stages:
        code = StageCode(program, stage, group.leading)
        if code.axes:
            return False
        last = stage.axes[group.leading - 1].var if group.leading else None
        for value in code.values:
            if last is None or any(stride(load.indices[0], last) not in (0, 1) for load in loads_of(value)):
                return False
    return True


def _places(program: Program, group: Group, later: set[tirx.Buffer], team: Team, rows: Expr) -> list[tirx.Buffer]:
    """Gives what stays within the group a place: shared memory (registers where a team is one thread), or scratch."""
    buffers: list[tirx.Buffer] = []
    left = SHARED_BYTES // team.count
    for stage in group.stages:
        for output in stage.outputs:
            if output in program.places or output in later:
                continue
            elements: Expr = const(1)
            for extent in output.shape[group.leading :]:
                elements = elements * extent
            length = known(elements)
            if length is not None and length * itemsize(str(output.dtype)) <= (left if team.size > 1 else 64):
                length = max(length, 1)
                left -= length * itemsize(str(output.dtype))
                dtype = "uint8" if str(output.dtype) == "bool" else str(output.dtype)
                name = f"row{len(buffers)}"
                buffers.append(local_buffer(dtype, length, name) if team.size == 1 else shared(dtype, length * team.count, name))
                base = None if team.size == 1 else team.number * const(length)
                program.places[output] = Place(buffers[-1], base, group.leading)
            else:
                program.place(output)
    return buffers


def _stage(code: StageCode, env: Env, team: Team) -> list[tirx.Stmt]:
    """A stage of a row, by all threads of the team."""
    if code.stage.reduction:
        return _reduction(ReductionCode(code), env, team)
    if not code.axes:
        return [_alone(team, code.store_all(env))]
    return [_over(code, env, team, code.store_all)]


def _alone(team: Team, stmt: tirx.Stmt) -> tirx.Stmt:
    return stmt if team.size == 1 else tirx.IfThenElse(tirx.EQ(team.lane, const(0)), stmt, None)


def _over(code: StageCode, env: Env, team: Team, element: Any) -> tirx.Stmt:
    """``element`` for all that the row has of the stage."""
    return strided(size(code.axes), team.lane, team.size, lambda at: element({**env, **unravel(at, code.axes)}))


def _reduction(reduction: ReductionCode, env: Env, team: Team) -> list[tirx.Stmt]:
    axes = reduction.code.axes
    elements = known(size(axes))
    if team.size == 1:
        return [nest([axis.extent for axis in axes], lambda i: reduction.in_order({**env, **_named(axes, i)}))]
    if elements is None or elements >= team.size or reduction.combiner is None:
        if not axes:
            return [_alone(team, reduction.in_order(env))]
        return [_over(reduction.code, env, team, reduction.in_order)]
    return [nest([axis.extent for axis in axes], lambda i: together(reduction, {**env, **_named(axes, i)}, team))]


def _named(axes: Sequence[Any], indices: Sequence[Expr]) -> dict[tirx.Var, Expr]:
    return {axis.var: index for axis, index in zip(axes, indices, strict=True)}


def together(reduction: ReductionCode, env: Env, team: Team) -> tirx.Stmt:
    """One sum by all threads of a team; its first thread stores it."""
    combine, dtype = reduction.combiner, str(reduction.stage.output.dtype)
    assert combine is not None
    held, other, parts = local_buffer(dtype, 1, "held"), local_buffer(dtype, 1, "other"), reduction.steps.temporaries(1)
    first = const(0)

    def both() -> tirx.Stmt:
        return write(held, first, combine(reduction.held(held, first), read(other, first, dtype)))

    def exchange(distance: int) -> tirx.Stmt:
        stored = tirx.call_extern(str(held.dtype), "aotc_shuffle", tirx.BufferLoad(held, [first]), const(distance))
        return sequence([tirx.BufferStore(other, stored, [first]), both()])

    statements = [
        *map(tirx.AllocBuffer, [held, other, *parts]),
        reduction.initial([held], first),
        _accumulated(reduction, held, parts, env, team),
        *(exchange(distance) for distance in (16, 8, 4, 2, 1)),
    ]
    if team.size > WARP:
        statements += _across_warps(held, other, both, team)
    return sequence([*statements, _alone(team, reduction.finish([held], first, env))])


def _accumulated(reduction: ReductionCode, held: tirx.Buffer, parts: Sequence[tirx.Buffer], env: Env, team: Team) -> tirx.Stmt:
    """A thread's share of the steps: vectors along the last reduced axis where all that moves along it allows that."""
    *outer, inner = reduction.code.reduction
    lanes = _step_lanes(reduction, inner, team)
    if lanes == 1:

        def step(at: Expr) -> tirx.Stmt:
            return reduction.update([held], parts, const(0), {**env, **unravel(at, [*outer, inner])})

        return strided(size([*outer, inner]), team.lane, team.size, step, "k")
    unit = Axis(tirx.Var("unit", "int32"), const(extent_of(inner.extent) // lanes))
    combine, dtype = reduction.combiner, str(reduction.stage.output.dtype)
    assert combine is not None

    def vector(at: Expr) -> tirx.Stmt:
        here = {**env, **unravel(at, [*outer, unit])}
        here[inner.var] = here[unit.var] * const(lanes)
        loader = VectorLoads(inner.var, lanes, here)
        computation = Computation([loader.expression(reduction.source, {})])
        between = computation.temporaries(1)

        def one(lane: Expr) -> tirx.Stmt:
            statements, (value,) = computation.emit({**here, inner.var: here[inner.var] + lane, loader.lane: lane}, between, const(0))
            total = combine(read(held, const(0), dtype), value)
            return allocated(between, *statements, write(held, const(0), total))

        return allocated(loader.buffers, *loader.statements, unrolled(lanes, one, "lane"))

    return strided(size([*outer, unit]), team.lane, team.size, vector, "k")


def _step_lanes(reduction: ReductionCode, inner: Axis, team: Team) -> int:
    extent = known(inner.extent)
    if extent is None:
        return 1
    moving = [load for load in loads_of(reduction.source) if steps(load, inner.var) != 0]
    lanes = min((VECTOR_BYTES // itemsize(str(load.source.dtype)) for load in moving), default=1)
    while lanes > 1 and (extent % lanes or extent < lanes * team.size or not all(aligned(load, inner.var, lanes) for load in moving)):
        lanes //= 2
    return lanes


def _across_warps(held: tirx.Buffer, other: tirx.Buffer, both: Any, team: Team) -> list[tirx.Stmt]:
    """The first thread combines what the warps have."""
    warps, first = team.size // WARP, const(0)
    partial = shared(str(held.dtype), warps, "partial")
    warp, lane = tirx.truncdiv(THREAD, const(WARP)), tirx.truncmod(THREAD, const(WARP))
    kept = tirx.BufferStore(partial, tirx.BufferLoad(held, [first]), [warp])

    def add(i: Expr) -> tirx.Stmt:
        return sequence([tirx.BufferStore(other, tirx.BufferLoad(partial, [i + const(1)]), [first]), both()])

    rest = loop(warps - 1, add, ForKind.SERIAL, "w")
    return [
        tirx.AllocBuffer(partial),
        barrier(),
        tirx.IfThenElse(tirx.EQ(lane, first), kept, None),
        barrier(),
        tirx.IfThenElse(tirx.EQ(THREAD, first), rest, None),
    ]
