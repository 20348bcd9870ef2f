"""Networks of integer operators give the same integers on every machine: with dot products of bytes and without, on x86 and Arm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import ops
from aotc.ir.expr import Constant, Expr, Function, Module, Var
from aotc.ir.types import TensorType
from aotc.ops.interpret import interpret
from tests.e2e.emulate import emulate

RNG = np.random.default_rng(0)


def _weight(*shape: int) -> Constant:
    return Constant(RNG.integers(-127, 128, shape).astype("int8"))


def _requantised(sums: Expr, channels: int, dtype: str, spread: float, low: int = 0, high: int = 0) -> Expr:
    each = (channels, 1, 1)
    bias = Constant(RNG.integers(-500, 500, each).astype("int32"))
    scale = Constant((RNG.random(each) * spread + spread / 10).astype("float32"))
    return ops.requantise(ops.add(sums, bias), scale, Constant(np.asarray(5, dtype)), dtype=dtype, low=low, high=high)


def _conv(x: Expr, outputs: int, kernel: int, dtype: str, stride: int = 1, groups: int = 1) -> Expr:
    channels = int(x.type.shape[1])  # type: ignore[union-attr, arg-type]
    sums = ops.integer_conv(
        x,
        _weight(outputs, channels // groups, kernel, kernel),
        strides=(stride, stride),
        padding=(kernel // 2,) * 4,
        groups=groups,
        pad_value=5,
    )
    return _requantised(sums, outputs, dtype, 0.02 / (channels // groups * kernel**2) ** 0.5)


def network(dtype: str) -> Module:
    """A first layer, depthwise layers, a residual sum in floats, a pool, a mean and a dense layer, all in bytes of one sign."""
    x = Var("x", TensorType((2, 3, 19, 23), "float32"))
    zero = Constant(np.asarray(5, dtype))

    def scale(value: float) -> Constant:
        return Constant(np.asarray(value, "float32"))

    first = _conv(ops.quantise(x, scale(0.02), zero, dtype=dtype), 24, 3, dtype, stride=2)
    deep = _conv(_conv(first, 24, 5, dtype, groups=24), 24, 1, dtype)
    total = ops.add(ops.dequantise(deep, scale(0.03), zero), ops.dequantise(first, scale(0.07), zero))
    joined = ops.max_pool(ops.quantise(total, scale(0.06), zero, dtype=dtype), kernel=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0))
    wide = _conv(_conv(joined, 40, 3, dtype), 40, 3, dtype, stride=2, groups=40)
    mean = ops.requantise(ops.integer_sum(wide, axes=(2, 3), keepdims=False), scale(0.11), zero, dtype=dtype)
    dense = ops.add(ops.integer_matmul(mean, _weight(40, 21)), Constant(RNG.integers(-500, 500, 21).astype("int32")))
    y = ops.requantise(dense, scale(0.002), zero, dtype=dtype)
    return Module({"main": Function((x,), y, "main")}, {"main": ("y",)}, {})


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_equal_everywhere(dtype: str, tmp_path: Path) -> None:
    module, x = network(dtype), RNG.standard_normal((2, 3, 19, 23), np.float32)
    (wanted,) = interpret(module.main, [x])
    assert len(np.unique(wanted)) > 10
    for target in ("host", "x86-64-v3", "jetson-orin", "jetson-nano"):
        file = tmp_path / f"{target}.so"
        aotc.compile(module, target=target, output=file, device="cpu")
        if target.startswith("jetson"):
            cpu = "neoverse-n1" if target == "jetson-orin" else "cortex-a57"
            (got,) = emulate(file, [x], tmp_path, cpu).values()
        else:
            (got,) = aotc.load(file).run({"x": x}).values()
        assert np.array_equal(got, wanted), target
