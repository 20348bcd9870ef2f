"""Maximum and average pools over one to three spatial axes; adaptive pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim
from aotc.ir.expr import Attributes
from aotc.ir.types import FLOATS, TensorType, TupleType
from aotc.ops.base import Fusion, OpDef
from aotc.ops.windows import (
    accumulation_dtype,
    check_values,
    check_windows,
    output_extent,
    pad_for_windows,
    pads_of,
    tap_slices,
    taps,
    window_extent,
)


@dataclass(frozen=True, slots=True)
class MaxPoolAttributes(Attributes):
    """``padding`` holds the begins of all spatial axes, then their ends. The defaults suit two spatial axes.

    ``channel_block`` above 0 means data [N, blocks, spatial..., block].
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False
    channel_block: int = 0


@dataclass(frozen=True, slots=True)
class MaxPoolWithIndicesAttributes(Attributes):
    """As for max_pool. ``storage_order`` 1 counts the spatial part of an index with the first axis fastest."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False
    storage_order: int = 0


@dataclass(frozen=True, slots=True)
class AvgPoolAttributes(Attributes):
    """As for max_pool. The divisor is ``divisor_override`` if given, else the number of elements of the window that lie
    in the data, or with ``count_include_pad`` in the data and its padding (not in what ceil mode adds beyond)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = False
    divisor_override: int | None = None
    channel_block: int = 0


@dataclass(frozen=True, slots=True)
class AdaptivePoolAttributes(Attributes):
    """Output i of an axis covers the inputs from floor(i * size / outputs) up to ceil((i + 1) * size / outputs)."""

    output_size: tuple[Dim, ...]


PoolAttributes = MaxPoolAttributes | MaxPoolWithIndicesAttributes | AvgPoolAttributes


def _pool_relation(types: Sequence[TensorType], attrs: PoolAttributes) -> TensorType:
    (x,) = types
    if x.dtype == "bool" or (isinstance(attrs, AvgPoolAttributes) and x.dtype not in FLOATS):
        raise InvalidModel(f"takes {'floats' if isinstance(attrs, AvgPoolAttributes) else 'numbers'}, not {x}")
    blocked = not isinstance(attrs, MaxPoolWithIndicesAttributes) and attrs.channel_block > 0
    spatial = x.shape[2:-1] if blocked else x.shape[2:]
    if blocked and x.shape[-1:] != (attrs.channel_block,):  # type: ignore[union-attr]
        raise InvalidModel(f"blocks of {attrs.channel_block} need data whose last axis is that long, not {x}")  # type: ignore[union-attr]
    check_windows(len(spatial), attrs.strides, attrs.padding, attrs.dilation)
    check_values("kernel", attrs.kernel, len(spatial), 1)
    if isinstance(attrs, AvgPoolAttributes) and attrs.divisor_override == 0:
        raise InvalidModel("divisor_override must not be 0")
    for axis, (kernel, dilation) in enumerate(zip(attrs.kernel, attrs.dilation, strict=True)):
        if max(pads_of(attrs.padding, axis)) >= window_extent(kernel, dilation):  # type: ignore[operator]
            raise InvalidModel(f"padding {attrs.padding} is not smaller than the window {attrs.kernel} on spatial axis {axis}")
    return TensorType((*x.shape[:2], *_extents(spatial, attrs), *x.shape[2 + len(spatial) :]), x.dtype, x.device)


def _extents(spatial: Sequence[Dim], attrs: PoolAttributes) -> list[Dim]:
    return [
        output_extent(size, attrs.kernel[i], attrs.strides[i], pads_of(attrs.padding, i), attrs.dilation[i], attrs.ceil_mode)
        for i, size in enumerate(spatial)
    ]


def _indices_relation(types: Sequence[TensorType], attrs: MaxPoolWithIndicesAttributes) -> TupleType:
    values = _pool_relation(types, attrs)
    if attrs.storage_order not in (0, 1):
        raise InvalidModel(f"storage_order must be 0 or 1, not {attrs.storage_order}")
    return TupleType((values, TensorType(values.shape, "int64", values.device)))


def _lowest(dtype: np.dtype) -> float:
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _windows(x: np.ndarray, attrs: PoolAttributes, value: float) -> list[np.ndarray]:
    """For each position in a window, that element of all windows; ``value`` outside of ``x``."""
    outputs = [int(n) for n in _extents(x.shape[2:], attrs)]  # type: ignore[arg-type]
    padded = pad_for_windows(x, outputs, attrs.kernel, attrs.strides, attrs.padding, attrs.dilation, value)
    return [padded[tap_slices(tap, outputs, attrs.strides, attrs.dilation)] for tap in taps(attrs.kernel)]


def _plain(reference: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A reference for plain layouts that also does blocked ones: the block moves beside the batch, as more of it."""

    def run(attrs: MaxPoolAttributes | AvgPoolAttributes, x: np.ndarray) -> np.ndarray:
        if not attrs.channel_block:
            return reference(attrs, x)
        moved = np.moveaxis(x, -1, 1)
        result = reference(attrs, moved.reshape(-1, *moved.shape[2:]))
        return np.ascontiguousarray(np.moveaxis(result.reshape(*moved.shape[:2], *result.shape[1:]), 1, -1))

    return run


def _max_reference(attrs: MaxPoolAttributes, x: np.ndarray) -> np.ndarray:
    first, *rest = _windows(x, attrs, _lowest(x.dtype))
    result = first.copy()
    for window in rest:
        np.maximum(result, window, out=result)
    return result


def _indices_reference(attrs: MaxPoolWithIndicesAttributes, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first of equal values in a window is the one whose index is given; NaN is greater than all."""
    order = "F" if attrs.storage_order else "C"
    spatial = x.shape[2:]
    inner = np.arange(int(np.prod(spatial)), dtype=np.int64).reshape(spatial, order=order)  # type: ignore[call-overload]
    outer = np.arange(x.shape[0] * x.shape[1], dtype=np.int64).reshape(*x.shape[:2], *[1] * len(spatial)) * inner.size
    values = _windows(x, attrs, _lowest(x.dtype))
    positions = _windows(np.broadcast_to(inner, x.shape), attrs, -1)
    best, index = values[0].copy(), positions[0].copy()
    for value, position in zip(values[1:], positions[1:], strict=True):
        with np.errstate(invalid="ignore"):
            better = (position >= 0) & ((index < 0) | (value > best) | ((value != value) & (best == best)))
        best, index = np.where(better, value, best), np.where(better, position, index)
    return best, index + outer


def _average_reference(attrs: AvgPoolAttributes, x: np.ndarray) -> np.ndarray:
    dtype = accumulation_dtype(x.dtype)
    first, *rest = _windows(x.astype(dtype), attrs, 0)
    total = first.copy()
    for window in rest:
        total += window
    return (total / (attrs.divisor_override or _counts(attrs, x.shape[2:]))).astype(x.dtype)


def _counts(attrs: AvgPoolAttributes, spatial: Sequence[int]) -> np.ndarray:
    """How many elements of each window count, over the spatial axes; at least 1."""
    counts = np.ones((), np.int64)
    for axis, extent in enumerate(_extents(spatial, attrs)):
        begin, end = pads_of(attrs.padding, axis)
        low, high = (-begin, spatial[axis] + end) if attrs.count_include_pad else (0, spatial[axis])
        starts = np.arange(int(extent)) * attrs.strides[axis] - begin  # type: ignore[arg-type]
        positions = starts[:, np.newaxis] + np.arange(attrs.kernel[axis]) * attrs.dilation[axis]
        counts = counts[..., np.newaxis] * ((positions >= low) & (positions < high)).sum(axis=1)
    return np.maximum(counts, 1).astype(np.float32)


def _adaptive_relation(types: Sequence[TensorType], attrs: AdaptivePoolAttributes) -> TensorType:
    (x,) = types
    if x.dtype not in FLOATS:
        raise InvalidModel(f"takes floats, not {x}")
    spatial = x.rank - 2
    if not 1 <= spatial <= 3 or len(attrs.output_size) != spatial:
        raise InvalidModel(f"takes a tensor with one to three spatial axes and an output size for each, not {x} and {attrs.output_size}")
    if any(isinstance(n, int) and n < 1 for n in attrs.output_size) or 0 in x.shape[2:]:
        raise InvalidModel(f"output sizes must be at least 1 and so must spatial axes, not {attrs.output_size} of {x}")
    return TensorType((*x.shape[:2], *attrs.output_size), x.dtype, x.device)


def _adaptive(reduce: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """One axis after another: the windows are products of ranges."""

    def run(attrs: AdaptivePoolAttributes, x: np.ndarray) -> np.ndarray:
        result = x.astype(accumulation_dtype(x.dtype))
        for axis, outputs in enumerate(attrs.output_size, start=2):
            size = x.shape[axis]
            ranges = [range(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]  # type: ignore[arg-type]
            result = np.stack([reduce(np.take(result, list(r), axis), axis=axis) for r in ranges], axis)
        return result.astype(x.dtype)

    return run


max_pool = OpDef("max_pool", _pool_relation, _plain(_max_reference), Fusion.OUT_FUSABLE, MaxPoolAttributes)
max_pool_with_indices = OpDef("max_pool_with_indices", _indices_relation, _indices_reference, Fusion.OPAQUE, MaxPoolWithIndicesAttributes)
avg_pool = OpDef("avg_pool", _pool_relation, _plain(_average_reference), Fusion.OUT_FUSABLE, AvgPoolAttributes)
adaptive_avg_pool = OpDef("adaptive_avg_pool", _adaptive_relation, _adaptive(np.mean), Fusion.OUT_FUSABLE, AdaptivePoolAttributes)
adaptive_max_pool = OpDef("adaptive_max_pool", _adaptive_relation, _adaptive(np.max), Fusion.OUT_FUSABLE, AdaptivePoolAttributes)

OPERATORS: tuple[OpDef, ...] = (max_pool, max_pool_with_indices, avg_pool, adaptive_avg_pool, adaptive_max_pool)
