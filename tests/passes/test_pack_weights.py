"""Weights of dense layers in blocks: before and after, as text."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.passes.options import Options
from aotc.passes.pack_weights import pack_weights
from tests.passes.helpers import check, module, weight


def test_dense_weights_are_packed() -> None:
    w = weight(6, 3)
    packed = np.zeros((2, 3, 4), "float32")
    for unit in range(6):
        packed[unit // 4, :, unit % 4] = w[unit]
    before = module("symbol n: 1..\n(%x: float32[n, 3]) {\n %0 = dense(%x, $w)\n return %0\n}", {"w": w})
    after = module(
        "symbol n: 1..\n(%x: float32[n, 3]) {\n %0 = packed_dense(%x, $w~packed4) {units=6}\n return %0\n}", {"w~packed4": packed}
    )
    check(pack_weights, before, after, Options(dense_block=4))


@pytest.mark.parametrize("options", [Options(dense_block=0), Options(dense_block=16)])
def test_no_packing_for_few_outputs_or_without_blocks(options: Options) -> None:
    check(pack_weights, module("(%x: float32[2, 3]) {\n %0 = dense(%x, $w)\n return %0\n}", {"w": weight(6, 3)}), None, options)


def test_weights_that_are_computed_stay() -> None:
    check(
        pack_weights, module("(%x: float32[2, 3], %w: float32[8, 3]) {\n %0 = dense(%x, %w)\n return %0\n}"), None, Options(dense_block=8)
    )


def test_recurrent_weights_get_blocks_that_overlap() -> None:
    """Of 6 units in blocks of 4 the last block holds the units 2 to 5."""
    w = weight(1, 6, 1, 6)
    packed = np.stack([w[0][:, :, :4], w[0][:, :, 2:]])
    text = "(%x: float32[3, 2, 6], %h: float32[2, 6]) {{\n %0 = rnn(%x, {}, %h)\n return %0\n}}"
    before, after = module(text.format("$w"), {"w": w}), module(text.format("$w~blocks4"), {"w~blocks4": packed})
    check(pack_weights, before, after, Options(recurrent_block=4))


def test_recurrent_weights_that_are_computed_get_blocks_too() -> None:
    before = module("(%x: float32[3, 2, 6], %w: float32[1, 6, 1, 6], %h: float32[2, 6]) {\n %0 = rnn(%x, %w, %h)\n return %0\n}")
    after = module(
        "(%x: float32[3, 2, 6], %w: float32[1, 6, 1, 6], %h: float32[2, 6]) {\n %a = reshape(%w) {shape=(6, 1, 6)}\n"
        " %b = gather(%a, int64[8](0, 1, 2, 3, 2, 3, 4, 5)) {axis=2}\n %c = reshape(%b) {shape=(6, 1, 2, 4)}\n"
        " %d = transpose(%c) {axes=(2, 0, 1, 3)}\n %0 = rnn(%x, %d, %h)\n return %0\n}"
    )
    check(pack_weights, before, after, Options(recurrent_block=4))
