"""Which convolutions become Winograd's: before and after, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from aotc import targets
from aotc.ir.expr import Call
from aotc.ops.winograd import transform_weight
from aotc.passes.choose_winograd import WINOGRAD, Layer, algorithms, choose_winograd, winograd_growth
from aotc.passes.fuse_operators import fuse_operators
from aotc.passes.options import Options
from aotc.targets import Target
from tests.passes.helpers import check, module, weight

ARM = targets.get("jetson-orin")
OPTIONS = Options(channel_block=4, target=ARM)


def blocked(w: np.ndarray, block: int, panel: int) -> np.ndarray:
    outputs, channels = w.shape[:2]
    split = w.reshape(outputs // panel, panel, channels // block, block, *w.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, (3, 1), (-2, -1)))


def text(weight_name: str, call: str, size: str = "12, 12", symbols: str = "") -> str:
    return f"{symbols}(%x: float32[1, 16, {size}, 4]) {{\n %0 = {call.format(weight_name)}\n return %0\n}}"


CONV = "conv(%x, {}) {{padding=(1, 1, 1, 1), channel_block=4, out_channels=64}}"


@pytest.mark.parametrize("panel", [4, 16])
def test_large_layers_change(panel: int) -> None:
    """Two vectors of outputs make a panel, whatever the panels of the direct form."""
    w = weight(64, 64, 3, 3)
    before = module(text("$w", CONV), {"w": blocked(w, 4, panel)})
    call = "winograd_conv(%x, {}) {{tile=4, padding=(1, 1, 1, 1), channel_block=4, out_channels=64}}"
    after = module(text("$w~winograd4x8", call), {"w~winograd4x8": transform_weight(w, 4, 8)})
    check(choose_winograd, before, after, OPTIONS)


@pytest.mark.parametrize(
    ("call", "size", "symbols"),
    [
        (CONV.replace("padding=(1, 1, 1, 1)", "padding=(1, 1, 1, 1), strides=(2, 2)"), "12, 12", ""),
        (CONV.replace("padding=(1, 1, 1, 1)", "padding=(2, 2, 2, 2), dilation=(2, 2)"), "12, 12", ""),
        (CONV.replace("(1, 1, 1, 1)", "(3, 3, 3, 3)"), "12, 12", ""),
        (CONV, "1, 1", ""),
        (CONV, "h, 12", "symbol h: 1..\n"),
    ],
    ids=["strided", "dilated", "much padding", "one pixel", "unknown size"],
)
def test_these_stay(call: str, size: str, symbols: str) -> None:
    before = module(text("$w", call, size, symbols), {"w": blocked(weight(64, 64, 3, 3), 4, 4)})
    check(choose_winograd, before, None, OPTIONS)


def test_nothing_is_estimated_without_a_target() -> None:
    check(choose_winograd, module(text("$w", CONV), {"w": blocked(weight(64, 64, 3, 3), 4, 4)}), None, Options(channel_block=4))


def choose_tile(uses: list[Layer | None], target: Target) -> int | None:
    return WINOGRAD.get(next(iter(algorithms(uses, target)), ""))


def test_few_channels_stay_and_weights_weigh_in() -> None:
    assert choose_tile([Layer(56, 56, 64, 64, 1)], ARM) == 4
    assert choose_tile([Layer(112, 112, 4, 4, 1)], ARM) is None
    assert choose_tile([Layer(1, 1, 512, 512, 1)], ARM) is None
    wide = targets.get("x86-64-v3")  # multiplies faster, while memory is no faster: the larger weights cost more there
    assert choose_tile([Layer(7, 7, 512, 512, 1)], wide) == 2
    assert choose_tile([Layer(7, 7, 512, 512, 16)], wide) == 4


def test_layers_that_share_weights_change_together() -> None:
    large, small = Layer(56, 56, 64, 64, 1), Layer(1, 1, 64, 64, 1)
    assert choose_tile([small], ARM) is None
    assert choose_tile([large, small], ARM) == 4
    assert choose_tile([large, None], ARM) is None
    assert sorted(algorithms([small], ARM)) == ["direct", "winograd 2", "winograd 4"]
    assert algorithms([large, None], ARM) == algorithms([], ARM) == []


@pytest.mark.parametrize("tile", [2, 4])
def test_another_algorithm_may_be_picked(tile: int) -> None:
    asked = []

    def pick(node: Call, names: Sequence[str]) -> str:
        asked.append((node.op.name, sorted(names)))
        return f"winograd {tile}"

    w = weight(64, 64, 3, 3)
    before = module(text("$w", CONV), {"w": blocked(w, 4, 4)})
    call = f"winograd_conv(%x, {{}}) {{{{tile={tile}, padding=(1, 1, 1, 1), channel_block=4, out_channels=64}}}}"
    after = module(text(f"$w~winograd{tile}x8", call), {f"w~winograd{tile}x8": transform_weight(w, tile, 8)})
    check(choose_winograd, before, after, replace(OPTIONS, pick=pick))
    assert set(map(str, asked)) == {str(("conv", ["direct", "winograd 2", "winograd 4"]))}
    check(choose_winograd, before, None, replace(OPTIONS, pick=lambda node, names: "direct"))


def test_growth_by_layer() -> None:
    """Weights that two layers share count once."""
    second = CONV.replace("%x", "%a")
    source = (
        "(%x: float32[1, 16, 12, 12, 4]) {\n"
        f" %a = {CONV.format('$w')}\n %b = {second.format('$v')}\n %0 = {second.replace('%a', '%b').format('$v')}\n return %0\n}}"
    )
    w = blocked(weight(64, 64, 3, 3), 4, 4)
    changed = fuse_operators(choose_winograd(module(source, {"w": w, "v": w + 1}), OPTIONS), OPTIONS)
    assert list(winograd_growth(changed).values()) == [4 * 64 * 64 * (36 - 9)] * 2
