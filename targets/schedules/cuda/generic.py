"""The schedule that always applies: launches for any fused function, from its stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.stmt import ForKind

from aotc.targets.schedules import rowwise
from aotc.targets.schedules.cuda import columns, elementwise, rows, tiled
from aotc.targets.schedules.cuda.contraction import stage_contraction
from aotc.targets.schedules.cuda.launch import Launch, threads_over
from aotc.targets.schedules.cuda.work import Work
from aotc.targets.schedules.loops import const, sequence
from aotc.targets.schedules.program import Program, StageCode
from aotc.targets.schedules.stages import Stage, loads_of

Expr = Any


def launches(work: Work, program: Program) -> list[Launch]:
    tiled_stages = _tiled(work, program)
    followers = {unit.follower for unit in tiled_stages.values()}
    for stage, unit in tiled_stages.items():  # as late as its reader: what stands between may then be grouped
        if unit.follower is not None:
            program.kept.remove(stage)
            program.kept.insert(program.kept.index(unit.follower), stage)
    groups = rowwise.grouped(program, vectors_within=False, alone={*tiled_stages, *followers})
    found: list[Launch] = []
    for position, group in enumerate(groups):
        first = group.stages[0]
        if first in tiled_stages:
            found += tiled_stages[first].launches
        elif first not in followers:
            later = {load.source for g in groups[position + 1 :] for stage in g.stages for load in _loads(program, stage)}
            found += _group(program, group, later)
    return found


def _group(program: Program, group: rowwise.Group, later: set[tirx.Buffer]) -> list[Launch]:
    first = group.stages[0]
    if first.opaque is not None:
        return opaque(program, first)
    if len(group.stages) > 1 or first.reduction or len(first.outputs) > 1:
        return [columns.launch(program, group, later) or rows.launch(program, group, later)]
    return [elementwise.stage(StageCode(program, first))]


@dataclass(frozen=True)
class _Unit:
    """A stage that is done in tiles, together with the stage that follows it, if any."""

    follower: Stage | None
    launches: list[Launch]


def _tiled(work: Work, program: Program) -> dict[Stage, _Unit]:
    """The contractions among the stages of a function that has several sums (attention)."""
    if sum(bool(stage.reduction) for stage in program.kept) < 2:
        return {}
    found: dict[Stage, _Unit] = {}
    for position, stage in enumerate(program.kept):
        follower = _follower(program, position)
        taken = [unit.follower for unit in found.values()]  # a sum of two products follows the first of them only
        for after in [follower, None] if follower is not None and follower not in taken else [None]:
            places, allocated = dict(program.places), list(program.allocated)
            problem = stage_contraction(program, stage, after)
            made = tiled.tiles(work, program, problem, f"tile{len(found)}") if problem is not None else None
            if made is not None:
                found[stage] = _Unit(after, made)
                break
            program.places, program.allocated = places, allocated
    return found


def _follower(program: Program, position: int) -> Stage | None:
    """The stage that alone reads this one, if it is no sum."""
    stage = program.kept[position]
    readers = [other for other in program.kept[position + 1 :] if any(load.source in stage.outputs for load in _loads(program, other))]
    if not stage.reduction or len(readers) != 1 or stage.output in program.buffers:
        return None
    (reader,) = readers
    return reader if reader.opaque is None and not reader.reduction and len(reader.outputs) == 1 else None


def _loads(program: Program, stage: Stage) -> list[Any]:
    parts = [stage.opaque] if stage.opaque is not None else program.values[id(stage)]
    return [load for part in parts for load in loads_of(part)]


def opaque(program: Program, stage: Stage) -> list[Launch]:
    """An operator that is written as loops: a launch for each of its statements, a thread for each step of a parallel loop."""
    stmt = program.opaque(stage)
    parts = list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]
    if any(isinstance(part, (tirx.AllocBuffer, tirx.stmt.Bind)) for part in parts):
        return [_threads(sequence(parts))]  # what it allocates is one thread's
    return [_threads(part) for part in parts]


def _threads(stmt: tirx.Stmt) -> Launch:
    if isinstance(stmt, tirx.For) and int(stmt.kind) == ForKind.PARALLEL:
        return threads_over(stmt.extent, lambda at: tirx.stmt.SeqStmt([tirx.stmt.Bind(stmt.loop_var, at + stmt.min), stmt.body]), 32)
    return Launch(stmt, const(1), 1)
