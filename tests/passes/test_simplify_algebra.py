"""Algebra: before and after, as text."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.passes.simplify_algebra import simplify_algebra
from tests.passes.helpers import check, module, operators, weight


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("%0 = multiply(%x, float32(1.0))", None),
        ("%0 = add(%x, float32[4](0, 0, 0, 0))", None),
        ("%0 = divide(%x, float32(4.0))", "%0 = multiply(%x, float32(0.25))"),
        ("%a = negative(%x)\n %0 = negative(%a)", None),
        ("%a = relu(%x)\n %0 = relu(%a)", "%0 = relu(%x)"),
        ("%a = relu(%x)\n %0 = clip(%a) {maximum=6.0}", "%0 = clip(%x) {minimum=0.0, maximum=6.0}"),
        ("%a = multiply(%x, float32(3.0))\n %0 = multiply(%a, float32(2.0))", "%0 = multiply(%x, float32(6.0))"),
        ("%a = add(%x, float32(3.0))\n %0 = add(%a, float32(-1.0))", "%0 = add(%x, float32(2.0))"),
        ("%a = sigmoid(%x)\n %0 = multiply(%a, %x)", "%0 = silu(%x)"),
        ("%a = softplus(%x)\n %b = tanh(%a)\n %0 = multiply(%x, %b)", "%0 = mish(%x)"),
        ("%a = exp(%x)\n %b = add(%a, float32(1.0))\n %0 = log(%b)", "%0 = softplus(%x)"),
        ("%a = hard_sigmoid(%x) {alpha=0.16666667, beta=0.5}\n %0 = multiply(%x, %a)", "%0 = hard_swish(%x)"),
        ("%a = softmax(%x)\n %0 = log(%a)", "%0 = log_softmax(%x)"),
        ("%a = exp(%x)\n %b = sum(%a) {axes=(1,), keepdims=true}\n %0 = divide(%a, %b)", "%0 = softmax(%x) {axis=1}"),
    ],
)
def test_forms(before: str, after: str | None) -> None:
    first = module(f"(%x: float32[3, 4]) {{\n {before}\n return %0\n}}")
    second = module(f"(%x: float32[3, 4]) {{\n {after}\n return %0\n}}") if after else module("(%x: float32[3, 4]) {\n return %x\n}")
    check(simplify_algebra, first, second)


@pytest.mark.parametrize(
    "text",
    [
        "%0 = divide(%x, float32(3.0))",  # the reciprocal is not exact
        "%0 = add(%x, float32[2, 3, 4](" + ", ".join(["0.0"] * 24) + "))",  # broadcasts
        "%a = relu(%x)\n %0 = clip(%a) {minimum=1.0, maximum=6.0}",
        "%a = multiply(%x, float32(1e30))\n %0 = multiply(%a, float32(1e30))",  # together they overflow
        "%a = sigmoid(%x)\n %b = relu(%x)\n %0 = multiply(%a, %b)",
    ],
)
def test_left_alone(text: str) -> None:
    check(simplify_algebra, module(f"(%x: float32[3, 4]) {{\n {text}\n return %0\n}}"), None)


@pytest.mark.parametrize("call", ["matmul(%x, float32[0, 4]())", "dense(%x, float32[4, 0]())"])
def test_sums_over_nothing(call: str) -> None:
    before = module(f"(%x: float32[3, 0]) {{\n %0 = {call}\n return %0\n}}")
    check(simplify_algebra, before, module('(%x: float32[3, 0]) {\n %0 = full() {shape=(3, 4), value=0, dtype="float32"}\n return %0\n}'))


def test_quotients_of_integers_stay() -> None:
    check(simplify_algebra, module("(%x: int64[3]) {\n %0 = divide(%x, int64(2))\n return %0\n}"), None)


HALVED = [
    "%h = multiply(%x, %e)\n %0 = multiply(%h, float32(0.5))",
    "%h = multiply(%e, float32(0.5))\n %0 = multiply(%x, %h)",
    "%h = multiply(%x, float32(0.5))\n %0 = multiply(%h, %e)",
    "%h = multiply(%x, %e)\n %0 = divide(%h, float32(2.0))",
]
ERF = ["%a = divide(%x, float32(1.4142135381698608))", "%a = multiply(%x, float32(0.70710677))"]
TANH = [
    "%c = power(%x, float32(3.0))\n %d = multiply(%c, float32(0.044715))\n %s = add(%x, %d)\n %a = multiply(%s, float32(0.7978845608))",
    "%q = multiply(%x, %x)\n %c = multiply(%q, %x)\n %d = multiply(float32(0.044715), %c)\n %s = add(%d, %x)\n %a = multiply(float32(0.79788456), %s)",
    "%q = multiply(%x, %x)\n %d = multiply(%q, float32(0.044715))\n %f = add(%d, float32(1.0))\n %g = multiply(%x, float32(0.79788456))\n %a = multiply(%g, %f)",
]


@pytest.mark.parametrize("half", HALVED)
@pytest.mark.parametrize("argument", ERF)
def test_gelu_by_erf(half: str, argument: str) -> None:
    before = module(f"(%x: float32[3, 4]) {{\n {argument}\n %b = erf(%a)\n %e = add(%b, float32(1.0))\n {half}\n return %0\n}}")
    check(simplify_algebra, before, module("(%x: float32[3, 4]) {\n %0 = gelu(%x)\n return %0\n}"))


@pytest.mark.parametrize("half", HALVED)
@pytest.mark.parametrize("argument", TANH)
def test_gelu_by_tanh(half: str, argument: str) -> None:
    before = module(f"(%x: float32[3, 4]) {{\n {argument}\n %b = tanh(%a)\n %e = add(float32(1.0), %b)\n {half}\n return %0\n}}")
    check(simplify_algebra, before, module('(%x: float32[3, 4]) {\n %0 = gelu(%x) {approximate="tanh"}\n return %0\n}'))


@pytest.mark.parametrize(
    "text",
    [
        "%m = multiply(%x, %c)\n %0 = divide(%m, float32(6.0))",
        "%m = multiply(%c, %x)\n %0 = multiply(%m, float32(0.16666667))",
        "%m = divide(%c, float32(6.0))\n %0 = multiply(%x, %m)",
    ],
)
def test_hard_swish(text: str) -> None:
    before = module(
        f"(%x: float32[3, 4]) {{\n %a = add(%x, float32(3.0))\n %c = clip(%a) {{minimum=0.0, maximum=6.0}}\n {text}\n return %0\n}}"
    )
    check(simplify_algebra, before, module("(%x: float32[3, 4]) {\n %0 = hard_swish(%x)\n return %0\n}"))


NORMALISED = [
    "%s = sqrt(%v)\n %n = divide(%d, %s)",
    "%s = rsqrt(%v)\n %n = multiply(%d, %s)",
    "%s = sqrt(%v)\n %r = reciprocal(%s)\n %n = multiply(%r, %d)",
    "%s = power(%v, float32(0.5))\n %n = divide(%d, %s)",
]
SQUARED = ["%p = power(%d, float32(2.0))", "%p = multiply(%d, %d)"]


@pytest.mark.parametrize("normalised", NORMALISED)
@pytest.mark.parametrize("squared", SQUARED)
def test_layer_norm(normalised: str, squared: str) -> None:
    weights = {"g": weight(8), "b": weight(8, seed=1)}
    before = module(
        "symbol n: 1..\n(%x: float32[n, 5, 8]) {\n %m = mean(%x) {axes=(2,), keepdims=true}\n %d = subtract(%x, %m)\n "
        f"{squared}\n %w = mean(%p) {{axes=(-1,), keepdims=true}}\n %v = add(%w, float32(1e-5))\n {normalised}\n"
        " %q = multiply(%n, $g)\n %0 = add(%q, $b)\n return %0\n}",
        weights,
    )
    after = module(
        "symbol n: 1..\n(%x: float32[n, 5, 8]) {\n %0 = layer_norm(%x, $g, $b) {epsilon=9.999999747378752e-06}\n return %0\n}", weights
    )
    check(simplify_algebra, before, after)


@pytest.mark.parametrize("normalised", [text.replace("%d", "%x") for text in NORMALISED])
def test_rms_norm(normalised: str) -> None:
    before = module(
        "(%x: float32[5, 8]) {\n %p = multiply(%x, %x)\n %w = mean(%p) {axes=(1,), keepdims=true}\n %v = add(%w, float32(0.5))\n"
        f" {normalised}\n %0 = multiply(%n, $g)\n return %0\n}}",
        {"g": weight(8)},
    )
    check(simplify_algebra, before, module("(%x: float32[5, 8]) {\n %0 = rms_norm(%x, $g) {epsilon=0.5}\n return %0\n}", {"g": weight(8)}))


def test_norm_over_other_axes_is_none() -> None:
    before = module(
        "(%x: float32[8, 8]) {\n %p = multiply(%x, %x)\n %w = mean(%p) {axes=(0,), keepdims=true}\n %v = add(%w, float32(0.5))\n"
        " %s = rsqrt(%v)\n %n = multiply(%x, %s)\n %0 = multiply(%n, $g)\n return %0\n}",
        {"g": weight(8)},
    )
    check(simplify_algebra, before, None)


def test_softmax_with_its_maximum() -> None:
    before = module(
        "(%x: float32[5, 8]) {\n %m = max(%x) {axes=(-1,), keepdims=true}\n %d = subtract(%x, %m)\n %e = exp(%d)\n"
        " %s = sum(%e) {axes=(-1,), keepdims=true}\n %0 = divide(%e, %s)\n return %0\n}"
    )
    assert operators(check(simplify_algebra, before, module("(%x: float32[5, 8]) {\n %0 = softmax(%x)\n return %0\n}"))) == ["softmax"]


def test_values_that_others_use_stay_right() -> None:
    text = "(%x: float32[5]) {\n %a = sigmoid(%x)\n %b = multiply(%x, %a)\n %c = add(%a, %b)\n return %c\n}"
    after = "(%x: float32[5]) {\n %a = sigmoid(%x)\n %b = silu(%x)\n %c = add(%a, %b)\n return %c\n}"
    check(simplify_algebra, module(text), module(after))


def test_half_precision_constants_match_roughly() -> None:
    before = module(
        "(%x: float16[4]) {\n %a = multiply(%x, float16(0.70703125))\n %b = erf(%a)\n %e = add(%b, float16(1.0))\n"
        " %h = multiply(%x, %e)\n %0 = multiply(%h, float16(0.5))\n return %0\n}"
    )
    check(simplify_algebra, before, module("(%x: float16[4]) {\n %0 = gelu(%x)\n return %0\n}"), tolerance=np.float64(2e-3))
