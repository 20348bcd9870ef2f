"""Compiled pools, normalisations and resizing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from aotc import ops
from aotc.ir.dims import symbol
from tests.lowering.batch import Case, check

B, S = symbol("b", 1), symbol("s", 4)


def normal(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


WINDOWS: list[dict[str, Any]] = [
    {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)},
    {"kernel": (2, 2), "strides": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": True},
    {"kernel": (2, 3), "strides": (1, 2), "padding": (0, 1, 1, 0)},
    {"kernel": (3, 2), "strides": (2, 1), "padding": (0, 0, 0, 0), "dilation": (2, 3), "ceil_mode": True},
    {"kernel": (17, 17)},
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint8", "int64"])
def test_max_pool(dtype: str) -> None:
    x = normal(dtype, 2, 3, 17, 17) if dtype.startswith("f") else np.random.default_rng(0).integers(0, 90, (2, 3, 17, 17)).astype(dtype)
    cases = [Case(ops.max_pool, [x], window, ulp=0) for window in WINDOWS]
    if dtype.startswith("float"):
        cases += [Case(ops.max_pool_with_indices, [x], {**w, "storage_order": i % 2}, ulp=0) for i, w in enumerate(WINDOWS[:3])]
    check(cases)


def test_pools_see_nan_and_infinity() -> None:
    x = normal("float32", 1, 2, 9, 9)
    x[0, 0, 4, 4], x[0, 1], x[0, 0, 0, 0] = math.nan, -math.inf, math.inf
    blocked = np.ascontiguousarray(np.repeat(x[..., None], 8, -1))
    check([Case(ops.max_pool, [x], WINDOWS[0]), Case(ops.max_pool, [blocked], {**WINDOWS[0], "channel_block": 8})])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_avg_pool(dtype: str) -> None:
    x = normal(dtype, 2, 3, 17, 17)
    cases = []
    for window, include in itertools.product(WINDOWS, (False, True)):
        cases.append(Case(ops.avg_pool, [x], {**window, "count_include_pad": include}, ulp=3, scale=1))
    cases.append(Case(ops.avg_pool, [x], {**WINDOWS[0], "divisor_override": 5}, ulp=3, scale=1))
    line, volume = normal(dtype, 2, 3, 17), normal(dtype, 1, 2, 5, 6, 7)
    one = {"kernel": (3,), "strides": (2,), "padding": (1, 1), "dilation": (1,)}
    three = {"kernel": (2, 2, 2), "strides": (2, 1, 2), "padding": (1, 0, 1, 0, 1, 0), "dilation": (1, 1, 1), "ceil_mode": True}
    cases += [Case(op, [v], w, ulp=3, scale=1) for op in (ops.avg_pool, ops.max_pool) for v, w in ((line, one), (volume, three))]
    check(cases)


def test_avg_pool_by_torch() -> None:
    """17x17, kernel 2, stride 2, padding 1, ceil mode: count_include_pad both ways, and a divisor."""
    x = normal("float32", 1, 3, 17, 17)
    cases = []
    for include, divisor in [(False, None), (True, None), (True, 3)]:
        want = F.avg_pool2d(torch.from_numpy(x), 2, 2, 1, ceil_mode=True, count_include_pad=include, divisor_override=divisor).numpy()
        attrs = {**WINDOWS[1], "count_include_pad": include, "divisor_override": divisor}
        cases.append(Case(ops.avg_pool, [x], attrs, expected=lambda _, want=want: want, ulp=3, scale=1))
    check(cases)


def test_blocked_and_symbolic_pools() -> None:
    cases = []
    for window in WINDOWS[:4]:
        x = normal("float32", 2, 3, 17, 17, 8)
        cases += [Case(op, [x], {**window, "channel_block": 8}, ulp=3, scale=1) for op in (ops.max_pool, ops.avg_pool)]
    y, known = normal("float32", 2, 3, 11, 9), {"b": 2, "s": 11}
    cases += [Case(op, [y], w, [(B, 3, S, 9)], known, ulp=3, scale=1) for op in (ops.max_pool, ops.avg_pool) for w in WINDOWS[:3]]
    check(cases)


def test_adaptive_pools() -> None:
    cases = []
    for shape, sizes in [
        ((2, 3, 17, 13), [(1, 1), (5, 4), (17, 13), (20, 2)]),
        ((2, 3, 12), [(1,), (5,), (4,)]),
        ((1, 2, 5, 6, 7), [(2, 3, 4)]),
    ]:
        x = normal("float32", *shape)
        cases += [Case(op, [x], {"output_size": s}, ulp=8, scale=1) for op in (ops.adaptive_avg_pool, ops.adaptive_max_pool) for s in sizes]
    for s in (11, 16):
        y, known = normal("float32", 2, 3, s, 9), {"b": 2, "s": s}
        cases += [Case(ops.adaptive_avg_pool, [y], {"output_size": o}, [(B, 3, S, 9)], known, ulp=8, scale=1) for o in [(1, 1), (4, 3)]]
    check(cases)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_norms(dtype: str) -> None:
    x, g = normal(dtype, 2, 6, 5, 7), normal(dtype, 6, seed=1)
    variance = np.abs(normal(dtype, 6, seed=4)) + np.asarray(0.1, dtype)
    last = normal(dtype, 3, 40)
    cases = [
        Case(ops.batch_norm, [x, g, normal(dtype, 6, seed=2), normal(dtype, 6, seed=3), variance], {"epsilon": 1e-3}),
        Case(ops.layer_norm, [last, normal(dtype, 40, seed=1), normal(dtype, 40, seed=2)]),
        Case(ops.layer_norm, [x, normal(dtype, 5, 7, seed=1), normal(dtype, 5, 7, seed=2)], {"axis": 2}),
        Case(ops.rms_norm, [last, normal(dtype, 40, seed=1)]),
        Case(ops.group_norm, [x, g, normal(dtype, 6, seed=2)], {"groups": 3}),
        Case(ops.group_norm, [x, g, normal(dtype, 6, seed=2)], {"groups": 6}),
        Case(ops.group_norm, [x, g, normal(dtype, 6, seed=2)], {"groups": 1}),
        Case(ops.instance_norm, [x, g, normal(dtype, 6, seed=2)]),
        Case(ops.lrn, [x], {"size": 3, "alpha": 0.1}),
        Case(ops.lrn, [x], {"size": 4, "alpha": 0.01, "beta": 0.5, "bias": 2.0}),
        Case(ops.batch_norm, [normal(dtype, 1, 2, 1), *(np.ones(2, dtype) for _ in range(4))]),
    ]
    for case in cases:
        case.ulp, case.scale = 8, 2
    check(cases)


def test_norms_by_torch() -> None:
    """Values from 300 to 5000 in float16 stay finite; symbolic sizes; large means do not cancel."""
    half = (300 + 4700 * np.random.default_rng(0).random((4, 96))).astype("float16")
    ones, zeros = np.ones(96, "float16"), np.zeros(96, "float16")
    want = F.layer_norm(torch.from_numpy(half).double(), (96,)).numpy().astype("float16")
    cases = [Case(ops.layer_norm, [half, ones, zeros], expected=lambda *_: want, ulp=2, scale=1)]
    shifted = normal("float32", 3, 200) + np.float32(1000)
    far = F.layer_norm(torch.from_numpy(shifted).double(), (200,)).numpy().astype("float32")
    cases.append(
        Case(ops.layer_norm, [shifted, np.ones(200, "float32"), np.zeros(200, "float32")], expected=lambda *_: far, ulp=16, scale=40)
    )
    for b, s in [(1, 4), (3, 9)]:
        x, known = normal("float32", b, s, 48), {"b": b, "s": s}
        g, h = normal("float32", 48, seed=1), normal("float32", 48, seed=2)
        cases.append(Case(ops.layer_norm, [x, g, h], {}, [(B, S, 48), (48,), (48,)], known, ulp=8, scale=2))
        y, c, d = normal("float32", b, 4, s, 3), normal("float32", 4, seed=1), normal("float32", 4, seed=2)
        cases.append(Case(ops.instance_norm, [y, c, d], {}, [(B, 4, S, 3), (4,), (4,)], known, ulp=8, scale=2))
        cases.append(Case(ops.group_norm, [y, c, d], {"groups": 2}, [(B, 4, S, 3), (4,), (4,)], known, ulp=8, scale=2))
    check(cases)


COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
ROI = (0.0, 0.0, 0.1, -0.2, 1.0, 1.0, 0.8, 1.1)


def _resize(x: np.ndarray, shape: tuple[int, ...], scaled: bool, **attrs: Any) -> Case:
    scales = tuple(n / o if scaled and n != o else None for n, o in zip(shape, x.shape, strict=True))
    if attrs.get("coordinate") == "tf_crop_and_resize":
        attrs = {**attrs, "roi": ROI, "extrapolation": 2.5}
    return Case(ops.resize, [x], {"shape": shape, "scales": scales, **attrs}, ulp=8, scale=2)


@pytest.mark.parametrize("coordinate", COORDINATES)
def test_resize(coordinate: str) -> None:
    x = normal("float32", 1, 2, 5, 7)
    cases = []
    for shape, scaled in [((1, 2, 10, 14), True), ((1, 2, 3, 4), False), ((1, 2, 8, 5), False), ((1, 2, 1, 7), True)]:
        for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            cases.append(_resize(x, shape, scaled, mode="nearest", coordinate=coordinate, nearest=nearest))
        cases.append(_resize(x, shape, scaled, mode="linear", coordinate=coordinate))
        cases.append(_resize(x, shape, scaled, mode="cubic", coordinate=coordinate, exclude_outside=scaled))
    check(cases)


def test_resize_variants() -> None:
    x = normal("float32", 1, 2, 9, 12)
    bytes_ = np.random.default_rng(0).integers(0, 256, (1, 3, 6, 7)).astype("uint8")
    cases = [
        _resize(x, (1, 2, 4, 5), False, mode="linear", antialias=True),
        _resize(x, (1, 2, 4, 5), True, mode="cubic", antialias=True),
        _resize(x, (1, 2, 9, 12), False, mode="linear"),
        _resize(x, (1, 2, 27, 36), True, mode="nearest", coordinate="asymmetric", nearest="floor"),
        _resize(normal("float16", 1, 2, 5, 7), (1, 2, 10, 9), False, mode="linear"),
        _resize(normal("float64", 1, 2, 5, 7), (1, 2, 10, 9), False, mode="cubic", cubic_a=-0.5),
        _resize(normal("float32", 2, 3, 6), (2, 3, 11), False, mode="linear"),
        _resize(normal("float32", 1, 2, 3, 4, 5), (1, 2, 6, 3, 7), False, mode="linear"),
        _resize(bytes_, (1, 3, 12, 14), True, mode="nearest"),
    ]
    for s in (5, 9):
        y, known = normal("float32", 2, 3, s, 6), {"b": 2, "s": s}
        for mode in ("nearest", "linear", "cubic"):
            doubled = {"shape": (B, 3, S * 2, 12), "scales": (None, None, 2.0, 2.0), "mode": mode}
            cases.append(Case(ops.resize, [y], doubled, [(B, 3, S, 6)], known, ulp=8, scale=2))
            fixed = {"shape": (B, 3, 4, 4), "scales": (None,) * 4, "mode": mode, "antialias": mode == "linear"}
            cases.append(Case(ops.resize, [y], fixed, [(B, 3, S, 6)], known, ulp=8, scale=2))
    check(cases)


def test_resize_by_torch() -> None:
    x = normal("float32", 1, 2, 9, 12)
    cases = []
    for mode, ours in (("bilinear", "linear"), ("bicubic", "cubic")):
        for size in ((18, 5), (4, 30)):
            for corners in (False, True):
                want = F.interpolate(torch.from_numpy(x).double(), size, mode=mode, align_corners=corners).numpy().astype("float32")
                case = _resize(x, (1, 2, *size), False, mode=ours, coordinate="align_corners" if corners else "pytorch_half_pixel")
                case.expected = lambda _, want=want: want
                case.ulp = 32  # coordinates in float32: up to 30 * 2^-24 times the slope
                cases.append(case)
    check(cases)
