"""Recipes of ATen's reductions, running sums and sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Recipe, axes_of, axis_of, dtype_of, is_float, rank_of, shape_of
from aotc.ir.dims import Dim, floordiv, product
from aotc.ir.expr import Expr
from aotc.ops import OpDef

aten = torch.ops.aten
Axes = Sequence[int] | int | None


def _reduce(b: Builder, op: OpDef, x: Expr, axes: Axes, keepdim: bool) -> Expr:
    return b.emit(op, x, axes=axes_of(axes, rank_of(x)), keepdims=keepdim)


def aten_sum(b: Builder, x: Expr, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Expr:
    return _reduce(b, ops.sum_, b.cast(x, b.dtype), dim, keepdim)


def aten_mean(b: Builder, x: Expr, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Expr:
    return _reduce(b, ops.mean, b.cast(x, b.dtype), dim, keepdim)


def aten_prod(b: Builder, x: Expr, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Expr:
    return _reduce(b, ops.prod, b.cast(x, b.dtype), dim, keepdim)


def aten_amax(b: Builder, x: Expr, dim: Axes = (), keepdim: bool = False) -> Expr:
    return _reduce(b, ops.any_ if dtype_of(x) == "bool" else ops.max_, x, dim, keepdim)


def aten_amin(b: Builder, x: Expr, dim: Axes = (), keepdim: bool = False) -> Expr:
    return _reduce(b, ops.all_ if dtype_of(x) == "bool" else ops.min_, x, dim, keepdim)


def _logic(op: OpDef) -> Recipe:
    def recipe(b: Builder, x: Expr, dim: Axes = None, keepdim: bool = False) -> Expr:
        return b.cast(_reduce(b, op, b.cast(x, "bool"), dim, keepdim), b.dtype)

    return recipe


def aten_max_dim(b: Builder, x: Expr, dim: int, keepdim: bool = False) -> tuple[Expr | None, Expr | None]:
    values = aten_amax(b, x, dim, keepdim) if 0 in b.used_outputs else None
    return values, aten_argmax(b, x, dim, keepdim) if 1 in b.used_outputs else None


def aten_min_dim(b: Builder, x: Expr, dim: int, keepdim: bool = False) -> tuple[Expr | None, Expr | None]:
    values = aten_amin(b, x, dim, keepdim) if 0 in b.used_outputs else None
    return values, aten_argmin(b, x, dim, keepdim) if 1 in b.used_outputs else None


def _index_of(op: OpDef) -> Recipe:
    """Over all elements where no axis is given."""

    def recipe(b: Builder, x: Expr, dim: int | None = None, keepdim: bool = False) -> Expr:
        rank = rank_of(x)
        x = b.cast(x, "uint8") if dtype_of(x) == "bool" else x
        if dim is not None or rank == 0:
            return b.emit(op, x, axis=axis_of(dim or 0, rank), keepdims=keepdim)
        flat = b.emit(op, b.reshape(x, (product(shape_of(x)),)), axis=0, keepdims=False)
        return b.reshape(flat, (1,) * rank) if keepdim else flat

    return recipe


aten_argmax = _index_of(ops.argmax)
aten_argmin = _index_of(ops.argmin)


def _moments(b: Builder, x: Expr, dim: Axes, correction: Any, keepdim: bool) -> tuple[Expr, Expr]:
    """(variance, mean): the mean of squares of what is left after subtracting the mean, in float32 for float16."""
    axes = axes_of(dim, rank_of(x))
    dtype = dtype_of(x)
    wide = b.cast(x, "float32") if dtype == "float16" else x
    mean = b.emit(ops.mean, wide, axes=axes, keepdims=True)
    rest = b.emit(ops.subtract, wide, mean)
    total = b.emit(ops.sum_, b.emit(ops.multiply, rest, rest), axes=axes, keepdims=keepdim)
    count: Dim = product(shape_of(x)[axis] for axis in axes)
    correction = 1 if correction is None else correction
    divisor = b.binary(ops.subtract, b.tensor(count, dtype_of(wide)), correction, dtype_of(wide))
    if isinstance(count, int):
        divisor = b.constant(max(count - correction, 0), dtype_of(wide))
    variance = b.emit(ops.divide, total, divisor)
    if not keepdim:
        mean = b.reshape(mean, shape_of(variance))
    return b.cast(variance, dtype), b.cast(mean, dtype)


def aten_var(b: Builder, x: Expr, dim: Axes = None, correction: Any = None, keepdim: bool = False) -> Expr:
    return _moments(b, x, dim, correction, keepdim)[0]


def aten_std(b: Builder, x: Expr, dim: Axes = None, correction: Any = None, keepdim: bool = False) -> Expr:
    return b.emit(ops.sqrt, aten_var(b, x, dim, correction, keepdim))


def aten_var_mean(b: Builder, x: Expr, dim: Axes = None, correction: Any = None, keepdim: bool = False) -> tuple[Expr, Expr]:
    return _moments(b, x, dim, correction, keepdim)


def aten_std_mean(b: Builder, x: Expr, dim: Axes = None, correction: Any = None, keepdim: bool = False) -> tuple[Expr, Expr]:
    variance, mean = _moments(b, x, dim, correction, keepdim)
    return b.emit(ops.sqrt, variance), mean


def aten_logsumexp(b: Builder, x: Expr, dim: Axes, keepdim: bool = False) -> Expr:
    """log(sum(exp(x - max))) + max; a maximum that is infinite is not subtracted."""
    axes = axes_of(dim, rank_of(x))
    x = b.cast(x, b.dtype)
    greatest = b.emit(ops.max_, x, axes=axes, keepdims=True)
    finite = b.emit(ops.less, b.emit(ops.abs_, greatest), b.constant(float("inf"), b.dtype))
    shift = b.emit(ops.where, finite, greatest, b.constant(0, b.dtype))
    total = b.emit(ops.sum_, b.emit(ops.exp, b.emit(ops.subtract, x, shift)), axes=axes, keepdims=keepdim)
    return b.emit(ops.add, b.emit(ops.log, total), b.reshape(shift, shape_of(total)))


def aten_vector_norm(b: Builder, x: Expr, ord: Any = 2, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Expr:
    axes = axes_of(dim, rank_of(x))
    x = b.cast(x, b.dtype)
    size = b.emit(ops.abs_, x)
    if ord in (float("inf"), float("-inf")):
        return b.emit(ops.max_ if ord > 0 else ops.min_, size, axes=axes, keepdims=keepdim)
    if ord == 0:
        return b.emit(ops.sum_, b.cast(b.binary(ops.not_equal, x, 0, b.dtype), b.dtype), axes=axes, keepdims=keepdim)
    if ord == 1:
        return b.emit(ops.sum_, size, axes=axes, keepdims=keepdim)
    if ord == 2:
        return b.emit(ops.sqrt, b.emit(ops.sum_, b.emit(ops.multiply, x, x), axes=axes, keepdims=keepdim))
    powers = b.emit(ops.sum_, b.binary(ops.power, size, float(ord), b.dtype), axes=axes, keepdims=keepdim)
    return b.binary(ops.power, powers, 1 / ord, b.dtype)


def aten_cumsum(b: Builder, x: Expr, dim: int, dtype: Any = None) -> Expr:
    x = b.cast(x, b.dtype)
    return b.emit(ops.cumsum, x, axis=axis_of(dim, rank_of(x))) if rank_of(x) else x


def aten_topk(b: Builder, x: Expr, k: Dim, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Expr, Expr]:
    if not rank_of(x):
        return x, b.constant(0, "int64")
    both = b.emit(ops.top_k, x, k=k, axis=axis_of(dim, rank_of(x)), largest=largest, sorted=sorted)
    return b.item(both, 0), b.item(both, 1)


def aten_sort(b: Builder, x: Expr, dim: int = -1, descending: bool = False) -> tuple[Expr, Expr]:
    if not rank_of(x):
        return x, b.constant(0, "int64")
    length = shape_of(x)[axis_of(dim, rank_of(x))]
    values, indices = aten_topk(b, b.cast(x, "uint8") if dtype_of(x) == "bool" else x, length, dim, descending)
    return b.cast(values, dtype_of(x)), indices


def aten_sort_stable(b: Builder, x: Expr, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Expr, Expr]:
    return aten_sort(b, x, dim, descending)


def aten_argsort(b: Builder, x: Expr, dim: int = -1, descending: bool = False, stable: bool = False) -> Expr:
    return aten_sort(b, x, dim, descending)[1]


def aten_count_nonzero(b: Builder, x: Expr, dim: Axes = None) -> Expr:
    zero = b.tensor(x, "bool") if not is_float(dtype_of(x)) else b.binary(ops.not_equal, x, 0, dtype_of(x))
    return _reduce(b, ops.sum_, b.cast(zero, "int64"), dim, False)


def aten_cumprod(b: Builder, x: Expr, dim: int, dtype: Any = None) -> Expr:
    x = b.cast(x, b.dtype)
    return b.emit(ops.cumprod, x, axis=axis_of(dim, rank_of(x))) if rank_of(x) else x


def _running_extreme(op: OpDef) -> Recipe:
    """The extreme so far, and the last place where it was met."""

    def recipe(b: Builder, x: Expr, dim: int) -> tuple[Expr, Expr | None]:
        if not rank_of(x):
            return x, b.constant(0, "int64")
        axis, shape = axis_of(dim, rank_of(x)), shape_of(x)
        plain = b.cast(x, "uint8") if dtype_of(x) == "bool" else x
        values = b.emit(op, plain, axis=axis)
        if 1 not in b.used_outputs:
            return b.cast(values, dtype_of(x)), None
        here = b.emit(ops.equal, plain, values)
        if is_float(dtype_of(x)):
            here = b.emit(ops.logical_or, here, b.emit(ops.isnan, plain))
        place = b.emit(ops.arange, start=0, step=1, count=shape[axis], dtype="int64")
        place = b.reshape(place, tuple(shape[axis] if i == axis else 1 for i in range(len(shape))))
        met = b.emit(ops.where, here, place, b.constant(0, "int64"))
        return b.cast(values, dtype_of(x)), b.emit(ops.cummax, met, axis=axis)

    return recipe


def aten_logcumsumexp(b: Builder, x: Expr, dim: int) -> Expr:
    """Against the greatest of all along the axis: what is more than 87 below it counts as nothing."""
    axis = axis_of(dim, rank_of(x))
    greatest = b.emit(ops.max_, x, axes=(axis,), keepdims=True)
    powers = b.emit(ops.exp, b.emit(ops.subtract, x, greatest))
    return b.emit(ops.add, b.emit(ops.log, b.emit(ops.cumsum, powers, axis=axis)), greatest)


def aten_kthvalue(b: Builder, x: Expr, k: Dim, dim: int = -1, keepdim: bool = False) -> tuple[Expr, Expr]:
    values, indices = aten_topk(b, x, k, dim, False)
    if not rank_of(x):
        return values, indices
    axis = axis_of(dim, rank_of(x))
    picked = [b.slice(each, axis, k - 1, k) for each in (values, indices)]
    return tuple(each if keepdim else b.reshape(each, _without(shape_of(each), axis)) for each in picked)  # type: ignore[return-value]


def _without(shape: Sequence[Dim], axis: int) -> tuple[Dim, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def aten_median_dim(b: Builder, x: Expr, dim: int, keepdim: bool = False) -> tuple[Expr, Expr]:
    """The lower of the two in the middle; a NaN along the axis is the median."""
    axis = axis_of(dim, rank_of(x))
    length = shape_of(x)[axis] if rank_of(x) else 1
    values, indices = aten_kthvalue(b, x, floordiv(length - 1, 2) + 1, dim, keepdim)
    if not is_float(dtype_of(x)) or not rank_of(x):
        return values, indices
    nan = b.emit(ops.isnan, x)
    some = b.emit(ops.any_, nan, axes=(axis,), keepdims=keepdim)
    first = b.emit(ops.argmax, b.cast(nan, "uint8"), axis=axis, keepdims=keepdim)
    values = b.emit(ops.where, some, b.constant(float("nan"), dtype_of(x)), values)
    return values, b.emit(ops.where, some, first, indices)


def aten_median(b: Builder, x: Expr) -> Expr:
    return aten_median_dim(b, b.reshape(x, (product(shape_of(x)),)), 0)[0]


RECIPES: dict[Any, Recipe] = {
    aten.cumprod.default: aten_cumprod,
    aten.cummax.default: _running_extreme(ops.cummax),
    aten.cummin.default: _running_extreme(ops.cummin),
    aten.logcumsumexp.default: aten_logcumsumexp,
    aten.kthvalue.default: aten_kthvalue,
    aten.median.default: aten_median,
    aten.median.dim: aten_median_dim,
    aten.sum.default: aten_sum,
    aten.sum.dim_IntList: aten_sum,
    aten.mean.default: aten_mean,
    aten.mean.dim: aten_mean,
    aten.prod.default: aten_prod,
    aten.prod.dim_int: aten_prod,
    aten.amax.default: aten_amax,
    aten.amin.default: aten_amin,
    aten.max.default: aten_amax,
    aten.min.default: aten_amin,
    aten.max.dim: aten_max_dim,
    aten.min.dim: aten_min_dim,
    aten.argmax.default: aten_argmax,
    aten.argmin.default: aten_argmin,
    aten.any.default: _logic(ops.any_),
    aten.any.dim: _logic(ops.any_),
    aten.any.dims: _logic(ops.any_),
    aten.all.default: _logic(ops.all_),
    aten.all.dim: _logic(ops.all_),
    aten.all.dims: _logic(ops.all_),
    aten.var.correction: aten_var,
    aten.std.correction: aten_std,
    aten.var_mean.correction: aten_var_mean,
    aten.std_mean.correction: aten_std_mean,
    aten.logsumexp.default: aten_logsumexp,
    aten.linalg_vector_norm.default: aten_vector_norm,
    aten.cumsum.default: aten_cumsum,
    aten.topk.default: aten_topk,
    aten.sort.default: aten_sort,
    aten.sort.stable: aten_sort_stable,
    aten.argsort.default: aten_argsort,
    aten.count_nonzero.default: aten_count_nonzero,
    aten.count_nonzero.dim_IntList: aten_count_nonzero,
}
