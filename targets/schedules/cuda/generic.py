"""The schedule that always applies: launches for any fused function, from its stages."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.stmt import ForKind

from aotc.targets.schedules import rowwise
from aotc.targets.schedules.cuda import columns, elementwise, rows
from aotc.targets.schedules.cuda.launch import Launch, threads_over
from aotc.targets.schedules.loops import const, sequence
from aotc.targets.schedules.program import Program, StageCode
from aotc.targets.schedules.stages import Stage, loads_of

Expr = Any


def launches(program: Program) -> list[Launch]:
    groups = rowwise.grouped(program, vectors_within=False)
    found: list[Launch] = []
    for position, group in enumerate(groups):
        later = {load.source for g in groups[position + 1 :] for stage in g.stages for load in _loads(program, stage)}
        first = group.stages[0]
        if first.opaque is not None:
            found += opaque(program, first)
        elif len(group.stages) > 1 or first.reduction or len(first.outputs) > 1:
            found.append(columns.launch(program, group, later) or rows.launch(program, group, later))
        else:
            found.append(elementwise.stage(StageCode(program, first)))
    return found


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
