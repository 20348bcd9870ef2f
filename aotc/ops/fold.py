"""Windows laid back over the image they were cut from: PyTorch's ``fold``, ONNX's Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, floordiv, product
from aotc.ir.expr import Attributes
from aotc.ir.types import TensorType
from aotc.ops.base import Fusion, OpDef
from aotc.ops.elementwise import NUMBERS, accept
from aotc.ops.windows import accumulation_dtype, check_values, pads_of, tap_slices, taps, window_extent


@dataclass(frozen=True, slots=True)
class FoldAttributes(Attributes):
    """``image`` is the shape of the spatial axes of the result; the others are as in a convolution over it. Sizes that only a
    run tells are the caller's to check: that there are as many windows and channels as they say."""

    image: tuple[Dim, ...]
    kernel: tuple[Dim, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def window_counts(attrs: FoldAttributes) -> tuple[Dim, ...]:
    """How many windows lie along each axis of the image."""
    axes = enumerate(zip(attrs.image, attrs.kernel, attrs.strides, attrs.dilation, strict=True))
    return tuple(_windows(size, k, s, pads_of(attrs.padding, axis), d) for axis, (size, k, s, d) in axes)


def _windows(size: Dim, kernel: Dim, stride: int, pads: tuple[int, int], dilation: int) -> Dim:
    return floordiv(size + sum(pads) - window_extent(kernel, dilation), stride) + 1


def _relation(types: Sequence[TensorType], attrs: FoldAttributes) -> TensorType:
    (x,) = types
    accept(x, NUMBERS)
    rank = len(attrs.image)
    for name, values, count, least in (
        ("kernel", [k for k in attrs.kernel if isinstance(k, int)], sum(isinstance(k, int) for k in attrs.kernel), 1),
        ("strides", attrs.strides, rank, 1),
        ("padding", attrs.padding, 2 * rank, 0),
        ("dilation", attrs.dilation, rank, 1),
    ):
        check_values(name, values, count, least)
    if not rank or len(attrs.kernel) != rank or x.rank != 3:
        raise InvalidModel(
            f"takes windows [N, channels * taps, windows] and a kernel for each axis of {attrs.image}, not {x} and {attrs.kernel}"
        )
    windows, inside = product(window_counts(attrs)), product(attrs.kernel)
    channels = floordiv(x.shape[1], inside)
    for have, need in ((x.shape[1], channels * inside), (x.shape[2], windows)):
        if isinstance(have, int) and isinstance(need, int) and have != need:
            raise InvalidModel(f"takes [N, channels * {inside}, {windows}] for an image of {attrs.image}, not {x}")
    return TensorType((x.shape[0], channels, *attrs.image), x.dtype, x.device)


def _reference(attrs: FoldAttributes, x: np.ndarray) -> np.ndarray:
    counts = [int(n) for n in window_counts(attrs)]  # type: ignore[arg-type]
    wide, rank = accumulation_dtype(x.dtype), len(counts)
    kernel = [int(k) for k in attrs.kernel]  # type: ignore[arg-type]
    cells = x.astype(wide).reshape(x.shape[0], -1, *kernel, *counts)
    sizes = [int(n) + sum(pads_of(attrs.padding, i)) for i, n in enumerate(attrs.image)]  # type: ignore[arg-type]
    padded = np.zeros((*cells.shape[:2], *sizes), wide)
    for tap in taps(kernel):
        cell: Any = (slice(None), slice(None), *tap)
        padded[tap_slices(tap, counts, attrs.strides, attrs.dilation)] += cells[cell]
    inner: Any = (..., *(slice(attrs.padding[i], attrs.padding[i] + int(attrs.image[i])) for i in range(rank)))  # type: ignore[arg-type]
    return np.ascontiguousarray(padded[inner]).astype(x.dtype)


fold = OpDef("fold", _relation, _reference, Fusion.OUT_FUSABLE, FoldAttributes)
"""x[N, channels * taps, windows] -> [N, channels, image...]: where windows overlap, their elements are added."""

__all__ = ["fold"]
