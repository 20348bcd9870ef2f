"""Recipes of ATen's operators that sample, fold, measure distances, look tables up, and draw random numbers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Operand, Recipe, dtype_of, is_float, promoted, rank_of, shape_of
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Expr
from aotc.ops import random

aten = torch.ops.aten


def aten_grid_sampler(b: Builder, x: Expr, grid: Expr, interpolation: int, padding: int, align_corners: bool) -> Expr:
    mode, outside = ("linear", "nearest", "cubic")[interpolation], ("zeros", "border", "reflection")[padding]
    return b.emit(ops.grid_sample, x, grid, mode=mode, padding=outside, align_corners=align_corners)


def aten_col2im(
    b: Builder, x: Expr, output_size: Sequence[Dim], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Any
) -> Expr:
    batched = x if rank_of(x) == 3 else b.reshape(x, (1, *shape_of(x)))
    how = {"image": tuple(output_size), "kernel": tuple(kernel), "strides": tuple(stride), "dilation": tuple(dilation)}
    result = b.emit(ops.fold, batched, padding=(*padding, *padding), **how)
    return result if batched is x else b.reshape(result, shape_of(result)[1:])


def aten_embedding_bag(
    b: Builder,
    weight: Expr,
    indices: Expr,
    offsets: Expr,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Expr | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Expr | None, ...]:
    """Rows of a table summed, averaged or the greatest taken over bags, each from its offset to the next."""
    if b.used_outputs - {0}:
        raise b.unsupported("embedding_bag's results for training")
    (count,), (bags,) = shape_of(indices), shape_of(offsets)
    bags = bags - 1 if include_last_offset else bags
    starts = b.cast(b.slice(offsets, 0, 0, bags), "int64")
    place = b.reshape(b.emit(ops.arange, start=0, step=1, count=count, dtype="int64"), (count, 1))
    passed = b.cast(b.emit(ops.greater_equal, place, starts), "int64")
    bag = b.emit(ops.subtract, b.emit(ops.sum_, passed, axes=(1,)), b.constant(1, "int64"))
    rows, dtype = b.emit(ops.gather, weight, indices, axis=0), dtype_of(weight)
    width = shape_of(rows)[1]
    counted = b.emit(ops.not_equal, b.cast(indices, "int64"), b.constant(padding_idx, "int64"))
    if per_sample_weights is not None:
        rows = b.emit(ops.multiply, rows, b.reshape(per_sample_weights, (count, 1)))
    neutral = -math.inf if mode == 2 else 0
    rows = b.emit(ops.where, b.reshape(counted, (count, 1)), rows, b.constant(neutral, dtype))
    start = b.emit(ops.full, shape=(bags, width), value=neutral, dtype=dtype)
    to = b.reshape(bag, (count, 1))
    result = b.emit(ops.scatter_nd, start, to, rows, reduction="max" if mode == 2 else "add")
    none = b.emit(ops.full, shape=(bags,), value=0, dtype=dtype)
    sizes = b.reshape(b.emit(ops.scatter_nd, none, to, b.cast(counted, dtype), reduction="add"), (bags, 1))
    if mode == 1:
        result = b.emit(ops.divide, result, b.emit(ops.maximum, sizes, b.constant(1, dtype)))
    if mode == 2:
        result = b.emit(ops.where, b.binary(ops.greater, sizes, 0, dtype), result, b.constant(0, dtype))
    return result, None, None, None


def aten_embedding_renorm(b: Builder, weight: Expr, indices: Expr, max_norm: float, norm_type: float) -> Expr:
    """The rows that are looked up, made no longer than ``max_norm``."""
    rows, dtype = shape_of(weight)[0], dtype_of(weight)
    zero = b.emit(ops.full, shape=shape_of(weight), value=0, dtype=dtype)
    length = b.reshape(_distance(b, weight, zero, norm_type), (rows, 1))
    shorter = b.binary(ops.divide, max_norm, b.binary(ops.add, length, 1e-7, dtype), dtype)
    count = (product(shape_of(indices)),)
    none = b.emit(ops.full, shape=(rows,), value=0, dtype="int64")
    one = b.emit(ops.full, shape=count, value=1, dtype="int64")
    used = b.emit(ops.scatter_elements, none, b.reshape(indices, count), one, axis=0)
    changed = b.emit(ops.logical_and, b.reshape(b.cast(used, "bool"), (rows, 1)), b.binary(ops.greater, length, max_norm, dtype))
    return b.emit(ops.where, changed, b.emit(ops.multiply, weight, shorter), weight)


def _distance(b: Builder, x: Expr, y: Expr, p: float) -> Expr:
    """The p-norm of x - y over the last axis."""
    dtype, axes = dtype_of(x), (rank_of(x) - 1,)
    size = b.emit(ops.abs_, b.emit(ops.subtract, x, y))
    if p == 0:
        return b.emit(ops.sum_, b.cast(b.binary(ops.not_equal, size, 0, dtype), dtype), axes=axes)
    if p == 1:
        return b.emit(ops.sum_, size, axes=axes)
    if p == 2:
        return b.emit(ops.sqrt, b.emit(ops.sum_, b.emit(ops.multiply, size, size), axes=axes))
    if p == math.inf:
        return b.emit(ops.max_, size, axes=axes)
    total = b.emit(ops.sum_, b.binary(ops.power, size, float(p), dtype), axes=axes)
    return b.binary(ops.power, total, 1 / p, dtype)


def aten_cdist(b: Builder, x: Expr, y: Expr, p: float, compute_mode: int | None = None) -> Expr:
    """[.., n, width] and [.., m, width] -> [.., n, m]."""
    *batch, n, width = shape_of(x)
    *other, m, _ = shape_of(y)
    shape = ops.base.broadcast_shapes((*batch, n, 1, width), (*other, 1, m, width))
    left, right = b.reshape(x, (*batch, n, 1, width)), b.reshape(y, (*other, 1, m, width))
    return _distance(b, b.broadcast(left, shape), right, p)


def aten_pdist(b: Builder, x: Expr, p: float = 2) -> Expr:
    rows = shape_of(x)[0]
    if not isinstance(rows, int):
        raise b.unsupported("pdist of a number of rows that is known only at run time")
    pairs = torch.triu_indices(rows, rows, 1).numpy()
    left, right = (b.emit(ops.gather, x, b.constant(places, "int64"), axis=0) for places in pairs)
    return _distance(b, left, right, p)


def aten_searchsorted(
    b: Builder,
    table: Expr,
    x: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Expr | None = None,
) -> Expr:
    """How many entries of each row of the table are below a value, or not above it for the right side."""
    if sorter is not None:
        table = b.emit(ops.gather_elements, table, sorter, axis=rank_of(table) - 1)
    right = right if side is None else side == "right"
    dtype = dtype_of(table)
    value = b.tensor(x, dtype)
    *rows, length = shape_of(table)
    shape = shape_of(value)
    spread = b.reshape(table, (*rows, 1, length)) if rows else table
    passed = b.emit(ops.less_equal if right else ops.less, spread, b.reshape(value, (*shape, 1)))
    return b.emit(ops.sum_, b.cast(passed, b.dtype), axes=(len(shape),))


def aten_bucketize(b: Builder, x: Operand, boundaries: Expr, *, out_int32: bool = False, right: bool = False) -> Expr:
    return aten_searchsorted(b, boundaries, x, right=right)


def aten_isin(b: Builder, elements: Operand, tests: Operand, *, assume_unique: bool = False, invert: bool = False) -> Expr:
    dtype = promoted(elements, tests)
    x, y = b.tensor(elements, dtype), b.tensor(tests, dtype)
    equal = b.emit(ops.equal, b.reshape(x, (*shape_of(x), 1)), b.reshape(y, (product(shape_of(y)),)))
    found = b.emit(ops.any_, equal, axes=(rank_of(x),))
    return b.emit(ops.logical_not, found) if invert else found


# Random numbers: each place in the model has a stream of its own, which is the same in every run ----------------------


def _key(b: Builder) -> tuple[int, int]:
    return zlib.crc32(b.origin.encode()), 0


def _uniform(b: Builder) -> Expr:
    return random.uniform(b.shape, _key(b), b.dtype if is_float(b.dtype) else "float32", origin=b.origin)


def aten_rand(b: Builder, *args: Any, **options: Any) -> Expr:
    return _uniform(b)


def aten_randn(b: Builder, *args: Any, **options: Any) -> Expr:
    return random.normal(b.shape, _key(b), b.dtype, b.origin)


def aten_randint(b: Builder, low: int, high: int, size: Any, **options: Any) -> Expr:
    wide = random.uniform(b.shape, _key(b), "float64", origin=b.origin)
    whole = b.emit(ops.floor, b.binary(ops.multiply, wide, high - low, "float64"))
    return b.cast(b.binary(ops.add, whole, low, "float64"), b.dtype)


def aten_randint_high(b: Builder, high: int, size: Any, **options: Any) -> Expr:
    return aten_randint(b, 0, high, size)


def aten_randperm(b: Builder, count: Dim, **options: Any) -> Expr:
    both = b.emit(ops.top_k, random.uniform((count,), _key(b), "float64", origin=b.origin), k=count, axis=0)
    return b.cast(b.item(both, 1), b.dtype)


def aten_bernoulli(b: Builder, x: Expr, p: float | None = None, **options: Any) -> Expr:
    chance = b.constant(p, b.dtype) if p is not None else b.cast(x, b.dtype)
    return b.cast(b.emit(ops.less, _uniform(b), chance), b.dtype)


RECIPES: dict[Any, Recipe] = {
    aten.grid_sampler.default: aten_grid_sampler,
    aten.grid_sampler_2d.default: aten_grid_sampler,
    aten.grid_sampler_3d.default: aten_grid_sampler,
    aten.col2im.default: aten_col2im,
    aten._embedding_bag.default: aten_embedding_bag,
    aten._embedding_bag_forward_only.default: aten_embedding_bag,
    aten.embedding_renorm.default: aten_embedding_renorm,
    aten._cdist_forward.default: aten_cdist,
    aten._pdist_forward.default: aten_pdist,
    aten.searchsorted.Tensor: aten_searchsorted,
    aten.searchsorted.Scalar: aten_searchsorted,
    aten.bucketize.Tensor: aten_bucketize,
    aten.bucketize.Scalar: aten_bucketize,
    aten.isin.Tensor_Tensor: aten_isin,
    aten.isin.Tensor_Scalar: aten_isin,
    aten.isin.Scalar_Tensor: aten_isin,
    aten.rand.default: aten_rand,
    aten.rand_like.default: aten_rand,
    aten.randn.default: aten_randn,
    aten.randn_like.default: aten_randn,
    aten.randint.default: aten_randint_high,
    aten.randint.low: aten_randint,
    aten.randperm.default: aten_randperm,
    aten.bernoulli.default: aten_bernoulli,
    aten.bernoulli.p: aten_bernoulli,
}
