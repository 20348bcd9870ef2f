"""Compiled quantised arithmetic, exact to the last integer against numpy and against ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from aotc import ops
from aotc.ir.dims import symbol
from aotc.ir.expr import Constant, Var
from aotc.ir.types import TensorType
from tests.lowering.batch import Case, check
from tests.lowering.harness import run

N = symbol("n", 1)


def real(*shape: int, seed: int = 0, dtype: str = "float32", spread: float = 3) -> np.ndarray:
    """Halves and ties among them, and values beyond every limit."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(shape) < 0.3, np.round(rng.normal(size=shape) * spread * 2) / 2, rng.normal(size=shape) * spread)
    return np.where(rng.random(shape) < 0.05, x * 1e4, x).astype(dtype)


def whole(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, int(info.max) + 1, shape).astype(dtype)


def _quantised(low: int, high: int, dtype: str) -> Any:
    def compute(x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None) -> np.ndarray:
        quotient = np.rint((x / scale).astype("float64")) + (0 if zero is None else zero.astype("float64"))
        return np.clip(quotient, low, high).astype(dtype)

    return compute


def test_quantise() -> None:
    cases = []
    for dtype in ("int8", "uint8", "int16", "uint16"):
        info = np.iinfo(dtype)
        zero = np.asarray(7, dtype)
        one = np.asarray(0.25, "float32")
        expected = _quantised(info.min, info.max, dtype)
        cases.append(Case(ops.quantise, [real(5, 37), one], {"dtype": dtype}, expected=expected))
        cases.append(Case(ops.quantise, [real(5, 37), one, zero], {"dtype": dtype}, expected=expected))
    scales, zeros = np.abs(real(6, 1, seed=3)) + np.float32(0.01), whole("uint8", 6, 1)
    expected = _quantised(0, 255, "uint8")
    cases.append(Case(ops.quantise, [real(2, 6, 9), scales, zeros], {"dtype": "uint8"}, expected=expected))
    shapes = [(N, 6, 9), (6, 1), (6, 1)]
    cases.append(Case(ops.quantise, [real(3, 6, 9), scales, zeros], {"dtype": "uint8"}, shapes, {"n": 3}, expected=expected))
    narrow = {"dtype": "int8", "low": -8, "high": 7}
    cases.append(Case(ops.quantise, [real(4, 9), np.asarray(0.5, "float32")], narrow, expected=_quantised(-8, 7, "int8")))
    half = [real(4, 9, dtype="float16"), np.asarray(0.3, "float16"), np.asarray(3, "uint8")]
    cases.append(Case(ops.quantise, half, {"dtype": "uint8"}, expected=_quantised(0, 255, "uint8")))
    double = [real(4, 9, dtype="float64"), np.asarray(0.3, "float64")]
    cases.append(Case(ops.quantise, double, {"dtype": "int8"}, expected=_quantised(-128, 127, "int8")))
    special = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.5, 1.5, 2.5, -0.5, -1.5], "float32")
    want = np.array([-128, 127, -128, 127, -128, 3, 5, 5, 3, 1], "int8")
    cases.append(Case(ops.quantise, [special, np.float32(1), np.int8(3)], {"dtype": "int8"}, expected=lambda *_: want))
    check(cases)


def test_dequantise() -> None:
    def expected(x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None) -> np.ndarray:
        wide = x.astype("int64") - (0 if zero is None else zero.astype("int64"))
        return (wide.astype("float32") * scale.astype("float32")).astype(scale.dtype)

    cases = []
    for dtype in ("int8", "uint8", "int16", "uint16", "int32"):
        scale = np.abs(real(5, 1)) + np.float32(0.01)
        cases.append(Case(ops.dequantise, [whole(dtype, 3, 5, 11), scale], expected=expected, ulp=0))
        if dtype != "int32":
            cases.append(Case(ops.dequantise, [whole(dtype, 3, 5, 11), scale, whole(dtype, 5, 1)], expected=expected, ulp=0))
    cases.append(Case(ops.dequantise, [whole("uint8", 40), np.asarray(0.1, "float16"), np.uint8(128)], expected=expected, ulp=0))
    check(cases)


def test_requantise() -> None:
    sums = np.random.default_rng(0).integers(-100000, 100000, (2, 6, 33)).astype("int32")
    scales = (np.random.default_rng(1).random((6, 1)) * 0.01).astype("float32")
    scales[2] = 0.5  # ties
    zero = np.asarray(-5, "int8")

    def expected(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(x.astype("float32") * scale).astype("int64") + zero, -128, 127).astype("int8")

    check([Case(ops.requantise, [sums, scales, zero], {"dtype": "int8"}, expected=expected)])


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.matmul(a.astype("int64"), b.astype("int64")).astype("int32")


def test_integer_matmul() -> None:
    pairs = [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int16", "uint8")]
    shapes = [((5, 37), (37, 19)), ((2, 3, 7, 64), (64, 33)), ((2, 4, 9), (2, 9, 5)), ((70, 8), (8, 1)), ((1, 130), (130, 70))]
    cases = [
        Case(ops.integer_matmul, [whole(a, *left), whole(b, *right, seed=1)], expected=_product)
        for a, b in pairs[:2]
        for left, right in shapes
    ]
    cases += [Case(ops.integer_matmul, [whole(a, 33, 20), whole(b, 20, 17, seed=1)], expected=_product) for a, b in pairs[2:]]
    cases += [Case(ops.integer_matmul, [whole("uint8", 4), whole("int8", 4, 3)], expected=_product)]
    symbolic = [whole("uint8", 5, 7, 20), whole("int8", 20, 17)]
    cases += [Case(ops.integer_matmul, symbolic, {}, [(N, 7, 20), (20, 17)], {"n": 5}, expected=_product)]
    check(cases)


def _convolved(**attrs: Any) -> Any:
    def compute(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """PyTorch's, in float64, where these sums are exact."""
        n = len(attrs["strides"])
        pads = attrs["padding"]
        around = [side for axis in reversed(range(n)) for side in (pads[axis], pads[axis + n])]
        data = torch.nn.functional.pad(torch.from_numpy(x.astype("float64")), around, value=attrs.get("pad_value", 0))
        function = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[n]
        weight = torch.from_numpy(w.astype("float64"))
        return function(data, weight, None, attrs["strides"], 0, attrs["dilation"], attrs.get("groups", 1)).numpy().astype("int32")

    return compute


def test_integer_conv() -> None:
    cases = []
    for x, w, attrs in [
        ((1, 3, 19, 23), (8, 3, 3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1), "dilation": (1, 1)}),
        ((2, 16, 9, 9), (20, 16, 1, 1), {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}),
        ((1, 12, 11, 7), (12, 1, 3, 3), {"strides": (1, 1), "padding": (1, 0, 1, 2), "dilation": (1, 1), "groups": 12}),
        ((1, 8, 11, 7), (6, 4, 3, 2), {"strides": (1, 2), "padding": (2, 0, 1, 1), "dilation": (2, 1), "groups": 2}),
        ((2, 5, 40), (7, 5, 5), {"strides": (3,), "padding": (2, 1), "dilation": (1,)}),
        ((1, 4, 9, 8), (6, 4, 3, 3), {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "pad_value": 131}),
        ((1, 6, 9, 8), (6, 1, 3, 3), {"strides": (2, 2), "padding": (1, 1, 0, 1), "dilation": (1, 1), "groups": 6, "pad_value": 7}),
        ((1, 2, 5, 6, 7), (3, 2, 2, 3, 3), {"strides": (1, 1, 1), "padding": (0, 1, 1, 1, 1, 1), "dilation": (1, 1, 1)}),
    ]:
        arrays = [whole("uint8", *x), whole("int8", *w, seed=2)]
        cases.append(Case(ops.integer_conv, arrays, attrs, expected=_convolved(**attrs)))
    check(cases)


def test_integer_sum() -> None:
    cases = [
        Case(ops.integer_sum, [whole(dtype, 2, 40, 7, 5)], {"axes": axes, "keepdims": keep}, expected=_summed(axes, keep))
        for dtype in ("int8", "uint8")
        for axes, keep in (((2, 3), True), ((1,), False), ((3,), True))
    ]
    check(cases)


def _summed(axes: tuple[int, ...], keep: bool) -> Any:
    return lambda x: x.astype("int64").sum(axis=axes, keepdims=keep).astype("int32")


def test_look_up() -> None:
    table = whole("uint8", 256, seed=3)
    cases = [
        Case(ops.look_up, [whole("uint8", 3, 100), table], expected=lambda x, t: t[x]),
        Case(ops.look_up, [whole("int8", 3, 100), table.astype("int8")], expected=lambda x, t: t[x.astype("int64") % 256]),
    ]
    check(cases)


def test_sums_of_products() -> None:
    """Each product is rounded before it is added: contracted ones (FMA) would differ from machine to machine."""
    a, b = whole("uint8", 40, 100), whole("uint8", 40, 100, seed=1)
    params = tuple(Var(name, TensorType(a.shape, "uint8")) for name in "ab")
    first, second = (
        ops.dequantise(param, Constant(np.float32(s)), Constant(np.uint8(z))) for param, s, z in zip(params, (0.0371, 0.0113), (3, 100))
    )
    body = ops.add(ops.multiply(first, second), second)
    (got,) = run(body, params, a, b)
    x, y = ((n.astype("float32") - z) * np.float32(s) for n, z, s in ((a, 3, 0.0371), (b, 100, 0.0113)))
    np.testing.assert_array_equal(got, x * y + y)
