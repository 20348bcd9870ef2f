"""Networks in halves: which values become them, and that the answer stays."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.expr import Call, Module
from aotc.ir.visitor import calls_of
from aotc.ops.interpret import interpret
from aotc.passes.lower_precision import lower_precision
from aotc.passes.options import Options
from tests.passes.helpers import check, module, weight

HALF = Options(precision="fp16")


def test_conv_relu_add() -> None:
    """Layers and what follows them are halves, from the first to the last; the border keeps its type."""
    w = weight(4, 4, 3, 3) / 8
    before = module(
        "(%x: float32[1, 4, 6, 6]) {\n %0 = conv(%x, $w) {padding=(1, 1, 1, 1)}\n %1 = relu(%0)\n"
        " %2 = conv(%1, $w) {padding=(1, 1, 1, 1)}\n %3 = add(%1, %2)\n return %3\n}",
        {"w": w},
    )
    after = module(
        '(%x: float32[1, 4, 6, 6]) {\n %h = cast(%x) {dtype="float16"}\n %0 = conv(%h, $w~half) {padding=(1, 1, 1, 1)}\n %1 = relu(%0)\n'
        ' %2 = conv(%1, $w~half) {padding=(1, 1, 1, 1)}\n %3 = add(%1, %2)\n %y = cast(%3) {dtype="float32"}\n return %y\n}',
        {"w~half": w.astype(np.float16)},
    )
    check(lower_precision, before, after, HALF, tolerance=4e-3)


def test_fp32_is_left_alone() -> None:
    check(lower_precision, module("(%x: float32[2, 3]) {\n %0 = dense(%x, $w)\n return %0\n}", {"w": weight(6, 3)}), None)


def halves(made: Module) -> set[str]:
    return {call.op.name for call in calls_of(made.main.body) if isinstance(call, Call) and getattr(call.type, "dtype", "") == "float16"}


@pytest.mark.parametrize(
    ("text", "float_"),
    [
        ("%1 = exp(%0)", "exp"),
        ("%1 = multiply(%0, %0)", "multiply"),  # 300 times 300 is no half
        ("%1 = sum(%0) {axes=(1,), keepdims=true}", "sum"),
        ("%1 = divide(%0, %x)", "divide"),
        ("%1 = add(%0, %x)", "add"),  # x was never a half
    ],
)
def test_what_stays_float(text: str, float_: str) -> None:
    before = module(f"(%x: float32[2, 6]) {{\n %0 = dense(%x, $w)\n {text}\n %2 = relu(%1)\n return %2\n}}", {"w": weight(6, 6)})
    made = halves(lower_precision(before, HALF))
    assert "dense" in made and not made & {float_, "relu"}


@pytest.mark.parametrize(
    "text", ["softmax(%0) {axis=1}", "layer_norm(%0, $g, $b) {axis=1}", "mean(%0) {axes=(1,), keepdims=true}", "tanh(%0)"]
)
def test_what_follows(text: str) -> None:
    weights = {"w": weight(6, 6), "g": weight(6), "b": weight(6)}
    before = module(f"(%x: float32[2, 6]) {{\n %0 = dense(%x, $w)\n %1 = {text}\n return %1\n}}", weights)
    assert text.partition("(")[0] in halves(lower_precision(before, HALF))


def test_norm_of_large_values() -> None:
    """Values of 300 to 5000: their squares are no halves, and need not be. (Case 27.)"""
    x = np.random.default_rng(1).uniform(300, 5000, (4, 64)).astype(np.float32)
    before = module(
        "(%x: float32[4, 64]) {\n %0 = dense(%x, $w)\n %1 = layer_norm(%0, $g, $b) {axis=1}\n return %1\n}",
        {"w": np.eye(64, dtype=np.float32), "g": np.ones(64, np.float32), "b": np.zeros(64, np.float32)},
    )
    (expected,), (got,) = interpret(before.main, [x]), interpret(lower_precision(before, HALF).main, [x])
    np.testing.assert_allclose(got, expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize("mask", [-1e9, -np.inf])
def test_masks(mask: float) -> None:
    """A row that is masked as a whole gives no NaN; others give what they did. (Case 26.)"""
    masks = np.zeros((3, 4), np.float32)
    masks[0, 2:], masks[1] = mask, mask
    before = module(
        "(%x: float32[3, 4]) {\n %0 = dense(%x, $w)\n %1 = add(%0, $m)\n %2 = softmax(%1) {axis=1}\n return %2\n}",
        {"w": weight(4, 4), "m": masks},
    )
    made = lower_precision(before, HALF)
    x = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
    (got,) = interpret(made.main, [x])
    scores = x @ weight(4, 4).T + masks
    assert "softmax" in halves(made) and np.isfinite(got).all() and (got[0, 2:] == 0).all()
    for row in (0, 2):
        shifted = np.exp(scores[row] - scores[row].max())
        np.testing.assert_allclose(got[row], shifted / shifted.sum(), atol=2e-3)


def test_embeddings_are_halves() -> None:
    text = "(%i: int64[3]) {\n %0 = gather($t, %i) {axis=0}\n %1 = layer_norm(%0, $g, $b) {axis=1}\n return %1\n}"
    weights = {"t": weight(5, 6), "g": weight(6), "b": weight(6)}
    assert halves(lower_precision(module(text, weights), HALF)) == {"gather", "layer_norm"}
    weights["t"] = weights["t"] * 1e6
    assert not halves(lower_precision(module(text, weights), HALF))


def test_casts_stand_before_reshapes() -> None:
    """Where they join what computes the value."""
    before = module(
        "(%x: float32[4, 2], %y: float32[12]) {\n %0 = relu(%y)\n %1 = reshape(%0) {shape=(2, 6)}\n %2 = matmul(%x, %1)\n return %2\n}"
    )
    after = module(
        '(%x: float32[4, 2], %y: float32[12]) {\n %a = cast(%x) {dtype="float16"}\n %0 = relu(%y)\n %b = cast(%0) {dtype="float16"}\n'
        ' %1 = reshape(%b) {shape=(2, 6)}\n %2 = matmul(%a, %1)\n %3 = cast(%2) {dtype="float32"}\n return %3\n}'
    )
    check(lower_precision, before, after, HALF, tolerance=4e-3)
