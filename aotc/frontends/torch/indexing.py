"""Recipes of ATen's operators that take tensors of indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Operand, Recipe, axis_of, dtype_of, is_float, rank_of, shape_of
from aotc.frontends.torch.dynamic import without_masks
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Expr

aten = torch.ops.aten
REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def aten_embedding(b: Builder, weight: Expr, indices: Expr, *training_options: Any) -> Expr:
    return b.emit(ops.gather, weight, indices, axis=0)


def aten_index_select(b: Builder, x: Expr, dim: int, index: Expr) -> Expr:
    if not rank_of(x):
        return x
    index = index if rank_of(index) else b.reshape(index, (1,))
    return b.emit(ops.gather, x, index, axis=axis_of(dim, rank_of(x)))


def aten_gather(b: Builder, x: Expr, dim: int, index: Expr, sparse_grad: bool = False) -> Expr:
    if product(shape_of(index)) == 0:
        return b.emit(ops.full, shape=shape_of(index), value=0, dtype=dtype_of(x))  # torch takes such indices of any rank
    if not rank_of(x) or not rank_of(index):
        flat = b.reshape(x, (1,)) if not rank_of(x) else x
        return b.reshape(b.emit(ops.gather, flat, index, axis=0), b.shape)
    return b.emit(ops.gather_elements, x, index, axis=axis_of(dim, rank_of(x)))


def _placed(b: Builder, indices: Sequence[Expr | None]) -> list[tuple[int, Expr]]:
    """(axis, index) of each tensor given; a mask becomes the indices of what it marks."""
    return [(axis, index) for axis, index in enumerate(without_masks(b, indices)) if index is not None]


def _stacked(b: Builder, placed: Sequence[tuple[int, Expr]]) -> Expr:
    """The broadcast indices as one tensor [.., number of axes]."""
    shape = ops.base.broadcast_shapes(*(shape_of(index) for _, index in placed))
    columns = [b.broadcast(b.cast(index, "int64"), shape) for _, index in placed]
    return b.concat([b.reshape(column, (*shape, 1)) for column in columns], len(shape))


def aten_index(b: Builder, x: Expr, indices: Sequence[Expr | None]) -> Expr:
    """numpy's advanced indexing by integers."""
    placed = _placed(b, indices)
    rank, axes = rank_of(x), [axis for axis, _ in placed]
    if len(placed) == 1:
        return b.emit(ops.gather, x, placed[0][1], axis=axes[0])
    front = b.transpose(x, [*axes, *(axis for axis in range(rank) if axis not in axes)])
    stacked = _stacked(b, placed)
    picked = b.emit(ops.gather_nd, front, stacked)
    if axes != list(range(axes[0], axes[-1] + 1)) or axes[0] == 0:
        return picked
    count = rank_of(stacked) - 1  # the axes of the indices come first in ``picked``; they belong where the first index stood
    order = [*range(count, count + axes[0]), *range(count), *range(count + axes[0], rank_of(picked))]
    return b.transpose(picked, order)


def aten_index_put(b: Builder, x: Expr, indices: Sequence[Expr | None], values: Expr, accumulate: bool = False) -> Expr:
    values = b.cast(values, dtype_of(x))
    masks = [index for index in indices if index is not None and dtype_of(index) == "bool"]
    if len(indices) == 1 and masks and not rank_of(values):
        mask = b.reshape(masks[0], shape_of(masks[0]) + (1,) * (rank_of(x) - rank_of(masks[0])))
        filled = b.emit(ops.add, x, values) if accumulate else values
        return b.emit(ops.where, mask, filled, x)
    if len(indices) == 1 and masks:
        return _put_by_mask(b, x, masks[0], values, accumulate)
    placed = _placed(b, indices)
    rank, axes = rank_of(x), [axis for axis, _ in placed]
    neighbours = axes == list(range(axes[0], axes[-1] + 1))
    order = [*axes, *(axis for axis in range(rank) if axis not in axes)]
    front = b.transpose(x, order)
    stacked = _stacked(b, placed)
    picked: tuple[Dim, ...] = shape_of(stacked)[:-1]
    shape = shape_of(x)
    first = axes[0] if neighbours else 0  # where in the values the axes of the indices stand
    rest = [length for axis, length in enumerate(shape) if axis not in axes]
    own_shape = (*rest[:first], *picked, *rest[first:])
    own = b.broadcast(values, own_shape)
    count = len(picked)
    to_front = [*range(first, first + count), *range(first), *range(first + count, len(own_shape))]
    result = b.emit(ops.scatter_nd, front, stacked, b.transpose(own, to_front), reduction="add" if accumulate else "none")
    return b.transpose(result, [order.index(axis) for axis in range(rank)])


def _put_by_mask(b: Builder, x: Expr, mask: Expr, values: Expr, accumulate: bool) -> Expr:
    """The rows that a mask over the first axes marks become those of ``values``, in order."""
    shape, own = shape_of(x), shape_of(values)
    count, rest = product(shape_of(mask)), shape[rank_of(mask) :]
    flat = b.reshape(mask, (count,))
    rows = values
    if len(own) == len(rest) + 1 and own[0] != 1:
        place = b.emit(ops.cumsum, b.cast(flat, "int64"), axis=0, exclusive=True)
        rows = b.emit(ops.gather, values, b.emit(ops.minimum, place, b.tensor(own[0] - 1, "int64")), axis=0)
    old = b.reshape(x, (count, *rest))
    new = b.emit(ops.add, old, rows) if accumulate else rows
    return b.reshape(b.emit(ops.where, b.reshape(flat, (count, *(1,) * len(rest))), new, old), shape)


def _scatter(b: Builder, x: Expr, dim: int, index: Expr, updates: Expr, reduction: str) -> Expr:
    """torch lets updates be longer than the indices, and scalars stand for tensors of one element."""
    if not rank_of(x):
        return b.reshape(_scatter(b, b.reshape(x, (1,)), 0, index, updates, reduction), ())
    if not rank_of(index):
        index, updates = b.reshape(index, (1,)), b.reshape(updates, (1,))
    for axis, length in enumerate(shape_of(index)):
        updates = b.slice(updates, axis, 0, length)
    return b.emit(ops.scatter_elements, x, index, updates, axis=axis_of(dim, rank_of(x)), reduction=reduction)


def aten_scatter_src(b: Builder, x: Expr, dim: int, index: Expr, src: Expr, reduce: str | None = None) -> Expr:
    return _scatter(b, x, dim, index, src, REDUCTIONS[reduce] if reduce else "none")


def aten_scatter_value(b: Builder, x: Expr, dim: int, index: Expr, value: Operand, reduce: str | None = None) -> Expr:
    updates = b.broadcast(b.tensor(value, dtype_of(x)), shape_of(index))
    return _scatter(b, x, dim, index, updates, REDUCTIONS[reduce] if reduce else "none")


def aten_scatter_add(b: Builder, x: Expr, dim: int, index: Expr, src: Expr) -> Expr:
    return _scatter(b, x, dim, index, src, "add")


def aten_scatter_reduce(b: Builder, x: Expr, dim: int, index: Expr, src: Expr, reduce: str, include_self: bool = True) -> Expr:
    """Without ``include_self``, what is written to starts from the neutral value. A mean is a sum over a count."""
    if not rank_of(x):
        places, values = (each if rank_of(each) else b.reshape(each, (1,)) for each in (index, src))
        return b.reshape(aten_scatter_reduce(b, b.reshape(x, (1,)), 0, places, values, reduce, include_self), ())
    start, dtype = x, dtype_of(x)
    if not include_self:
        start = _scatter(b, x, dim, index, _full_like(b, index, _neutral(reduce, dtype), dtype), "none")
    if reduce != "mean":
        return _scatter(b, start, dim, index, src, REDUCTIONS[reduce])
    total = _scatter(b, start, dim, index, src, "add")
    count = _full_like(b, x, 1, dtype)
    if not include_self:
        count = _scatter(b, count, dim, index, _full_like(b, index, 0, dtype), "none")
    count = _scatter(b, count, dim, index, _full_like(b, index, 1, dtype), "add")
    return b.emit(ops.divide if is_float(dtype) else ops.floor_divide, total, count)


def _full_like(b: Builder, x: Expr, value: Any, dtype: str) -> Expr:
    return b.emit(ops.full, shape=shape_of(x), value=value, dtype=dtype)


def _neutral(reduce: str, dtype: str) -> Any:
    """What a reduction of nothing is."""
    if reduce in ("amax", "amin"):
        if is_float(dtype):
            return -np.inf if reduce == "amax" else np.inf
        limits = np.iinfo(dtype)
        return int(limits.min if reduce == "amax" else limits.max)
    return 1 if reduce == "prod" else 0


def aten_index_reduce(b: Builder, x: Expr, dim: int, index: Expr, source: Expr, reduce: str, include_self: bool = True) -> Expr:
    axis, index = _along_axis(b, x, dim, index)
    shape = shape_of(source)
    places = b.reshape(index, tuple(length if i == axis else 1 for i, length in enumerate(shape)))
    return aten_scatter_reduce(b, x, axis, b.broadcast(places, shape), source, reduce, include_self)


def aten_take(b: Builder, x: Expr, index: Expr) -> Expr:
    return b.emit(ops.gather, b.reshape(x, (product(shape_of(x)),)), index, axis=0)


def aten_put(b: Builder, x: Expr, index: Expr, source: Expr, accumulate: bool = False) -> Expr:
    count = (product(shape_of(index)),)
    flat = b.reshape(x, (product(shape_of(x)),))
    result = _scatter(b, flat, 0, b.reshape(index, count), b.reshape(source, count), "add" if accumulate else "none")
    return b.reshape(result, shape_of(x))


def _along_axis(b: Builder, x: Expr, dim: int, index: Expr) -> tuple[int, Expr]:
    """(axis, index as [n])."""
    return axis_of(dim, rank_of(x)), index if rank_of(index) else b.reshape(index, (1,))


def aten_index_add(b: Builder, x: Expr, dim: int, index: Expr, source: Expr, alpha: Any = 1) -> Expr:
    axis, index = _along_axis(b, x, dim, index)
    source = source if alpha == 1 else b.binary(ops.multiply, source, alpha, dtype_of(x))
    return aten_index_put(b, x, [None] * axis + [index], source, True)


def aten_index_copy(b: Builder, x: Expr, dim: int, index: Expr, source: Expr) -> Expr:
    axis, index = _along_axis(b, x, dim, index)
    return aten_index_put(b, x, [None] * axis + [index], source)


def aten_index_fill(b: Builder, x: Expr, dim: int, index: Expr, value: Operand) -> Expr:
    axis, index = _along_axis(b, x, dim, index)
    return aten_index_put(b, x, [None] * axis + [index], b.tensor(value, dtype_of(x)))


def aten_one_hot(b: Builder, x: Expr, classes: int = -1) -> Expr:
    if classes < 0:
        raise b.unsupported("one_hot without num_classes: the number depends on values")
    return b.emit(ops.one_hot, x, b.constant([0, 1], "int64"), depth=classes, axis=-1)


RECIPES: dict[Any, Recipe] = {
    aten.embedding.default: aten_embedding,
    aten.index_select.default: aten_index_select,
    aten.gather.default: aten_gather,
    aten.index.Tensor: aten_index,
    aten._unsafe_index.Tensor: aten_index,
    aten.index_put.default: aten_index_put,
    aten._unsafe_index_put.default: aten_index_put,
    aten.scatter.src: aten_scatter_src,
    aten.scatter.reduce: aten_scatter_src,
    aten.scatter.value: aten_scatter_value,
    aten.scatter.value_reduce: aten_scatter_value,
    aten.scatter_add.default: aten_scatter_add,
    aten.scatter_reduce.two: aten_scatter_reduce,
    aten.index_reduce.default: aten_index_reduce,
    aten.take.default: aten_take,
    aten.put.default: aten_put,
    aten.index_add.default: aten_index_add,
    aten.index_copy.default: aten_index_copy,
    aten.index_fill.int_Scalar: aten_index_fill,
    aten.index_fill.int_Tensor: aten_index_fill,
    aten.one_hot.default: aten_one_hot,
}
