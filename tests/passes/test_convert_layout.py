"""Blocked layouts: where they begin and end, and that values stay."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops, targets
from aotc.ir.expr import Module
from aotc.ir.verify import verify
from aotc.ir.visitor import calls_of
from aotc.passes.convert_layout import convert_layout
from aotc.passes.eliminate_common import eliminate_common
from aotc.passes.options import Options
from tests.passes.helpers import agree, check, module, operators, weight

OPTIONS = Options(channel_block=4)


def converted(before: Module, tolerance: float = 2e-5, options: Options = OPTIONS) -> list[str]:
    """The operators after conversion, constants folded; the values are compared."""
    verify(before)
    after = convert_layout(before, options)
    verify(after)
    agree(before, after, tolerance)
    return operators(eliminate_common(after, OPTIONS))


def test_two_convolutions_and_a_residual_share_their_blocks() -> None:
    before = module(
        "(%x: float32[2, 3, 6, 6]) {\n %a = conv(%x, $w1) {padding=(1, 1, 1, 1)}\n %b = add(%a, $b1)\n %c = relu(%b)\n"
        " %d = conv(%c, $w2) {padding=(1, 1, 1, 1)}\n %e = add(%d, %c)\n %f = max_pool(%e) {kernel=(2, 2), strides=(2, 2)}\n"
        " %g = mean(%f) {axes=(2, 3)}\n %0 = dense(%g, $fc)\n return %0\n}",
        {"w1": weight(8, 3, 3, 3), "b1": weight(8, 1, 1), "w2": weight(8, 8, 3, 3), "fc": weight(5, 8)},
    )
    found = converted(before)
    assert found == ["layout_transform", "conv", "add", "relu", "conv", "add", "max_pool", "mean", "reshape", "dense"]


def test_text_of_one_convolution() -> None:
    w = weight(8, 8, 1, 1)
    before = module("(%x: float32[1, 8, 2, 2]) {\n %0 = conv(%x, $w)\n return %0\n}", {"w": w})
    blocked = w.reshape(2, 4, 2, 4, 1, 1).transpose(0, 2, 4, 5, 3, 1)
    after = module(
        "(%x: float32[1, 8, 2, 2]) {\n %a = layout_transform(%x) {block=4, channels=8}\n"
        " %b = conv(%a, $w~blocked4x4) {channel_block=4, out_channels=8}\n"
        " %0 = layout_transform(%b) {block=4, channels=8, inverse=true}\n return %0\n}",
        {"w~blocked4x4": np.ascontiguousarray(blocked)},
    )
    check(convert_layout, before, after, OPTIONS)


@pytest.mark.parametrize("channels", [1, 3, 4, 6, 8])
@pytest.mark.parametrize("outputs", [1, 2, 4, 7])
def test_any_number_of_channels(channels: int, outputs: int) -> None:
    text = f"(%x: float32[2, {channels}, 5, 4]) {{\n %a = conv(%x, $w)\n %b = sigmoid(%a)\n %c = conv(%b, $v)\n return %c\n}}"
    converted(module(text, {"w": weight(outputs, channels, 2, 2), "v": weight(3, outputs, 1, 1)}))


@pytest.mark.parametrize("channels", [2, 3, 5, 8])
def test_channels_filled_up_to_a_power_of_two(channels: int) -> None:
    text = f"(%x: float32[2, {channels}, 5, 4]) {{\n %a = conv(%x, $w)\n return %a\n}}"
    before = module(text, {"w": weight(6, channels, 2, 2)})
    options = Options(channel_block=8, fill_input=True)
    converted(before, options=options)
    transform = calls_of(convert_layout(before, options).main.body, ["layout_transform"])[0]
    assert transform.attrs.block == 1 << (channels - 1).bit_length()  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64"])
@pytest.mark.parametrize("channels", [1, 3, 7])
def test_planes_that_are_read_where_they_stand(channels: int, target: str) -> None:
    text = f"(%x: float32[2, {channels}, 5, 4]) {{\n %a = conv(%x, $w)\n %b = conv(%a, $v)\n return %b\n}}"
    before = module(text, {"w": weight(6, channels, 2, 2), "v": weight(8, 6, 1, 1)})
    options = Options(channel_block=8, target=targets.get(target))
    assert converted(before, options=options) == ["reshape", "conv", "conv", "layout_transform"]


@pytest.mark.parametrize("spatial", [(7,), (5, 4), (3, 4, 3)])
def test_any_number_of_spatial_axes(spatial: tuple[int, ...]) -> None:
    n = len(spatial)
    shape = ", ".join(map(str, (2, 8, *spatial)))
    attrs = f"strides={(1,) * n}, padding={(1,) * 2 * n}, dilation={(1,) * n}" if n > 1 else "strides=(1,), padding=(1, 1), dilation=(1,)"
    text = f"(%x: float32[{shape}]) {{\n %a = conv(%x, $w) {{{attrs}}}\n %b = relu(%a)\n return %b\n}}"
    assert converted(module(text, {"w": weight(6, 8, *[3] * n)})) == ["layout_transform", "conv", "relu", "layout_transform"]


@pytest.mark.parametrize("channels", [6, 8])
def test_depthwise(channels: int) -> None:
    text = f"(%x: float32[2, {channels}, 5, 4]) {{\n %a = conv(%x, $w) {{groups={channels}, padding=(1, 0, 1, 2)}}\n %b = silu(%a)\n %c = conv(%b, $v)\n return %c\n}}"
    found = converted(module(text, {"w": weight(channels, 1, 3, 3), "v": weight(4, channels, 1, 1)}))
    assert found == ["layout_transform", "conv", "silu", "conv", "layout_transform"]


def test_other_groups_stay_plain() -> None:
    text = "(%x: float32[2, 8, 5, 4]) {\n %a = conv(%x, $w) {groups=2}\n return %a\n}"
    check(convert_layout, module(text, {"w": weight(8, 4, 3, 3)}), None, OPTIONS)


@pytest.mark.parametrize("channels", [6, 8])
def test_squeeze_and_excite(channels: int) -> None:
    before = module(
        f"symbol n: 1..\n(%x: float32[n, {channels}, 5, 4]) {{\n %a = conv(%x, $w)\n %m = mean(%a) {{axes=(2, 3), keepdims=true}}\n"
        " %s = conv(%m, $d)\n %r = relu(%s)\n %u = conv(%r, $u)\n %g = sigmoid(%u)\n %0 = multiply(%a, %g)\n return %0\n}",
        {"w": weight(channels, channels, 1, 1), "d": weight(2, channels, 1, 1), "u": weight(channels, 2, 1, 1)},
    )
    found = converted(before)
    assert found.count("layout_transform") == 2


OPERANDS = {
    "vector": ("%0 = multiply(%a, $k)", {"k": weight(6, 1, 1)}),
    "divisor": ("%0 = divide(%a, $k)", {"k": np.abs(weight(1, 6, 1, 1)) + 1}),
    "image": ("%0 = add(%a, $k)", {"k": weight(5, 4)}),
    "whole": ("%0 = maximum(%a, $k)", {"k": weight(6, 5, 4)}),
    "scalar": ("%0 = multiply(%a, float32[1, 1, 1](3.0))", {}),
    "slope": ("%0 = prelu(%a, $k)", {"k": weight(6, 1, 1)}),
    "input": ("%0 = add(%x, %a)", {}),
    "mask": ("%b = greater(%a, float32(0.0))\n %0 = where(%b, %a, %x)", {}),
    "small map": ("%m = mean(%x) {axes=(1,), keepdims=true}\n %0 = multiply(%a, %m)", {}),
    "channel of the input": ("%m = max(%x) {axes=(2, 3), keepdims=true}\n %0 = multiply(%a, %m)", {}),
    "low rank": ("%m = max(%x) {axes=(0,)}\n %0 = multiply(%a, %m)", {}),
    "map of a convolution": ("%m = conv(%a, $k)\n %0 = multiply(%a, %m)", {"k": weight(1, 6, 1, 1)}),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_that_broadcast(name: str) -> None:
    text, weights = OPERANDS[name]
    before = f"(%x: float32[2, 6, 5, 4]) {{\n %a = conv(%x, $w)\n {text}\n return %0\n}}"
    found = converted(module(before, {"w": weight(6, 6, 1, 1), **weights}))
    assert found[-1] == "layout_transform"


SPATIAL = [
    "%0 = avg_pool(%a) {kernel=(2, 3), strides=(2, 1), padding=(1, 0, 1, 1), count_include_pad=true, ceil_mode=true}",
    "%0 = sum(%a) {axes=(-1,), keepdims=true}",
    "%0 = max(%a) {axes=(2, 3), keepdims=true}",
    '%0 = pad(%a) {before=(0, 0, 1, 2), after=(0, 0, 0, 1), mode="reflect"}',
    "%0 = pad(%a) {before=(0, 0, 1, 2), after=(0, 0, 0, 1), value=2.0}",
    "%0 = slice(%a) {begins=(0, 0, 4, 0), ends=(2, 6, -1, 3), steps=(1, 1, -2, 1)}",
    "%0 = slice(%a) {begins=(0, 4, 0, 0), ends=(2, 6, 5, 4), steps=(1, 1, 1, 1)}",
    '%0 = resize(%a) {shape=(2, 6, 10, 8), scales=(1.0, 1.0, 2.0, 2.0), mode="linear"}',
    '%0 = resize(%a) {shape=(2, 6, 10, 8), scales=(none, none, none, none), mode="nearest"}',
    "%0 = concat(%a, %x) {axis=2}",
    "%b = slice(%a) {begins=(0, 0, 0, 0), ends=(2, 4, 5, 4), steps=(1, 1, 1, 1)}\n %0 = concat(%b, %a) {axis=1}",
]


@pytest.mark.parametrize("text", SPATIAL)
def test_what_works_on_space_stays_in_blocks(text: str) -> None:
    found = converted(module(f"(%x: float32[2, 6, 5, 4]) {{\n %a = conv(%x, $w)\n {text}\n return %0\n}}", {"w": weight(6, 6, 1, 1)}))
    assert found[-1] == "layout_transform"


@pytest.mark.parametrize(
    "text",
    [
        "%0 = concat(%a, %x) {axis=1}",  # six channels are no whole blocks
        "%0 = slice(%a) {begins=(0, 1, 0, 0), ends=(2, 3, 5, 4), steps=(1, 1, 1, 1)}",
        "%0 = softmax(%a) {axis=1}",
        "%0 = mean(%a) {axes=(1,)}",
        "%0 = transpose(%a) {axes=(0, 2, 3, 1)}",
        "%0 = log(%a)",  # of the filling it would be infinite
        "%0 = multiply(%a, float32(inf))",
    ],
)
def test_what_leaves_the_blocks(text: str) -> None:
    found = converted(module(f"(%x: float32[2, 6, 5, 4]) {{\n %a = conv(%x, $w)\n {text}\n return %0\n}}", {"w": weight(6, 6, 1, 1)}))
    assert found[:3] == ["layout_transform", "conv", "layout_transform"]


def test_each_value_is_converted_once() -> None:
    before = module(
        "(%x: float32[2, 8, 5, 4]) {\n %a = conv(%x, $w)\n %b = conv(%x, $v)\n %s = softmax(%a) {axis=1}\n"
        " %t = transpose(%a) {axes=(0, 2, 3, 1)}\n %0 = (%s, %t, %b)\n return %0\n}",
        {"w": weight(8, 8, 1, 1), "v": weight(8, 8, 1, 1, seed=1)},
    )
    assert converted(before).count("layout_transform") == 3


def test_mean_without_kept_dims_over_filled_blocks() -> None:
    text = "symbol n: 1..\n(%x: float32[n, 6, 5, 4]) {\n %a = conv(%x, $w)\n %0 = mean(%a) {axes=(2, 3)}\n return %0\n}"
    assert converted(module(text, {"w": weight(6, 6, 1, 1)}))[-2:] == ["reshape", "slice"]


def test_no_block_no_change() -> None:
    text = "(%x: float32[2, 8, 5, 4]) {\n %0 = conv(%x, $w)\n return %0\n}"
    check(convert_layout, module(text, {"w": weight(8, 8, 1, 1)}), None, Options(channel_block=0))
    assert ops.conv.is_call(module(text, {"w": weight(8, 8, 1, 1)}).main.body)


def test_one_channel_is_no_depthwise_convolution() -> None:
    """Case 29: one channel in, one out, in one group."""
    text = "(%x: float32[2, 1, 4, 20]) {\n %a = conv(%x, $w) {padding=(1, 0, 1, 0)}\n return %a\n}"
    before = module(text, {"w": weight(1, 1, 3, 1)})
    assert converted(before) == ["reshape", "conv", "layout_transform"]
    conv = calls_of(convert_layout(before, OPTIONS).main.body, ["conv"])[0]
    assert conv.args[1].type.shape == (1, 1, 3, 1, 1, 4)  # type: ignore[union-attr]


@pytest.mark.parametrize("channels", [3, 4, 20])
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_few_outputs_stand_in_blocks_of_one(channels: int, outputs: int) -> None:
    text = (
        f"(%x: float32[2, {channels}, 6, 4]) {{\n %a = conv(%x, $w) {{padding=(1, 1, 1, 1)}}\n %b = add(%a, $b)\n %c = sigmoid(%b)\n"
        " %d = conv(%c, $v)\n %e = conv(%x, $u)\n %f = concat(%c, %d, %e) {axis=1}\n return %f\n}"
    )
    weights = {"w": weight(outputs, channels, 3, 3), "b": weight(outputs, 1, 1), "v": weight(5, outputs, 1, 1)}
    before, options = module(text, {**weights, "u": weight(16, channels, 1, 1)}), Options(channel_block=16)
    converted(before, options=options)
    blocks = [conv.attrs.channel_block for conv in calls_of(convert_layout(before, options).main.body, ["conv"])]  # type: ignore[attr-defined]
    assert (1 in blocks) == (outputs <= 2 and channels >= 4)
