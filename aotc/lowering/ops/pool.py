"""Tensor expressions of the pools. A NaN in a window is its maximum; padding never is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, accumulator, cast, constant, int_constant, static
from aotc.lowering.ops.reduce import extreme_with_index


def _window(attrs: Any, x: te.Tensor, i: Sequence[Expr], taps: Sequence[te.IterVar]) -> tuple[list[Expr], list[Expr]]:
    """Where the taps of output element ``i`` lie, and the conditions that they lie in ``x``."""
    n = len(attrs.kernel)
    at, inside = list(i), []
    for axis in range(n):
        stride, before, dilation = attrs.strides[axis], attrs.padding[axis], attrs.dilation[axis]
        position = i[2 + axis] * int_constant(stride) + taps[axis].var * int_constant(dilation) - int_constant(before)
        at[2 + axis] = position
        if before:
            inside.append(position >= int_constant(0))
        if attrs.padding[n + axis] or attrs.ceil_mode:
            inside.append(position < x.shape[2 + axis])
    return at, inside


def _guarded(inside: list[Expr], value: Expr, otherwise: Expr) -> Expr:
    return tirx.if_then_else(tirx.all(*inside), value, otherwise) if inside else value


def _taps(attrs: Any) -> list[te.IterVar]:
    return [te.reduce_axis((0, int_constant(k)), f"k{axis}") for axis, k in enumerate(attrs.kernel)]


def _max_pool(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, taps = inputs[0], _taps(attrs)

    def body(*i: Expr) -> Expr:
        at, inside = _window(attrs, x, i, taps)
        return common.max_reduce(_guarded(inside, x(*at), common.least(common.dtype_of(x))), axis=taps)

    return [common.compute(common.extents(scope, results[0].shape), body, "max_pool")]


def _max_pool_with_indices(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, taps = inputs[0], _taps(attrs)
    shape = common.extents(scope, results[0].shape)

    def source(*i: Expr) -> tuple[Expr, Expr]:
        at, inside = _window(attrs, x, i, taps)
        if attrs.storage_order:
            flat = common.row_major([i[0], i[1], *at[:1:-1]], [x.shape[0], x.shape[1], *list(x.shape)[:1:-1]])
        else:
            flat = common.row_major(at, x.shape)
        index = _guarded(inside, flat, tirx.max_value(common.INDEX))
        return index, _guarded(inside, x(*at), common.least(common.dtype_of(x)))

    reducer = extreme_with_index(largest=True, select_last=False)
    index, values = te.compute(shape, lambda *i: reducer(source(*i), axis=taps), name="max_pool_with_indices")
    return [values, common.compute(shape, lambda *i: cast(index(*i), "int64"), "indices")]


def _tap_count(attrs: Any, axis: int, out: Expr, size: Expr) -> Expr:
    """How many taps of a window count on one axis: those in the tensor, or in tensor and padding."""
    n = len(attrs.kernel)
    kernel, stride, dilation = attrs.kernel[axis], attrs.strides[axis], int_constant(attrs.dilation[axis])
    before, after = attrs.padding[axis], attrs.padding[n + axis]
    if not attrs.ceil_mode and (attrs.count_include_pad or not (before or after)):
        return int_constant(kernel)
    start = out * int_constant(stride) - int_constant(before)
    low, high = (-before, size + int_constant(after)) if attrs.count_include_pad else (0, size)
    last = tirx.min(int_constant(kernel), tirx.floordiv(high - start + dilation - 1, dilation))
    first = tirx.max(int_constant(0), tirx.floordiv(int_constant(low) - start + dilation - 1, dilation))
    return last - first


def _avg_pool(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, taps = inputs[0], _taps(attrs)
    dtype, wide = results[0].dtype, accumulator(results[0].dtype)
    shape = common.extents(scope, results[0].shape)

    def body(*i: Expr) -> Expr:
        at, inside = _window(attrs, x, i, taps)
        return te.sum(_guarded(inside, cast(x(*at), wide), constant(0, wide)), axis=taps)

    total = common.compute(shape, body, "pool_sum")

    def mean(*i: Expr) -> Expr:
        if attrs.divisor_override is not None:
            return cast(total(*i) / constant(attrs.divisor_override, wide), dtype)
        count: Expr = int_constant(1)
        for axis in range(len(attrs.kernel)):
            count = count * _tap_count(attrs, axis, i[2 + axis], x.shape[2 + axis])
        return cast(total(*i) / cast(count, wide), dtype)

    return [common.compute(shape, mean, "avg_pool")]


def _adaptive(x: te.Tensor, out: Sequence[Expr]) -> tuple[list[te.IterVar], Any]:
    """Reduction axes as long as the longest window, and a function that gives taps' positions, conditions and counts."""
    taps, exact = [], []
    for axis, extent in enumerate(out):
        size, bins = static(x.shape[2 + axis]), static(extent)
        exact.append(bins == 1 or (size is not None and bins is not None and size % bins == 0))
        if size is not None and bins is not None:
            longest: Expr = int_constant(max((-(-(j + 1) * size // bins) - j * size // bins for j in range(bins)), default=0))
        elif bins == 1:
            longest = x.shape[2 + axis]
        else:
            longest = tirx.floordiv(x.shape[2 + axis] + extent - 1, extent) + int_constant(1)
        taps.append(te.reduce_axis((0, longest), f"k{axis}"))

    def window(i: Sequence[Expr]) -> tuple[list[Expr], list[Expr], Expr]:
        at, inside, count = list(i), [], int_constant(1)
        for axis, extent in enumerate(out):
            size, tap = x.shape[2 + axis], taps[axis]
            begin = tirx.floordiv(i[2 + axis] * size, extent)
            end = tirx.floordiv((i[2 + axis] + 1) * size + extent - 1, extent)
            at[2 + axis] = begin + tap.var
            count = count * (tap.dom.extent if exact[axis] else end - begin)
            if not exact[axis]:
                inside.append(begin + tap.var < end)
        return at, inside, count

    return taps, window


def _adaptive_avg_pool(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]
    dtype, wide = results[0].dtype, accumulator(results[0].dtype)
    shape = common.extents(scope, results[0].shape)
    taps, window = _adaptive(x, shape[2:])

    def body(*i: Expr) -> Expr:
        at, inside, _ = window(i)
        return te.sum(_guarded(inside, cast(x(*at), wide), constant(0, wide)), axis=taps)

    total = common.compute(shape, body, "pool_sum")
    return [common.compute(shape, lambda *i: cast(total(*i) / cast(window(i)[2], wide), dtype), "adaptive_avg_pool")]


def _adaptive_max_pool(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]
    shape = common.extents(scope, results[0].shape)
    taps, window = _adaptive(x, shape[2:])

    def body(*i: Expr) -> Expr:
        at, inside, _ = window(i)
        return common.max_reduce(_guarded(inside, x(*at), common.least(common.dtype_of(x))), axis=taps)

    return [common.compute(shape, body, "adaptive_max_pool")]


EXPRESSIONS: dict[str, Expression] = {
    "max_pool": _max_pool,
    "max_pool_with_indices": _max_pool_with_indices,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": _adaptive_avg_pool,
    "adaptive_max_pool": _adaptive_max_pool,
}
