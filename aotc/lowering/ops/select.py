"""Operators that pick what data tells them to pick: loops that count as they go, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, cast, constant, unravel
from aotc.lowering.ops.extern import extern, local

SCALAR: list[Expr] = []


def _nonzero_padded(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]
    size = scope.expr(results[0].shape[0])

    def body(source: Any, indices: Any, count: Any) -> None:
        with T.serial(0, 1):
            found = local("int32")
            found[0] = 0
            with T.serial(0, size) as flat:
                at = unravel(flat, x.shape)
                nonzero = common.differ(source[at], constant(0, common.dtype_of(x)))
                with T.If(nonzero), T.Then():
                    for axis, index in enumerate(at):
                        indices[found[0], axis] = cast(index, "int64")
                    found[0] = found[0] + 1
            count[SCALAR] = cast(found[0], "int64")

    shapes = [common.extents(scope, result.shape) for result in results]
    return extern(inputs, list(zip(shapes, (t.dtype for t in results), strict=True)), body, "nonzero")


def _corners(center: bool, boxes: Any, batch: Expr, box: Expr) -> list[Expr]:
    """Low and high of both axes."""
    a = [boxes[batch, box, side] for side in range(4)]
    if center:
        halves = [a[2] / constant(2, "float32"), a[3] / constant(2, "float32")]
        return [a[0] - halves[0], a[1] - halves[1], a[0] + halves[0], a[1] + halves[1]]
    return [tirx.min(a[0], a[2]), tirx.min(a[1], a[3]), tirx.max(a[0], a[2]), tirx.max(a[1], a[3])]


def _held(values: Sequence[Expr]) -> list[Any]:
    """Values in variables of their own."""
    variables = [local("float32") for _ in values]
    for variable, value in zip(variables, values, strict=True):
        variable[0] = value
    return [variable[0] for variable in variables]


def _overlap(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
    """Intersection over union of two boxes as (low, low, high, high)."""
    zero = constant(0, "float32")
    sides = [tirx.max(tirx.min(a[i + 2], b[i + 2]) - tirx.max(a[i], b[i]), zero) for i in (0, 1)]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    both = sides[0] * sides[1]
    return tirx.Select(tirx.any(areas[0] <= zero, areas[1] <= zero), zero, both / (areas[0] + areas[1] - both))


def _non_max_suppression(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    batches, classes, number = inputs[1].shape

    def body(boxes: Any, scores: Any, order: Any, most: Any, iou: Any, least: Any, chosen: Any, count: Any) -> None:
        with T.serial(0, 1):
            found, begin, keep, box = local("int32"), local("int32"), local("int32"), local("int32")
            found[0] = 0
            with T.serial(0, batches) as batch, T.serial(0, classes) as label:
                begin[0] = found[0]
                with T.serial(0, number) as place:
                    box[0] = cast(order[batch, label, place], "int32")
                    enough = cast(found[0] - begin[0], "int64") < most[SCALAR]
                    with T.If(tirx.all(enough, scores[batch, label, box[0]] > least[SCALAR])), T.Then():
                        keep[0] = 1
                        mine = _held(_corners(attrs.center, boxes, batch, box[0]))
                        with T.serial(0, found[0] - begin[0]) as earlier:
                            other = cast(chosen[begin[0] + earlier, 2], "int32")
                            overlap = _overlap(mine, _held(_corners(attrs.center, boxes, batch, other)))
                            with T.If(overlap > iou[SCALAR]), T.Then():
                                keep[0] = 0
                        with T.If(keep[0] == 1), T.Then():
                            for column, value in enumerate((batch, label, box[0])):
                                chosen[found[0], column] = cast(value, "int64")
                            found[0] = found[0] + 1
            count[SCALAR] = cast(found[0], "int64")

    shapes = [common.extents(scope, result.shape) for result in results]
    return extern(inputs, list(zip(shapes, (t.dtype for t in results), strict=True)), body, "non_max_suppression")


EXPRESSIONS: dict[str, Expression] = {"nonzero_padded": _nonzero_padded, "non_max_suppression": _non_max_suppression}
