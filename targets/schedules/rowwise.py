"""Several stages in one pass over common leading axes: softmax, the normalisations, a reduction and what follows it.

For each row (one value of the leading axes) the stages run one after the other while the row is in the cache. What passes
between them lives in a row of scratch per task, on the stack where it is small.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_equal

from aotc.targets.schedules import elementwise
from aotc.targets.schedules.address import is_unit, unravel
from aotc.targets.schedules.loops import const, known, rows_in_task, sequence, tasks_over
from aotc.targets.schedules.program import Place, Program, StageCode, operations
from aotc.targets.schedules.reduction import LEAST_LANES, ReductionCode
from aotc.targets.schedules.rewrite import local_buffer
from aotc.targets.schedules.stages import Axis, Stage, extent_of, loads_of, size_of

Expr = Any

STACK_BYTES = 512
"""What one kernel's rows may take on the stack; the vectors in registers come on top."""
TINY = 4096
"""Element operations below which stages share one task whatever their axes: a kernel's start costs more."""


@dataclass
class Group:
    """Stages of one nest and the number of leading axes that they share."""

    stages: list[Stage]
    leading: int


def grouped(program: Program, vectors_within: bool = True, alone: Collection[Stage | None] = ()) -> list[Group]:
    """The kept stages in order, in groups that may run row by row. Opaque stages stand alone. ``vectors_within``: a row is as long as
    a vector where a single element would be possible, for machines whose vectors run within a row. Stages of ``alone`` are groups of their own."""
    groups: list[Group] = []
    for stage in program.kept:
        last = groups[-1] if groups else None
        apart = last is None or stage in alone or last.stages[0] in alone
        joined = _joined(program, last, stage) if last is not None and not apart else None
        if joined is None:
            groups.append(Group([stage], _rank(program, stage)))
        else:
            groups[-1] = joined
    for group in groups:
        if vectors_within and len(group.stages) > 1 and _sums_side_by_side(group):
            group.leading -= 1
    return groups


def _sums_side_by_side(group: Group) -> bool:
    """Whether a row would be a single element, of reductions whose neighbours along the last axis are neighbours in memory: then
    vectors run along that axis, within the row."""
    if any(len(stage.axes) != group.leading or not stage.axes for stage in group.stages):
        return False
    last = [extent_of(stage.axes[-1].extent) for stage in group.stages]
    reductions = [stage for stage in group.stages if stage.reduction]
    return min(last) >= LEAST_LANES and bool(reductions) and all(map(_steps_along_last, reductions))


def _steps_along_last(stage: Stage) -> bool:
    var = stage.axes[-1].var
    loads = [load for value in stage.values for load in loads_of(value) if not load.source.same_as(stage.output)]
    return bool(loads) and all(isinstance(load.indices[-1], tirx.Var) and load.indices[-1].same_as(var) for load in loads)


def work_of(program: Program, stage: Stage) -> float:
    """Element operations of a stage, unknown extents guessed."""
    cost = max(1.0, sum(operations(value) for value in program.values[id(stage)]) / 8)
    return size_of((*stage.axes, *stage.reduction)) * cost


def _rank(program: Program, stage: Stage) -> int:
    return len(stage.axes)


def _joined(program: Program, group: Group, stage: Stage) -> Group | None:
    if stage.opaque is not None or group.stages[0].opaque is not None:
        return None
    if _static(stage) and all(map(_static, group.stages)) and sum(work_of(program, s) for s in (*group.stages, stage)) <= TINY:
        return Group([*group.stages, stage], min(group.leading, _common(program, group, stage)))
    leading = _common(program, group, stage)
    if leading == 0:
        return None
    rows = [size_of(group.stages[0].axes[:n]) for n in (group.leading, leading)]
    few = rows[1] < min(rows[0], 2 * program.target.cores)
    return None if few else Group([*group.stages, stage], leading)


def _static(stage: Stage) -> bool:
    return all(known(axis.extent) is not None for axis in (*stage.axes, *stage.reduction))


def _common(program: Program, group: Group, stage: Stage) -> int:
    """How many leading axes ``stage`` shares with the group: equal extents, and everything read at the same place."""
    first = group.stages[0]
    limit = min(group.leading, len(stage.axes))
    count = 0
    while count < limit and structural_equal(first.axes[count].extent, stage.axes[count].extent):
        count += 1
    inside = {output for member in group.stages for output in member.outputs}
    for value in program.values[id(stage)]:
        for load in loads_of(value):
            if load.source in inside:
                count = min(count, _matching(stage, load))
    return count


def _matching(stage: Stage, load: tvm.ir.TensorLoad) -> int:
    """How many leading indices of a load are the stage's own axes."""
    count = 0
    for axis, index, extent in zip(stage.axes, load.indices, load.source.shape, strict=False):
        own = isinstance(index, tirx.Var) and index.same_as(axis.var)
        if not own and not (is_unit(extent) and is_unit(axis.extent)):
            break
        count += 1
    return count


def emit(program: Program, group: Group, later: set[tirx.Buffer]) -> tirx.Stmt:
    """One nest for a group of several stages. ``later`` are buffers that other nests read."""
    leading = group.stages[0].axes[: group.leading]
    rows: Expr = const(1)
    for axis in leading:
        rows = rows * axis.extent
    work = sum(work_of(program, stage) for stage in group.stages) / max(size_of(leading), 1)
    task = tirx.Var("task", "int32")
    local = _row_places(program, group, later, task, rows_in_task(rows, work))

    def body(at_task: Expr, row: Expr) -> tirx.Stmt:
        parts: list[tirx.Stmt] = [tirx.stmt.Bind(task, at_task)]
        parts += [tirx.AllocBuffer(buffer) for buffer in local]
        for stage in group.stages:
            fixed = row_env(leading, stage, row)
            code = StageCode(program, stage, group.leading)
            parts.append(ReductionCode(code).row(fixed) if stage.reduction else elementwise.whole(code, fixed))
        return sequence(parts)

    return tasks_over(rows, work, body)


def row_env(leading: Sequence[Axis], stage: Stage, row: Expr) -> Mapping[tirx.Var, Expr]:
    values = unravel(row, leading)
    return {own.var: values[axis.var] for axis, own in zip(leading, stage.axes, strict=False)}


def _row_places(program: Program, group: Group, later: set[tirx.Buffer], task: tirx.Var, tasks: Expr) -> list[tirx.Buffer]:
    """Gives what stays within the group a row of scratch; returns the rows that live on the stack."""
    stack, left = [], STACK_BYTES
    for stage in group.stages:
        for output in stage.outputs:
            if output in program.places or output in later:
                continue
            size: Expr = const(1)
            for extent in output.shape[group.leading :]:
                size = size * extent
            size = const(1) if known(size) == 0 else size
            elements = known(size)
            bytes_ = extent_of(size, STACK_BYTES + 1) * _itemsize(str(output.dtype))
            if elements is not None and bytes_ <= left:
                left -= bytes_
                row = local_buffer(str(output.dtype), size, output.name)
                stack.append(row)
                program.places[output] = Place(row, None, group.leading)
            else:
                program.places[output] = Place(program.scratch(tasks * size, output), task * size, group.leading)
    return stack


def _itemsize(dtype: str) -> int:
    return tvm.DataType(dtype).itemsize
