"""Operators whose shape arguments are tensors that only a run knows: small integer arithmetic, then dims by ``define_dims``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc import ops
from aotc.frontends.onnx.dynamic import LARGEST
from aotc.frontends.onnx.node import Node
from aotc.ir.dims import Dim, bounds, minimum, product
from aotc.ir.expr import Constant, Expr
from aotc.ir.types import FLOATS
from aotc.ops.base import OpDef


def as_int64(node: Node, x: Expr) -> Expr:
    return x if node.dtype(x) == "int64" else node.call(ops.cast, x, dtype="int64")


def sizes(node: Node, values: Sequence[Dim]) -> Expr:
    """Dims as an int64 tensor."""
    if all(isinstance(value, int) for value in values):
        return node.constant(list(values), "int64")
    return node.call(ops.dims, values=tuple(values))


def number(node: Node, value: int) -> Constant:
    return node.constant(value, "int64")


def upper(dim: Dim) -> int | None:
    """The greatest that ``dim`` can be, where that is known."""
    return bounds(dim)[1]


def reshape(node: Node, x: Expr, wanted: Expr, keep_zero: bool) -> Expr:
    """``x`` in a shape that holds 0 for a dim of x (unless ``keep_zero``) and at most one -1."""
    old = node.shape(x)
    shape = as_int64(node, wanted)
    count = int(node.type(wanted).size)  # type: ignore[arg-type]
    if not keep_zero:
        kept = sizes(node, [*old[:count], *[0] * (count - len(old))])
        shape = node.call(ops.where, node.call(ops.equal, shape, number(node, 0)), kept, shape)
    free = node.call(ops.equal, shape, number(node, -1))
    given = node.call(ops.prod, node.call(ops.where, free, number(node, 1), shape), axes=(0,), keepdims=False)
    total = node.call(ops.reshape, sizes(node, [product(old)]), shape=())
    rest = node.call(ops.divide, total, node.call(ops.maximum, given, number(node, 1)))
    shape = node.call(ops.where, free, rest, shape)
    new = node.measured(shape, "the shape")
    checked = node.dynamic.check(x, [(product(old), product(new))], node.origin)
    return node.call(ops.reshape, checked, shape=new)


def expand(node: Node, x: Expr, wanted: Expr) -> Expr:
    """``x`` broadcast with a shape. A dim of x that is not surely 1 stays."""
    count = int(node.type(wanted).size)  # type: ignore[arg-type]
    rank = max(count, node.rank(x))
    old = [*[1] * (rank - node.rank(x)), *node.shape(x)]
    shape = as_int64(node, wanted)
    if count < rank:
        shape = node.call(ops.concat, node.constant([1] * (rank - count), "int64"), shape, axis=0)
    shape = node.call(ops.where, node.call(ops.equal, shape, number(node, 1)), sizes(node, old), shape)
    defined = node.dynamic.define_as(shape, node.origin, [None if dim == 1 else dim for dim in old])
    return node.call(ops.broadcast_to, x, shape=defined)


def parts(node: Node, x: Expr, axes: Sequence[int], starts: Expr, ends: Expr, steps: Sequence[int] | Expr) -> Expr:
    """ONNX's Slice with starts, ends and perhaps steps that a run gives, one for each of ``axes``."""
    extents = sizes(node, [node.shape(x)[axis] for axis in axes])
    step = steps if not isinstance(steps, Sequence) else node.constant(list(steps), "int64")
    step = as_int64(node, step)
    forward = node.call(ops.greater, step, number(node, 0))
    last = node.call(ops.subtract, extents, number(node, 1))
    limit = node.call(ops.where, forward, extents, last)
    begin = _within(node, as_int64(node, starts), extents, node.call(ops.where, forward, number(node, 0), number(node, 0)), limit)
    floor = node.call(ops.where, forward, number(node, 0), number(node, -1))
    end = _within(node, as_int64(node, ends), extents, floor, limit)
    # ceil((end - begin) / step), for steps of both signs.
    negated = node.call(ops.floor_divide, node.call(ops.subtract, begin, end), step)
    count = node.call(ops.maximum, node.call(ops.negative, negated), number(node, 0))
    limits = [(0, upper(node.shape(x)[axis])) for axis in axes]
    counts = node.measured(count, "the size of the slice", limits)
    for place, axis in enumerate(axes):
        at = [node.call(ops.slice_, each, begins=(place,), ends=(place + 1,), steps=(1,)) for each in (begin, step)]
        index = node.call(ops.arange, start=0, step=1, count=counts[place], dtype="int64")
        index = node.call(ops.add, at[0], node.call(ops.multiply, index, at[1]))
        x = node.call(ops.gather, x, index, axis=axis)
    return x


def _within(node: Node, position: Expr, extents: Expr, low: Expr, high: Expr) -> Expr:
    """Positions that count from the end where they are negative, held between two bounds."""
    negative = node.call(ops.less, position, number(node, 0))
    position = node.call(ops.where, negative, node.call(ops.add, position, extents), position)
    return node.call(ops.minimum, node.call(ops.maximum, position, low), high)


def pad_amounts(node: Node, pads: Expr, axes: Sequence[int], shape: Sequence[Dim]) -> list[tuple[Dim, ...]]:
    """What to add before and after, and what to cut off before and after, per axis in ``axes``: pads may be negative."""
    values = as_int64(node, pads)
    added = node.call(ops.maximum, values, number(node, 0))
    cut = node.call(ops.maximum, node.call(ops.negative, values), number(node, 0))
    limits = [(0, upper(shape[axis])) for axis in axes] * 2
    amounts = [*_halves(node.measured(added, "pads")), *_halves(node.measured(cut, "pads", limits))]
    return amounts


def _halves(dims: tuple[Dim, ...]) -> list[tuple[Dim, ...]]:
    return [dims[: len(dims) // 2], dims[len(dims) // 2 :]]


def range_(node: Node, start: Expr, limit: Expr, delta: Expr) -> Expr:
    """start, start + delta, ... below limit: as many as ceil((limit - start) / delta)."""
    dtype = node.dtype(start)
    flat = [node.call(ops.reshape, each, shape=()) for each in (start, limit, delta)]
    wide = [node.call(ops.cast, each, dtype="float64" if dtype in FLOATS else "int64") for each in flat]
    length = node.call(ops.subtract, wide[1], wide[0])
    if dtype in FLOATS:
        count = node.call(ops.cast, node.call(ops.ceil, node.call(ops.divide, length, wide[2])), dtype="int64")
    else:
        count = node.call(ops.negative, node.call(ops.floor_divide, node.call(ops.negative, length), wide[2]))
    count = node.call(ops.maximum, count, number(node, 0))
    (size,) = node.measured(count, "the length of the range", [(0, LARGEST)])
    index = node.call(ops.arange, start=0, step=1, count=size, dtype=dtype)
    return node.call(ops.add, flat[0], node.call(ops.multiply, index, flat[2]))


def trilu(node: Node, x: Expr, k: Expr, is_upper: bool) -> Expr:
    """The triangle from a diagonal that a run gives: where column - row and k compare so."""
    *_, rows, columns = node.shape(x)
    row = node.call(ops.reshape, node.call(ops.arange, start=0, step=1, count=rows, dtype="int64"), shape=(rows, 1))
    column = node.call(ops.arange, start=0, step=1, count=columns, dtype="int64")
    compare: OpDef = ops.greater_equal if is_upper else ops.less_equal
    kept = node.call(compare, node.call(ops.subtract, column, row), node.call(ops.reshape, as_int64(node, k), shape=()))
    zero: Any = False if node.dtype(x) == "bool" else 0
    return node.call(ops.where, kept, x, Constant(np.array(zero, node.dtype(x))))


def top_k(node: Node, x: Expr, k: Expr, axis: int, largest: bool, in_order: bool) -> list[Expr]:
    """The first k, which is at most the length of the axis."""
    whole = node.shape(x)[axis]
    (count,) = node.measured(node.call(ops.reshape, k, shape=(1,)), "k", [(0, upper(whole))])
    if not isinstance(whole, int):
        x = node.dynamic.check(x, [(count, minimum(count, whole))], node.origin)
    both = node.call(ops.top_k, x, k=count, axis=axis, largest=largest, sorted=in_order)
    return [node.item(both, i) for i in (0, 1)]
