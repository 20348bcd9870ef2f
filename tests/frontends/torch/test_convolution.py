"""Convolutions, pools and resizing against torch, with every option."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.frontends.torch.check import Checked, check_table, operators

torch.manual_seed(0)


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


IMAGE, LINE, CUBE, SQUARE = r(2, 4, 7, 9), r(2, 4, 11), r(1, 2, 5, 6, 4), r(1, 3, 17, 17)

CONVOLUTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "conv1d": (F.conv1d, (LINE, r(6, 4, 3), r(6))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), (2, 1)), (IMAGE, r(6, 4, 3, 2), r(6))),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), (CUBE, r(3, 2, 3, 2, 3))),
    "groups": (lambda x, w: F.conv2d(x, w, groups=2), (IMAGE, r(6, 2, 3, 3))),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), (IMAGE, r(8, 1, 3, 3))),
    "same": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, r(6, 4, 4, 3))),
    "same_dilated": (lambda x, w: F.conv1d(x, w, padding="same", dilation=3), (LINE, r(6, 4, 4))),
    "valid": (lambda x, w: F.conv2d(x, w, padding="valid"), (IMAGE, r(6, 4, 4, 3))),
    "unbatched": (lambda x, w, b: F.conv2d(x[0], w, b), (IMAGE, r(6, 4, 3, 3), r(6))),
    "one_channel_k3x1": (F.conv2d, (r(2, 1, 4, 20), r(5, 1, 3, 1))),
    "one_channel_k1x2": (F.conv2d, (r(1, 1, 3, 10), r(1, 1, 1, 2))),
    "transposed": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), (IMAGE, r(4, 5, 3, 3), r(5))),
    "transposed_dilated": (lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=2, output_padding=1, dilation=2), (LINE, r(4, 5, 4))),
    "transposed_groups": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(16, 1), padding=(8, 0), groups=4),
        (r(1, 4, 3, 5), r(4, 1, 32, 1)),
    ),
    "transposed_3d": (lambda x, w: F.conv_transpose3d(x, w, stride=2), (CUBE, r(2, 3, 2, 3, 2))),
    "empty_batch": (lambda x, w: F.conv2d(x[:0], w), (IMAGE, r(6, 4, 3, 3))),
}

POOLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "max": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    "max_ceil": (lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True), (IMAGE,)),
    "max_dilated": (lambda x: F.max_pool2d(x, (2, 3), 1, dilation=(3, 2)), (IMAGE,)),
    "max_1d": (lambda x: F.max_pool1d(x, 3), (LINE,)),
    "max_3d": (lambda x: F.max_pool3d(x, 2, 1, 1), (CUBE,)),
    "max_indices": (lambda x: F.max_pool2d(x, 2, return_indices=True), (IMAGE,)),
    "max_indices_padded": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (IMAGE,)),
    "max_only_indices": (lambda x: F.max_pool2d(x[1], 2, return_indices=True)[1], (IMAGE,)),
    "max_unbatched": (lambda x: F.max_pool2d(x[0], 2), (IMAGE,)),
    "max_nan": (lambda x: F.max_pool2d(torch.where(x > 2, float("nan"), x), 2).isnan(), (IMAGE,)),
    "avg_17_ceil": (lambda x: F.avg_pool2d(x, 2, 2, 1, ceil_mode=True), (SQUARE,)),
    "avg_17_ceil_exclude": (lambda x: F.avg_pool2d(x, 2, 2, 1, ceil_mode=True, count_include_pad=False), (SQUARE,)),
    "avg_divisor": (lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=7), (SQUARE,)),
    "avg_divisor_ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=4), (SQUARE,)),
    "avg_longer_than_the_image": (lambda x: F.avg_pool2d(x, 40, ceil_mode=True), (SQUARE,)),
    "max_longer_than_the_image": (lambda x: F.max_pool2d(x, (40, 3), ceil_mode=True), (SQUARE,)),
    "avg_1d": (lambda x: F.avg_pool1d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (LINE,)),
    "avg_3d": (lambda x: F.avg_pool3d(x, (2, 3, 2), 2, (1, 1, 0), ceil_mode=True), (CUBE,)),
    "adaptive_1": (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "adaptive_avg": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (IMAGE,)),
    "adaptive_avg_1d": (lambda x: F.adaptive_avg_pool1d(x, 4), (LINE,)),
    "adaptive_avg_3d": (lambda x: F.adaptive_avg_pool3d(x, (2, None, 3)), (CUBE,)),
    "adaptive_max": (lambda x: F.adaptive_max_pool2d(x, (3, 4)), (IMAGE,)),
    "adaptive_max_1d": (lambda x: F.adaptive_max_pool1d(x, 3), (LINE,)),
    "lp": (lambda x: F.lp_pool2d(x.abs(), 2, 2), (IMAGE,)),
}


def _resize(mode: str, **how: Any) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return F.interpolate(x, mode=mode, **how)

    return function


SIZES: list[dict[str, Any]] = [{"size": (10, 5)}, {"size": (3, 20)}, {"scale_factor": 2.0}, {"scale_factor": (0.6, 1.7)}]
RESIZES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **{f"{mode}-{n}": (_resize(mode, **size), (IMAGE,)) for mode in ("nearest", "nearest-exact", "area") for n, size in enumerate(SIZES)},
    **{
        f"{mode}-{align}-{n}": (_resize(mode, align_corners=align, **size), (IMAGE,))
        for mode in ("bilinear", "bicubic")
        for align in (False, True)
        for n, size in enumerate(SIZES)
    },
    **{f"{mode}-recomputed": (_resize(mode, scale_factor=0.6, recompute_scale_factor=True), (IMAGE,)) for mode in ("nearest", "bilinear")},
    **{f"{mode}-antialias": (_resize(mode, size=(4, 5), antialias=True), (IMAGE,)) for mode in ("bilinear", "bicubic")},
    "linear": (_resize("linear", scale_factor=1.5), (LINE,)),
    "nearest-1d": (_resize("nearest", size=7), (LINE,)),
    "trilinear": (_resize("trilinear", size=(4, 9, 2)), (CUBE,)),
    "nearest-3d": (_resize("nearest", scale_factor=2.0), (CUBE,)),
    "to-one": (_resize("bilinear", size=(1, 1)), (IMAGE,)),
}

FAMILIES = {"convolution": CONVOLUTIONS, "pool": POOLS, "resize": RESIZES}


@functools.cache
def checked(family: str) -> Checked:
    return check_table(FAMILIES[family])


@pytest.mark.parametrize("family,name", [(family, name) for family, rows in FAMILIES.items() for name in rows])
def test_operator(family: str, name: str) -> None:
    checked(family).row(name, 3e-5 if name.startswith("bicubic") else 1e-5)


def test_operators_stay_whole() -> None:
    assert set(operators(checked("resize").module)) <= {"resize", "avg_pool", "adaptive_avg_pool", "mean", "reshape"}
    assert {"max_pool", "avg_pool", "max_pool_with_indices", "adaptive_avg_pool", "adaptive_max_pool"} <= set(
        operators(checked("pool").module)
    )
    assert {"conv", "conv_transpose"} <= set(operators(checked("convolution").module))
