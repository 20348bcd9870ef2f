"""Convolutions of bytes over blocked channels, with forbidden memory around all arrays, exact against torch in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from aotc import ops, targets
from aotc.ir.dims import symbol
from aotc.ir.expr import Constant, Function
from aotc.lowering.kernel import lower_function
from aotc.passes.byte_layout import blocked_bytes, conv_weight, depthwise_weight
from aotc.targets import Target
from tests.lowering.harness import Runner, function_of, var

HOST = targets.get("host")


@dataclass(frozen=True)
class Shape:
    """Channels, outputs, the size of the picture and the window, strides, begins and ends of padding, dilation; of inputs the
    channels that stand together, of weights the blocks."""

    channels: int
    outputs: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    block: int = 16
    panel: int = 1
    batch: int = 1


SHAPES = {
    "3x3": Shape(32, 48, (9, 11), (3, 3), padding=(1, 1, 1, 1)),
    "long row": Shape(16, 16, (2, 61), (3, 3), padding=(1, 1, 1, 1)),
    "pointwise": Shape(48, 64, (7, 7), (1, 1), panel=4, batch=2),
    "pointwise, many pixels": Shape(16, 32, (40, 31), (1, 1), panel=2),
    "strided pointwise": Shape(16, 16, (9, 9), (1, 1), strides=(2, 3)),
    "strided": Shape(16, 64, (14, 15), (3, 3), strides=(2, 2), padding=(1, 1, 1, 1), panel=4),
    "dilated": Shape(16, 16, (12, 13), (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
    "asymmetric padding": Shape(16, 16, (6, 7), (3, 4), strides=(1, 2), padding=(0, 2, 1, 0)),
    "first layer": Shape(3, 32, (30, 31), (7, 7), strides=(2, 2), padding=(3, 3, 3, 3), block=4),
    "first layer, one pixel": Shape(3, 16, (1, 1), (1, 1), block=4),
    "eight channels": Shape(7, 16, (5, 6), (3, 3), padding=(1, 1, 1, 1), block=8),
    "filling": Shape(24, 40, (5, 6), (3, 3), padding=(1, 1, 1, 1)),
    "little filling": Shape(19, 3, (4, 9), (1, 1)),
    "one pixel": Shape(16, 16, (1, 1), (3, 3), padding=(1, 1, 1, 1)),
    "padding beyond the kernel": Shape(16, 16, (2, 2), (2, 2), padding=(3, 3, 3, 3)),
    "large kernel": Shape(16, 16, (5, 20), (1, 15), padding=(0, 7, 0, 7)),
    "1d": Shape(16, 32, (33,), (5,), (2,), (2, 1), (1,)),
    "3d": Shape(16, 16, (4, 5, 6), (3, 2, 3), (1, 2, 1), (1, 0, 1, 1, 1, 1), (1, 1, 1)),
}


def convolved(x: np.ndarray, w: np.ndarray, shape: Shape, pad_value: int, groups: int = 1) -> np.ndarray:
    n = len(shape.size)
    ends = [pad for axis in reversed(range(n)) for pad in (shape.padding[axis], shape.padding[n + axis])]
    image = torch.nn.functional.pad(torch.from_numpy(x.astype("float64")), ends, value=pad_value)
    conv = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[n - 1]
    return conv(image, torch.from_numpy(w.astype("float64")), None, shape.strides, 0, shape.dilation, groups).numpy().astype("int64")


def requantised(sums: np.ndarray, bias: np.ndarray, scale: np.ndarray, zero: int, dtype: str) -> np.ndarray:
    each = (-1, *[1] * (sums.ndim - 2))
    real = (sums + bias.reshape(each)).astype("float32") * scale.reshape(each)
    info = np.iinfo(dtype)
    return np.clip(np.rint(real).astype("int64") + zero, info.min, info.max).astype(dtype)


def case(shape: Shape, target: Target, seed: int = 0) -> tuple[Function, list[np.ndarray], np.ndarray]:
    """A convolution with bias and requantisation, its arrays and its result, of extreme bytes among others."""
    rng, dtype = np.random.default_rng(seed), target.byte_factor
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (shape.batch, shape.channels, *shape.size)).astype(dtype)
    x[rng.random(x.shape) < 0.3] = info.min if rng.random() < 0.5 else info.max
    w = rng.integers(-127, 128, (shape.outputs, shape.channels, *shape.kernel)).astype("int8")
    w[rng.random(w.shape) < 0.3] = -127
    bias = rng.integers(-100000, 100000, shape.outputs).astype("int32")
    scale = (rng.random(shape.outputs) * 0.002).astype("float32")
    pad, zero = int(info.max) - 7, 3
    wanted = requantised(convolved(x, w, shape, pad), bias, scale, zero, dtype)
    unit = 4 if target.adds_byte_products else 2
    weights = conv_weight(w, shape.block, unit, shape.panel)
    each = (1, -1, *[1] * len(shape.size))
    arrays = [blocked_bytes(x, shape.block), weights, blocked_bytes(bias.reshape(each), 16), blocked_bytes(scale.reshape(each), 16)]
    params = [var(name, str(array.dtype), *array.shape) for name, array in zip("xwbs", arrays, strict=True)]
    conv = ops.byte_conv(
        *params[:2],
        strides=shape.strides,
        padding=shape.padding,
        dilation=shape.dilation,
        out_channels=shape.outputs,
        in_channels=shape.channels,
        pad_value=pad,
    )
    body = ops.requantise(ops.add(conv, params[2]), params[3], Constant(np.asarray(zero, dtype)), dtype=dtype)
    return function_of(body, *params), arrays, wanted


def unblocked(y: np.ndarray, channels: int) -> np.ndarray:
    moved = np.moveaxis(y, -1, 2)
    return moved.reshape(moved.shape[0], -1, *moved.shape[3:])[:, :channels]


@pytest.mark.parametrize("name", SHAPES)
def test_exact(name: str) -> None:
    function, arrays, wanted = case(SHAPES[name], HOST)
    (result,) = Runner(function, lower_function(function, HOST))(*arrays)
    assert np.array_equal(unblocked(result, wanted.shape[1]), wanted)


DEPTHWISE = {
    "3x3": Shape(32, 32, (9, 11), (3, 3), padding=(1, 1, 1, 1), batch=2),
    "5x5": Shape(16, 16, (12, 30), (5, 5), padding=(2, 2, 2, 2)),
    "strided": Shape(40, 40, (14, 15), (3, 3), strides=(2, 2), padding=(0, 0, 1, 1)),
    "dilated": Shape(16, 16, (12, 13), (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
    "one row": Shape(16, 16, (3, 9), (1, 3), padding=(0, 1, 0, 1)),
    "7x2": Shape(16, 16, (9, 9), (7, 2)),
    "one pixel": Shape(16, 16, (1, 1), (3, 3), padding=(1, 1, 1, 1)),
}


def depthwise_case(shape: Shape, target: Target) -> tuple[Function, list[np.ndarray], np.ndarray]:
    rng, dtype = np.random.default_rng(0), target.byte_factor
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (shape.batch, shape.channels, *shape.size)).astype(dtype)
    x[rng.random(x.shape) < 0.3] = info.min
    w = rng.integers(-127, 128, (shape.outputs, 1, *shape.kernel)).astype("int8")
    w[rng.random(w.shape) < 0.4] = -127
    pad = int(info.max) - 7
    wanted = convolved(x, w, shape, pad, shape.channels)
    weights = depthwise_weight(w, 4 if target.adds_byte_products else 1)
    arrays = [blocked_bytes(x, 16), weights]
    params = [var(name, str(array.dtype), *array.shape) for name, array in zip("xw", arrays, strict=True)]
    window = {"strides": shape.strides, "padding": shape.padding, "dilation": shape.dilation}
    body = ops.byte_depthwise_conv(*params, kernel=shape.kernel, out_channels=shape.outputs, pad_value=pad, **window)
    return function_of(body, *params), arrays, wanted


@pytest.mark.parametrize("features", [HOST.features, ()], ids=["host", "no dots"])
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(name: str, features: tuple[str, ...]) -> None:
    target = replace(HOST, features=features or tuple(f for f in HOST.features if "vnni" not in f))
    function, arrays, wanted = depthwise_case(DEPTHWISE[name], target)
    (result,) = Runner(function, lower_function(function, target))(*arrays)
    assert np.array_equal(unblocked(result, wanted.shape[1]), wanted)


@pytest.mark.parametrize("bits", [512, 256, 128])
@pytest.mark.parametrize("name", ["3x3", "first layer", "filling", "pointwise"])
def test_without_dot_products(name: str, bits: int) -> None:
    """The same integers from pairs of longer products."""
    features = tuple(f for f in HOST.features if "vnni" not in f and (bits == 512 or "avx512" not in f))
    mcpu = HOST.mcpu if bits == 512 else "x86-64-v3"
    target = replace(HOST, features=features, vector_bits=bits, vector_registers=32 if bits == 512 else 16, mcpu=mcpu)
    function, arrays, wanted = case(SHAPES[name], target)
    (result,) = Runner(function, lower_function(function, target))(*arrays)
    assert np.array_equal(unblocked(result, wanted.shape[1]), wanted)


@pytest.mark.parametrize("size", [(1, 1), (5, 40), (13, 3)])
@pytest.mark.parametrize("kind", ["3x3", "pointwise", "first layer", "depthwise"])
def test_sizes_known_only_at_run_time(kind: str, size: tuple[int, int]) -> None:
    rng, k = np.random.default_rng(0), 1 if kind == "pointwise" else 3
    channels = 3 if kind == "first layer" else 32
    x = rng.integers(0, 256, (2, channels, *size)).astype("uint8")
    w = rng.integers(-128, 128, (32, 1 if kind == "depthwise" else channels, k, k)).astype("int8")
    shape = Shape(channels, 32, size, (k, k), padding=(k // 2,) * 4)
    wanted = convolved(x, w, shape, 9, 32 if kind == "depthwise" else 1)
    block = 4 if kind == "first layer" else 16
    window = {"strides": (1, 1), "padding": shape.padding, "dilation": (1, 1), "out_channels": 32, "pad_value": 9}
    dims = (symbol("n", 1), -(-channels // block), symbol("h", 1), symbol("w", 1), block)
    data = var("x", "uint8", *dims)
    if kind == "depthwise":
        packed = depthwise_weight(w, 4 if HOST.adds_byte_products else 1)
        weight = var("w", "int8", *packed.shape)
        body = ops.byte_depthwise_conv(data, weight, kernel=(k, k), **window)
    else:
        packed = conv_weight(w, block, 4 if HOST.adds_byte_products else 2, 2)
        weight = var("w", "int8", *packed.shape)
        body = ops.byte_conv(data, weight, in_channels=channels, **window)
    function = function_of(body, data, weight)
    runner = Runner(function, lower_function(function, HOST))
    (result,) = runner(blocked_bytes(x, block), packed, symbols={"n": 2, "h": size[0], "w": size[1]})
    assert np.array_equal(unblocked(result, 32), wanted)
