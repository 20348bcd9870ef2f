"""Scales of channels that go into weights: before and after, as text."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.passes.scale_weights import scale_weights
from tests.passes.helpers import check, module

CONV = "{channel_block=4, out_channels=8, strides=(2, 2)}"


def weights(kernel: int = 1) -> dict[str, np.ndarray]:
    return {"w": np.ones((1, 3, kernel, kernel, 4, 8), np.float32)}


def before(product: str = "multiply(%x, %s)", size: str = "1, 3, 32, 32, 4", scale: str = "1, 3, 1, 1, 4", more: str = "") -> str:
    lines = f" %0 = {product}\n %1 = conv(%0, $w) {CONV}\n"
    return f"(%x: float32[{size}], %s: float32[{scale}]) {{\n{lines}{more or ' return %1'}\n}}"


AFTER = (
    "(%x: float32[1, 3, 32, 32, 4], %s: float32[1, 3, 1, 1, 4]) {\n"
    " %0 = reshape(%s) {shape=(3, 1, 1, 4, 1)}\n"
    " %1 = multiply($w, %0)\n"
    f" %2 = conv(%x, %1) {CONV}\n"
    " return %2\n}"
)


@pytest.mark.parametrize("product", ["multiply(%x, %s)", "multiply(%s, %x)"])
def test_a_scale_of_channels(product: str) -> None:
    check(scale_weights, module(before(product), weights()), module(AFTER, weights()))


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        (before(size="2, 3, 32, 32, 4"), 1),
        (before(size="1, 3, 2, 2, 4"), 1),
        (before(scale="1, 3, 32, 32, 4"), 1),
        (before(scale="1, 1, 1, 1, 1"), 1),
        (before(), 3),
        (before(more=" %2 = add(%0, %x)\n %3 = (%1, %2)\n return %3"), 1),
    ],
    ids=["two images", "few elements", "no scale of channels", "one number", "several taps", "another use"],
)
def test_these_stay(text: str, kernel: int) -> None:
    check(scale_weights, module(text, weights(kernel)), None)
