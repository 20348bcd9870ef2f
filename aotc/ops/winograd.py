"""Winograd convolution: 3x3 windows, stride 1, with fewer multiplications, over blocked channels.

Tiles of ``tile`` x ``tile`` outputs are computed from tiles of ``tile + 2`` x ``tile + 2`` inputs (Lavin and Gray, Fast Algorithms for
Convolutional Neural Networks, CVPR 2016): Y = A' [(G w G') * (B' d B)] A, where * sums over the input channels. A tile of 2
interpolates at 0, 1, -1 and infinity. A tile of 4 does so at 0, +-1/sqrt 2, +-sqrt 2 and infinity: with these points float32
errs about as much as it does in the direct sums, and six times less than with 0, +-1, +-2 (Barabasz, Anderson, Soodhalter and
Gregg, Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks, 2020, on such choices).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import ceildiv
from aotc.ir.expr import Attributes
from aotc.ir.types import TensorType
from aotc.ops.base import Fusion, OpDef
from aotc.ops.windows import check_values, output_extent, pads_of

KERNEL = 3
TILES = (2, 4)

_A, _B = math.sqrt(0.5), math.sqrt(2.0)

INPUT_TRANSFORMS: dict[int, np.ndarray] = {
    2: np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]], np.float64),
    4: np.array(
        [
            [1, 0, -2.5, 0, 1, 0],
            [0, _A, 1, -_A / 2, -0.5, 0],
            [0, -_A, 1, _A / 2, -0.5, 0],
            [0, -_A, -0.5, _B, 1, 0],
            [0, _A, -0.5, -_B, 1, 0],
            [0, 1, 0, -2.5, 0, 1],
        ]
    ),
}
"""B', by tile."""

WEIGHT_TRANSFORMS: dict[int, np.ndarray] = {
    2: np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    4: np.array(
        [
            [1, 0, 0],
            [4 / 3, _B * 2 / 3, 2 / 3],
            [4 / 3, -_B * 2 / 3, 2 / 3],
            [1 / 3, _B / 3, 2 / 3],
            [1 / 3, -_B / 3, 2 / 3],
            [0, 0, 1],
        ]
    ),
}
"""G, by tile."""

OUTPUT_TRANSFORMS: dict[int, np.ndarray] = {
    2: np.array([[1, 1, 1, 0], [0, 1, -1, 1]], np.float64),
    4: np.array(
        [
            [1, 1, 1, 0.5, 0.5, 0],
            [0, _A, -_A, _A, -_A, 0],
            [0, 0.5, 0.5, 1, 1, 0],
            [0, _A / 2, -_A / 2, _B, -_B, 1],
        ]
    ),
}
"""A', by tile. The rows of +-1/sqrt 2 and +-sqrt 2 of B' and the columns of A' are scaled so that the transforms need few operations,
none of them a product by 2, which compilers make a sum that no multiply-add takes in; G makes up for it."""


@dataclass(frozen=True, slots=True)
class WinogradAttributes(Attributes):
    """x[N, ceil(C / b'), H, W, b'] gives [N, ceil(O / b), H', W', b] with weights u[ceil(O / b) / m, (tile + 2)^2, C', m * b] that
    ``transform_weight`` makes, where C' = ceil(C / b') * b' and m is the number of output blocks in a panel of weights.
    ``channel_block`` is b, ``out_channels`` the true O, ``padding`` (top, left, bottom, right), each at most 2."""

    tile: int = 4
    padding: tuple[int, ...] = (0, 0, 0, 0)
    channel_block: int = 8
    out_channels: int = 0


def transform_weight(w: np.ndarray, tile: int, panel: int) -> np.ndarray:
    """w[O, C, 3, 3] as u[ceil(O / panel), (tile + 2)^2, C, panel] of the same dtype, zero where filled. Computed in float64
    and rounded once."""
    outputs, channels = w.shape[:2]
    both = np.kron(WEIGHT_TRANSFORMS[tile], WEIGHT_TRANSFORMS[tile])
    result = np.zeros((-(-outputs // panel), len(both), channels, panel), w.dtype)
    for o in range(outputs):
        result[o // panel, :, :, o % panel] = both @ w[o].reshape(channels, -1).T.astype(np.float64)
    return result


def _relation(types: Sequence[TensorType], attrs: WinogradAttributes) -> TensorType:
    x, u = types
    if attrs.tile not in TILES:
        raise InvalidModel(f"takes a tile of 2 or 4, not {attrs.tile}")
    check_values("padding", attrs.padding, 4, 0)
    if max(attrs.padding) > KERNEL - 1:
        raise InvalidModel(f"takes padding of at most {KERNEL - 1}, not {attrs.padding}")
    if x.dtype != "float32" or u.dtype != "float32":
        raise InvalidModel(f"takes float32, not {x.dtype} and {u.dtype}")
    if x.rank != 5 or u.rank != 4:
        raise InvalidModel(f"takes data [N, C / b, H, W, b] and weights [O / b, (tile + 2)^2, C, b], not {x} and {u}")
    block = attrs.channel_block
    if block < 1 or attrs.out_channels < 1:
        raise InvalidModel(f"takes channel_block and out_channels of at least 1, not {block} and {attrs.out_channels}")
    blocks = ceildiv(attrs.out_channels, block)
    panel = u.shape[3] if isinstance(u.shape[3], int) and u.shape[3] and u.shape[3] % block == 0 else block
    panel = panel if blocks * block % panel == 0 else block
    expected = (blocks * block // panel, (attrs.tile + 2) ** 2, x.shape[1] * x.shape[4], panel)
    if u.shape != expected:
        raise InvalidModel(
            f"tile {attrs.tile} and {attrs.out_channels} output channels do not fit data {x} with weights {u}:"
            f" expected weights {TensorType(expected, u.dtype)}"
        )
    extents = [output_extent(size, KERNEL, 1, pads_of(attrs.padding, axis), 1) for axis, size in enumerate(x.shape[2:4])]
    return TensorType((x.shape[0], blocks, *extents, block), x.dtype, x.device)


def _reference(attrs: WinogradAttributes, x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """In float64, rounded once."""
    tile, (n, _, height, width, _) = attrs.tile, x.shape
    top, left, bottom, right = attrs.padding
    rows, columns = height + top + bottom - 2, width + left + right - 2
    down, across = -(-rows // tile), -(-columns // tile)
    image = np.zeros((n, x.shape[1], down * tile + 2, across * tile + 2, x.shape[4]))
    image[:, :, top : top + height, left : left + width] = x
    windows = np.lib.stride_tricks.sliding_window_view(image, (tile + 2, tile + 2), (2, 3))[:, :, ::tile, ::tile]
    b, a = INPUT_TRANSFORMS[tile], OUTPUT_TRANSFORMS[tile]
    v = b @ windows @ b.T  # [N, C / b', down, across, b', tile + 2, tile + 2]
    weights = u.reshape(u.shape[0], tile + 2, tile + 2, x.shape[1], x.shape[4], u.shape[3]).astype(np.float64)
    products = np.einsum("ncyxbij,oijcbk->noyxkij", v, weights, optimize=True)
    y = np.moveaxis(a @ products @ a.T, (5, 6), (3, 5))  # [N, O / b, down, tile, across, tile, b]
    merged = y.reshape(n, u.shape[0], down * tile, across * tile, -1, attrs.channel_block)  # m and b apart
    result = np.moveaxis(merged, 4, 2).reshape(n, -1, down * tile, across * tile, attrs.channel_block)[:, :, :rows, :columns]
    return np.ascontiguousarray(result).astype(x.dtype)


winograd_conv = OpDef("winograd_conv", _relation, _reference, Fusion.OUT_FUSABLE, WinogradAttributes, arity=2)

OPERATORS: tuple[OpDef, ...] = (winograd_conv,)
