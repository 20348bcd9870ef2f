"""Operators whose result's size depends on data: NonZero, Compress, Unique, NonMaxSuppression."""

from __future__ import annotations

import numpy as np

from aotc import ops
from aotc.frontends.onnx.dynamic import LARGEST
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators.run_time import number, upper
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Expr


def _prefix(node: Node, x: Expr, count: Dim) -> Expr:
    """The first ``count`` rows."""
    shape = node.shape(x)
    return node.call(ops.slice_, x, begins=(0,) * len(shape), ends=(count, *shape[1:]), steps=(1,) * len(shape))


def _positions(node: Node, mask: Expr) -> tuple[Expr, Dim]:
    """The indices [count, rank] at which a tensor is not zero, and their count."""
    both = node.call(ops.nonzero_padded, mask)
    size = product(node.shape(mask))
    (count,) = node.measured(node.item(both, 1), "the number of elements found", [(0, upper(size))])
    return _prefix(node, node.item(both, 0), count), count


def _nonzero(node: Node) -> Results:
    x = node.input(0)
    if not node.rank(x):
        x = node.call(ops.reshape, x, shape=(1,))
    indices, _ = _positions(node, x)
    return node.call(ops.transpose, indices, axes=(1, 0))


def _compress(node: Node) -> Results:
    """The slices, or elements where no axis is given, that a condition marks. It may be shorter than the axis."""
    x, condition = node.input(0), node.input(1)
    if node.rank(condition) != 1:
        node.invalid("the condition must be booleans in one axis")
    axis = 0
    if node.has("axis"):
        axis = node.axis(node.integer("axis"), node.rank(x))
    else:
        x = node.call(ops.reshape, x, shape=(product(node.shape(x)),))
    if node.is_known(1):
        marked = np.flatnonzero(node.static_array(1, "the condition"))  # type: ignore[arg-type]
        return node.call(ops.gather, x, node.constant(marked, "int64"), axis=axis)
    indices, count = _positions(node, condition)
    return node.call(ops.gather, x, node.call(ops.reshape, indices, shape=(count,)), axis=axis)


def _non_max_suppression(node: Node) -> Results:
    boxes, scores = node.input(0), node.input(1)
    order = node.item(node.call(ops.top_k, scores, k=node.shape(scores)[-1], axis=-1), 1)
    most = _scalar(node, 2, 0, "int64")
    iou, least = _scalar(node, 3, 0.0, "float32"), _scalar(node, 4, -np.inf, "float32")
    both = node.call(ops.non_max_suppression, boxes, scores, order, most, iou, least, center=node.flag("center_point_box"))
    (count,) = node.measured(node.item(both, 1), "the number of boxes", [(0, upper(product(node.shape(scores))))])
    return _prefix(node, node.item(both, 0), count)


def _scalar(node: Node, index: int, default: float, dtype: str) -> Expr:
    given = node.optional(index)
    return node.constant(default, dtype) if given is None else node.call(ops.reshape, given, shape=())


def _unique(node: Node) -> Results:
    """The distinct elements, or slices along an axis; where each came first, which one each is, how often each came."""
    x, in_order = node.input(0), node.flag("sorted", True)
    if not node.has("axis"):
        flat = node.call(ops.reshape, x, shape=(product(node.shape(x)),))
        first, group = _groups_of_elements(node, flat)
        return _distinct(node, flat, 0, first, group if in_order else None)
    axis = node.axis(node.integer("axis"), node.rank(x))
    shape = node.shape(x)
    rows = node.call(ops.transpose, x, axes=(axis, *(i for i in range(len(shape)) if i != axis)))
    rows = node.call(ops.reshape, rows, shape=(shape[axis], product(dim for i, dim in enumerate(shape) if i != axis)))
    first, less = _groups_of_rows(node, rows)
    is_first = node.call(ops.equal, first, _count_up(node, shape[axis]))
    both = node.call(ops.logical_and, less, node.call(ops.reshape, is_first, shape=(1, shape[axis])))
    rank = node.call(ops.sum_, node.call(ops.cast, both, dtype="int64"), axes=(1,), keepdims=False) if in_order else None
    return _distinct(node, x, axis, first, rank)


def _count_up(node: Node, count: Dim) -> Expr:
    return node.call(ops.arange, start=0, step=1, count=count, dtype="int64")


def _groups_of_elements(node: Node, x: Expr) -> tuple[Expr, Expr]:
    """For each element the first place of an equal one, and the number of its value in ascending order."""
    (count,) = node.shape(x)
    both = node.call(ops.top_k, x, k=count, axis=0, largest=False)
    values, places = node.item(both, 0), node.item(both, 1)
    before = node.call(ops.maximum, node.call(ops.subtract, _count_up(node, count), number(node, 1)), number(node, 0))
    changed = node.call(ops.not_equal, values, node.call(ops.gather, values, before, axis=0))
    group = node.call(ops.cumsum, node.call(ops.cast, changed, dtype="int64"), axis=0)
    zeros = node.call(ops.full, shape=(count,), value=0, dtype="int64")
    group_of = node.call(ops.scatter_elements, zeros, places, group, axis=0)
    most = node.call(ops.full, shape=(count,), value=LARGEST, dtype="int64")
    first_of_group = node.call(ops.scatter_elements, most, group_of, _count_up(node, count), axis=0, reduction="min")
    return node.call(ops.gather, first_of_group, group_of, axis=0), group_of


def _groups_of_rows(node: Node, rows: Expr) -> tuple[Expr, Expr]:
    """For each row the first place of an equal one, and for pairs (i, j) whether row j comes before row i."""
    count, width = node.shape(rows)
    left = node.call(ops.reshape, rows, shape=(count, 1, width))
    right = node.call(ops.reshape, rows, shape=(1, count, width))
    differs = node.call(ops.not_equal, left, right)
    some = node.call(ops.any_, differs, axes=(2,), keepdims=False)
    first = node.call(ops.argmax, node.call(ops.cast, node.call(ops.logical_not, some), dtype="uint8"), axis=1, keepdims=False)
    place = node.call(ops.argmax, node.call(ops.cast, differs, dtype="uint8"), axis=2, keepdims=True)
    pair = (count, count, width)
    sides = [node.call(ops.gather_elements, node.call(ops.broadcast_to, side, shape=pair), place, axis=2) for side in (left, right)]
    less = node.call(ops.reshape, node.call(ops.less, sides[1], sides[0]), shape=(count, count))
    return first, less


def _distinct(node: Node, x: Expr, axis: int, first: Expr, rank: Expr | None) -> list[Expr]:
    """The four results. ``first``: the place of the first equal one, for each place; ``rank``: the number of each place's value,
    None for the order in which they come."""
    (count,) = node.shape(first)
    places = _count_up(node, count)
    is_first = node.call(ops.cast, node.call(ops.equal, first, places), dtype="int64")
    if rank is None:
        rank = node.call(ops.subtract, node.call(ops.cumsum, is_first, axis=0), number(node, 1))
    number_of = node.call(ops.gather, rank, first, axis=0)
    total = node.call(ops.sum_, is_first, axes=(0,), keepdims=False)
    (distinct,) = node.measured(total, "the number of distinct elements", [(0, upper(count))])
    most = node.call(ops.full, shape=(count,), value=LARGEST, dtype="int64")
    earliest = node.call(ops.scatter_elements, most, number_of, places, axis=0, reduction="min")
    zeros = node.call(ops.full, shape=(count,), value=0, dtype="int64")
    ones = node.call(ops.full, shape=(count,), value=1, dtype="int64")
    counts = node.call(ops.scatter_elements, zeros, number_of, ones, axis=0, reduction="add")
    first_place = _prefix(node, earliest, distinct)
    return [node.call(ops.gather, x, first_place, axis=axis), first_place, number_of, _prefix(node, counts, distinct)]


HANDLERS: dict[str, Handler] = {
    "NonZero": _nonzero,
    "Compress": _compress,
    "NonMaxSuppression": _non_max_suppression,
    "Unique": _unique,
}
