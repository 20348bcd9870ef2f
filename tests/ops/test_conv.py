"""Convolutions against torch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.expr import Var
from aotc.ir.types import TensorType, tensor
from aotc.ops.conv import ConvAttributes, conv, conv_transpose

RNG = np.random.default_rng(2)
CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def var(array: np.ndarray) -> Var:
    return Var("v", TensorType(array.shape, str(array.dtype)))


def padded(x: np.ndarray, padding: tuple[int, ...]) -> torch.Tensor:
    n = len(padding) // 2
    widths = [side for axis in reversed(range(n)) for side in (padding[axis], padding[axis + n])]
    return functional.pad(torch.from_numpy(x), widths)


@pytest.mark.parametrize(
    ("data", "weights", "attributes"),
    [
        ((2, 6, 13), (4, 6, 3), {"strides": (1,), "padding": (0, 0), "dilation": (1,)}),
        ((2, 6, 13), (4, 3, 4), {"strides": (3,), "padding": (2, 1), "dilation": (2,), "groups": 2}),
        ((2, 6, 9, 8), (4, 6, 3, 3), {}),
        ((2, 6, 9, 8), (4, 6, 3, 2), {"strides": (2, 3), "padding": (1, 0, 2, 4), "dilation": (2, 1)}),
        ((2, 6, 9, 8), (6, 1, 3, 3), {"padding": (1, 1, 1, 1), "groups": 6}),
        ((2, 6, 9, 8), (12, 1, 3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1), "groups": 6}),
        ((2, 6, 9, 8), (9, 2, 1, 1), {"groups": 3}),
        ((0, 6, 9, 8), (4, 6, 3, 3), {}),
        ((1, 4, 5, 6, 7), (2, 4, 3, 2, 1), {"strides": (1, 2, 3), "padding": (1, 0, 2, 0, 1, 2), "dilation": (1, 2, 1)}),
        ((2, 1, 4, 20), (3, 1, 3, 1), {}),
        ((1, 1, 3, 10), (1, 1, 1, 2), {}),
        ((1, 3, 224, 224), (8, 3, 7, 7), {"strides": (2, 2), "padding": (3, 3, 3, 3)}),
    ],
)
def test_conv_is_torchs(data: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, object]) -> None:
    x, w = random(*data), random(*weights)
    attrs = ConvAttributes(**attributes)  # type: ignore[arg-type]
    expected = CONV[len(data) - 2](
        padded(x, attrs.padding), torch.from_numpy(w), stride=attrs.strides, dilation=attrs.dilation, groups=attrs.groups
    ).numpy()
    result = conv.reference(attrs, x, w)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert conv(var(x), var(w), **attributes).type == TensorType(expected.shape, "float32")


def test_float16_is_summed_in_float32() -> None:
    x, w = np.full((1, 4096, 1, 1), 0.1, np.float16), np.ones((1, 4096, 1, 1), np.float16)
    exact = np.float32(np.float16(0.1)) * 4096
    assert conv.reference(ConvAttributes(), x, w).item() == np.float16(exact)


@pytest.mark.parametrize("inputs, outputs, in_block, block", [(6, 10, 8, 8), (3, 16, 3, 8), (16, 5, 4, 4)])
def test_blocked_channels_are_the_plain_convolution(inputs: int, outputs: int, in_block: int, block: int) -> None:
    x, w = random(2, inputs, 7, 6), random(outputs, inputs, 3, 2)
    attributes = {"strides": (2, 1), "padding": (1, 0, 1, 2), "dilation": (1, 2)}
    plain = conv.reference(ConvAttributes(**attributes), x, w)  # type: ignore[arg-type]
    blocked_w = blocked(blocked(w, 0, block), 1, in_block)
    blocked_w = np.moveaxis(blocked_w, -2, -1)
    expression = conv(var(blocked(x, 1, in_block)), var(blocked_w), **attributes, channel_block=block, out_channels=outputs)
    result = conv.reference(expression.attrs, blocked(x, 1, in_block), blocked_w)
    np.testing.assert_allclose(result, blocked(plain, 1, block), rtol=1e-4, atol=1e-4)
    assert expression.type == TensorType(result.shape, "float32")


def test_blocked_depthwise_is_the_plain_convolution() -> None:
    x, w = random(2, 10, 7, 6), random(10, 1, 3, 3)
    attributes = {"strides": (2, 2), "padding": (1, 1, 1, 1), "groups": 10}
    plain = conv.reference(ConvAttributes(**attributes), x, w)  # type: ignore[arg-type]
    blocked_w = blocked(w[:, 0], 0, 4)
    expression = conv(var(blocked(x, 1, 4)), var(blocked_w), **attributes, channel_block=4, out_channels=10)
    result = conv.reference(expression.attrs, blocked(x, 1, 4), blocked_w)
    np.testing.assert_allclose(result, blocked(plain, 1, 4), rtol=1e-4, atol=1e-4)
    assert expression.type == TensorType(result.shape, "float32")


def blocked(x: np.ndarray, axis: int, block: int) -> np.ndarray:
    """``axis`` in blocks, zero padded; the inner part becomes the last axis."""
    widths = [(0, -x.shape[i] % block if i == axis else 0) for i in range(x.ndim)]
    x = np.pad(x, widths)
    x = x.reshape(*x.shape[:axis], x.shape[axis] // block, block, *x.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(x, axis + 1, -1))


@pytest.mark.parametrize("groups, stride, dilation, kernel", list(itertools.product((1, 2), (1, 2, 3), (1, 2), (1, 2, 4))))
def test_conv_transpose_is_torchs(groups: int, stride: int, dilation: int, kernel: int) -> None:
    for extra in range(max(stride, dilation)):
        for pad in range(min(2, (kernel - 1) * dilation + 1)):
            check_transposed((2, 4, 5, 3), (4, 3, kernel, 2), (stride, 2), (pad, 1), (extra, 1), (dilation, 1), groups)


@pytest.mark.parametrize(
    "data, weights, stride, pad, extra, dilation, groups",
    [
        ((1, 6, 8), (6, 1, 4), (2,), (1,), (1,), (1,), 6),
        ((1, 6, 8, 8), (6, 1, 32, 1), (16, 1), (8, 0), (0, 0), (1, 1), 6),
        ((1, 4, 3, 4, 5), (4, 2, 2, 3, 1), (2, 1, 2), (1, 0, 0), (1, 0, 1), (1, 2, 1), 2),
        ((0, 4, 3, 4), (4, 2, 2, 3), (2, 1), (1, 0), (1, 0), (1, 1), 1),
    ],
)
def test_conv_transpose_in_other_ranks(data, weights, stride, pad, extra, dilation, groups) -> None:  # type: ignore[no-untyped-def]
    check_transposed(data, weights, stride, pad, extra, dilation, groups)


def check_transposed(data, weights, stride, pad, extra, dilation, groups) -> None:  # type: ignore[no-untyped-def]
    x, w = random(*data), random(*weights)
    expected = TRANSPOSED[len(stride)](
        torch.from_numpy(x), torch.from_numpy(w), stride=stride, padding=pad, output_padding=extra, dilation=dilation, groups=groups
    ).numpy()
    attributes = {"strides": stride, "padding": (*pad, *pad), "output_padding": extra, "dilation": dilation, "groups": groups}
    expression = conv_transpose(var(x), var(w), **attributes)
    np.testing.assert_allclose(conv_transpose.reference(expression.attrs, x, w), expected, rtol=1e-4, atol=1e-4)
    assert expression.type == TensorType(expected.shape, "float32")


def test_symbolic_extents() -> None:
    b, h = symbol("b"), symbol("h")
    x = Var("x", tensor("float32", b, 3, h, 224))
    w = Var("w", tensor("float32", 64, 3, 7, 7))
    result = conv(x, w, strides=(2, 2), padding=(3, 3, 3, 3))
    assert result.type == tensor("float32", b, 64, (h - 1) // 2 + 1, 112)
    up = conv_transpose(result, Var("w", tensor("float32", 64, 8, 2, 2)), strides=(2, 2))
    assert up.type == tensor("float32", b, 8, ((h - 1) // 2 + 1) * 2, 224)


@pytest.mark.parametrize(
    "data, weights, attributes, message",
    [
        ((1, 4, 8, 8), (8, 3, 3, 3), {}, "need data of 3 channels, not 4"),
        ((1, 4, 8, 8), (8, 4, 3), {}, "weights of the same rank"),
        ((1, 4, 8, 8), (9, 2, 3, 3), {"groups": 2}, "9 output channels do not divide into 2 groups"),
        ((1, 4, 2, 8), (8, 4, 3, 3), {}, "a window of 3 does not fit an axis of 2"),
        ((1, 4, 8, 8), (8, 4, 3, 3), {"padding": (1, 1)}, "padding must be 4 integers of at least 0"),
        ((1, 4, 8, 8), (8, 4, 3, 3), {"strides": (0, 1)}, "strides must be 2 integers of at least 1"),
        ((1, 4, 8, 8), (8, 4, 3, 3), {"groups": 0}, "groups must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(data, weights, attributes, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidModel, match=message):
        conv(Var("x", tensor("float32", *data)), Var("w", tensor("float32", *weights)), origin="layer1", **attributes)
