"""Networks between quantise and dequantise in integers: the form they get, and that their integers stay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from aotc.ir.expr import Module
from aotc.ir.printer import module_text
from aotc.ir.verify import verify
from aotc.ir.visitor import calls_of
from aotc.ops.interpret import interpret
from aotc.passes.options import Options
from aotc.passes.raise_integers import raise_integers
from tests.passes.helpers import check, module, operators, random_inputs

X, Y, Z = ("float32(0.0625), uint8(3)", "float32(0.125), uint8(7)", "float32(0.25), int8(-5)")
"""Scales and zero points. Powers of two: sums of their products are exact in floats, so float networks have one answer too."""


def integers(*shape: int, dtype: str = "int8", seed: int = 0) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(max(info.min, -127), min(info.max, 255) + 1, shape).astype(dtype)


def powers(*shape: int) -> np.ndarray:
    """Scales per channel."""
    return np.exp2(-6 - np.arange(np.prod(shape)) % 3).reshape(shape).astype("float32")


def network(*lines: str, weights: Mapping[str, np.ndarray] | None = None, shape: str = "1, 4, 6, 6") -> Module:
    body = "\n".join(f" {line}" for line in lines)
    return module(f"(%x: float32[{shape}]) {{\n{body}\n}}", weights)


ENTER = (f'%q = quantise(%x, {X}) {{dtype="uint8"}}', f"%d = dequantise(%q, {X})")
LEAVE = (f'%o = quantise(%y, {Y}) {{dtype="uint8"}}', f"%r = dequantise(%o, {Y})", "return %r")


def raised(before: Module, steps: int = 0) -> list[str]:
    """The operators after the pass. No value differs from before by more than ``steps`` quantisation steps of 1/8."""
    verify(before)
    after = raise_integers(before, Options())
    verify(after)
    assert raise_integers(after, Options()) is after, "a second run changes something again"
    for seed in range(3):
        inputs = [array * 4 for array in random_inputs(before.main, {"n": 2}, seed)]
        for one, other in zip(interpret(before.main, inputs), interpret(after.main, inputs), strict=True):
            assert one.std() > 0, "nothing depends on the input"
            np.testing.assert_allclose(other, one, rtol=0, atol=0.125 * steps + 1e-6)
    return operators(after)


# The form ----------------------------------------------------------------------------------------------------------


def test_conv_bias_relu() -> None:
    """Zero points and the bias are one constant; the activation is a limit; scales meet in one."""
    w, s, bias = integers(4, 4, 3, 3), powers(4, 1, 1, 1), (np.arange(4) * 0.5 - 1).reshape(4, 1, 1).astype("float32")
    before = network(
        *ENTER, "%w = dequantise($w, $s)", "%c = conv(%d, %w) {padding=(1, 1, 1, 1)}", "%b = add(%c, $b)", "%y = relu(%b)", *LEAVE,
        weights={"w": w, "s": s, "b": bias},
    )  # fmt: skip
    scale = (s * np.float32(0.0625)).reshape(4, 1, 1)
    offset = np.rint(bias / scale).astype("int32") - 3 * w.astype("int32").sum(axis=(1, 2, 3)).reshape(4, 1, 1)
    numbers = ", ".join(map(str, offset.reshape(-1))), ", ".join(map(repr, (scale / np.float32(0.125)).reshape(-1).tolist()))
    after = network(
        ENTER[0], "%c = integer_conv(%q, $w) {padding=(1, 1, 1, 1), pad_value=3}", f"%b = add(%c, int32[4, 1, 1]({numbers[0]}))",
        f'%o = requantise(%b, float32[4, 1, 1]({numbers[1]}), uint8(7)) {{dtype="uint8", low=7, high=255}}', *LEAVE[1:],
        weights={"w": w},
    )  # fmt: skip
    check(raise_integers, before, after)


def test_dense() -> None:
    w = integers(5, 8)
    before = network(*ENTER, "%w = dequantise($w, float32(0.015625))", "%y = dense(%d, %w)", *LEAVE, weights={"w": w}, shape="2, 8")
    offset = ", ".join(str(-3 * n) for n in w.astype("int32").sum(axis=1))
    after = network(
        ENTER[0], '%m = integer_matmul(%q, $"w~transposed")', f"%b = add(%m, int32[5]({offset}))",
        '%o = requantise(%b, float32(0.0078125), uint8(7)) {dtype="uint8"}', *LEAVE[1:],
        weights={'"w~transposed"': w.T.copy()}, shape="2, 8",
    )  # fmt: skip
    check(raise_integers, before, after)


def test_floats_alone_are_left() -> None:
    check(raise_integers, network("%0 = relu(%x)", "return %0"), None)


def test_float_layer_gets_its_weights() -> None:
    """A layer of floats by dequantised weights: they are computed, once."""
    before = network("%w = dequantise($w, float32(0.5))", "%0 = dense(%x, %w)", "return %0", weights={"w": integers(5, 8)}, shape="2, 8")
    assert raised(before) == ["dense"]


# What becomes of patterns ---------------------------------------------------------------------------------------------

W = "%w = dequantise($w, $s)"
CONV = (*ENTER, W, "%c = conv(%d, %w) {padding=(1, 1, 1, 1)}")
CONVS = {"w": integers(4, 4, 3, 3), "s": powers(4, 1, 1, 1)}
START = ["quantise", "integer_conv", "add"]


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["%y = relu(%c)"], ["requantise"]),
        (["%y = clip(%c) {minimum=0.0, maximum=6.0}"], ["requantise"]),
        (["%y = hard_swish(%c)"], ["dequantise", "hard_swish", "quantise"]),
        (["%y = silu(%c)"], ["dequantise", "silu", "quantise"]),
        (["%y = max_pool(%c) {kernel=(2, 2), strides=(2, 2)}"], ["requantise", "max_pool"]),
        (["%0 = relu(%c)", "%y = reshape(%0) {shape=(1, 144)}"], ["requantise", "reshape"]),
        (["%y = transpose(%c) {axes=(0, 2, 3, 1)}"], ["requantise", "transpose"]),
        (["%y = slice(%c) {begins=(0, 1, 0, 0), ends=(1, 3, 6, 6), steps=(1, 1, 1, 1)}"], ["requantise", "slice"]),
        (["%y = pad(%c) {before=(0, 0, 1, 1), after=(0, 0, 1, 1)}"], ["requantise", "pad"]),
        (["%y = concat(%c, %d) {axis=1}"], ["requantise", "dequantise", "quantise", "concat"]),
        (['%y = resize(%c) {shape=(1, 4, 12, 12), scales=(1.0, 1.0, 2.0, 2.0), mode="nearest"}'], ["requantise", "resize"]),
        (["%0 = add(%c, %d)", "%y = relu(%0)"], ["dequantise", "dequantise", "add", "quantise"]),  # a residual sum
        (["%y = multiply(%c, float32(0.5))"], ["requantise"]),
    ],
)
def test_behind_sums(lines: list[str], wanted: list[str]) -> None:
    found = raised(network(*CONV, *lines, *LEAVE, weights=CONVS), steps=1)
    assert found[0] == "quantise" and sorted(found[1:]) == sorted([*START[1:], *wanted, "dequantise"])


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["%y = max_pool(%d) {kernel=(3, 3), padding=(1, 1, 1, 1)}"], ["max_pool"]),
        (["%y = mean(%d) {axes=(2, 3), keepdims=true}"], ["integer_sum", "add"]),
        (["%y = avg_pool(%d) {kernel=(2, 2), strides=(2, 2)}"], ["integer_conv", "add"]),
        (["%y = avg_pool(%d) {kernel=(3, 3), padding=(1, 1, 1, 1)}"], ["integer_conv", "add"]),
        (["%y = avg_pool(%d) {kernel=(3, 3), padding=(1, 1, 1, 1), count_include_pad=true}"], ["integer_conv", "add"]),
        (["%y = relu(%d)"], ["clip"]),
        (["%0 = pad(%d) {before=(0, 0, 1, 1), after=(0, 0, 1, 1)}", "%y = reshape(%0) {shape=(1, 256)}"], ["pad", "reshape"]),
        (["%y = concat(%d, %d) {axis=1}"], ["concat"]),
        (["%y = gather(%d, int64[2](3, 1)) {axis=1}"], ["gather"]),
    ],
)
def test_over_bytes(lines: list[str], wanted: list[str]) -> None:
    """Moved and averaged bytes, and a float behind them."""
    found = raised(network(*ENTER, *lines, "return %y"))
    assert found == ["quantise", *wanted, "dequantise"]


def test_average_of_padding() -> None:
    """Pixels at the border average over fewer elements: their scales differ."""
    found = raised(network(*ENTER, "%y = avg_pool(%d) {kernel=(3, 3), padding=(1, 1, 1, 1)}", *LEAVE), steps=1)
    assert found == ["quantise", "integer_conv", "add", "requantise", "dequantise"]


@pytest.mark.parametrize("function", ["sigmoid", "tanh", "silu", "hard_swish", "gelu", "exp"])
def test_tables(function: str) -> None:
    """A function of one byte is one table; also where it is quantised in between, and used twice."""
    assert raised(network(*ENTER, f"%y = {function}(%d)", *LEAVE), steps=1) == ["quantise", "look_up", "dequantise"]
    twice = [
        f"%0 = {function}(%d)", '%1 = quantise(%0, float32(0.00390625)) {dtype="uint8"}', "%2 = dequantise(%1, float32(0.00390625))",
        "%y = multiply(%d, %2)",
    ]  # fmt: skip
    assert raised(network(*ENTER, *twice, *LEAVE), steps=1) == ["quantise", "look_up", "dequantise"]


def test_plain_arithmetic_is_no_table() -> None:
    assert "look_up" not in raised(network(*ENTER, "%y = leaky_relu(%d) {alpha=0.25}", *LEAVE))


# Weights and their scales (cases 42 and 46) --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1, 1)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_scales_of_weights(shape: tuple[int, ...], dtype: str) -> None:
    """Rank 0 and 1, per tensor and per channel; unsigned weights around another zero point than 0."""
    zeros = np.full(shape, 0 if dtype == "int8" else 121, dtype)
    weights = {"w": integers(4, 4, 3, 3, dtype=dtype), "s": powers(*shape), "z": zeros}
    lines = [*ENTER, "%w = dequantise($w, $s, $z)", "%y = conv(%d, %w) {padding=(1, 1, 1, 1)}"]
    assert raised(network(*lines, *LEAVE, weights=weights)) == [*START, "requantise", "dequantise"]


@pytest.mark.parametrize(("most", "wanted"), [(127, "int8"), (128, "int16")])
def test_imported_sums(most: int, wanted: str) -> None:
    """Weights less their zero point, as importers of quantised operators leave them."""
    w = integers(4, 4, 3, 3).astype("int16")
    w[0, 0, 0, 0] = most
    lines = [ENTER[0], "%c = integer_conv(%q, $w)", "%r = dequantise(%c, float32(0.01))", "return %r"]
    before = network(*lines, weights={"w": w})
    assert raised(before) == ["quantise", "integer_conv", "dequantise"]
    (layer,) = calls_of(raise_integers(before, Options()).main.body, ("integer_conv",))
    assert layer.args[1].type.dtype == wanted  # type: ignore[union-attr]


def test_bias_scales() -> None:
    """A bias as quantised integers, of scales by rank 0 and 1, and reshaped on its way."""
    for shape in ((), (4,)):
        weights = {**CONVS, "b": integers(4, dtype="int32"), "t": powers(*shape)}
        bias = ["%b = dequantise($b, $t)", "%a = reshape(%b) {shape=(4, 1, 1)}", "%y = add(%c, %a)"]
        assert raised(network(*CONV, *bias, *LEAVE, weights=weights), steps=1) == [*START, "requantise", "dequantise"]


def test_transposed_weight() -> None:
    """A Transpose between a weight's DequantizeLinear and its Conv."""
    weights = {"w": integers(3, 3, 4, 4), "s": powers(1, 1, 1, 4)}
    lines = [*ENTER, W, "%t = transpose(%w) {axes=(3, 2, 0, 1)}", "%y = conv(%d, %t) {padding=(1, 1, 1, 1)}"]
    assert raised(network(*lines, *LEAVE, weights=weights)) == [*START, "requantise", "dequantise"]


@pytest.mark.parametrize("groups", [2, 4])
def test_grouped(groups: int) -> None:
    weights = {"w": integers(8, 4 // groups, 3, 3), "s": powers(8, 1, 1, 1)}
    lines = [*ENTER, W, f"%y = conv(%d, %w) {{groups={groups}}}"]
    assert raised(network(*lines, *LEAVE, weights=weights)) == [*START, "requantise", "dequantise"]


def test_conv_transpose_stays_float() -> None:
    weights = {"w": integers(4, 2, 3, 3), "s": powers(1, 2, 1, 1)}
    found = raised(network(*ENTER, W, "%y = conv_transpose(%d, %w)", *LEAVE, weights=weights))
    assert found == ["quantise", "dequantise", "conv_transpose", "quantise", "dequantise"]


@pytest.mark.parametrize("scale", [(), (5,)])
def test_matmul_of_weight(scale: tuple[int, ...]) -> None:
    weights = {"w": integers(8, 5), "s": powers(*scale)}
    found = raised(network(*ENTER, W, "%y = matmul(%d, %w)", *LEAVE, weights=weights, shape="2, 3, 8"))
    assert found == ["quantise", "integer_matmul", "add", "requantise", "dequantise"]


def test_matmul_of_activations() -> None:
    lines = [
        *ENTER, "%t = transpose(%d) {axes=(0, 2, 1)}", f'%p = quantise(%t, {Z}) {{dtype="int8"}}', f"%e = dequantise(%p, {Z})",
        "%y = matmul(%d, %e)",
    ]  # fmt: skip
    found = raised(network(*lines, *LEAVE, shape="2, 3, 8"), steps=1)
    assert found.count("integer_matmul") == 1 and found.count("integer_sum") == 2 and "matmul" not in found


def test_pad_of_zero_point() -> None:
    """A Pad by 0 between quantised nodes pads with the zero point, as bytes."""
    pads = "%p = pad(%d) {before=(0, 0, 2, 1), after=(0, 0, 0, 1)}"
    again = [f'%e = quantise(%p, {X}) {{dtype="uint8"}}', f"%f = dequantise(%e, {X})"]
    after = raise_integers(network(*ENTER, pads, *again, W, "%y = conv(%f, %w)", *LEAVE, weights=CONVS), Options())
    assert "pad(%0) {before=(0, 0, 2, 1), after=(0, 0, 0, 1), value=3}" in module_text(after)[0]
    assert raised(network(*ENTER, pads, *again, W, "%y = conv(%f, %w)", *LEAVE, weights=CONVS)) == ["quantise", "pad", *START[1:], "requantise", "dequantise"]  # fmt: skip


def test_what_others_read_stays() -> None:
    """A quantise does not pass what somebody else reads as floats."""
    found = raised(network(*CONV, "%y = relu(%c)", *LEAVE[:2], "%z = add(%y, %r)", "return %z", weights=CONVS), steps=1)
    assert found.count("integer_conv") == 1 and "relu" in found


def test_sixteen_bits_stay_float() -> None:
    lines = ['%q = quantise(%x, float32(0.001)) {dtype="int16"}', "%d = dequantise(%q, float32(0.001))", W, "%y = conv(%d, %w)"]
    assert "conv" in raised(network(*lines, *LEAVE, weights=CONVS), steps=1)
