"""Sampling at computed positions as loops: where the taps of some positions lie and what they weigh is worked out once, in
registers or a small table, and then serves all channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from aotc.ir.dims import ceildiv, floordiv
from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import INDEX, Expr, Expression, Scope, cast, constant, int_constant
from aotc.lowering.ops.extern import extern, local, rows
from aotc.ops.sampling import CUBIC_A, FARTHEST, MODES

LANES = 16
"""Positions whose taps are worked out together."""
CHANNELS = 8
"""Channels that share the taps of a region's point."""
MOST_POINTS = 1 << 15
"""Points along an axis of a bin: what a region of nonsense may cost."""


def _wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _whole(position: Expr) -> Expr:
    """A float as int32; one beyond all sizes, and NaN, as something far away."""
    limit = constant(FARTHEST, common.dtype_of(position))
    return cast(tirx.Select(position > -limit, tirx.min(position, limit), -limit), INDEX)


def _clamped(index: Expr, size: Expr) -> Expr:
    return tirx.max(tirx.min(index, size - 1), int_constant(0))


def _mirrored(index: Expr, size: Expr, align_corners: bool) -> Expr:
    """An index in x continued by reflection: at the centres of its ends, or at their outer edges."""
    period = tirx.max((size - 1) * 2, int_constant(1)) if align_corners else size * 2
    inside = tirx.floormod(index, period)
    return tirx.Select(inside >= size, period - inside if align_corners else period - 1 - inside, inside)


def _weights(mode: str, t: Expr) -> list[Expr]:
    """The weights of an axis's taps, of which the fraction ``t`` lies between the two in the middle."""
    one = constant(1, common.dtype_of(t))
    if mode == "nearest":
        return [one]
    if mode == "linear":
        return [one - t, t]

    def number(value: float) -> Expr:
        return constant(value, common.dtype_of(t))

    def near(d: Expr) -> Expr:
        return (number(CUBIC_A + 2) * d - number(CUBIC_A + 3)) * d * d + one

    def far(d: Expr) -> Expr:
        return ((d - number(5)) * d + number(8)) * number(CUBIC_A) * d - number(4 * CUBIC_A)

    return [far(t + one), near(t), near(one - t), far(number(2) - t)]


class _Taps:
    """The taps of up to ``LANES`` positions: for each axis and tap an index, below 0 where there is nothing, and a weight."""

    def __init__(self, sizes: Sequence[Expr], wide: str, mode: str, padding: str = "zeros", align_corners: bool = False) -> None:
        self.sizes, self.wide, self.mode, self.padding, self.align_corners = sizes, wide, mode, padding, align_corners
        self.count = MODES[mode]
        cells = len(sizes) * self.count * LANES
        self.indices, self.weights = (T.buffer_proxy(T.decl_buffer([cells], dtype)) for dtype in (INDEX, wide))
        self.position, self.base = local(wide), local(wide)

    def _cell(self, axis: int, tap: int, lane: Expr) -> Expr:
        return lane + (axis * self.count + tap) * LANES

    def put(self, axis: int, lane: Expr, position: Expr, factor: Expr | None = None) -> None:
        """Works out the taps of one axis; ``factor`` multiplies their weights."""
        size = self.sizes[axis]
        self.position[0] = position
        self.base[0] = tirx.nearbyint(self.position[0]) if self.mode == "nearest" else tirx.floor(self.position[0])
        for tap, weight in enumerate(_weights(self.mode, self.position[0] - self.base[0])):
            index = _whole(self.base[0]) + int_constant(tap - (1 if self.mode == "cubic" else 0))
            if self.padding == "reflection":
                index = _mirrored(index, size, self.align_corners)
            if self.padding == "zeros":
                index = tirx.Select(tirx.all(index >= int_constant(0), index < size), index, int_constant(-1))
            else:
                index = _clamped(index, size)
            self.indices[self._cell(axis, tap, lane)] = index
            self.weights[self._cell(axis, tap, lane)] = weight if factor is None else weight * factor

    def sum(self, load: Callable[[list[Expr]], Expr], lane: Expr, axis: int = 0, at: tuple[Expr, ...] = ()) -> Expr:
        """The weighted sum over all taps at ``lane``; ``load`` reads the data at spatial indices."""
        if axis == len(self.sizes):
            value = cast(load([tirx.max(index, int_constant(0)) for index in at] if self.padding == "zeros" else list(at)), self.wide)
            inside = tirx.all(*(index >= int_constant(0) for index in at))
            return tirx.Select(inside, value, constant(0, self.wide)) if self.padding == "zeros" else value
        total: Expr | None = None
        for tap in range(self.count):
            cell = self._cell(axis, tap, lane)
            value = self.sum(load, lane, axis + 1, (*at, self.indices[cell]))
            term = value if self.mode == "nearest" else self.weights[cell] * value
            total = term if total is None else total + term
        return total


def _grid_sample(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, grid = inputs
    result, sizes, wide = results[0], list(inputs[0].shape[2:]), _wide(common.dtype_of(inputs[0]))
    *outer, last = result.shape[2:]
    coordinates = _wide(common.dtype_of(grid))
    one = constant(1, coordinates)

    def position(axis: int, at: Expr) -> Expr:
        place, size = cast(at, coordinates) + one, cast(sizes[axis], coordinates)
        if attrs.align_corners:
            return place / constant(2, coordinates) * (size - one)
        return (place * size - one) / constant(2, coordinates)

    def body(source: Any, positions: Any, target: Any) -> None:
        work = x.shape[1] * LANES
        with rows(scope, (result.shape[0], *outer, ceildiv(last, LANES)), scope.dim(work)) as (n, *row, block):
            taps = _Taps(sizes, wide, attrs.mode, attrs.padding, attrs.align_corners)
            count = tirx.min(int_constant(LANES), scope.expr(last) - block * LANES)
            with T.serial(0, count) as lane:
                for axis in range(len(sizes)):
                    at = positions[[n, *row, block * LANES + lane, int_constant(len(sizes) - 1 - axis)]]
                    taps.put(axis, lane, cast(position(axis, at), wide))
            with T.serial(0, x.shape[1]) as c, T.serial(0, count) as lane:
                value = taps.sum(lambda at: source[[n, c, *at]], lane)
                target[[n, c, *row, block * LANES + lane]] = cast(value, result.dtype)

    return extern(inputs, [(common.extents(scope, result.shape), result.dtype)], body, "grid_sample")


def _deform_columns(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, result, wide = inputs[0], results[0], _wide(common.dtype_of(inputs[0]))
    sizes, kernel = list(x.shape[2:]), [int_constant(k) for k in attrs.kernel]
    *outer, last = result.shape[2:]
    taps_in_all, depth = math.prod(attrs.kernel), floordiv(scope.dim(x.shape[1]), attrs.groups)

    def body(source: Any, offsets: Any, *rest: Any) -> None:
        target = rest[-1]
        shape = (result.shape[0], attrs.groups, taps_in_all, *outer, ceildiv(last, LANES))
        with rows(scope, shape, depth * LANES) as (n, g, k, *row, block):
            taps, tap = _Taps(sizes, wide, "linear"), common.unravel(k, kernel)
            count = tirx.min(int_constant(LANES), scope.expr(last) - block * LANES)
            entry = g * taps_in_all + k
            with T.serial(0, count) as lane:
                place = [*row, block * LANES + lane]
                factor = cast(rest[0][[n, entry, *place]], wide) if len(rest) == 2 else None
                for axis in range(len(sizes)):
                    start = place[axis] * attrs.strides[axis] - attrs.padding[axis] + tap[axis] * attrs.dilation[axis]
                    offset = cast(offsets[[n, entry * len(sizes) + axis, *place]], wide)
                    taps.put(axis, lane, offset + cast(start, wide), factor if axis == 0 else None)
            with T.serial(0, scope.expr(depth)) as c, T.serial(0, count) as lane:
                channel = g * scope.expr(depth) + c
                value = taps.sum(lambda at: source[[n, channel, *at]], lane)
                target[[n, channel * taps_in_all + k, *row, block * LANES + lane]] = cast(value, result.dtype)

    return extern(inputs, [(common.extents(scope, result.shape), result.dtype)], body, "deform_columns")


class _Bins:
    """One axis of a region: where it starts, how long its bins are, how many points each has."""

    def __init__(self, attrs: Any, axis: int, size: Expr, wide: str) -> None:
        self.attrs, self.axis, self.size, self.wide = attrs, axis, size, wide
        self.start, self.width, self.count = local(wide), local(wide), local(INDEX)
        self.at, self.t, self.scale = local(wide), local(wide), local(wide)
        self.low, self.high = local(INDEX), local(INDEX)

    def number(self, value: float) -> Expr:
        return constant(value, self.wide)

    def begin(self, region: Callable[[int], Expr]) -> None:
        """Reads the region; ``region(i)`` is its i-th coordinate."""
        offset = self.number(0.5 if self.attrs.aligned else 0)
        first, end = (cast(region(1 - self.axis + k), self.wide) * self.number(self.attrs.scale) - offset for k in (0, 2))
        self.start[0] = first
        length = end - self.start[0]
        if not self.attrs.aligned:
            length = tirx.max(length, self.number(1))
        self.width[0] = length / self.number(self.attrs.output_size[self.axis])
        needed = _clamped(_whole(tirx.ceil(self.width[0])), int_constant(MOST_POINTS))
        self.count[0] = int_constant(self.attrs.samples) if self.attrs.samples else needed

    def point(self, position: Expr, sample: Expr) -> None:
        """The two elements around a point, and the weight of the second; ``scale`` 0 for a point outside."""
        step = (cast(sample, self.wide) + self.number(0.5)) * self.width[0] / cast(self.count[0], self.wide)
        self.at[0] = self.start[0] + cast(position, self.wide) * self.width[0] + step
        outside = tirx.any(self.at[0] < self.number(-1), self.at[0] > cast(self.size, self.wide))
        self.scale[0] = tirx.Select(outside, self.number(0), self.number(1))
        self.at[0] = tirx.max(self.at[0], self.number(0))
        self.low[0] = _clamped(_whole(self.at[0]), self.size)
        self.high[0] = tirx.min(self.low[0] + 1, self.size - 1)
        self.t[0] = tirx.Select(self.low[0] < self.size - 1, self.at[0] - cast(self.low[0], self.wide), self.number(0)) * self.scale[0]

    def corners(self) -> list[tuple[Expr, Expr]]:
        return [(self.low[0], self.scale[0] - self.t[0]), (self.high[0], self.t[0])]


def _roi_align(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, _, _ = inputs
    result, wide = results[0], _wide(common.dtype_of(x))
    (tall, long), channels = attrs.output_size, x.shape[1]

    def body(source: Any, regions: Any, images: Any, target: Any) -> None:
        with rows(scope, (result.shape[0], ceildiv(scope.dim(channels), CHANNELS)), CHANNELS * tall * long * 4) as (r, block):
            image = local(INDEX)
            image[0] = _clamped(cast(images[[r]], INDEX), x.shape[0])
            sums = T.buffer_proxy(T.decl_buffer([CHANNELS], wide))
            axes = [_Bins(attrs, axis, x.shape[2 + axis], wide) for axis in (0, 1)]
            for axis in axes:
                axis.begin(lambda i: regions[[r, int_constant(i)]])
            count = tirx.min(int_constant(CHANNELS), channels - block * CHANNELS)
            with T.serial(0, tall) as i, T.serial(0, long) as j:
                with T.serial(0, count) as lane:
                    sums[lane] = constant(0, wide)
                with T.serial(0, axes[0].count[0]) as iy:
                    axes[0].point(i, iy)
                    with T.serial(0, axes[1].count[0]) as ix:
                        axes[1].point(j, ix)
                        with T.serial(0, count) as lane:
                            channel = block * CHANNELS + lane
                            pairs = itertools.product(axes[0].corners(), axes[1].corners())
                            values = [cast(source[[image[0], channel, y, c]], wide) * (wy * wx) for (y, wy), (c, wx) in pairs]
                            sums[lane] = _joined(attrs.mode, sums[lane], values, tirx.all(iy == 0, ix == 0))
                with T.serial(0, count) as lane:
                    points = tirx.max(axes[0].count[0] * axes[1].count[0], int_constant(1))
                    value = sums[lane] if attrs.mode == "max" else sums[lane] / cast(points, wide)
                    target[[r, block * CHANNELS + lane, i, j]] = cast(value, result.dtype)

    return extern(inputs, [(common.extents(scope, result.shape), result.dtype)], body, "roi_align")


def _joined(mode: str, so_far: Expr, values: list[Expr], is_first: Expr) -> Expr:
    first, *others = values
    if mode == "avg":
        return so_far + sum(others, start=first)
    for value in others:
        first = tirx.max(first, value)
    return tirx.Select(is_first, first, tirx.max(so_far, first))


def _roi_pool(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, _, _ = inputs
    result, dtype = results[0], common.dtype_of(x)

    def body(source: Any, regions: Any, images: Any, target: Any) -> None:
        work = attrs.output_size[0] * attrs.output_size[1] * 16
        with rows(scope, (result.shape[0], result.shape[1]), work) as (r, c):
            image, best = local(INDEX), local(dtype)
            image[0] = _clamped(cast(images[[r]], INDEX), x.shape[0])
            with T.serial(0, attrs.output_size[0]) as i, T.serial(0, attrs.output_size[1]) as j:
                edges = [
                    _edges(attrs, axis, at, x.shape[2 + axis], lambda k: regions[[r, int_constant(k)]]) for axis, at in ((0, i), (1, j))
                ]
                (top, bottom), (left, right) = edges
                empty = tirx.any(bottom[0] <= top[0], right[0] <= left[0])
                best[0] = tirx.Select(empty, constant(0, dtype), common.least(dtype))
                with (
                    T.serial(0, tirx.max(bottom[0] - top[0], int_constant(0))) as y,
                    T.serial(0, tirx.max(right[0] - left[0], int_constant(0))) as z,
                ):
                    best[0] = common.maximum(best[0], source[[image[0], c, top[0] + y, left[0] + z]])
                target[[r, c, i, j]] = best[0]

    return extern(inputs, [(common.extents(scope, result.shape), result.dtype)], body, "roi_pool")


def _edges(attrs: Any, axis: int, position: Expr, size: Expr, region: Callable[[int], Expr]) -> tuple[Any, Any]:
    """The elements from and up to which a bin reaches, as variables."""
    start, width, low, high = local(INDEX), local("float32"), local(INDEX), local(INDEX)
    scale, half, bins = (constant(value, "float32") for value in (attrs.scale, 0.5, attrs.output_size[axis]))
    first, end = (_whole(tirx.floor(cast(region(1 - axis + k), "float32") * scale + half)) for k in (0, 2))
    start[0] = first
    width[0] = cast(tirx.max(end - start[0] + 1, int_constant(1)), "float32") / bins

    def held(edge: Expr) -> Expr:
        return tirx.max(tirx.min(_whole(edge) + start[0], size), int_constant(0))

    low[0] = held(tirx.floor(cast(position, "float32") * width[0]))
    high[0] = held(tirx.ceil(cast(position + 1, "float32") * width[0]))
    return low, high


EXPRESSIONS: dict[str, Expression] = {
    "grid_sample": _grid_sample,
    "deform_columns": _deform_columns,
    "roi_align": _roi_align,
    "roi_pool": _roi_pool,
}
