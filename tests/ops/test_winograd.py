"""Winograd convolution: its reference against torch, its type, and its error in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aotc.errors import InvalidModel
from aotc.ir.expr import Var
from aotc.ir.types import TensorType
from aotc.ops.winograd import INPUT_TRANSFORMS, OUTPUT_TRANSFORMS, WinogradAttributes, transform_weight, winograd_conv

RNG = np.random.default_rng(3)


def blocked(x: np.ndarray, block: int) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x.reshape(x.shape[0], -1, block, *x.shape[2:]), 2, -1))


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(
    ("size", "padding", "panel"),
    [((7, 9), (1, 1, 1, 1), 4), ((6, 5), (0, 2, 1, 0), 8), ((3, 3), (0, 0, 0, 0), 12), ((1, 1), (1, 1, 1, 1), 24)],
)
def test_reference_is_torchs(tile: int, size: tuple[int, int], padding: tuple[int, ...], panel: int) -> None:
    x, w = RNG.standard_normal((2, 8, *size)).astype("float32"), RNG.standard_normal((22, 8, 3, 3)).astype("float32")
    top, left, bottom, right = padding
    image = torch.nn.functional.pad(torch.from_numpy(x).double(), (left, right, top, bottom))
    expected = torch.nn.functional.conv2d(image, torch.from_numpy(w).double()).numpy()
    arrays = [blocked(x, 8), transform_weight(w, tile, panel)]
    attrs = WinogradAttributes(tile, padding, 4, 22)
    result = winograd_conv.reference(attrs, *arrays)
    expression = winograd_conv(
        *(Var("v", TensorType(a.shape, "float32")) for a in arrays), **{f: getattr(attrs, f) for f in attrs.__slots__}
    )
    assert expression.type.shape == result.shape  # type: ignore[union-attr]
    channels = np.moveaxis(result, -1, 2).reshape(2, -1, *result.shape[2:4])[:, :22]
    assert np.abs(channels - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tile": 3}, "tile of 2 or 4"),
        ({"padding": (3, 0, 0, 0)}, "padding of at most 2"),
        ({"padding": (1, 1)}, "4 integers"),
        ({"out_channels": 40}, "expected weights"),
        ({"channel_block": 0}, "at least 1"),
        ({"tile": 2}, "expected weights"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    x, u = Var("x", TensorType((1, 2, 8, 8, 4), "float32")), Var("u", TensorType((2, 36, 8, 8), "float32"))
    right = {"tile": 4, "padding": (1, 1, 1, 1), "channel_block": 4, "out_channels": 16}
    winograd_conv(x, u, **right)
    with pytest.raises(InvalidModel, match=message):
        winograd_conv(x, u, **{**right, **changes})


@pytest.mark.parametrize(("tile", "bound"), [(2, 2e-6), (4, 5e-6)])
@pytest.mark.parametrize("channels", [64, 512])
def test_error_of_float32(tile: int, bound: float, channels: int) -> None:
    """The stated bound, relative to the largest result, every step rounded to float32 and summed channel by channel."""
    outputs, tiles, wide = 32, 32, tile + 2
    d = np.maximum(RNG.standard_normal((tiles, channels, wide, wide)), 0).astype("float32")
    w = (RNG.standard_normal((outputs, channels, 3, 3)) * np.sqrt(2 / (9 * channels))).astype("float32")
    b, a = INPUT_TRANSFORMS[tile].astype("float32"), OUTPUT_TRANSFORMS[tile].astype("float32")
    u = transform_weight(w, tile, outputs)[0].reshape(wide, wide, channels, outputs)
    v = b @ d @ b.T
    m = np.zeros((tiles, outputs, wide, wide), "float32")
    for c in range(channels):
        m += v[:, c, np.newaxis] * np.moveaxis(u[:, :, c], -1, 0)
    windows = np.lib.stride_tricks.sliding_window_view(d.astype("float64"), (3, 3), (2, 3))
    expected = np.einsum("tcyxij,ocij->toyx", windows, w.astype("float64"), optimize=True)
    assert np.abs(a @ m @ a.T - expected).max() <= bound * np.abs(expected).max()
