"""Windows laid back over the image they were cut from: PyTorch's ``fold``, ONNX's Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Attributes
from aotc.ir.types import TensorType
from aotc.ops.base import Fusion, OpDef
from aotc.ops.elementwise import NUMBERS, accept
from aotc.ops.windows import accumulation_dtype, check_values, output_extent, pads_of, tap_slices, taps


@dataclass(frozen=True, slots=True)
class FoldAttributes(Attributes):
    """``image`` is the shape of the spatial axes of the result; the others are as in a convolution over it."""

    image: tuple[Dim, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def window_counts(attrs: FoldAttributes) -> tuple[Dim, ...]:
    """How many windows lie along each axis of the image."""
    axes = enumerate(zip(attrs.image, attrs.kernel, attrs.strides, attrs.dilation, strict=True))
    return tuple(output_extent(size, k, s, pads_of(attrs.padding, axis), d) for axis, (size, k, s, d) in axes)


def _relation(types: Sequence[TensorType], attrs: FoldAttributes) -> TensorType:
    (x,) = types
    accept(x, NUMBERS)
    rank = len(attrs.image)
    for name, values, count, least in (
        ("kernel", attrs.kernel, rank, 1),
        ("strides", attrs.strides, rank, 1),
        ("padding", attrs.padding, 2 * rank, 0),
        ("dilation", attrs.dilation, rank, 1),
    ):
        check_values(name, values, count, least)
    windows, count = product(window_counts(attrs)), int(np.prod(attrs.kernel))
    if not rank or x.rank != 3 or x.shape[2] != windows or not isinstance(x.shape[1], int) or x.shape[1] % count:
        raise InvalidModel(f"takes [N, channels * {count}, {windows}] for an image of {attrs.image}, not {x}")
    return TensorType((x.shape[0], x.shape[1] // count, *attrs.image), x.dtype, x.device)


def _reference(attrs: FoldAttributes, x: np.ndarray) -> np.ndarray:
    counts = [int(n) for n in window_counts(attrs)]  # type: ignore[arg-type]
    wide, rank = accumulation_dtype(x.dtype), len(counts)
    cells = x.astype(wide).reshape(x.shape[0], -1, *attrs.kernel, *counts)
    sizes = [int(n) + sum(pads_of(attrs.padding, i)) for i, n in enumerate(attrs.image)]  # type: ignore[arg-type]
    padded = np.zeros((*cells.shape[:2], *sizes), wide)
    for tap in taps(attrs.kernel):
        cell: Any = (slice(None), slice(None), *tap)
        padded[tap_slices(tap, counts, attrs.strides, attrs.dilation)] += cells[cell]
    inner: Any = (..., *(slice(attrs.padding[i], attrs.padding[i] + int(attrs.image[i])) for i in range(rank)))  # type: ignore[arg-type]
    return np.ascontiguousarray(padded[inner]).astype(x.dtype)


fold = OpDef("fold", _relation, _reference, Fusion.OUT_FUSABLE, FoldAttributes)
"""x[N, channels * taps, windows] -> [N, channels, image...]: where windows overlap, their elements are added."""

__all__ = ["fold"]
