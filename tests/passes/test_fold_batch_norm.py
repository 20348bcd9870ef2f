"""Folding into weights: before and after as text, weights computed by numpy here, values by the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops
from aotc.ir.expr import Function, Module, Parameter, Var
from aotc.ir.types import tensor
from aotc.passes.fold_batch_norm import fold_batch_norm
from aotc.passes.options import Options
from tests.passes.helpers import agree, check, module, operators, weight

BATCH_NORM = "%0 = batch_norm(%c, $g, $b, $m, $v) {epsilon=0.001}"


def statistics(channels: int) -> dict[str, np.ndarray]:
    return {
        "g": weight(channels, seed=1),
        "b": weight(channels, seed=2),
        "m": weight(channels, seed=3),
        "v": np.abs(weight(channels, seed=4)) + np.float32(0.1),
    }


def scale_and_shift(found: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    scale = found["g"].astype("float64") / np.sqrt(found["v"].astype("float64") + 0.001)
    return scale, found["b"] - found["m"] * scale


def test_batch_norm_behind_a_convolution() -> None:
    found = statistics(4)
    scale, shift = scale_and_shift(found)
    w = weight(4, 3, 3, 3)
    before = module(f"(%x: float32[2, 3, 5, 5]) {{\n %c = conv(%x, $w)\n {BATCH_NORM}\n return %0\n}}", {"w": w, **found})
    rounded = scale.astype("float32").astype("float64")
    after = module(
        "(%x: float32[2, 3, 5, 5]) {\n %c = conv(%x, $w~scaled)\n %0 = add(%c, $g~shift)\n return %0\n}",
        {"w~scaled": (w * rounded.reshape(4, 1, 1, 1)).astype("float32"), "g~shift": shift.reshape(4, 1, 1).astype("float32")},
    )
    check(fold_batch_norm, before, after)


def test_bias_and_batch_norm() -> None:
    weights = {"w": weight(4, 3, 3, 3), "bias": weight(4, 1, 1, seed=9), **statistics(4)}
    text = f"(%x: float32[2, 3, 5, 5]) {{\n %d = conv(%x, $w)\n %c = add(%d, $bias)\n {BATCH_NORM}\n return %0\n}}"
    assert folded(module(text, weights)) == ["conv", "add"]


def folded(before: Module) -> list[str]:
    result = fold_batch_norm(before, Options())
    agree(before, result)
    assert fold_batch_norm(result, Options()) is result
    return operators(result)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped(groups: int) -> None:
    weights = {"w": weight(8, 4 // groups, 3), **statistics(8)}
    text = f"(%x: float32[2, 4, 9]) {{\n %c = conv(%x, $w) {{strides=(2,), padding=(1, 0), dilation=(1,), groups={groups}}}\n {BATCH_NORM}\n return %0\n}}"
    assert folded(module(text, weights)) == ["conv", "add"]


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed(groups: int) -> None:
    weights = {"w": weight(4, 6 // groups, 3, 3), **statistics(6)}
    text = f"(%x: float32[2, 4, 5, 5]) {{\n %c = conv_transpose(%x, $w) {{strides=(2, 2), groups={groups}}}\n {BATCH_NORM}\n return %0\n}}"
    assert folded(module(text, weights)) == ["conv_transpose", "add"]


def test_dense() -> None:
    weights = {"w": weight(6, 4), "k": weight(6, seed=1), "b": weight(6, seed=2), "d": np.abs(weight(6, seed=3)) + 1}
    text = "(%x: float32[3, 4]) {\n %c = dense(%x, $w)\n %e = add(%c, $b)\n %f = multiply(%e, $k)\n %g = add(%f, $b)\n %0 = divide(%g, $d)\n return %0\n}"
    assert folded(module(text, weights)) == ["dense", "add"]


def test_negation_and_scalars() -> None:
    text = "(%x: float32[3, 4]) {\n %c = dense(%x, $w)\n %n = negative(%c)\n %0 = multiply(%n, float32(0.5))\n return %0\n}"
    assert folded(module(text, {"w": weight(6, 4)})) == ["dense"]


@pytest.mark.parametrize(
    ("text", "w"),
    [
        ("%s = multiply(%x, $k)\n %0 = conv(%s, $w) {padding=(1, 1, 1, 1)}", (6, 4, 3, 3)),
        ("%s = multiply(%x, $k)\n %0 = conv(%s, $w) {padding=(1, 1, 1, 1), groups=2}", (6, 2, 3, 3)),
        ("%s = multiply(%x, $k)\n %0 = conv_transpose(%s, $w) {groups=2}", (4, 3, 3, 3)),
    ],
)
def test_scale_before(text: str, w: tuple[int, ...]) -> None:
    weights = {"w": weight(*w), "k": weight(4, 1, 1, seed=1)}
    assert len(folded(module(f"(%x: float32[2, 4, 5, 5]) {{\n {text}\n return %0\n}}", weights))) == 1


def test_shift_before_stays() -> None:
    text = "(%x: float32[2, 4, 5, 5]) {\n %s = add(%x, $k)\n %0 = conv(%s, $w) {padding=(1, 1, 1, 1)}\n return %0\n}"
    check(fold_batch_norm, module(text, {"w": weight(6, 4, 3, 3), "k": weight(4, 1, 1)}), None)


def test_a_result_that_others_use_stays() -> None:
    text = "(%x: float32[2, 4, 5, 5]) {\n %c = conv(%x, $w)\n %s = multiply(%c, $k)\n %0 = (%c, %s)\n return %0\n}"
    check(fold_batch_norm, module(text, {"w": weight(6, 4, 3, 3), "k": weight(6, 1, 1)}), None)


def test_factors_that_are_no_channels_stay() -> None:
    text = "(%x: float32[2, 4, 5, 5]) {\n %c = conv(%x, $w)\n %s = multiply(%c, $k)\n return %s\n}"
    check(fold_batch_norm, module(text, {"w": weight(6, 4, 3, 3), "k": weight(3, 3)}), None)
    check(fold_batch_norm, module(text, {"w": weight(6, 4, 3, 3), "k": weight(2, 1, 1, 1)}), None)


def test_batch_norm_alone_becomes_a_product_and_a_sum() -> None:
    text = f"(%x: float32[2, 4, 5]) {{\n %c = relu(%x)\n {BATCH_NORM}\n return %0\n}}"
    assert folded(module(text, statistics(4))) == ["relu", "multiply", "add"]


def test_half_precision_batch_norm_alone_stays() -> None:
    halves = {name: array.astype("float16") for name, array in statistics(4).items()}
    text = f"(%x: float16[2, 4, 5]) {{\n %c = relu(%x)\n {BATCH_NORM}\n return %0\n}}"
    check(fold_batch_norm, module(text, halves), None)


def test_weights_that_would_overflow_stay() -> None:
    w = np.full((2, 1, 1, 1), 60000, "float16")
    text = "(%x: float16[1, 1, 2, 2]) {\n %c = conv(%x, $w)\n %0 = multiply(%c, float16(2.0))\n return %0\n}"
    check(fold_batch_norm, module(text, {"w": w}), None)


def test_one_weight_of_two_layers() -> None:
    """Each layer gets its own copy, and equal copies are one."""
    x = Var("x", tensor("float32", 1, 4, 5, 5))
    w, k, other = (Parameter(n, weight(*s)) for n, s in (("w", (4, 4, 1, 1)), ("k", (4, 1, 1)), ("o", (4, 1, 1))))
    h = x
    for factor in (k, k, other):
        h = ops.relu(ops.multiply(ops.conv(h, w), factor))  # type: ignore[assignment]
    before = Module({"main": Function((x,), h, "main")}, {"main": ("y",)})
    assert folded(before) == ["conv", "relu"] * 3


def test_two_norms_in_a_row_without_a_layer() -> None:
    text = (
        "(%x: float32[2, 4, 5, 5]) {\n %r = relu(%x)\n %a = multiply(%r, $a)\n %b = add(%a, $b)\n %c = multiply(%b, $c)\n"
        " %d = add(%c, $d)\n return %d\n}"
    )
    weights = {name: weight(4, 1, 1, seed=i) for i, name in enumerate("abcd")}
    assert folded(module(text, weights)) == ["relu", "multiply", "add"]


@pytest.mark.parametrize("length", [3, 4])
def test_a_scalar_behind_a_dense_layer_with_a_bias(length: int) -> None:
    """The axis of channels is the layer's last, also where a sum stands between."""
    text = f"(%x: float32[2, {length}, 4]) {{\n %d = dense(%x, $w)\n %b = add(%d, $b)\n %s = multiply(%b, float32(0.5))\n return %s\n}}"
    assert folded(module(text, {"w": weight(4, 4), "b": weight(4)})) == ["dense", "add"]
