"""Bytes in the sign that a machine multiplies: text in, text out, and equal integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aotc import targets
from aotc.ir.expr import Module
from aotc.ir.visitor import calls_of
from aotc.ops.interpret import interpret
from aotc.passes.choose_signs import choose_signs
from aotc.passes.options import Options
from tests.passes.helpers import module

RNG = np.random.default_rng(0)
W, DENSE = RNG.integers(-128, 128, (4, 3, 3, 3)).astype("int8"), RNG.integers(-128, 128, (4, 5)).astype("int8")
SIGNED = Options(target=replace(targets.get("jetson-orin"), gpu=None))
UNSIGNED = Options(target=targets.get("x86-64-v3"))


def equal(before: Module, options: Options, *arrays: np.ndarray) -> list[str]:
    """The integers stay; the dtypes of what products read."""
    after = choose_signs(before, options)
    for first, second in zip(interpret(before.main, list(arrays)), interpret(after.main, list(arrays)), strict=True):
        assert first.dtype == second.dtype
        assert np.array_equal(first, second)
    assert choose_signs(after, options) is after, "a second run changes something again"
    return [call.args[0].type.dtype for call in calls_of(after.main.body, ["integer_conv", "integer_matmul"])]  # type: ignore[union-attr]


def network(dtype: str, zero: int, low: int, high: int) -> Module:
    """Bytes that are made, cut, pooled, joined and read by products and by others."""
    return module(
        "(%x: float32[1, 3, 8, 8]) {\n"
        f' %0 = quantise(%x, float32(0.02), {dtype}({zero})) {{dtype="{dtype}", low={low}, high={high}}}\n'
        " %1 = max_pool(%0) {kernel=(2, 2), strides=(1, 1), padding=(0, 0, 0, 0)}\n"
        " %2 = concat(%1, %1) {axis=0}\n"
        f" %3 = integer_conv(%2, $w) {{padding=(1, 1, 1, 1), pad_value={zero}}}\n"
        " %4 = add(%3, int32(17))\n"
        f' %5 = requantise(%4, float32(0.001), {dtype}({zero})) {{dtype="{dtype}"}}\n'
        " %6 = integer_sum(%5) {axes=(2, 3), keepdims=false}\n"
        f' %7 = requantise(%6, float32(0.02), {dtype}({zero})) {{dtype="{dtype}"}}\n'
        " %8 = integer_matmul(%7, $d)\n"
        f" %9 = dequantise(%7, float32(0.5), {dtype}({zero}))\n"
        " %t = (%8, %9, %7)\n return %t\n}",
        {"w": W, "d": DENSE},
    )


@pytest.mark.parametrize(
    ("dtype", "zero", "low", "high"), [("int8", -9, 0, 0), ("int8", 3, -40, 90), ("uint8", 119, 0, 0), ("uint8", 0, 3, 200)]
)
@pytest.mark.parametrize(("options", "wanted"), [(SIGNED, "int8"), (UNSIGNED, "uint8")], ids=["signed", "unsigned"])
def test_network(dtype: str, zero: int, low: int, high: int, options: Options, wanted: str) -> None:
    x = RNG.standard_normal((1, 3, 8, 8), np.float32)
    assert equal(network(dtype, zero, low, high), options, x) == [wanted, wanted]


def test_input_of_the_other_sign() -> None:
    """Bytes that come from outside are moved on their way in."""
    before = module("(%x: int8[2, 4]) {\n %0 = integer_matmul(%x, $d)\n %t = (%0, %x)\n return %t\n}", {"d": DENSE})
    x = RNG.integers(-128, 128, (2, 4)).astype("int8")
    assert equal(before, UNSIGNED, x) == ["uint8"]


def test_constants_join() -> None:
    """What is taken off and what is added behind a product is one constant."""
    before = module(
        "(%x: uint8[2, 4]) {\n %0 = integer_matmul(%x, $d)\n %1 = subtract(%0, $a)\n %2 = add(%1, $b)\n return %2\n}",
        {"d": DENSE, "a": np.arange(5, dtype="int32"), "b": np.arange(5, dtype="int32") * 7},
    )
    x = RNG.integers(0, 256, (2, 4)).astype("uint8")
    assert equal(before, SIGNED, x) == ["int8"]
    assert [call.op.name for call in calls_of(choose_signs(before, SIGNED).main.body)][-2:] == ["integer_matmul", "add"]


def test_right_signs_stay() -> None:
    before = module("(%x: uint8[2, 4]) {\n %0 = integer_matmul(%x, $d)\n return %0\n}", {"d": DENSE})
    assert choose_signs(before, UNSIGNED) is before
    floats = module("(%x: float32[2, 4]) {\n %0 = relu(%x)\n return %0\n}")
    assert choose_signs(floats, SIGNED) is floats
