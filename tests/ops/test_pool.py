"""Pools against torch and ONNX Runtime."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch.nn import functional

from aotc.errors import InvalidModel
from aotc.ir.dims import evaluate, symbol
from aotc.ir.expr import Var
from aotc.ir.types import TensorType, TupleType, flatten, tensor
from aotc.ops.pool import adaptive_avg_pool, adaptive_max_pool, avg_pool, max_pool, max_pool_with_indices

RNG = np.random.default_rng(3)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def run(op, x: np.ndarray, **attributes):  # type: ignore[no-untyped-def]
    expression = op(Var("x", TensorType(x.shape, str(x.dtype))), **attributes)
    result = op.reference(expression.attrs, x)
    arrays = result if isinstance(expression.type, TupleType) else [result]
    assert list(flatten(expression.type)) == [TensorType(array.shape, str(array.dtype)) for array in arrays]
    return result


def in_onnxruntime(op: str, x: np.ndarray, outputs: int = 1, opset: int = 22, **attributes: object) -> list[np.ndarray]:
    node = helper.make_node(op, ["x"], [f"y{i}" for i in range(outputs)], **attributes)
    data = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    results = [helper.make_tensor_value_info(f"y{i}", (TensorProto.FLOAT, TensorProto.INT64)[i], None) for i in range(outputs)]
    graph = helper.make_graph([node], "g", [data], results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})


TORCH = {
    "max": {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d},
    "average": {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d},
}
SIZES = {1: (17,), 2: (17, 12), 3: (9, 6, 7)}


@pytest.mark.parametrize("n, ceil_mode, kernel, stride", list(itertools.product((1, 2, 3), (False, True), (2, 3), (1, 2, 3))))
def test_pools_are_torchs(n: int, ceil_mode: bool, kernel: int, stride: int) -> None:
    x = random(2, 3, *SIZES[n])
    for pad in (0, 1):
        window = {
            "kernel": (kernel,) * n,
            "strides": (stride,) * n,
            "padding": (pad,) * 2 * n,
            "dilation": (1,) * n,
            "ceil_mode": ceil_mode,
        }
        expected = TORCH["max"][n](torch.from_numpy(x), kernel, stride, pad, ceil_mode=ceil_mode)
        np.testing.assert_array_equal(run(max_pool, x, **window), expected.numpy())
        for include in (False, True):
            expected = TORCH["average"][n](torch.from_numpy(x), kernel, stride, pad, ceil_mode=ceil_mode, count_include_pad=include)
            np.testing.assert_allclose(run(avg_pool, x, **window, count_include_pad=include), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_case_22_average_of_17x17() -> None:
    x = random(1, 2, 17, 17)
    for include in (False, True):
        window = {"kernel": (2, 2), "strides": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": True, "count_include_pad": include}
        expected = functional.avg_pool2d(torch.from_numpy(x), 2, 2, 1, ceil_mode=True, count_include_pad=include).numpy()
        np.testing.assert_allclose(run(avg_pool, x, **window), expected, rtol=1e-5)
        (same,) = in_onnxruntime(
            "AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, count_include_pad=int(include)
        )
        np.testing.assert_allclose(run(avg_pool, x, **window), same, rtol=1e-5)


@pytest.mark.parametrize("divisor", [1, 3, -2])
def test_divisor_override(divisor: int) -> None:
    x = random(1, 2, 9, 8)
    expected = functional.avg_pool2d(torch.from_numpy(x), 3, 2, 1, ceil_mode=True, divisor_override=divisor).numpy()
    result = run(avg_pool, x, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1), ceil_mode=True, divisor_override=divisor)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ceil_mode, include, pads", list(itertools.product((0, 1), (0, 1), ((0, 0, 0, 0), (1, 0, 2, 1), (2, 3, 0, 1)))))
def test_dilated_average_with_uneven_pads_is_onnxruntimes(ceil_mode: int, include: int, pads: tuple[int, ...]) -> None:
    x = random(1, 2, 11, 14)
    names = {"kernel_shape": [3, 4], "strides": [2, 3], "pads": pads, "dilations": [2, 1], "ceil_mode": ceil_mode}
    (expected,) = in_onnxruntime("AveragePool", x, **names, count_include_pad=include)
    attributes = {"kernel": (3, 4), "strides": (2, 3), "padding": pads, "dilation": (2, 1), "ceil_mode": bool(ceil_mode)}
    np.testing.assert_allclose(run(avg_pool, x, **attributes, count_include_pad=bool(include)), expected, rtol=1e-5, atol=1e-6)
    (expected,) = in_onnxruntime("MaxPool", x, **names)
    np.testing.assert_array_equal(run(max_pool, x, **attributes), expected)


@pytest.mark.parametrize("storage_order, n, pad", list(itertools.product((0, 1), (1, 2, 3), (0, 1))))
def test_indices_are_onnxruntimes(storage_order: int, n: int, pad: int) -> None:
    x = np.round(random(2, 3, *SIZES[n]))  # rounded: many ties
    names = {"kernel_shape": [3] * n, "strides": [2] * n, "pads": [pad] * 2 * n}
    expected = in_onnxruntime("MaxPool", x, 2, **names, storage_order=storage_order)
    window = {"kernel": (3,) * n, "strides": (2,) * n, "padding": (pad,) * 2 * n, "dilation": (1,) * n}
    values, indices = run(max_pool_with_indices, x, **window, storage_order=storage_order)
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(indices, expected[1])


def test_nan_and_minus_infinity() -> None:
    x = np.full((1, 1, 4, 4), -np.inf, np.float32)
    x[0, 0, 1, 1] = np.nan
    window = {"kernel": (2, 2), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    values, indices = functional.max_pool2d(torch.from_numpy(x), 2, 2, 1, return_indices=True)
    ours = run(max_pool_with_indices, x, **window)
    np.testing.assert_array_equal(run(max_pool, x, **window), values.numpy())
    np.testing.assert_array_equal(ours[0], values.numpy())
    np.testing.assert_array_equal(ours[1], indices.numpy())


def test_integers() -> None:
    x = RNG.integers(-128, 127, (1, 2, 6, 6)).astype(np.int8)
    expected = functional.max_pool2d(torch.from_numpy(x).float(), 3, 2, 1).numpy().astype(np.int8)
    np.testing.assert_array_equal(run(max_pool, x, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)), expected)


@pytest.mark.parametrize("op", [max_pool, avg_pool])
def test_blocked_channels(op) -> None:  # type: ignore[no-untyped-def]
    x = random(2, 8, 7, 5)
    window = {"kernel": (3, 2), "strides": (2, 1), "padding": (1, 0, 1, 1), "ceil_mode": True}
    blocked = np.moveaxis(x.reshape(2, 2, 4, 7, 5), 2, -1)
    result = run(op, blocked, **window, channel_block=4)
    plain = run(op, x, **window)
    np.testing.assert_array_equal(np.moveaxis(result, -1, 2).reshape(plain.shape), plain)


@pytest.mark.parametrize("size, outputs", [((7, 7), (7, 7)), ((6, 8), (3, 5)), ((5, 4), (7, 1)), ((10, 3), (4, 2))])
def test_adaptive_pools_are_torchs(size: tuple[int, int], outputs: tuple[int, int]) -> None:
    x = random(2, 3, *size)
    expected = functional.adaptive_avg_pool2d(torch.from_numpy(x), outputs).numpy()
    np.testing.assert_allclose(run(adaptive_avg_pool, x, output_size=outputs), expected, rtol=1e-5, atol=1e-6)
    expected = functional.adaptive_max_pool2d(torch.from_numpy(x), outputs).numpy()
    np.testing.assert_array_equal(run(adaptive_max_pool, x, output_size=outputs), expected)


def test_symbolic_extents_are_right_for_every_size() -> None:
    h = symbol("h", 1)
    for kernel, stride, pad, ceil_mode in itertools.product((2, 3), (1, 2, 3), (0, 1), (False, True)):
        window = {"kernel": (kernel,), "strides": (stride,), "padding": (pad, pad), "dilation": (1,), "ceil_mode": ceil_mode}
        symbolic = max_pool(Var("x", tensor("float32", 1, 1, h)), **window).type.shape[2]  # type: ignore[union-attr]
        for size in range(kernel, 20):
            expected = functional.max_pool1d(torch.zeros(1, 1, size), kernel, stride, pad, ceil_mode=ceil_mode).shape[2]
            assert evaluate(symbolic, {"h": size}) == expected


def test_what_does_not_fit_is_refused() -> None:
    x = Var("x", tensor("float32", 1, 2, 5, 5))
    with pytest.raises(InvalidModel, match="is not smaller than the window"):
        max_pool(x, kernel=(2, 2), padding=(2, 0, 0, 0))
    with pytest.raises(InvalidModel, match="kernel must be 2 integers"):
        max_pool(x, kernel=(2,))
    with pytest.raises(InvalidModel, match="a window of 7 does not fit an axis of 5"):
        avg_pool(x, kernel=(7, 7))
    with pytest.raises(InvalidModel, match="takes floats, not int64"):
        avg_pool(Var("x", tensor("int64", 1, 2, 5, 5)), kernel=(2, 2))
