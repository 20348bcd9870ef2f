"""Resizing by interpolation, as ONNX Resize defines it; axis by axis, so that each axis is a small weighted gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim
from aotc.ir.expr import Attributes
from aotc.ir.types import TensorType
from aotc.ops.base import Fusion, OpDef, format_shape
from aotc.ops.windows import accumulation_dtype

MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True, slots=True)
class ResizeAttributes(Attributes):
    """``shape`` is that of the result. ``scales`` holds one factor per axis; None stands for output dim / input dim.

    ``coordinate`` maps output positions into the input (``COORDINATES``); ``nearest`` rounds them where ``mode`` is
    nearest. ``cubic_a`` is the cubic kernel's parameter; ``exclude_outside`` gives points outside the input no weight
    (else the edge is repeated). ``roi`` (all starts, then all ends, as fractions of the axes) and ``extrapolation``,
    the value of points outside the input, belong to tf_crop_and_resize. ``antialias`` widens the linear or cubic
    kernel by the factor by which an axis shrinks.
    """

    shape: tuple[Dim, ...]
    scales: tuple[float | None, ...]
    mode: str = "nearest"
    coordinate: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0
    roi: tuple[float, ...] | None = None
    antialias: bool = False


@dataclass(frozen=True, slots=True)
class AxisWeights:
    """Output i of one axis is the sum over t of ``weights[i, t]`` times input ``indices[i, t]``; ``outside`` marks
    outputs that take the extrapolation value instead."""

    indices: np.ndarray
    weights: np.ndarray
    outside: np.ndarray


def _relation(types: Sequence[TensorType], attrs: ResizeAttributes) -> TensorType:
    (x,) = types
    if len(attrs.shape) != x.rank or len(attrs.scales) != x.rank:
        raise InvalidModel(f"needs one output dim and one scale for each axis of {x}, not {attrs.shape} and {attrs.scales}")
    for name, value, known in (
        ("mode", attrs.mode, MODES),
        ("coordinate", attrs.coordinate, COORDINATES),
        ("nearest", attrs.nearest, NEAREST),
    ):
        if value not in known:
            raise InvalidModel(f"{name} must be one of {', '.join(known)}, not {value!r}")
    if any(scale is not None and not scale > 0 for scale in attrs.scales):
        raise InvalidModel(f"scales must be above 0, not {attrs.scales}")
    if attrs.coordinate == "tf_crop_and_resize" and (attrs.roi is None or len(attrs.roi) != 2 * x.rank):
        raise InvalidModel(f"tf_crop_and_resize needs a roi of {2 * x.rank} numbers, not {attrs.roi}")
    for old, new in zip(x.shape, attrs.shape, strict=True):
        if old == 0 and new != 0:
            raise InvalidModel(f"an empty axis of {x} cannot grow to {format_shape(attrs.shape)}")
    return TensorType(attrs.shape, x.dtype, x.device)


def is_unchanged_axis(attrs: ResizeAttributes, axis: int, size: Dim) -> bool:
    """Whether an axis of ``size`` passes through as it is."""
    same = attrs.shape[axis] == size and attrs.scales[axis] in (None, 1.0)
    return same and attrs.coordinate != "tf_crop_and_resize"


def axis_weights(attrs: ResizeAttributes, axis: int, size: int, outputs: int) -> AxisWeights:
    """The weighted gather of one axis of ``size`` elements resized to ``outputs``; float64 weights."""
    scale, rank = attrs.scales[axis], len(attrs.shape)
    roi = (attrs.roi[axis], attrs.roi[axis + rank]) if attrs.roi else (0.0, 1.0)
    where = coordinates(attrs.coordinate, size, outputs, scale, roi)
    outside = np.zeros(outputs, bool)
    if attrs.coordinate == "tf_crop_and_resize":
        outside = (where < 0) | (where > size - 1)
    if attrs.mode == "nearest":
        indices = np.clip(ROUNDING[attrs.nearest](where), 0, size - 1).astype(np.int64)[:, np.newaxis]
        return AxisWeights(indices, np.ones((outputs, 1)), outside)
    shrink = min(outputs / size if scale is None else float(scale), 1.0) if attrs.antialias else 1.0
    indices, weights = _kernel_taps(attrs, where.astype(np.float64), shrink)
    if attrs.exclude_outside:
        weights = np.where((indices < 0) | (indices >= size), 0, weights)
    weights = weights / np.where((total := weights.sum(axis=1, keepdims=True)) == 0, 1, total)
    return AxisWeights(np.clip(indices, 0, size - 1), weights, outside)


def coordinates(kind: str, size: int, outputs: int, scale: float | None, roi: tuple[float, float] = (0.0, 1.0)) -> np.ndarray:
    """Where in an axis of ``size`` elements each of the ``outputs`` positions lies.

    In float32, each operation rounded and in this order: whether a position falls on a tie or a whole number decides
    which element "nearest" takes, and ONNX Runtime has the same ties. Without a scale, i * size / outputs is the more
    exact form of i / (outputs / size).
    """
    f = np.float32
    i, old, new = np.arange(outputs, dtype=f), f(size), f(outputs)
    if kind == "asymmetric":
        return _unscale(i, old, new, scale)
    if kind == "align_corners":
        return i * (old - f(1)) / (new - f(1)) if outputs > 1 else np.zeros(outputs, f)
    if kind == "tf_crop_and_resize":
        start, end = map(f, roi)
        if outputs > 1:
            return start * (old - f(1)) + i * (end - start) * (old - f(1)) / (new - f(1))
        return np.full(outputs, f(0.5) * (start + end) * (old - f(1)))
    if kind == "pytorch_half_pixel" and outputs <= 1:
        return np.zeros(outputs, f)
    if kind == "half_pixel_symmetric":
        # The centre of what scale * size would have been, had it not been rounded down.
        offset = f(0) if scale is None else old / f(2) * (f(1) - new / (f(scale) * old))
        return offset + _unscale(i + f(0.5), old, new, scale) - f(0.5)
    return _unscale(i + f(0.5), old, new, scale) - f(0.5)


def _unscale(position: np.ndarray, old: np.float32, new: np.float32, scale: float | None) -> np.ndarray:
    return position * old / new if scale is None else position / np.float32(scale)


ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda where: np.floor(where) + (where - np.floor(where) > 0.5),
    "round_prefer_ceil": lambda where: np.floor(where) + (where - np.floor(where) >= 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _kernel_taps(attrs: ResizeAttributes, where: np.ndarray, shrink: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices (not yet clipped) and weights of the kernel around each position, stretched by 1 / ``shrink``."""
    reach = (1 if attrs.mode == "linear" else 2) / shrink
    base = np.floor(where)
    offsets = np.arange(-int(np.ceil(reach)) + 1, int(np.ceil(reach)) + 1)
    indices = base[:, np.newaxis] + offsets
    distance = np.abs(indices - where[:, np.newaxis]) * shrink
    weights = np.maximum(1 - distance, 0) if attrs.mode == "linear" else cubic(distance, attrs.cubic_a)
    return indices.astype(np.int64), weights


def cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel at a distance of at least 0 (R. G. Keys, IEEE Trans. ASSP 29, 1981)."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((distance - 5) * distance + 8) * a * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _reference(attrs: ResizeAttributes, x: np.ndarray) -> np.ndarray:
    exact = attrs.mode == "nearest"
    result = x if exact else x.astype(accumulation_dtype(x.dtype) if x.dtype.kind == "f" else np.float32)
    outside = np.zeros((1,) * x.ndim, bool)
    for axis, outputs in enumerate(attrs.shape):
        if is_unchanged_axis(attrs, axis, x.shape[axis]):
            continue
        table = axis_weights(attrs, axis, x.shape[axis], int(outputs))  # type: ignore[arg-type]
        result = _gather_axis(result, axis, table, exact)
        outside = outside | table.outside.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    if outside.any():
        result = np.where(outside, np.asarray(attrs.extrapolation, result.dtype), result)
    return _store(result, x.dtype)


def _gather_axis(x: np.ndarray, axis: int, table: AxisWeights, exact: bool) -> np.ndarray:
    if exact:
        return np.take(x, table.indices[:, 0], axis)
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    total = np.zeros([*x.shape[:axis], len(table.indices), *x.shape[axis + 1 :]], x.dtype)
    for t in range(table.indices.shape[1]):
        total += np.take(x, table.indices[:, t], axis) * table.weights[:, t].astype(x.dtype).reshape(shape)
    return total


def _store(result: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Integers are rounded to the nearest (half to even) and held within their range."""
    if dtype.kind not in "iu" or result.dtype == dtype:
        return result.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(result.astype(np.float64)), limits.min, limits.max).astype(dtype)


resize = OpDef("resize", _relation, _reference, Fusion.OUT_FUSABLE, ResizeAttributes)

OPERATORS: tuple[OpDef, ...] = (resize,)
