"""Sampling at computed positions: grids, deformed windows, regions of interest. Semantics of the ONNX operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim
from aotc.ir.expr import Attributes
from aotc.ir.types import FLOATS, TensorType
from aotc.ops.base import Fusion, OpDef, format_shape, same_dtype
from aotc.ops.elementwise import NUMBERS, accept
from aotc.ops.resize import cubic
from aotc.ops.windows import check_values, check_windows, output_extent, pads_of

MODES = {"nearest": 1, "linear": 2, "cubic": 4}
"""The taps along an axis that an interpolation has."""
PADDINGS = ("zeros", "border", "reflection")
CUBIC_A = -0.75
FARTHEST = float(1 << 30)
"""Positions are held within this distance before they become integers; a NaN counts as far to the left."""


@dataclass(frozen=True, slots=True)
class GridSampleAttributes(Attributes):
    """``padding`` says what lies outside of x: zeros, the nearest element (border), or x mirrored. With ``align_corners``
    -1 and 1 are the centres of the first and last element, else their outer edges."""

    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False


@dataclass(frozen=True, slots=True)
class DeformColumnsAttributes(Attributes):
    """Windows as in a convolution; ``groups`` is the number of groups of channels that have offsets of their own."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


@dataclass(frozen=True, slots=True)
class RoiAlignAttributes(Attributes):
    """``samples``: how many points an output element takes along each axis, 0 for as many as its bin has elements,
    rounded up. ``scale`` turns the regions' coordinates into those of x; ``aligned`` moves them by half an element, and
    without it a region is at least 1 long. ``mode`` avg averages the points; max takes the greatest weighted corner, as
    ONNX Runtime and ONNX's reference do."""

    output_size: tuple[int, int]
    samples: int = 0
    scale: float = 1.0
    mode: str = "avg"
    aligned: bool = True


@dataclass(frozen=True, slots=True)
class RoiPoolAttributes(Attributes):
    output_size: tuple[int, int]
    scale: float = 1.0


def _image(x: TensorType, dtypes: Sequence[str] = FLOATS) -> tuple[Dim, ...]:
    """The spatial axes of [N, C, spatial...]."""
    accept(x, dtypes)
    if x.rank < 3:
        raise InvalidModel(f"takes data [N, C, spatial...], not {x}")
    return x.shape[2:]


def _grid_relation(types: Sequence[TensorType], attrs: GridSampleAttributes) -> TensorType:
    x, grid = types
    spatial = _image(x, NUMBERS)
    accept(grid, FLOATS)
    if grid.rank != x.rank or grid.shape[-1] != len(spatial) or grid.shape[0] != x.shape[0]:
        raise InvalidModel(
            f"the grid must be [{x.shape[0]}, positions..., {len(spatial)}] with {len(spatial)} axes of positions, not {grid}"
        )
    if attrs.mode not in MODES or attrs.padding not in PADDINGS:
        raise InvalidModel(f"mode is {', '.join(MODES)} and padding {', '.join(PADDINGS)}, not {attrs.mode!r} and {attrs.padding!r}")
    if any(dim == 0 for dim in spatial):
        raise InvalidModel(f"cannot sample from {x}, which has no elements")
    return TensorType((*x.shape[:2], *grid.shape[1:-1]), x.dtype, x.device)


def _whole(position: np.ndarray) -> np.ndarray:
    return np.where(position > -FARTHEST, np.minimum(position, FARTHEST), -FARTHEST).astype(np.int64)


def placed(index: np.ndarray, size: int, padding: str, align_corners: bool) -> tuple[np.ndarray, np.ndarray]:
    """Where an index lies in an axis of ``size`` elements, and whether anything is there."""
    inside = np.ones(index.shape, bool)
    if padding == "zeros":
        inside = (index >= 0) & (index < size)
    elif padding == "reflection":
        period = max(2 * (size - 1), 1) if align_corners else 2 * size
        index = index % period
        index = np.where(index >= size, period - index if align_corners else period - 1 - index, index)
    return np.clip(index, 0, size - 1), inside


def axis_taps(position: np.ndarray, mode: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The elements around a position as (index, weight), before padding is thought of."""
    if mode == "nearest":
        return [(_whole(np.rint(position)), np.ones_like(position))]
    base = np.floor(position)
    t, first = position - base, _whole(base)
    if mode == "linear":
        return [(first, 1 - t), (first + 1, t)]
    return [(first + i, cubic(np.abs(t - i), CUBIC_A).astype(position.dtype)) for i in (-1, 0, 1, 2)]


def _grid_sample(attrs: GridSampleAttributes, x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    spatial = x.shape[2:]
    grid = grid.astype(np.float32) if grid.dtype == np.float16 else grid
    axes = []
    with np.errstate(all="ignore"):
        for axis, size in enumerate(spatial):
            at = grid[..., len(spatial) - 1 - axis] + grid.dtype.type(1)
            position = at / 2 * (size - 1) if attrs.align_corners else (at * size - 1) / 2
            axes.append([(*placed(i, size, attrs.padding, attrs.align_corners), w) for i, w in axis_taps(position, attrs.mode)])
        return _weighted(x, axes)


def _weighted(x: np.ndarray, axes: Sequence[Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]]) -> np.ndarray:
    """The sum over the taps of all axes, each (index, inside, weight) of shape [N, positions...]."""
    wide = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * (axes[0][0][0].ndim - 1))
    total = np.zeros((*axes[0][0][0].shape, x.shape[1]), wide)
    for taps in combinations(*axes):
        place: Any = (batch, slice(None), *(index for index, _, _ in taps))
        value = x[place].astype(wide)
        weight = np.prod([weight for _, _, weight in taps], axis=0)[..., np.newaxis]
        inside = np.logical_and.reduce([inside for _, inside, _ in taps])[..., np.newaxis]
        exact = all(len(axis) == 1 for axis in axes)
        total += np.where(inside, value if exact else value * weight.astype(wide), 0)
    return np.ascontiguousarray(np.moveaxis(total, -1, 1)).astype(x.dtype)


def _deform_relation(types: Sequence[TensorType], attrs: DeformColumnsAttributes) -> TensorType:
    x = types[0]
    same_dtype(types)
    spatial = _image(x)
    check_windows(len(spatial), attrs.strides, attrs.padding, attrs.dilation)
    check_values("kernel", attrs.kernel, len(spatial), 1)
    outputs = tuple(
        output_extent(size, attrs.kernel[i], attrs.strides[i], pads_of(attrs.padding, i), attrs.dilation[i])
        for i, size in enumerate(spatial)
    )
    count, channels = int(np.prod(attrs.kernel)), x.shape[1]
    if not isinstance(channels, int) or attrs.groups < 1 or channels % attrs.groups:
        raise InvalidModel(f"the channels of {x} do not divide into {attrs.groups} groups of offsets")
    for name, arg, entries in (("offsets", types[1], count * len(spatial)), ("mask", types[-1], count)):
        wanted = (x.shape[0], attrs.groups * entries, *outputs)
        if (name == "offsets" or len(types) == 3) and arg.shape != wanted:
            raise InvalidModel(f"the {name} must have the shape {format_shape(wanted)}, not {format_shape(arg.shape)}")
    return TensorType((x.shape[0], channels * count, *outputs), x.dtype, x.device)


def _deform(attrs: DeformColumnsAttributes, x: np.ndarray, offsets: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    n, rank, outputs = x.shape[0], len(attrs.kernel), offsets.shape[2:]
    count, wide = int(np.prod(attrs.kernel)), np.float64 if x.dtype == np.float64 else np.float32
    moved = offsets.astype(wide).reshape(n, attrs.groups, count, rank, *outputs)
    columns = np.zeros((n, attrs.groups, x.shape[1] // attrs.groups, count, *outputs), wide)
    groups = x.reshape(n, attrs.groups, -1, *x.shape[2:])
    for g, (k, tap) in combinations(range(attrs.groups), enumerate(np.ndindex(*attrs.kernel))):
        axes = []
        for axis in range(rank):
            start = np.arange(outputs[axis]) * attrs.strides[axis] - attrs.padding[axis] + tap[axis] * attrs.dilation[axis]
            position = moved[:, g, k, axis] + start.reshape([-1 if a == axis else 1 for a in range(rank)]).astype(wide)
            axes.append([(*placed(i, x.shape[2 + axis], "zeros", False), w) for i, w in axis_taps(position, "linear")])
        columns[:, g, :, k] = _weighted(groups[:, g].astype(wide), axes)
    if mask is not None:
        columns *= mask.astype(wide).reshape(n, attrs.groups, 1, count, *outputs)
    return columns.reshape(n, -1, *outputs).astype(x.dtype)


def _roi_relation(types: Sequence[TensorType], attrs: RoiAlignAttributes) -> TensorType:
    x, rois, batch = types
    same_dtype(types[:2])
    if len(_image(x)) != 2:
        raise InvalidModel(f"takes data [N, C, H, W], not {x}")
    if rois.rank != 2 or rois.shape[1] != 4 or batch.dtype != "int64" or batch.shape != rois.shape[:1]:
        raise InvalidModel(f"takes regions [R, 4] and the int64 image number [R] of each, not {rois} and {batch}")
    check_values("output_size", attrs.output_size, 2, 1)
    if isinstance(attrs, RoiAlignAttributes) and (attrs.mode not in ("avg", "max") or attrs.samples < 0):
        raise InvalidModel(f"mode is avg or max and samples at least 0, not {attrs.mode!r} and {attrs.samples}")
    return TensorType((rois.shape[0], x.shape[1], *attrs.output_size), x.dtype, x.device)


def _roi_align(attrs: RoiAlignAttributes, x: np.ndarray, rois: np.ndarray, batch: np.ndarray) -> np.ndarray:
    wide = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    result = np.zeros((len(rois), x.shape[1], *attrs.output_size), wide)
    for r, (roi, image) in enumerate(zip(rois.astype(wide), batch, strict=True)):
        rows, columns = (_points(attrs, axis, roi, x.shape[2 + axis]) for axis in (0, 1))
        for (i, ys), (j, xs) in combinations(enumerate(rows), enumerate(columns)):
            corners = [x[image][:, y, c].astype(wide) * (wy * wx) for taps in combinations(ys, xs) for y, c, wy, wx in _corners(*taps)]
            if corners:
                points = np.stack(corners)
                result[r, :, i, j] = points.max(0) if attrs.mode == "max" else points.sum(0) / max(len(ys) * len(xs), 1)
    return result.astype(x.dtype)


Tap = tuple[tuple[int, float], tuple[int, float]]


def _corners(rows: Tap, columns: Tap) -> Iterator[tuple[int, int, float, float]]:
    for (y, wy), (x, wx) in combinations(rows, columns):
        yield y, x, wy, wx


def _points(attrs: RoiAlignAttributes, axis: int, roi: np.ndarray, size: int) -> list[list[Tap]]:
    """For each bin along an axis its points, each the two elements around it with their weights; 0 for a point more than
    an element outside."""
    wide, bins = roi.dtype.type, attrs.output_size[axis]
    offset = wide(0.5 if attrs.aligned else 0)
    start, end = (roi[1 - axis + k] * wide(attrs.scale) - offset for k in (0, 2))
    length = end - start if attrs.aligned else max(end - start, wide(1))
    width = length / wide(bins)
    count = attrs.samples or int(np.ceil(width))
    result = []
    for i in range(bins):
        points: list[Tap] = []
        for j in range(count):
            at = start + wide(i) * width + (wide(j) + wide(0.5)) * width / wide(count)
            if at < -1 or at > size:
                points.append(((0, 0.0), (0, 0.0)))
                continue
            at = max(at, wide(0))
            low = min(int(at), size - 1)
            t = at - wide(low) if low < size - 1 else wide(0)
            points.append(((low, 1 - t), (min(low + 1, size - 1), t)))
        result.append(points)
    return result


def _roi_pool(attrs: RoiPoolAttributes, x: np.ndarray, rois: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """The maximum of each bin; 0 for a bin without elements."""
    result = np.zeros((len(rois), x.shape[1], *attrs.output_size), x.dtype)
    for r, (roi, image) in enumerate(zip(rois.astype(np.float32), batch, strict=True)):
        rows, columns = (_bins(attrs, axis, roi, x.shape[2 + axis]) for axis in (0, 1))
        for (i, (top, bottom)), (j, (left, right)) in combinations(enumerate(rows), enumerate(columns)):
            if bottom > top and right > left:
                result[r, :, i, j] = x[image][:, top:bottom, left:right].max((1, 2))
    return result


def _bins(attrs: RoiPoolAttributes, axis: int, roi: np.ndarray, size: int) -> list[tuple[int, int]]:
    f, bins = np.float32, attrs.output_size[axis]
    start, end = (int(np.floor(roi[1 - axis + k] * f(attrs.scale) + f(0.5))) for k in (0, 2))
    width = f(max(end - start + 1, 1)) / f(bins)
    edges = [(int(np.floor(f(i) * width)), int(np.ceil(f(i + 1) * width))) for i in range(bins)]
    return [(min(max(low + start, 0), size), min(max(high + start, 0), size)) for low, high in edges]


grid_sample = OpDef("grid_sample", _grid_relation, _grid_sample, Fusion.OPAQUE, GridSampleAttributes, 2)
"""x[N, C, spatial...] at grid[N, positions..., axis], the last spatial axis first, from -1 to 1 -> [N, C, positions...]."""
deform_columns = OpDef("deform_columns", _deform_relation, _deform, Fusion.OPAQUE, DeformColumnsAttributes, (2, 3))
"""The windows of a deformable convolution: x[N, C, spatial...], offsets[N, groups * taps * axes, outputs...] and an optional
mask[N, groups * taps, outputs...] -> [N, C * taps, outputs...], interpolated linearly, zeros outside."""
roi_align = OpDef("roi_align", _roi_relation, _roi_align, Fusion.OPAQUE, RoiAlignAttributes, 3)
"""x[N, C, H, W], regions[R, (x1, y1, x2, y2)], int64 image numbers[R] -> [R, C, output_size...]."""
roi_pool = OpDef("roi_pool", _roi_relation, _roi_pool, Fusion.OPAQUE, RoiPoolAttributes, 3)
"""As roi_align, the maximum of whole elements: ONNX's MaxRoiPool."""

__all__ = ["deform_columns", "grid_sample", "roi_align", "roi_pool"]
