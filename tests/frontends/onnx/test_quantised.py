"""Quantised operators of ONNX's own domain in the forms that exporters write, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from aotc.frontends.onnx import import_onnx
from aotc.ops.interpret import interpret

Array = np.ndarray


def node(op: str, inputs: Sequence[str], output: str = "y", **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], name=f"{op}_{output}", **attrs)


def model_of(
    nodes: Sequence[onnx.NodeProto], feeds: Mapping[str, Array], weights: Mapping[str, Array], outputs: Sequence[str], opset: int
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in feeds.items()]
    initialisers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "g", inputs, [helper.make_empty_tensor_value_info(name) for name in outputs], initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def compare(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 21,
) -> None:
    """Integers are equal, floats to 1e-6 of the largest."""
    feeds = {name: np.asarray(array) for name, array in feeds.items()}
    model = model_of(nodes, feeds, {name: np.asarray(array) for name, array in (weights or {}).items()}, outputs, opset)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, dict(feeds))
    module = import_onnx(model)
    results = interpret(module.main, [feeds[param.name] for param in module.main.params])
    for have, want in zip(results, wanted, strict=True):
        assert have.shape == want.shape and have.dtype == want.dtype, f"{have.dtype}{have.shape}, not {want.dtype}{want.shape}"
        if want.dtype.kind == "f":
            np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-6 * float(np.abs(want).max(initial=0)))
        else:
            np.testing.assert_array_equal(have, want)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def f32(*shape: int, seed: int = 0) -> Array:
    return rng(seed).normal(size=shape).astype("float32")


def whole(dtype: str, *shape: int, seed: int = 0) -> Array:
    """Integers; those of int8 in 7 bits, beyond which ONNX Runtime saturates on CPUs without VNNI."""
    low, high = (-64, 64) if dtype == "int8" else (0, 256)
    return rng(seed).integers(low, high, shape).astype(dtype)


def scale(*shape: int, seed: int = 0) -> Array:
    return (rng(seed).random(shape) * 0.02 + 0.003).astype("float32")


CONV = {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2], "strides": [2, 1]}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("data, weights", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
def test_qlinear_conv(data: str, weights: str, per_channel: bool) -> None:
    w_scale = scale(6, seed=2) if per_channel else scale()
    w_zero = np.zeros(6 if per_channel else (), weights) if weights == "int8" or per_channel else np.asarray(121, weights)
    values = {
        "xs": scale(seed=1), "xz": np.asarray(9, data), "w": whole(weights, 6, 3, 3, 3, seed=3), "ws": w_scale, "wz": w_zero,
        "ys": np.float32(0.0613), "yz": np.asarray(101, data), "b": rng(4).integers(-999, 999, 6).astype("int32"),
    }  # fmt: skip
    compare([node("QLinearConv", ["x", *values], **CONV)], {"x": whole(data, 2, 3, 9, 10)}, values)
    compare([node("QLinearConv", ["x", *values], group=3, **CONV)], {"x": whole(data, 1, 9, 9, 10)}, values)


@pytest.mark.parametrize("constant", [True, False])
def test_conv_integer(constant: bool) -> None:
    feeds, rest = {"x": whole("uint8", 2, 3, 9, 10)}, {"w": whole("uint8", 6, 3, 3, 3), "xz": np.uint8(131), "wz": np.uint8(7)}
    both = (feeds, rest) if constant else ({**feeds, **rest}, {})
    compare([node("ConvInteger", ["x", "w", "xz", "wz"], **CONV)], *both)
    compare([node("ConvInteger", ["x", "w", "xz"], **CONV)], {"x": feeds["x"]}, {"w": rest["w"], "xz": rest["xz"]})


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("b", ["int8", "uint8"])
def test_matmul_integer(constant: bool, b: str) -> None:
    feeds = {"a": whole("uint8", 2, 5, 7)}
    for b_zero in (np.asarray(3, b), whole(b, 4, seed=3)):
        rest = {"b": whole(b, 7, 4), "az": np.uint8(77), "bz": b_zero}
        both = (feeds, rest) if constant else ({**feeds, **rest}, {})
        compare([node("MatMulInteger", ["a", "b", "az", "bz"])], *both)
    compare([node("MatMulInteger", ["a", "b"])], {**feeds, "b": whole(b, 2, 7, 4)})


@pytest.mark.parametrize("columns", [False, True])
def test_qlinear_matmul(columns: bool) -> None:
    b_scale, b_zero = (scale(4), whole("int8", 4)) if columns else (scale(), np.int8(-5))
    values = {
        "as": scale(seed=1),
        "az": np.uint8(77),
        "b": whole("int8", 7, 4),
        "bs": b_scale,
        "bz": b_zero,
        "ys": np.float32(0.0117),
        "yz": np.uint8(99),
    }
    compare([node("QLinearMatMul", ["a", *values])], {"a": whole("uint8", 3, 5, 7)}, values)


def test_dynamic_quantise() -> None:
    for x in (f32(3, 40), np.abs(f32(7)), -np.abs(f32(7)), np.zeros((2, 3), "float32")):
        outputs = ["y", "scale", "zero"]
        compare([helper.make_node("DynamicQuantizeLinear", ["x"], outputs)], {"x": x}, outputs=outputs)


@pytest.mark.parametrize("rank", [0, 1])
def test_scales_of_rank_0_and_1(rank: int) -> None:
    """As quantisers write biases and scalars: int32 with a scale of either rank."""
    shape = (1,) * rank
    values = {"q": rng().integers(-999, 999, 6).astype("int32"), "s": np.full(shape, 0.0123, "float32"), "z": np.zeros(shape, "int32")}
    compare([node("DequantizeLinear", ["q", "s", "z"], "b"), node("Add", ["x", "b"])], {"x": f32(2, 6)}, values)
    one = {"q": np.asarray(17, "int8"), "s": np.float32(0.5)}
    compare([node("DequantizeLinear", ["q", "s"], "b"), node("Add", ["x", "b"])], {"x": f32(2, 6)}, one)


def test_a_transpose_between_a_quantised_weight_and_its_convolution() -> None:
    values = {"q": whole("int8", 3, 3, 3, 6), "s": scale(6), "z": np.zeros(6, "int8")}
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], "d", axis=3),
        node("Transpose", ["d"], "w", perm=[3, 2, 0, 1]),
        node("Conv", ["x", "w"]),
    ]
    compare(nodes, {"x": f32(1, 3, 8, 8)}, values)


def test_a_pad_of_a_zero_point_that_is_not_zero() -> None:
    values = {"s": np.float32(0.05), "z": np.uint8(113), "pads": np.array([0, 0, 1, 2, 0, 0, 2, 0])}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], "q"), node("Pad", ["q", "pads", "z"], "p"), node("DequantizeLinear", ["p", "s", "z"], "d"),
        node("MaxPool", ["d"], kernel_shape=[2, 2]),
    ]  # fmt: skip
    compare(nodes, {"x": f32(1, 2, 5, 6)}, values)


@pytest.mark.parametrize("axis, block, shape", [(0, 16, (3, 8)), (1, 5, (40, 2))])
def test_weights_of_four_bits_in_blocks(axis: int, block: int, shape: tuple[int, int]) -> None:
    """Also where the last block is not full."""
    full = (40, 8)
    packed = rng().integers(-8, 8, full).astype("int8").astype("int4")
    values = {"q": packed, "s": scale(*shape), "z": rng(1).integers(-8, 8, shape).astype("int8").astype("int4")}
    nodes = [node("DequantizeLinear", ["q", "s", "z"], "w", axis=axis, block_size=block), node("MatMul", ["x", "w"])]
    compare(nodes, {"x": f32(3, 40)}, values)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], "q", axis=axis, block_size=block),
        node("DequantizeLinear", ["q", "s", "z"], axis=axis, block_size=block),
    ]
    compare(nodes, {"x": f32(*full) * 4}, {"s": values["s"] * np.float32(10), "z": values["z"]})


@pytest.mark.parametrize("dtype", ["uint16", "int16", "uint4", "int4", "float8_e4m3fn", "float8_e5m2"])
def test_other_types(dtype: str) -> None:
    zero = np.asarray(3 if "int" in dtype else 0, "float32").astype(dtype)
    nodes = [node("QuantizeLinear", ["x", "s", "z"], "q"), node("DequantizeLinear", ["q", "s", "z"])]
    compare(nodes, {"x": f32(3, 50) * 10}, {"s": np.asarray(0.37, "float32"), "z": zero})
