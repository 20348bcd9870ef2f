"""Flat addresses: adjacent axes that every access walks together become one, and every buffer one-dimensional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal
from tvm_ffi.structural import structural_walk

from aotc.targets.schedules.rewrite import substitute
from aotc.targets.schedules.stages import Axis, loads_of

Expr = Any
Runs = Mapping[tirx.Var, "tuple[tuple[Axis, ...], Axis]"]
"""The first variable of a run of merged axes, to the run and the axis that stands for it."""


def is_unit(extent: Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent.value) == 1


def merged(axes: Sequence[Axis], exprs: Sequence[Expr]) -> tuple[list[Axis], Runs]:
    """Axes without those of extent 1, runs of contiguous ones merged; ``exprs`` are all that is computed over them."""
    kept = [axis for axis in axes if not is_unit(axis.extent)]
    runs: list[list[Axis]] = []
    for axis in kept:
        if runs and _walk_together(runs[-1][-1], axis, exprs):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    result: list[Axis] = []
    mapping: dict[tirx.Var, tuple[tuple[Axis, ...], Axis]] = {}
    for run in runs:
        if len(run) == 1:
            result.append(run[0])
            continue
        extent = run[0].extent
        for axis in run[1:]:
            extent = extent * axis.extent
        whole = Axis(tirx.Var("_".join(axis.var.name for axis in run), "int32"), extent)
        mapping[run[0].var] = (tuple(run), whole)
        result.append(whole)
    return result, mapping


def _walk_together(first: Axis, second: Axis, exprs: Sequence[Expr]) -> bool:
    """Whether the two variables occur only as neighbouring indices, the second covering its whole dim."""
    for expr in exprs:
        uses = [0, 0]

        def count(var: tirx.Var, uses: list[int] = uses) -> None:
            uses[0] += var.same_as(first.var)
            uses[1] += var.same_as(second.var)

        structural_walk(expr, (tirx.Var, count))
        if not uses[0] and not uses[1]:
            continue
        pairs = 0
        for load in loads_of(expr):
            indices, shape = _without_units(load.indices, load.source.shape)
            for position in range(len(indices) - 1):
                neighbours = _is(indices[position], first.var) and _is(indices[position + 1], second.var)
                pairs += neighbours and structural_equal(shape[position + 1], second.extent)
        if uses != [pairs, pairs]:
            return False
    return True


def _is(expr: Expr, var: tirx.Var) -> bool:
    return isinstance(expr, tirx.Var) and expr.same_as(var)


def _without_units(indices: Sequence[Expr], shape: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    pairs = [(index, extent) for index, extent in zip(indices, shape, strict=True) if not is_unit(extent)]
    return [index for index, _ in pairs], [extent for _, extent in pairs]


def collapsed(indices: Sequence[Expr], shape: Sequence[Expr], runs: Runs) -> tuple[list[Expr], list[Expr]]:
    """Indices and extents with unit dims gone and merged runs as one."""
    indices, shape = _without_units(indices, shape)
    new_indices, new_shape, position = [], [], 0
    while position < len(indices):
        index, length, extent = indices[position], 1, shape[position]
        run = runs.get(index) if isinstance(index, tirx.Var) else None
        if run is not None:
            length, index = len(run[0]), run[1].var
            for inner in shape[position + 1 : position + length]:
                extent = extent * inner  # the first dim may be longer than the axis: a part of it is walked
        new_indices.append(index)
        new_shape.append(extent)
        position += length
    return new_indices, new_shape


def stride(index: Expr, var: tirx.Var) -> int | None:
    """How far ``index`` moves for a step of ``var``; ``None`` where that is not a constant."""
    moved = Analyzer().simplify(substitute(index, {var: var + 1}) - index)
    return int(moved.value) if isinstance(moved, tirx.IntImm) else None


def unravel(offset: Expr, axes: Sequence[Axis]) -> dict[tirx.Var, Expr]:
    """The value of each axis at a flat position over all of them."""
    env: dict[tirx.Var, Expr] = {}
    for position in range(len(axes) - 1, -1, -1):
        axis = axes[position]
        if is_unit(axis.extent):
            env[axis.var] = tirx.const(0, "int32")
        elif all(is_unit(other.extent) for other in axes[:position]):
            env[axis.var] = offset
        else:
            env[axis.var] = tirx.floormod(offset, axis.extent)
            offset = tirx.floordiv(offset, axis.extent)
    return env
