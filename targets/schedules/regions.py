"""Cutting a stage into boxes within which its conditions are decided: one loop nest for each input of a concat, for the inside
and each side of a padded tensor. Within a box there is nothing left to ask, so vectors load and store whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal
from tvm_ffi.structural import structural_walk

from aotc.targets.schedules.loops import const, known
from aotc.targets.schedules.rewrite import IF_THEN_ELSE, Rewriter
from aotc.targets.schedules.stages import Axis, Stage

Expr = Any
Range = tuple[Expr, Expr]

MOST_BOXES = 16


@dataclass(frozen=True)
class Box:
    """``value`` where each axis lies in its range [low, high)."""

    ranges: Mapping[tirx.Var, Range]
    value: Expr


@dataclass(frozen=True)
class Bound:
    """A condition that is ``below`` where ``axis`` is less than ``at``, and the opposite from there on."""

    condition: Expr
    axis: tirx.Var
    at: Expr
    below: bool


def boxes(stage: Stage, value: Expr) -> list[Box]:
    """The boxes of a stage without reduction; a single one where nothing can be decided or there would be too many."""
    whole: dict[tirx.Var, Range] = {axis.var: (const(0), axis.extent) for axis in stage.axes}
    found = _split(stage, Box(whole, value))
    return found if len(found) <= MOST_BOXES else [Box(whole, value)]


def _split(stage: Stage, box: Box) -> list[Box]:
    bound = _first_bound(stage, box.value)
    if bound is None:
        return [box]
    low, high = box.ranges[bound.axis]
    middle = _simple(tirx.max(low, tirx.min(bound.at, high)))
    found: list[Box] = []
    for part, decided in (((low, middle), bound.below), ((middle, high), not bound.below)):
        if known(_simple(part[1] - part[0])) == 0:
            continue
        value = _decided(box.value, bound.condition, decided)
        found += _split(stage, Box({**box.ranges, bound.axis: part}, value))
        if len(found) > MOST_BOXES:
            break
    return found


def _simple(expr: Expr) -> Expr:
    return Analyzer().simplify(expr)


def _first_bound(stage: Stage, value: Expr) -> Bound | None:
    """The first condition of a branch that one axis alone decides."""
    axes = {axis.var for axis in stage.axes}
    found: list[Bound] = []

    def visit(call: tvm.ir.Call) -> None:
        if not found and call.op.same_as(IF_THEN_ELSE):
            found.extend(bound for bound in (_bound(c, axes) for c in _parts(call.args[0])) if bound is not None)

    structural_walk(value, (tvm.ir.Call, visit), order="pre")
    return found[0] if found else None


def _parts(condition: Expr) -> list[Expr]:
    if isinstance(condition, tirx.And):
        return [*_parts(condition.a), *_parts(condition.b)]
    return [condition]


def _bound(condition: Expr, axes: set[tirx.Var]) -> Bound | None:
    if not isinstance(condition, (tirx.LT, tirx.GE)) or not isinstance(condition.a, tirx.Var) or condition.a not in axes:
        return None
    varying: list[Any] = []
    structural_walk(condition.b, ((tirx.Var, tvm.ir.TensorLoad), varying.append))
    if any(isinstance(node, tvm.ir.TensorLoad) or node in axes or tirx.is_buffer_var(node) for node in varying):
        return None
    return Bound(condition, condition.a, condition.b, isinstance(condition, tirx.LT))


class _Decider(Rewriter):
    def __init__(self, condition: Expr, decided: bool) -> None:
        super().__init__(tirx.BufferLoad)
        self.condition, self.decided = condition, decided

    def _visit(self, expr: Expr, env: Mapping[tirx.Var, Expr]) -> Expr:
        if isinstance(expr, (tirx.LT, tirx.GE)) and structural_equal(expr, self.condition):
            return tirx.const(self.decided, "bool")
        return super()._visit(expr, env)


def _decided(value: Expr, condition: Expr, decided: bool) -> Expr:
    return _Decider(condition, decided).expression(value, {})


def axis_of(axis: Axis, span: Range) -> tuple[Axis, Expr]:
    """An axis over a range as one from 0, and the value of the old variable in terms of the new."""
    low, high = span
    if known(low) == 0:
        return Axis(axis.var, high), axis.var
    moved = Axis(tirx.Var(axis.var.name, "int32"), _simple(high - low))
    return moved, moved.var + low
