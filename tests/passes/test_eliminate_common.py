"""Equal calls become one: before and after, as text."""

from __future__ import annotations

import pytest

from aotc.passes.eliminate_common import eliminate_common
from tests.passes.helpers import check, module


def test_equal_calls_are_one() -> None:
    before = module("(%x: float32[4]) {\n %a = exp(%x)\n %b = exp(%x)\n %c = relu(%a)\n %d = relu(%b)\n %0 = add(%c, %d)\n return %0\n}")
    check(eliminate_common, before, module("(%x: float32[4]) {\n %a = exp(%x)\n %c = relu(%a)\n %0 = add(%c, %c)\n return %0\n}"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sum(%x) {axes=(0,)}", "sum(%x) {axes=(1,)}"),
        ("multiply(%x, float32(0.0))", "multiply(%x, float32(-0.0))"),
        ("add(%x, %y)", "add(%y, %x)"),
        ("power(%x, float32(2.0))", "power(%x, int64(2))"),
    ],
)
def test_calls_that_only_look_equal_stay_two(one: str, other: str) -> None:
    text = f"(%x: float32[4, 4], %y: float32[4, 4]) {{\n %a = {one}\n %b = {other}\n %0 = (%a, %b)\n return %0\n}}"
    check(eliminate_common, module(text), None)
