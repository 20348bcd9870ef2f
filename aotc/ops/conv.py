"""Convolutions over one to three spatial axes, plain and with blocked channels, and transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, bounds, ceildiv
from aotc.ir.expr import Attributes
from aotc.ir.types import TensorType
from aotc.ops.base import Fusion, OpDef, same_dtype
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
class ConvAttributes(Attributes):
    """``padding`` holds the begins of all spatial axes, then their ends. The defaults suit two spatial axes.

    ``channel_block`` b > 0 means blocked channels: x[N, ceil(C/b'), *S, b'] gives [N, ceil(O/b), *S', b], with weights
    w[ceil(O/b)/m, ceil(C/b'), *k, b', m*b], or w[ceil(C/b), *k, b] where each channel is its own group (then b' = b).
    The input's block b' and the number m of output blocks in a panel of weights are read off the shapes. ``out_channels``
    is then the true O, and ``in_channels`` the true C where the last block has filling (the weights that meet it are zero); 0
    where it has none.
    """

    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    channel_block: int = 0
    out_channels: int = 0
    in_channels: int = 0


@dataclass(frozen=True, slots=True)
class ConvTransposeAttributes(Attributes):
    """``output_padding`` lengthens the end of each axis of the result by elements that are computed like the others."""

    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    output_padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1


def is_depthwise_blocked(attrs: ConvAttributes, weight_rank: int, input_rank: int) -> bool:
    """Whether a blocked convolution has one group a channel: its weights then lack the axes of the input channels."""
    return attrs.channel_block > 0 and weight_rank == input_rank - 1


def _conv_relation(types: Sequence[TensorType], attrs: ConvAttributes) -> TensorType:
    x, w = types
    dtype = same_dtype(types)
    _check_groups(attrs.groups)
    if attrs.channel_block:
        return _blocked_relation(x, w, attrs, dtype)
    if x.rank != w.rank:
        raise InvalidModel(f"takes data [N, C, spatial...] and weights of the same rank, not {x} and {w}")
    channels, outputs = w.shape[1] * attrs.groups, w.shape[0]
    if x.shape[1] != channels:
        raise InvalidModel(f"weights {w} in {attrs.groups} groups need data of {channels} channels, not {x.shape[1]} as in {x}")
    if isinstance(outputs, int) and outputs % attrs.groups:
        raise InvalidModel(f"{outputs} output channels do not divide into {attrs.groups} groups")
    return TensorType((x.shape[0], outputs, *_extents(x.shape[2:], w.shape[2:], attrs)), dtype, x.device)


def _blocked_relation(x: TensorType, w: TensorType, attrs: ConvAttributes, dtype: str) -> TensorType:
    block, blocks = attrs.channel_block, ceildiv(attrs.out_channels, attrs.channel_block)
    if attrs.out_channels < 1:
        raise InvalidModel(f"blocked channels need out_channels of at least 1, not {attrs.out_channels}")
    spatial = x.rank - 3
    if is_depthwise_blocked(attrs, w.rank, x.rank):
        if attrs.groups != attrs.out_channels:
            raise InvalidModel(f"weights {w} of one group a channel need {attrs.out_channels} groups, not {attrs.groups}")
        expected: tuple[Dim, ...] = (blocks, *w.shape[1:-1], block)
        data: tuple[Dim, ...] = (x.shape[0], blocks, *x.shape[2:-1], block)
        kernel = w.shape[1:-1]
    else:
        if w.rank != x.rank + 1 or attrs.groups != 1:
            raise InvalidModel(f"blocked data {x} needs weights of rank {x.rank + 1} in 1 group, not {w} in {attrs.groups}")
        panel = w.shape[-1] if isinstance(w.shape[-1], int) and w.shape[-1] and blocks * block % w.shape[-1] == 0 else block
        panel = panel if panel % block == 0 else block
        expected = (blocks * block // panel, w.shape[1], *w.shape[2:-2], w.shape[-2], panel)
        data = (x.shape[0], w.shape[1], *x.shape[2:-1], w.shape[-2])
        kernel = w.shape[2 : 2 + spatial]
    if w.shape != expected or x.shape != data:
        raise InvalidModel(
            f"blocks of {block} and {attrs.out_channels} output channels do not fit data {x} with weights {w}:"
            f" expected {TensorType(data, dtype)} and {TensorType(expected, dtype)}"
        )
    return TensorType((x.shape[0], blocks, *_extents(x.shape[2:-1], kernel, attrs), block), dtype, x.device)


def _extents(spatial: tuple[Dim, ...], kernel: tuple[Dim, ...], attrs: ConvAttributes) -> list[Dim]:
    check_windows(len(spatial), attrs.strides, attrs.padding, attrs.dilation)
    return [
        output_extent(size, kernel[i], attrs.strides[i], pads_of(attrs.padding, i), attrs.dilation[i]) for i, size in enumerate(spatial)
    ]


def _check_groups(groups: int) -> None:
    if groups < 1:
        raise InvalidModel(f"groups must be at least 1, not {groups}")


def _conv_reference(attrs: ConvAttributes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    if not attrs.channel_block:
        return _conv(attrs, x, w, attrs.groups)
    if is_depthwise_blocked(attrs, w.ndim, x.ndim):
        weights = _merge_channels(w)[:, np.newaxis]
        return _split_channels(_conv(attrs, _merge_channels(x, 1), weights, len(weights)), attrs.channel_block)
    weights = np.moveaxis(w, (-1, -2), (1, 3))
    outputs, inputs = weights.shape[0] * weights.shape[1], weights.shape[2] * weights.shape[3]
    result = _conv(attrs, _merge_channels(x, 1), weights.reshape(outputs, inputs, *weights.shape[4:]), 1)
    return _split_channels(result, attrs.channel_block)


def _merge_channels(x: np.ndarray, axis: int = 0) -> np.ndarray:
    """Blocked channels (the last axis, outer part at ``axis``) as one axis, padding channels kept."""
    moved = np.moveaxis(x, -1, axis + 1)
    return moved.reshape(*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :])


def _split_channels(x: np.ndarray, block: int) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x.reshape(x.shape[0], x.shape[1] // block, block, *x.shape[2:]), 2, -1))


def _conv(attrs: ConvAttributes, x: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    kernel, dtype = w.shape[2:], accumulation_dtype(x.dtype)
    outputs = [
        int(output_extent(size, kernel[i], attrs.strides[i], pads_of(attrs.padding, i), attrs.dilation[i]))  # type: ignore[arg-type]
        for i, size in enumerate(x.shape[2:])
    ]
    padded = pad_for_windows(x.astype(dtype), outputs, kernel, attrs.strides, attrs.padding, attrs.dilation, 0)
    grouped = padded.reshape(x.shape[0], groups, w.shape[1], *padded.shape[2:])
    weights = w.astype(dtype).reshape(groups, w.shape[0] // groups, w.shape[1], *kernel)
    total = np.zeros((x.shape[0], groups, w.shape[0] // groups, math.prod(outputs)), dtype)
    for tap in taps(kernel):
        at: Any = (..., *tap)
        window = grouped[tap_slices(tap, outputs, attrs.strides, attrs.dilation)]
        total += _contract(weights[at], window.reshape(*window.shape[:3], math.prod(outputs)))
    return total.reshape(x.shape[0], w.shape[0], *outputs).astype(x.dtype)


def _contract(weights: np.ndarray, window: np.ndarray) -> np.ndarray:
    """weights[G, O, C] by window[N, G, C, P], summed over C."""
    return weights * window if weights.shape[2] == 1 else np.matmul(weights, window)


def _transpose_relation(types: Sequence[TensorType], attrs: ConvTransposeAttributes) -> TensorType:
    x, w = types
    dtype = same_dtype(types)
    _check_groups(attrs.groups)
    if x.rank != w.rank:
        raise InvalidModel(f"takes data [N, C, spatial...] and weights of the same rank, not {x} and {w}")
    check_windows(x.rank - 2, attrs.strides, attrs.padding, attrs.dilation)
    check_values("output_padding", attrs.output_padding, x.rank - 2, 0)
    if x.shape[1] != w.shape[0]:
        raise InvalidModel(f"weights {w} need data of {w.shape[0]} channels, not {x.shape[1]} as in {x}")
    if isinstance(w.shape[0], int) and w.shape[0] % attrs.groups:
        raise InvalidModel(f"{w.shape[0]} input channels do not divide into {attrs.groups} groups")
    extents = [_transposed_extent(size, w.shape[i + 2], attrs, i) for i, size in enumerate(x.shape[2:])]
    return TensorType((x.shape[0], w.shape[1] * attrs.groups, *extents), dtype, x.device)


def _transposed_extent(size: Dim, kernel: Dim, attrs: ConvTransposeAttributes, axis: int) -> Dim:
    begin, end = pads_of(attrs.padding, axis)
    spread = (size - 1) * attrs.strides[axis] + window_extent(kernel, attrs.dilation[axis]) + attrs.output_padding[axis]
    extent = spread - begin - end
    high = bounds(extent)[1]
    if high is not None and high < 1:
        raise InvalidModel(f"padding of {begin} and {end} leaves nothing of the {spread} elements on spatial axis {axis}")
    return extent


def _transpose_reference(attrs: ConvTransposeAttributes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    kernel, spatial, dtype = w.shape[2:], x.shape[2:], accumulation_dtype(x.dtype)
    grouped = x.astype(dtype).reshape(x.shape[0], attrs.groups, x.shape[1] // attrs.groups, math.prod(spatial))
    weights = w.astype(dtype).reshape(attrs.groups, w.shape[0] // attrs.groups, w.shape[1], *kernel)
    full = [
        (n - 1) * s + (k - 1) * d + 1 + extra
        for n, k, s, d, extra in zip(spatial, kernel, attrs.strides, attrs.dilation, attrs.output_padding, strict=True)
    ]
    total = np.zeros((x.shape[0], attrs.groups, w.shape[1], *full), dtype)
    for tap in taps(kernel):
        at: Any = (..., *tap)
        product = _contract(np.swapaxes(weights[at], 1, 2), grouped)
        total[tap_slices(tap, spatial, attrs.strides, attrs.dilation)] += product.reshape(*product.shape[:3], *spatial)
    ends = [pads_of(attrs.padding, axis) for axis in range(len(full))]
    inner: Any = (..., *(slice(begin, n - end) for n, (begin, end) in zip(full, ends, strict=True)))
    kept = total[inner]
    return np.ascontiguousarray(kept.reshape(x.shape[0], attrs.groups * w.shape[1], *kept.shape[3:])).astype(x.dtype)


conv = OpDef("conv", _conv_relation, _conv_reference, Fusion.OUT_FUSABLE, ConvAttributes, arity=2)
conv_transpose = OpDef("conv_transpose", _transpose_relation, _transpose_reference, Fusion.OUT_FUSABLE, ConvTransposeAttributes, arity=2)

OPERATORS: tuple[OpDef, ...] = (conv, conv_transpose)
