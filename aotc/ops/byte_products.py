"""Integer convolutions and products whose weights stand as kernels read them: bytes of neighbouring inputs side by side.

Machines add several products of bytes to one sum of 32 bits. So the inputs of a sum stand in ``units`` of as many bytes, and a
vector of weights holds one unit for each of several outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, ceildiv
from aotc.ir.expr import Attributes
from aotc.ir.types import TensorType
from aotc.ops.base import Fusion, OpDef, format_shape
from aotc.ops.elementwise import accept
from aotc.ops.quantise import IntegerConvAttributes, integer_conv
from aotc.ops.windows import check_windows, output_extent, pads_of

BLOCK = 16
"""Channels of a block: 16 bytes."""
BYTES = ("int8", "uint8")


@dataclass(frozen=True, slots=True)
class ByteConvAttributes(Attributes):
    """``padding`` is as in ConvAttributes, and holds ``pad_value``. ``out_channels`` is the true number of output channels, and
    ``in_channels`` of inputs: weights that meet filling are zero."""

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    out_channels: int
    in_channels: int
    pad_value: int = 0


@dataclass(frozen=True, slots=True)
class ByteDepthwiseAttributes(Attributes):
    """``kernel`` is the true extent of the window; padding holds ``pad_value``."""

    kernel: tuple[int, int]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    out_channels: int
    pad_value: int = 0


@dataclass(frozen=True, slots=True)
class ByteMatmulAttributes(Attributes):
    """``columns``: the true number of columns, without the filling of the last block."""

    columns: int


def _accept(types: Sequence[TensorType]) -> tuple[TensorType, TensorType]:
    x, w = types
    accept(x, BYTES)
    accept(w, ("int8",))
    return x, w


def _result(x: TensorType, channels: int, spatial: Sequence[Dim], kernel: Sequence[Dim], attrs: Any) -> TensorType:
    check_windows(len(spatial), attrs.strides, attrs.padding, attrs.dilation)
    info = np.iinfo(x.dtype)
    if not info.min <= attrs.pad_value <= info.max:
        raise InvalidModel(f"the padding cannot hold {attrs.pad_value} in {x}")
    out = [
        output_extent(size, k, attrs.strides[i], pads_of(attrs.padding, i), attrs.dilation[i])
        for i, (size, k) in enumerate(zip(spatial, kernel, strict=True))
    ]
    return TensorType((x.shape[0], ceildiv(channels, BLOCK), *out, BLOCK), "int32", x.device)


def _conv_relation(types: Sequence[TensorType], attrs: ByteConvAttributes) -> TensorType:
    x, w = _accept(types)
    groups, blocks, *kernel, units, panel, unit = w.shape if w.rank > 5 else (0, 0, 0, 0, 0)
    fits = w.rank == x.rank + 2 and x.shape[1] == blocks and x.shape[-1] == units * unit
    if not fits or groups * panel != ceildiv(attrs.out_channels, BLOCK) * BLOCK or panel % BLOCK:
        raise InvalidModel(
            f"takes data [N, blocks, spatial..., block] and weights [groups, blocks, kernel..., block / unit, panel, unit] of"
            f" {attrs.out_channels} outputs, not {x} and {w}"
        )
    return _result(x, attrs.out_channels, x.shape[2:-1], kernel, attrs)


def _plain(x: np.ndarray) -> np.ndarray:
    """[N, blocks, *S, block] as [N, C, *S]."""
    moved = np.moveaxis(x, -1, 2)
    return moved.reshape(moved.shape[0], -1, *moved.shape[3:])


def _blocked(y: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(y.reshape(y.shape[0], -1, BLOCK, *y.shape[2:]), 2, -1))


def _conv(attrs: ByteConvAttributes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    groups, blocks, *kernel, units, panel, unit = w.shape
    spatial = tuple(range(2, 2 + len(kernel)))
    weights = np.transpose(w, (0, w.ndim - 2, 1, w.ndim - 3, w.ndim - 1, *spatial))
    weights = weights.reshape(groups * panel, blocks * units * unit, *kernel)
    plain = IntegerConvAttributes(attrs.strides, attrs.padding, attrs.dilation, pad_value=attrs.pad_value)
    return _blocked(integer_conv.reference(plain, _plain(x), weights))


def _depthwise_relation(types: Sequence[TensorType], attrs: ByteDepthwiseAttributes) -> TensorType:
    x, w = _accept(types)
    unit = int(w.shape[-1]) if w.rank == 5 else 0  # type: ignore[arg-type]
    if not unit or x.rank != 5 or x.shape[-1] != BLOCK or w.shape[1:4] != (ceildiv(attrs.kernel[0], unit), attrs.kernel[1], BLOCK):
        raise InvalidModel(
            f"takes data [N, blocks, H, W, {BLOCK}] and weights [blocks, kernel / unit, kernel, {BLOCK}, unit] of a kernel"
            f" {format_shape(attrs.kernel)}, not {x} and {w}"
        )
    if not x.shape[1] == w.shape[0] == ceildiv(attrs.out_channels, BLOCK):
        raise InvalidModel(f"{attrs.out_channels} channels are not the blocks of {x} and {w}")
    return _result(x, attrs.out_channels, x.shape[2:-1], attrs.kernel, attrs)


def _depthwise(attrs: ByteDepthwiseAttributes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    blocks, units, columns, block, unit = w.shape
    weights = np.transpose(w, (0, 3, 1, 4, 2)).reshape(blocks * block, 1, units * unit, columns)[:, :, : attrs.kernel[0]]
    plain = IntegerConvAttributes(attrs.strides, attrs.padding, attrs.dilation, blocks * block, pad_value=attrs.pad_value)
    return _blocked(integer_conv.reference(plain, _plain(x), weights))


def _matmul_relation(types: Sequence[TensorType], attrs: ByteMatmulAttributes) -> TensorType:
    x, w = _accept(types)
    depth = x.shape[-1] if x.rank else 0
    blocks = ceildiv(attrs.columns, BLOCK)
    if w.rank != 4 or w.shape[1] != ceildiv(depth, int(w.shape[3])) or w.shape[0] * w.shape[2] != blocks * BLOCK:  # type: ignore[arg-type]
        raise InvalidModel(f"takes data [..., K] and weights [groups, K / unit, panel, unit] of {attrs.columns} columns, not {x} and {w}")
    return TensorType((*x.shape[:-1], attrs.columns), "int32", x.device)


def _matmul(attrs: ByteMatmulAttributes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    weights = np.transpose(w, (1, 3, 0, 2)).reshape(w.shape[1] * w.shape[3], -1)[: x.shape[-1], : attrs.columns]
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return np.matmul(flat.astype("float64"), weights.astype("float64")).astype("int32").reshape(*x.shape[:-1], attrs.columns)


byte_conv = OpDef("byte_conv", _conv_relation, _conv, Fusion.OUT_FUSABLE, ByteConvAttributes, 2)
"""x[N, blocks, *S, b], w[groups, blocks, *k, b / unit, panel, unit] -> int32[N, ceil(O / 16), *S', 16]: a panel holds the weights of
neighbouring blocks of outputs, and a unit those of neighbouring input channels."""
byte_depthwise_conv = OpDef("byte_depthwise_conv", _depthwise_relation, _depthwise, Fusion.OUT_FUSABLE, ByteDepthwiseAttributes, 2)
"""x[N, blocks, H, W, 16], w[blocks, ceil(kh / unit), kw, 16, unit] -> int32[N, blocks, H', W', 16]: a unit holds neighbouring rows of
the window."""
byte_matmul = OpDef("byte_matmul", _matmul_relation, _matmul, Fusion.OUT_FUSABLE, ByteMatmulAttributes, 2)
"""x[..., K], w[groups, ceil(K / unit), panel, unit] -> int32[..., columns]."""

__all__ = ["byte_conv", "byte_depthwise_conv", "byte_matmul"]
