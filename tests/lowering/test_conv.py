"""Blocked convolutions against torch, in all their shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aotc import ops, targets
from aotc.ir.dims import symbol
from aotc.lowering.kernel import lower_function
from aotc.packaging.elf_check import text_size
from aotc.targets import Target
from tests.lowering.harness import Runner, function_of, lower, var

RNG = np.random.default_rng(0)

# input channels, their block, output channels, block, size, kernel, strides, padding (begins, ends), dilation
CASES = {
    "3x3": (16, 8, 16, 8, (9, 11), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "long row": (8, 8, 8, 8, (3, 61), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "pointwise": (16, 8, 24, 8, (7, 7), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    "pointwise, many pixels": (8, 8, 8, 8, (40, 31), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    "pointwise, many channels": (48, 4, 12, 4, (20, 11), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    "strided": (8, 8, 32, 8, (14, 15), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    "strided pointwise": (8, 8, 16, 8, (9, 9), (1, 1), (2, 3), (0, 0, 0, 0), (1, 1)),
    "padded pointwise": (16, 8, 16, 8, (5, 7), (1, 1), (1, 1), (1, 2, 2, 1), (1, 1)),
    "dilated": (8, 8, 8, 8, (12, 13), (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
    "asymmetric padding": (8, 8, 8, 8, (6, 7), (3, 4), (1, 2), (0, 2, 1, 0), (1, 1)),
    "first layer": (3, 3, 16, 8, (30, 31), (7, 7), (2, 2), (3, 3, 3, 3), (1, 1)),
    "planes": (3, 1, 16, 8, (30, 31), (7, 7), (2, 2), (3, 3, 3, 3), (1, 1)),
    "one pixel": (8, 8, 8, 8, (1, 1), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "padding beyond the kernel": (8, 8, 8, 8, (2, 2), (2, 2), (1, 1), (3, 3, 3, 3), (1, 1)),
    "large kernel, many edge tiles": (8, 8, 8, 8, (5, 20), (1, 15), (1, 1), (0, 7, 0, 7), (1, 1)),
    "block of 16": (16, 16, 48, 16, (8, 9), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "block of 4": (8, 4, 12, 4, (8, 9), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "1d": (8, 8, 16, 8, (33,), (5,), (2,), (2, 1), (1,)),
    "3d": (8, 8, 8, 8, (4, 5, 6), (3, 2, 3), (1, 2, 1), (1, 0, 1, 1, 1, 1), (1, 1, 1)),
}


def blocked(x: np.ndarray, block: int) -> np.ndarray:
    """[N, C, ...] to [N, C / block, ..., block]."""
    return np.ascontiguousarray(np.moveaxis(x.reshape(x.shape[0], -1, block, *x.shape[2:]), 2, -1))


def plain(x: np.ndarray) -> np.ndarray:
    moved = np.moveaxis(x, -1, 2)
    return moved.reshape(moved.shape[0], -1, *moved.shape[3:])


def blocked_weights(w: np.ndarray, block_in: int, block_out: int) -> np.ndarray:
    """[O, C, *k] to [O / block_out, C / block_in, *k, block_in, block_out]."""
    split = w.reshape(w.shape[0] // block_out, block_out, w.shape[1] // block_in, block_in, *w.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, (3, 1), (-2, -1)))


def expected(
    x: np.ndarray, w: np.ndarray, strides: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...], groups: int = 1
) -> np.ndarray:
    n = len(strides)
    ends = [pad for axis in reversed(range(n)) for pad in (padding[axis], padding[n + axis])]
    image = torch.nn.functional.pad(torch.from_numpy(x).double(), ends)
    conv = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[n - 1]
    return conv(image, torch.from_numpy(w).double(), None, strides, 0, dilation, groups).numpy()


def agrees(result: np.ndarray, reference: np.ndarray, tolerance: float = 1e-5) -> None:
    assert result.shape == reference.shape
    assert np.abs(result - reference).max() <= tolerance * np.abs(reference).max()


@pytest.mark.parametrize("name", CASES)
def test_blocked(name: str) -> None:
    c, block_in, o, block_out, size, kernel, strides, padding, dilation = CASES[name]
    x, w = RNG.standard_normal((2, c, *size), np.float32), RNG.standard_normal((o, c, *kernel), np.float32)
    arrays = [blocked(x, block_in), blocked_weights(w, block_in, block_out)]
    data, weight = (var(label, "float32", *array.shape) for label, array in zip("xw", arrays, strict=True))
    call = ops.conv(data, weight, strides=strides, padding=padding, dilation=dilation, channel_block=block_out, out_channels=o)
    (result,) = compiled(call, data, weight)(*arrays)
    agrees(plain(result), expected(x, w, strides, padding, dilation))


DEPTHWISE = [(1, 3, (9, 20)), (2, 3, (14, 15)), (1, 5, (7, 7)), (2, 5, (1, 3)), (1, 3, (64, 40)), (2, 3, (50, 70))]
"""Stride, kernel, size; of the last two a task has several rows."""

BY_ELEMENT = [
    "3x3",
    "asymmetric padding",
    "first layer",
    "planes",
    "pointwise, many pixels",
    "pointwise, many channels",
    "block of 4",
    "1d",
]


@pytest.fixture
def by_element(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A machine that multiplies by an element of a vector, as far as the choice of loops goes, whose code runs on this one."""
    monkeypatch.setattr(Target, "multiplies_by_element", True)
    monkeypatch.setattr(Target, "offset_bytes", 1008)
    return replace(targets.get("host"), vector_bits=128, vector_registers=32)


@pytest.mark.parametrize("panel", [2, 3, 6])
@pytest.mark.parametrize("name", BY_ELEMENT)
def test_inputs_as_vectors(name: str, panel: int, by_element: Target) -> None:
    """Weights are in panels."""
    c, block_in, _, block, size, kernel, strides, padding, dilation = CASES[name]
    o = block * 6
    x, w = RNG.standard_normal((2, c, *size), np.float32), RNG.standard_normal((o, c, *kernel), np.float32)
    bias = RNG.standard_normal((1, 6, *[1] * len(size), block), np.float32)
    arrays = [blocked(x, block_in), blocked_weights(w, block_in, panel * block), bias]
    params = [var(label, "float32", *array.shape) for label, array in zip("xwb", arrays, strict=True)]
    conv = ops.conv(*params[:2], strides=strides, padding=padding, dilation=dilation, channel_block=block, out_channels=o)
    function = function_of(ops.clip(ops.add(conv, params[2]), minimum=-1.0, maximum=6.0), *params)
    (result,) = Runner(function, lower_function(function, by_element))(*arrays)
    agrees(plain(result), plain(np.clip(blocked(expected(x, w, strides, padding, dilation), block) + bias, -1, 6)))


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(
    "name", ["3x3", "long row", "pointwise", "strided", "dilated", "asymmetric padding", "large kernel, many edge tiles", "1d"]
)
def test_few_outputs(name: str, outputs: int) -> None:
    """Results in blocks of one channel: vectors hold input channels."""
    c, block_in, _, _, size, kernel, strides, padding, dilation = CASES[name]
    x, w = RNG.standard_normal((2, c, *size), np.float32), RNG.standard_normal((outputs, c, *kernel), np.float32)
    bias = RNG.standard_normal((1, outputs, *[1] * len(size), 1), np.float32)
    arrays = [blocked(x, block_in), blocked_weights(w, block_in, 1), bias]
    params = [var(label, "float32", *array.shape) for label, array in zip("xwb", arrays, strict=True)]
    conv = ops.conv(*params[:2], strides=strides, padding=padding, dilation=dilation, channel_block=1, out_channels=outputs)
    (result,) = compiled(ops.relu(ops.add(conv, params[2])), *params)(*arrays)
    agrees(plain(result), np.maximum(expected(x, w, strides, padding, dilation) + plain(bias), 0))


@pytest.mark.parametrize("panel", [1, 2])
@pytest.mark.parametrize("name", ["3x3", "strided", "pointwise", "1d", "3d"])
def test_weights_are_asked_for_ahead(name: str, panel: int) -> None:
    """On a machine with so small a cache that they come from memory."""
    c, block_in, _, block, size, kernel, strides, padding, dilation = CASES[name]
    target = replace(targets.get("host"), l2_bytes=256)
    x, w = RNG.standard_normal((1, c, *size), np.float32), RNG.standard_normal((block * 4, c, *kernel), np.float32)
    arrays = [blocked(x, block_in), blocked_weights(w, block_in, panel * block)]
    params = [var(label, "float32", *array.shape) for label, array in zip("xw", arrays, strict=True)]
    conv = ops.conv(*params, strides=strides, padding=padding, dilation=dilation, channel_block=block, out_channels=block * 4)
    function = function_of(conv, *params)
    (result,) = Runner(function, lower_function(function, target))(*arrays)
    agrees(plain(result), expected(x, w, strides, padding, dilation))


@pytest.mark.parametrize(("inputs", "outputs", "panel"), [(24, 40, 1), (40, 24, 2), (8, 24, 2), (17, 3, 1), (20, 48, 3)])
@pytest.mark.parametrize("kernel", [1, 3])
def test_filling_is_left_out(inputs: int, outputs: int, panel: int, kernel: int) -> None:
    """Neither the inputs' filling counts, whatever stands there, nor is the results' anything but what follows makes of zeros."""
    x, w = RNG.standard_normal((1, inputs, 9, 10), np.float32), RNG.standard_normal((outputs, inputs, kernel, kernel), np.float32)
    before, after = -inputs % 16, -outputs % 16
    filled = np.concatenate([x, np.full((1, before, 9, 10), 7, np.float32)], 1)
    weights = np.pad(w, ((0, after), (0, before), (0, 0), (0, 0)))
    arrays = [blocked(filled, 16), blocked_weights(weights, 16, 16 * panel)]
    data, weight = (var(label, "float32", *array.shape) for label, array in zip("xw", arrays, strict=True))
    padding = (kernel // 2,) * 4
    call = ops.conv(data, weight, padding=padding, channel_block=16, out_channels=outputs, in_channels=inputs if before else 0)
    result = plain(compiled(ops.sigmoid(call), data, weight)(*arrays)[0])
    agrees(result[:, :outputs], 1 / (1 + np.exp(-expected(x, w, (1, 1), padding, (1, 1)))))
    assert (result[:, outputs:] == 0.5).all()


@pytest.mark.parametrize(("stride", "kernel", "size"), DEPTHWISE)
def test_depthwise(stride: int, kernel: int, size: tuple[int, int]) -> None:
    depthwise(targets.get("host"), stride, kernel, size)


@pytest.mark.parametrize(("stride", "kernel", "size"), DEPTHWISE)
def test_depthwise_where_offsets_are_short(stride: int, kernel: int, size: tuple[int, int], by_element: Target) -> None:
    depthwise(by_element, stride, kernel, size)


def depthwise(target: Target, stride: int, kernel: int, size: tuple[int, int]) -> None:
    x, w = RNG.standard_normal((2, 16, *size), np.float32), RNG.standard_normal((16, 1, kernel, kernel), np.float32)
    padding = (kernel // 2,) * 4
    arrays = [blocked(x, 8), np.ascontiguousarray(np.moveaxis(w.reshape(2, 8, kernel, kernel), 1, -1))]
    data, weight = (var(label, "float32", *array.shape) for label, array in zip("xw", arrays, strict=True))
    call = ops.conv(data, weight, strides=(stride, stride), padding=padding, groups=16, channel_block=8, out_channels=16)
    function = function_of(call, data, weight)
    (result,) = Runner(function, lower_function(function, target))(*arrays)
    agrees(plain(result), expected(x, w, (stride, stride), padding, (1, 1), 16))


def test_what_follows_is_fused() -> None:
    """A bias, a residual sum and two activations join the kernel, which stays one."""
    x, w = RNG.standard_normal((1, 8, 6, 7), np.float32), RNG.standard_normal((16, 8, 3, 3), np.float32)
    bias, other = RNG.standard_normal((1, 2, 1, 1, 8), np.float32), RNG.standard_normal((1, 2, 6, 7, 8), np.float32)
    arrays = [blocked(x, 8), blocked_weights(w, 8, 8), bias, other]
    params = [var(label, "float32", *array.shape) for label, array in zip("xwbr", arrays, strict=True)]
    conv = ops.conv(params[0], params[1], padding=(1, 1, 1, 1), channel_block=8, out_channels=16)
    runner = compiled(ops.relu(ops.add(ops.silu(ops.add(conv, params[2])), params[3])), *params)
    assert len(runner.lowered.kernels) == 1
    (result,) = runner(*arrays)
    inner = blocked(expected(x, w, (1, 1), (1, 1, 1, 1), (1, 1)), 8) + bias
    agrees(result, np.maximum(inner / (1 + np.exp(-inner)) + other, 0))


def test_what_follows_is_small() -> None:
    """Long operations behind the sums of a tile are in the kernel a few times, not once for each sum."""
    params = var("x", "float32", 1, 4, 40, 40, 16), var("w", "float32", 4, 4, 1, 1, 16, 16)
    conv = ops.conv(*params, channel_block=16, out_channels=64)
    sizes = [sum(text_size(kernel.object_code) for kernel in lower(body, *params).kernels) for body in (ops.relu(conv), ops.silu(conv))]
    assert sizes[1] < sizes[0] + 1500


@pytest.mark.parametrize("size", [(1, 1), (5, 30)])
def test_what_follows_sizes_known_at_run_time(size: tuple[int, int]) -> None:
    x, w = RNG.standard_normal((1, 8, *size), np.float32), RNG.standard_normal((16, 8, 3, 3), np.float32)
    data, weight = var("x", "float32", 1, 1, symbol("h", 1), symbol("w", 1), 8), var("w", "float32", 2, 1, 3, 3, 8, 8)
    call = ops.silu(ops.conv(data, weight, padding=(1, 1, 1, 1), channel_block=8, out_channels=16))
    (result,) = symbolic(call, "silu", data, weight)(blocked(x, 8), blocked_weights(w, 8, 8), symbols={"h": size[0], "w": size[1]})
    sums = expected(x, w, (1, 1), (1, 1, 1, 1), (1, 1))
    agrees(plain(result), sums / (1 + np.exp(-sums)))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (6, 30), (5, 6)])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1)])
def test_sizes_known_at_run_time(size: tuple[int, int], kernel: int, stride: int) -> None:
    x, w = RNG.standard_normal((2, 8, *size), np.float32), RNG.standard_normal((16, 8, kernel, kernel), np.float32)
    n, height, width = symbol("n", 1), symbol("h", 1), symbol("w", 1)
    pad = kernel // 2
    data, weight = var("x", "float32", n, 1, height, width, 8), var("w", "float32", 2, 1, kernel, kernel, 8, 8)
    call = ops.conv(data, weight, strides=(stride, stride), padding=(pad,) * 4, channel_block=8, out_channels=16)
    runner = symbolic(call, (kernel, stride), data, weight)
    (result,) = runner(blocked(x, 8), blocked_weights(w, 8, 8), symbols={"n": 2, "h": size[0], "w": size[1]})
    agrees(plain(result), expected(x, w, (stride, stride), (pad,) * 4, (1, 1)))


def test_float16_sums_in_float32() -> None:
    x, w = RNG.standard_normal((1, 64, 4, 5)).astype(np.float16), RNG.standard_normal((8, 64, 3, 3)).astype(np.float16)
    arrays = [blocked(x, 8), blocked_weights(w, 8, 8)]
    data, weight = (var(label, "float16", *array.shape) for label, array in zip("xw", arrays, strict=True))
    (result,) = compiled(ops.conv(data, weight, padding=(1, 1, 1, 1), channel_block=8, out_channels=8), data, weight)(*arrays)
    agrees(plain(result), expected(x.astype(np.float32), w.astype(np.float32), (1, 1), (1, 1, 1, 1), (1, 1)), 6e-4)


def test_infinity_beside_padding_stays_where_it_is() -> None:
    x, w = np.zeros((1, 8, 3, 9), np.float32), np.ones((8, 8, 3, 3), np.float32)
    x[0, :, 0, 0] = np.inf
    arrays = [blocked(x, 8), blocked_weights(w, 8, 8)]
    data, weight = var("x", "float32", *arrays[0].shape), var("w", "float32", *arrays[1].shape)
    (result,) = compiled(ops.conv(data, weight, padding=(1, 1, 1, 1), channel_block=8, out_channels=8), data, weight)(*arrays)
    np.testing.assert_array_equal(plain(result), expected(x, w, (1, 1), (1, 1, 1, 1), (1, 1)).astype(np.float32))


_SYMBOLIC: dict[object, Runner] = {}


def symbolic(call: object, key: object, *params: object) -> Runner:
    """One kernel for all sizes: compiled once."""
    if key not in _SYMBOLIC:
        _SYMBOLIC[key] = compiled(call, *params)
    return _SYMBOLIC[key]


def compiled(call: object, *params: object) -> Runner:
    function = function_of(call, *params)  # type: ignore[arg-type]
    return Runner(function, lower_function(function, targets.get("host")))
