"""The schedule that always applies, and is decent: it writes the loops of any fused function from its stages."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx

from aotc.targets.schedules import elementwise, rowwise
from aotc.targets.schedules.address import unravel
from aotc.targets.schedules.base import Work
from aotc.targets.schedules.loops import TASK_WORK, ceildiv, const, known, tasks_over
from aotc.targets.schedules.program import Program, StageCode
from aotc.targets.schedules.reduction import ReductionCode
from aotc.targets.schedules.regions import Box, boxes
from aotc.targets.schedules.stages import Axis, Stage, loads_of, size_of

Expr = Any


def schedule(work: Work) -> s_tir.Schedule:
    func = write(work.schedule.mod["main"], work.target)
    return s_tir.Schedule(tvm.IRModule({"main": func}), debug_mask="none")


def write(func: tirx.PrimFunc, target: Any) -> tirx.PrimFunc:
    """Loops for the stages of an unscheduled PrimFunc."""
    program = Program(func, target)
    groups = rowwise.grouped(program)
    nests: list[tirx.Stmt] = []
    for position, group in enumerate(groups):
        later = {load.source for g in groups[position + 1 :] for stage in g.stages for load in _loads(program, stage)}
        nests += _nests(program, group, later)
    return program.finished(nests)


def _loads(program: Program, stage: Stage) -> list[tvm.ir.TensorLoad]:
    parts = [stage.opaque] if stage.opaque is not None else program.values[id(stage)]
    return [load for part in parts for load in loads_of(part)]


def _nests(program: Program, group: rowwise.Group, later: set[tirx.Buffer]) -> list[tirx.Stmt]:
    first = group.stages[0]
    if first.opaque is not None:
        return [program.opaque(first)]
    if len(group.stages) > 1:
        return [rowwise.emit(program, group, later)]
    if first.reduction or len(first.outputs) > 1 or rowwise.work_of(program, first) < rowwise.TINY:
        return [single(program, first)]
    return [single(program, first, box) for box in boxes(first, program.values[id(first)][0])]


def single(program: Program, stage: Stage, box: Box | None = None) -> tirx.Stmt:
    """A nest for one stage: tasks over all axes but the one that vectors run along, and over pieces of that."""
    code = StageCode(program, stage, box=box)
    reduction = ReductionCode(code) if stage.reduction else None
    per_element = rowwise.work_of(program, stage) / max(size_of(stage.axes), 1)
    if reduction is not None and reduction.vector_axis != "spatial":
        return tasks_over(_size(code.axes), per_element, lambda _, row: reduction.element(unravel(row, code.axes)))
    if not code.axes:  # one task: what stands at the root without a loop would become a kernel a statement
        return tasks_over(const(1), per_element, lambda _, row: code.store_all({}))
    *outer, inner = code.axes

    def part(env: Any, low: Expr, extent: Expr) -> tirx.Stmt:
        return reduction.range(env, low, extent) if reduction else elementwise.inner_range(code, env, low, extent)

    piece = max(64, int(TASK_WORK // max(per_element, 1)) // 64 * 64)
    length = known(inner.extent)
    if length is not None and length < 2 * piece:
        return tasks_over(_size(outer), per_element * length, lambda _, row: part(unravel(row, outer), const(0), inner.extent))
    return _in_pieces(outer, inner, piece, part)


def _in_pieces(outer: list[Axis], inner: Axis, piece: int, part: Any) -> tirx.Stmt:
    """Tasks over pieces of the last axis."""
    pieces = ceildiv(inner.extent, piece)

    def task(_: Expr, position: Expr) -> tirx.Stmt:
        row, which = (tirx.floordiv(position, pieces), tirx.floormod(position, pieces)) if outer else (const(0), position)
        low = which * const(piece)
        return part(unravel(row, outer), low, tirx.min(const(piece), inner.extent - low))

    return tasks_over(_size(outer) * pieces, TASK_WORK, task)


def _size(axes: list[Axis]) -> Expr:
    size: Expr = const(1)
    for axis in axes:
        size = size * axis.extent
    return size
