"""Sampling at computed positions as loops: where the taps of a piece of positions lie and what they weigh is worked out once,
and then serves all channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from aotc.ir.dims import Dim, ceildiv, floordiv, maximum, product
from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import INDEX, Expr, Expression, Scope, cast, constant, int_constant
from aotc.lowering.ops.extern import extern, local, rows
from aotc.ops.sampling import CUBIC_A, FARTHEST, MODES

POSITIONS = 512
"""Output positions whose taps are worked out together. Channels are walked outside of them, so that data is read along its rows."""
TASKS = 64
"""Tasks at most: each has memory for the taps of its positions."""
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
    """The taps of up to ``POSITIONS`` positions, in memory of each task: for each axis and tap an index, a weight, and where
    zeros lie outside a mask of the data's bits. A mask costs no branch, and what it hides may be infinite."""

    def __init__(self, sizes: Sequence[Expr], wide: str, mode: str, padding: str = "zeros", align_corners: bool = False) -> None:
        self.sizes, self.wide, self.mode, self.padding, self.align_corners = sizes, wide, mode, padding, align_corners
        self.count, self.word = MODES[mode], "int64" if wide == "float64" else "int32"
        self.indices: Any = None
        self.weights: Any = None
        self.masks: Any = None
        self.position: Any = None

    def memory(self, tasks: Expr) -> list[tuple[Sequence[Expr], str]]:
        """What ``begin`` takes: extents and dtypes."""
        shape = (tasks, int_constant(len(self.sizes) * self.count), int_constant(POSITIONS))
        return [(shape, dtype) for dtype in (INDEX, self.wide, *([self.word] if self.padding == "zeros" else []))]

    def begin(self, buffers: Sequence[Any]) -> None:
        self.indices, self.weights, self.masks = (*buffers, None)[:3]
        self.position, self.base = local(self.wide), local(self.wide)

    def _cell(self, task: Expr, axis: int, tap: int, lane: Expr) -> list[Expr]:
        return [task, int_constant(axis * self.count + tap), lane]

    def put(self, task: Expr, axis: int, lane: Expr, position: Expr, factor: Expr | None = None) -> None:
        """Works out the taps of one axis; ``factor`` multiplies their weights."""
        size = self.sizes[axis]
        self.position[0] = position
        self.base[0] = tirx.nearbyint(self.position[0]) if self.mode == "nearest" else tirx.floor(self.position[0])
        for tap, weight in enumerate(_weights(self.mode, self.position[0] - self.base[0])):
            index = _whole(self.base[0]) + int_constant(tap - (1 if self.mode == "cubic" else 0))
            if self.padding == "reflection":
                index = _mirrored(index, size, self.align_corners)
            cell = self._cell(task, axis, tap, lane)
            if self.masks is not None:
                inside = tirx.all(index >= int_constant(0), index < size)
                self.masks[cell] = tirx.Select(inside, constant(-1, self.word), constant(0, self.word))
            self.indices[cell] = _clamped(index, size)
            self.weights[cell] = weight if factor is None else weight * factor

    def sum(self, load: Callable[[list[Expr]], Expr], task: Expr, lane: Expr, cells: tuple[list[Expr], ...] = ()) -> Expr:
        """The weighted sum over all taps at ``lane``; ``load`` reads the data at spatial indices. ``cells``: the tap of each axis
        so far."""
        axis = len(cells)
        if axis == len(self.sizes):
            return self._masked(cast(load([self.indices[cell] for cell in cells]), self.wide), cells)
        total: Expr | None = None
        for tap in range(self.count):
            cell = self._cell(task, axis, tap, lane)
            value = self.sum(load, task, lane, (*cells, cell))
            term = value if self.mode == "nearest" else self.weights[cell] * value
            total = term if total is None else total + term
        return total

    def _masked(self, value: Expr, cells: Sequence[list[Expr]]) -> Expr:
        if self.masks is None:
            return value
        bits = tirx.reinterpret(self.word, value)
        for cell in cells:
            bits = tirx.bitwise_and(bits, self.masks[cell])
        return tirx.reinterpret(self.wide, bits)


class _Pieces:
    """Pieces of ``POSITIONS`` output positions for each index of ``outer``, shared out among at most ``TASKS`` tasks."""

    def __init__(self, scope: Scope, outer: Sequence[Dim], positions: Sequence[Dim]) -> None:
        self.scope, self.outer, self.positions, self.size = scope, outer, positions, product(positions)
        self.each = ceildiv(self.size, POSITIONS)
        self.total = product([*outer, self.each])
        self.chunk = maximum(ceildiv(self.total, TASKS), 1)
        self.tasks = scope.expr(ceildiv(self.total, self.chunk))

    @contextmanager
    def each_one(self) -> Iterator[tuple[Expr, list[Expr], Expr, Expr]]:
        """The task, the index of ``outer``, and the first position and how many there are in a piece."""
        expr = self.scope.expr
        with T.parallel(0, self.tasks) as task:
            first = task * expr(self.chunk)
            with T.serial(0, tirx.min(expr(self.chunk), expr(self.total) - first)) as step:
                *outer, piece = common.unravel(first + step, [expr(dim) for dim in (*self.outer, self.each)])
                start = piece * POSITIONS
                yield task, outer, start, tirx.min(int_constant(POSITIONS), expr(self.size) - start)

    def place(self, flat: Expr) -> list[Expr]:
        return common.unravel(flat, [self.scope.expr(dim) for dim in self.positions])


def _grid_sample(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, grid = inputs
    result, sizes, wide = results[0], list(inputs[0].shape[2:]), _wide(common.dtype_of(inputs[0]))
    coordinates = _wide(common.dtype_of(grid))
    one = constant(1, coordinates)
    taps, pieces = _Taps(sizes, wide, attrs.mode, attrs.padding, attrs.align_corners), _Pieces(scope, result.shape[:1], result.shape[2:])

    def position(axis: int, at: Expr) -> Expr:
        place, size = cast(at, coordinates) + one, cast(sizes[axis], coordinates)
        if attrs.align_corners:
            return place / constant(2, coordinates) * (size - one)
        return (place * size - one) / constant(2, coordinates)

    def body(source: Any, positions: Any, target: Any, *memory: Any) -> None:
        with pieces.each_one() as (task, (n,), start, count):
            taps.begin(memory)
            with T.serial(0, count) as lane:
                for axis in range(len(sizes)):
                    at = positions[[n, *pieces.place(start + lane), int_constant(len(sizes) - 1 - axis)]]
                    taps.put(task, axis, lane, cast(position(axis, at), wide))
            with T.serial(0, x.shape[1]) as c, T.serial(0, count) as lane:
                value = taps.sum(lambda at: source[[n, c, *at]], task, lane)
                target[[n, c, *pieces.place(start + lane)]] = cast(value, result.dtype)

    shapes = [(common.extents(scope, result.shape), result.dtype), *taps.memory(pieces.tasks)]
    return extern(inputs, shapes, body, "grid_sample")[:1]


def _deform_columns(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, result, wide = inputs[0], results[0], _wide(common.dtype_of(inputs[0]))
    sizes, kernel = list(x.shape[2:]), [int_constant(k) for k in attrs.kernel]
    count_of_taps, depth = math.prod(attrs.kernel), scope.expr(floordiv(scope.dim(x.shape[1]), attrs.groups))
    taps, pieces = _Taps(sizes, wide, "linear"), _Pieces(scope, (result.shape[0], attrs.groups, count_of_taps), result.shape[2:])

    def body(source: Any, offsets: Any, *rest: Any) -> None:
        mask = rest[0] if len(inputs) == 3 else None
        target, *memory = rest[len(inputs) - 2 :]
        with pieces.each_one() as (task, (n, g, k), start, count):
            taps.begin(memory)
            tap, entry = common.unravel(k, kernel), g * count_of_taps + k
            with T.serial(0, count) as lane:
                place = pieces.place(start + lane)
                factor = None if mask is None else cast(mask[[n, entry, *place]], wide)
                for axis in range(len(sizes)):
                    first = place[axis] * attrs.strides[axis] - attrs.padding[axis] + tap[axis] * attrs.dilation[axis]
                    offset = cast(offsets[[n, entry * len(sizes) + axis, *place]], wide)
                    taps.put(task, axis, lane, offset + cast(first, wide), factor if axis == 0 else None)
            with T.serial(0, depth) as c, T.serial(0, count) as lane:
                channel = g * depth + c
                value = taps.sum(lambda at: source[[n, channel, *at]], task, lane)
                target[[n, channel * count_of_taps + k, *pieces.place(start + lane)]] = cast(value, result.dtype)

    shapes = [(common.extents(scope, result.shape), result.dtype), *taps.memory(pieces.tasks)]
    return extern(inputs, shapes, body, "deform_columns")[:1]


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
