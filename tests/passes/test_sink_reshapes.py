"""Reshapes meet: before and after, as text."""

from __future__ import annotations

import pytest

from aotc.passes.sink_reshapes import sink_reshapes
from tests.passes.helpers import check, module, weight

HEAD = "symbol n: 1..\nsymbol s: 1..\n(%x: float32[n, s, 6], %z: float32[n, s, 6]) {\n "


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "%a = reshape(%x) {shape=(n*s, 6)}\n %b = dense(%a, $w)\n %c = add(%b, $v)\n %0 = reshape(%c) {shape=(n, s, 6)}",
            "%b = dense(%x, $w)\n %0 = add(%b, $v)",
        ),
        (
            "%a = reshape(%x) {shape=(n*s, 6)}\n %b = gelu(%a)\n %c = softmax(%b) {axis=1}\n %0 = reshape(%c) {shape=(n, s, 6)}",
            "%b = gelu(%x)\n %0 = softmax(%b)",
        ),
        (
            "%a = reshape(%x) {shape=(n*s*6,)}\n %b = reshape(%z) {shape=(n*s*6,)}\n %0 = add(%a, %b)",
            "%b = add(%x, %z)\n %0 = reshape(%b) {shape=(n*s*6,)}",
        ),
        (
            "%a = reshape(%x) {shape=(n, s, 2, 3)}\n %0 = multiply(%a, float32(2.0))",
            "%b = multiply(%x, float32(2.0))\n %0 = reshape(%b) {shape=(n, s, 2, 3)}",
        ),
        (
            "%t = transpose(%x) {axes=(1, 0, 2)}\n %a = reshape(%t) {shape=(s, n, 2, 3)}\n %r = reshape(%a) {shape=(n*s, 6)}\n"
            " %b = dense(%r, $w)\n %c = reshape(%b) {shape=(s, n, 6)}\n %0 = add(%c, %t)",
            "%t = transpose(%x) {axes=(1, 0, 2)}\n %b = dense(%t, $w)\n %0 = add(%b, %t)",
        ),
        (
            "%a = reshape(%x) {shape=(n*s, 6)}\n %0 = layer_norm(%a, $v, $v) {axis=1}",
            "%b = layer_norm(%x, $v, $v)\n %0 = reshape(%b) {shape=(n*s, 6)}",
        ),
    ],
)
def test_forms(before: str, after: str) -> None:
    weights = {name: array for name, array in (("w", weight(6, 6)), ("v", weight(6))) if f"${name}" in before}
    check(sink_reshapes, module(f"{HEAD}{before}\n return %0\n}}", weights), module(f"{HEAD}{after}\n return %0\n}}", weights))


def test_stacks_of_matrices() -> None:
    head = "symbol n: 1..\n(%x: float32[n, 4, 3, 5], %y: float32[n, 4, 5, 2]) {\n "
    before = "%a = reshape(%x) {shape=(4*n, 3, 5)}\n %b = reshape(%y) {shape=(4*n, 5, 2)}\n %c = matmul(%a, %b)\n %0 = reshape(%c) {shape=(n, 4, 3, 2)}"
    check(sink_reshapes, module(f"{head}{before}\n return %0\n}}"), module(f"{head}%0 = matmul(%x, %y)\n return %0\n}}"))


@pytest.mark.parametrize(
    "text",
    [
        "%a = reshape(%x) {shape=(n, 2*s, 3)}\n %0 = softmax(%a)",  # rows are cut
        "%a = reshape(%x) {shape=(n, 2*s, 3)}\n %0 = dense(%a, $w)",
        "%a = reshape(%x) {shape=(n*s, 6)}\n %0 = softmax(%a) {axis=0}",
        "%a = reshape(%x) {shape=(n*s, 3, 2)}\n %0 = add(%a, $v)",  # v runs along another axis there
        "%a = reshape(%x) {shape=(n*s, 6)}\n %0 = mean(%a) {axes=(0,)}",
    ],
)
def test_left_alone(text: str) -> None:
    weights = {name: array for name, array in (("w", weight(6, 3)), ("v", weight(3, 2))) if f"${name}" in text}
    check(sink_reshapes, module(f"{HEAD}{text}\n return %0\n}}", weights), None)


def test_a_reshape_does_not_rise_past_other_uses() -> None:
    before = (
        "%t = transpose(%x) {axes=(1, 0, 2)}\n %a = reshape(%t) {shape=(s, n*2, 3)}\n %b = dense(%a, $w)\n"
        " %c = reshape(%b) {shape=(s, n, 2, 3)}\n %0 = (%b, %c)"
    )
    check(sink_reshapes, module(f"{HEAD}{before}\n return %0\n}}", {"w": weight(3, 3)}), None)
