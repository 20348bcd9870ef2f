"""One form for each thing: before and after, as text."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.passes.canonicalise import canonicalise
from tests.passes.helpers import check, module, weight

UNARY = [
    ("%0 = reshape(%x) {shape=(3, 4)}", None),
    ("%0 = broadcast_to(%x) {shape=(3, 4)}", None),
    ('%0 = cast(%x) {dtype="float32"}', None),
    ("%0 = tile(%x) {repeats=(1, 1)}", None),
    ("%0 = pad(%x) {before=(0, 0), after=(0, 0)}", None),
    ("%0 = transpose(%x) {axes=(0, 1)}", None),
    ("%0 = slice(%x) {begins=(0, 0), ends=(3, 4), steps=(1, 1)}", None),
    ("%0 = concat(%x) {axis=1}", None),
    ("%0 = clip(%x)", None),
    ("%0 = sum(%x) {axes=()}", None),
    ("%a = (%x, %x)\n %0 = %a[1]", None),
    ("%a = reshape(%x) {shape=(12,)}\n %0 = reshape(%a) {shape=(2, 6)}", "%0 = reshape(%x) {shape=(2, 6)}"),
    ("%a = reshape(%x) {shape=(12,)}\n %0 = reshape(%a) {shape=(3, 4)}", None),
    ("%a = transpose(%x) {axes=(1, 0)}\n %0 = transpose(%a) {axes=(1, 0)}", None),
    ('%a = cast(%x) {dtype="float64"}\n %0 = cast(%a) {dtype="float32"}', None),
    ('%a = cast(%x) {dtype="float64"}\n %0 = cast(%a) {dtype="float8_e4m3fn", saturate=false}',
     '%0 = cast(%x) {dtype="float8_e4m3fn", saturate=false}'),
    ("%a = clip(%x) {minimum=-1.0, maximum=6.0}\n %0 = clip(%a) {minimum=0.0, maximum=9.0}", "%0 = clip(%x) {minimum=0.0, maximum=6.0}"),
    ("%a = clip(%x) {minimum=7.0}\n %0 = clip(%a) {maximum=6.0}", "%0 = clip(%x) {minimum=6.0, maximum=6.0}"),
    ("%0 = maximum(%x, float32(0.0))", "%0 = relu(%x)"),
    ("%a = maximum(float32(-1.0), %x)\n %0 = minimum(%a, float32(1.0))", "%0 = clip(%x) {minimum=-1.0, maximum=1.0}"),
    ("%0 = add(float32(2.0), %x)", "%0 = add(%x, float32(2.0))"),
    ("%0 = subtract(%x, float32(2.0))", "%0 = add(%x, float32(-2.0))"),
    ("%0 = power(%x, float32(2.0))", "%0 = multiply(%x, %x)"),
    ("%0 = power(%x, float32(-1.0))", "%0 = reciprocal(%x)"),
    ('%a = full() {shape=(3, 4), value=2.0, dtype="float32"}\n %0 = multiply(%x, %a)', "%0 = multiply(%x, float32(2.0))"),
    ("%a = broadcast_to(float32(2.0)) {shape=(3, 4)}\n %0 = less(%x, %a)", "%0 = less(%x, float32(2.0))"),
    ("%a = slice(%x) {begins=(0, 0), ends=(1, 4), steps=(1, 1)}\n %b = broadcast_to(%a) {shape=(3, 4)}\n %0 = add(%x, %b)",
     "%a = slice(%x) {begins=(0, 0), ends=(1, 4), steps=(1, 1)}\n %0 = add(%x, %a)"),
    ("%0 = prelu(%x, float32[4](0.5, 0.5, 0.5, 0.5))", "%0 = leaky_relu(%x) {alpha=0.5}"),
    ("%a = transpose(%x) {axes=(1, 0)}\n %b = reshape(%x) {shape=(1, 3, 4)}\n %c = transpose(%b) {axes=(1, 0, 2)}\n %0 = reshape(%c) {shape=(3, 4)}", None),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), UNARY)
def test_forms(before: str, after: str | None) -> None:
    first = module(f"(%x: float32[3, 4]) {{\n {before}\n return %0\n}}")
    second = module(f"(%x: float32[3, 4]) {{\n {after}\n return %0\n}}") if after else module("(%x: float32[3, 4]) {\n return %x\n}")
    check(canonicalise, first, second)


@pytest.mark.parametrize(
    "text",
    [
        "%0 = transpose(%x) {axes=(1, 0)}",
        "%0 = slice(%x) {begins=(2, 0), ends=(-1, 4), steps=(-1, 1)}",  # same shape, turned round
        '%a = cast(%x) {dtype="float16"}\n %0 = cast(%a) {dtype="float32"}',  # rounds
        "%0 = maximum(%x, float32(nan))",
        "%0 = power(%x, float32(0.5))",  # differs from sqrt for minus infinity
        "%0 = add(%x, float32[2, 1, 1](1.0, 1.0))",  # gives the result its shape
    ],
)
def test_left_alone(text: str) -> None:
    check(canonicalise, module(f"(%x: float32[3, 4]) {{\n {text}\n return %0\n}}"), None)


def test_matmul_with_a_weight_is_dense() -> None:
    w = weight(4, 6)
    before = module("(%x: float32[3, 4]) {\n %0 = matmul(%x, $w)\n return %0\n}", {"w": w})
    after = module("(%x: float32[3, 4]) {\n %0 = dense(%x, $w~transposed)\n return %0\n}", {"w~transposed": np.ascontiguousarray(w.T)})
    check(canonicalise, before, after)


def test_matmul_with_a_transposed_weight_is_dense_as_it_is() -> None:
    weights = {"w": weight(6, 4)}
    before = module("(%x: float32[2, 3, 4]) {\n %t = transpose($w) {axes=(1, 0)}\n %0 = matmul(%x, %t)\n return %0\n}", weights)
    check(canonicalise, before, module("(%x: float32[2, 3, 4]) {\n %0 = dense(%x, $w)\n return %0\n}", weights))


def test_a_weight_of_two_products_is_transposed_once() -> None:
    before = module(
        "(%x: float32[3, 4], %y: float32[2, 4]) {\n %a = matmul(%x, $w)\n %b = matmul(%y, $w)\n %0 = (%a, %b)\n return %0\n}",
        {"w": weight(4, 6)},
    )
    after = module(
        "(%x: float32[3, 4], %y: float32[2, 4]) {\n %a = dense(%x, $w~transposed)\n %b = dense(%y, $w~transposed)\n %0 = (%a, %b)\n return %0\n}",
        {"w~transposed": np.ascontiguousarray(weight(4, 6).T)},
    )
    check(canonicalise, before, after)


IMAGES = [
    (
        "%a = pad(%x) {before=(0, 0, 1, 0), after=(0, 0, 0, 2)}\n %0 = conv(%a, $w) {padding=(0, 1, 0, 0)}",
        "%0 = conv(%x, $w) {padding=(1, 1, 0, 2)}",
    ),
    ("%0 = adaptive_avg_pool(%x) {output_size=(1, 1)}", "%0 = mean(%x) {axes=(2, 3), keepdims=true}"),
    ("%0 = adaptive_max_pool(%x) {output_size=(1, 1)}", "%0 = max(%x) {axes=(2, 3), keepdims=true}"),
    ("%0 = adaptive_avg_pool(%x) {output_size=(3, 2)}", "%0 = avg_pool(%x) {kernel=(2, 2), strides=(2, 2)}"),
    ("%0 = avg_pool(%x) {kernel=(6, 4)}", "%0 = mean(%x) {axes=(2, 3), keepdims=true}"),
]


@pytest.mark.parametrize(("before", "after"), IMAGES)
def test_images(before: str, after: str) -> None:
    weights = {"w": weight(2, 3, 3, 3)} if "$w" in before else {}
    head = "(%x: float32[2, 3, 6, 4]) {\n "
    check(canonicalise, module(f"{head}{before}\n return %0\n}}", weights), module(f"{head}{after}\n return %0\n}}", weights))


@pytest.mark.parametrize(
    "text",
    [
        "%a = pad(%x) {before=(0, 0, 1, 0), after=(0, 0, 0, 2), value=1.0}\n %0 = conv(%a, $w)",
        '%a = pad(%x) {before=(0, 0, 1, 0), after=(0, 0, 0, 2), mode="edge"}\n %0 = conv(%a, $w)',
        "%0 = adaptive_avg_pool(%x) {output_size=(4, 2)}",
        "%0 = avg_pool(%x) {kernel=(6, 4), padding=(0, 1, 0, 1), count_include_pad=true}",
    ],
)
def test_images_left_alone(text: str) -> None:
    weights = {"w": weight(2, 3, 3, 3)} if "$w" in text else {}
    check(canonicalise, module(f"(%x: float32[2, 3, 6, 4]) {{\n {text}\n return %0\n}}", weights), None)
