"""Sliding windows, shared by convolutions and pools: checks of their attributes, extents, and views for the references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, bounds, ceildiv, floordiv, minimum

WORDS = {1: "one spatial axis", 2: "two spatial axes", 3: "three spatial axes"}


def check_windows(spatial: int, strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> None:
    """Raises InvalidModel where an attribute has a wrong length or value for ``spatial`` axes."""
    if spatial not in WORDS:
        raise InvalidModel(f"takes a tensor with one to three spatial axes, not {spatial}")
    for name, values, count, least in (
        ("strides", strides, spatial, 1),
        ("padding", padding, 2 * spatial, 0),
        ("dilation", dilation, spatial, 1),
    ):
        check_values(name, values, count, least)


def check_values(name: str, values: Sequence[int], count: int, least: int) -> None:
    """Raises InvalidModel unless ``values`` are ``count`` integers of at least ``least``."""
    if len(values) != count or any(not isinstance(v, int) or v < least for v in values):
        raise InvalidModel(f"{name} must be {count} integers of at least {least}, not {tuple(values)}")


def pads_of(padding: Sequence[int], axis: int) -> tuple[int, int]:
    """The begin and end padding of one spatial axis; ``padding`` holds all begins, then all ends."""
    return padding[axis], padding[axis + len(padding) // 2]


def window_extent(kernel: Dim, dilation: int) -> Dim:
    """The elements that one dilated window spans."""
    return (kernel - 1) * dilation + 1


def output_extent(size: Dim, kernel: Dim, stride: int, pads: tuple[int, int], dilation: int, ceil_mode: bool = False) -> Dim:
    """The number of windows along one axis. With ``ceil_mode`` a window that starts in the end padding is dropped.

    Raises InvalidModel where not one window fits.
    """
    room = size + pads[0] + pads[1] - window_extent(kernel, dilation)
    if ceil_mode:
        extent = minimum(ceildiv(room, stride) + 1, ceildiv(size + pads[0], stride))
    else:
        extent = floordiv(room, stride) + 1
    high = bounds(room)[1]
    if high is not None and high < 0:
        raise InvalidModel(
            f"a window of {window_extent(kernel, dilation)} does not fit an axis of {size} with {pads[0]} and {pads[1]} of padding"
        )
    return extent


def taps(kernel: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The positions in a window, the last axis fastest."""
    return product(*(range(extent) for extent in kernel))


def tap_slices(tap: Sequence[int], outputs: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Any:
    """The index of where in the padded input position ``tap`` of every window lies, for all leading axes."""
    axes = zip(tap, outputs, strides, dilation, strict=True)
    return (..., *(slice(t * d, t * d + (n - 1) * s + 1 if n else 0, s) for t, n, s, d in axes))


def pad_for_windows(
    x: np.ndarray, outputs: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    value: float,
) -> np.ndarray:  # fmt: skip
    """``x`` padded with ``value`` on its last axes so that all windows lie inside (ceil mode needs more than the padding)."""
    widths = [(0, 0)] * (x.ndim - len(kernel))
    for axis, (n, k, s, d) in enumerate(zip(outputs, kernel, strides, dilation, strict=True)):
        size = x.shape[x.ndim - len(kernel) + axis]
        begin, end = pads_of(padding, axis)
        widths.append((begin, max(end, (n - 1) * s + (k - 1) * d + 1 - size - begin)))
    return np.pad(x, widths, constant_values=value)


def accumulation_dtype(dtype: np.dtype) -> np.dtype:
    """float16 is summed in float32; all else in its own type."""
    return np.dtype("float32") if dtype == np.float16 else dtype
