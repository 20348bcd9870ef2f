"""Tensor expressions of resize: one weighted gather for each axis that changes, over tables of indices and weights.

Coordinates are float32 with every operation rounded in the order of ``aotc.ops.resize.coordinates``, so that ties fall as
there; weights are float64 and rounded once. Tables are stages of their own (``kept``): a few hundred elements computed once
instead of at every output element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from aotc.ir.dims import Dim
from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import INDEX, Expr, Expression, Scope, accumulator, cast, constant, int_constant, kept
from aotc.ops.resize import axis_weights, is_unchanged_axis


class _Axis:
    """One axis: its coordinates as an expression, and its tables."""

    def __init__(self, attrs: Any, axis: int, size: Expr, outputs: Expr, dims: tuple[Dim, Dim]) -> None:
        self.attrs, self.axis, self.size, self.outputs, self.dims = attrs, axis, size, outputs, dims
        self.scale = attrs.scales[axis]

    def _unscale(self, position: Expr) -> Expr:
        if self.scale is None:
            return position * cast(self.size, "float32") / cast(self.outputs, "float32")
        return position / constant(float(np.float32(self.scale)), "float32")

    def coordinate(self, i: Expr) -> Expr:
        """Where output position ``i`` lies in the input, float32."""
        kind = self.attrs.coordinate
        old, new, at = cast(self.size, "float32"), cast(self.outputs, "float32"), cast(i, "float32")
        zero, half, one = (constant(v, "float32") for v in (0.0, 0.5, 1.0))
        single = self.outputs <= int_constant(1)
        if kind == "asymmetric":
            return self._unscale(at)
        if kind == "align_corners":
            return tirx.Select(single, zero, at * (old - one) / tirx.max(new - one, one))
        if kind == "tf_crop_and_resize":
            rank = len(self.attrs.shape)
            start, end = (np.float32(self.attrs.roi[self.axis + k * rank]) for k in (0, 1))
            first, span = (constant(float(v), "float32") for v in (start, end - start))
            many = first * (old - one) + at * span * (old - one) / tirx.max(new - one, one)
            return tirx.Select(single, constant(float(np.float32(0.5) * (start + end)), "float32") * (old - one), many)
        centred = self._unscale(at + half) - half
        if kind == "pytorch_half_pixel":
            return tirx.Select(single, zero, centred)
        if kind == "half_pixel_symmetric" and self.scale is not None:
            scale = constant(float(np.float32(self.scale)), "float32")
            return old / constant(2, "float32") * (one - new / (scale * old)) + self._unscale(at + half) - half
        return centred

    def outside(self) -> te.Tensor:
        last = cast(self.size - 1, "float32")

        def body(i: Expr) -> Expr:
            where = self.coordinate(i)
            return tirx.any(where < constant(0, "float32"), where > last)

        return kept((self.outputs,), body, "outside")

    def nearest(self, i: Expr) -> Expr:
        """The input index nearest to output ``i`` as int32."""
        factor = self._whole_factor()
        if factor is not None:
            return i if factor == 1 else tirx.floordiv(i, int_constant(factor))
        where = self.coordinate(i)
        low = tirx.floor(where)
        over = where - low
        one, zero, half = (constant(v, "float32") for v in (1, 0, 0.5))
        rounded = {
            "round_prefer_floor": lambda: low + tirx.Select(over > half, one, zero),
            "round_prefer_ceil": lambda: low + tirx.Select(over >= half, one, zero),
            "floor": lambda: low,
            "ceil": lambda: tirx.ceil(where),
        }[self.attrs.nearest]()
        return self._clipped(cast(rounded, INDEX))

    def _whole_factor(self) -> int | None:
        """n where output i takes input i // n: repeating elements needs no table."""
        size, outputs = self.dims
        if not isinstance(size, int) or not isinstance(outputs, int) or not size or outputs % size:
            return None
        found = axis_weights(self.attrs, self.axis, size, outputs).indices[:, 0]
        return outputs // size if np.array_equal(found, np.arange(outputs) // (outputs // size)) else None

    def _clipped(self, index: Expr) -> Expr:
        return tirx.max(tirx.min(index, self.size - 1), int_constant(0))

    def tables(self, dtype: str) -> tuple[te.Tensor, te.Tensor]:
        """Indices [outputs, taps] and weights [outputs, taps] in ``dtype``."""
        reach, shrink = self._reach()
        count = reach * 2

        def tap(i: Expr, t: Expr) -> Expr:
            return cast(tirx.floor(self.coordinate(i)), INDEX) + t + 1 - reach

        def weight(i: Expr, t: Expr) -> Expr:
            index = tap(i, t)
            distance = tirx.abs(cast(index, "float64") - cast(self.coordinate(i), "float64")) * shrink
            value = self._kernel(distance)
            if self.attrs.exclude_outside:
                value = tirx.Select(tirx.any(index < int_constant(0), index >= self.size), constant(0, "float64"), value)
            return value

        raw = kept((self.outputs, count), weight, "raw_weights")
        k = te.reduce_axis((0, count), "t")
        total = common.compute((self.outputs,), lambda i: te.sum(raw(i, k.var), axis=[k]), "weight_sum")

        def normal(i: Expr, t: Expr) -> Expr:
            return cast(raw(i, t) / tirx.Select(total(i) == constant(0, "float64"), constant(1, "float64"), total(i)), dtype)

        shape = (self.outputs, count)
        return kept(shape, lambda i, t: self._clipped(tap(i, t)), "taps"), kept(shape, normal, "weights")

    def _reach(self) -> tuple[Expr, Expr]:
        """The kernel's half width in taps, int32, and the factor that its distances are multiplied with, float64."""
        plain = 1 if self.attrs.mode == "linear" else 2
        if not self.attrs.antialias:
            return int_constant(plain), constant(1, "float64")
        size, outputs = self.dims
        scale = self.scale if self.scale is not None else outputs / size if isinstance(size, int) and isinstance(outputs, int) else None
        if scale is not None:
            shrink = min(float(scale), 1.0)
            return int_constant(math.ceil(plain / shrink)), constant(shrink, "float64")
        reach = tirx.max(tirx.floordiv(self.size * plain + self.outputs - 1, self.outputs), int_constant(plain))
        ratio = cast(self.outputs, "float64") / cast(self.size, "float64")
        return reach, tirx.min(ratio, constant(1, "float64"))

    def _kernel(self, distance: Expr) -> Expr:
        zero, one, two = (constant(v, "float64") for v in (0, 1, 2))
        if self.attrs.mode == "linear":
            return tirx.max(one - distance, zero)
        a = self.attrs.cubic_a
        near = (constant(a + 2, "float64") * distance - constant(a + 3, "float64")) * distance * distance + one
        far = ((distance - constant(5, "float64")) * distance + constant(8, "float64")) * constant(a, "float64") * distance
        far = far - constant(4 * a, "float64")
        return tirx.Select(distance <= one, near, tirx.Select(distance < two, far, zero))


def _resize(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]
    shape = common.extents(scope, results[0].shape)
    axes = []
    for axis, extent in enumerate(shape):
        size = scope.dim(x.shape[axis])
        if not is_unchanged_axis(attrs, axis, size):
            axes.append(_Axis(attrs, axis, x.shape[axis], extent, (size, results[0].shape[axis])))
    if attrs.mode == "nearest":
        values, exact = _nearest(x, shape, axes), True
    else:
        values, exact = _weighted(x, shape, axes), False
    marks = [(a.axis, a.outside()) for a in axes] if attrs.coordinate == "tf_crop_and_resize" else []

    def body(*i: Expr) -> Expr:
        value = values(i)
        outside = [table(i[axis]) for axis, table in marks]
        if outside:
            value = tirx.Select(tirx.any(*outside), constant(attrs.extrapolation, common.dtype_of(value)), value)
        return value if exact else _stored(value, common.dtype_of(x))

    return [common.compute(shape, body, "resize")]


def _nearest(x: te.Tensor, shape: Sequence[Expr], axes: Sequence[_Axis]) -> Any:
    tables = {a.axis: kept((shape[a.axis],), a.nearest, "nearest") for a in axes if a._whole_factor() is None}
    direct = {a.axis: a for a in axes}

    def value(i: Sequence[Expr]) -> Expr:
        at = [tables[k](j) if k in tables else direct[k].nearest(j) if k in direct else j for k, j in enumerate(i)]
        return x(*at)

    return value


def _weighted(x: te.Tensor, shape: Sequence[Expr], axes: Sequence[_Axis]) -> Any:
    wide = accumulator(common.dtype_of(x)) if common.is_float(common.dtype_of(x)) else "float32"
    current, extents = x, list(x.shape)
    for a in axes:
        extents[a.axis] = shape[a.axis]
        current = _along(current, tuple(extents), a, wide)
    return lambda i: cast(current(*i), wide)


def _along(x: te.Tensor, shape: tuple[Expr, ...], a: _Axis, wide: str) -> te.Tensor:
    indices, weights = a.tables(wide)
    t = te.reduce_axis((0, indices.shape[1]), "t")

    def body(*i: Expr) -> Expr:
        at = [*i[: a.axis], indices(i[a.axis], t.var), *i[a.axis + 1 :]]
        return te.sum(cast(x(*at), wide) * weights(i[a.axis], t.var), axis=[t])

    return common.compute(shape, body, "resize_axis")


def _stored(value: Expr, dtype: str) -> Expr:
    """Integers are rounded half to even and held within their range."""
    if common.is_float(dtype):
        return cast(value, dtype)
    bits = int(dtype.lstrip("uint"))
    low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    whole = tirx.nearbyint(cast(value, "float64"))
    return cast(tirx.max(tirx.min(whole, constant(high, "float64")), constant(low, "float64")), dtype)


EXPRESSIONS: dict[str, Expression] = {"resize": _resize}
