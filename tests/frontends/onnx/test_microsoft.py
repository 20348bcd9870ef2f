"""Operators of com.microsoft: the importer and the interpreter against ONNX Runtime, in tables of shapes and attributes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from aotc.frontends.onnx import import_onnx
from aotc.ops.interpret import interpret

Array = np.ndarray


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def f32(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (rng(seed).normal(size=shape) * scale).astype("float32")


def u8(*shape: int, seed: int = 0) -> Array:
    return rng(seed).integers(0, 256, shape).astype("uint8")


def i8(*shape: int, seed: int = 0) -> Array:
    return rng(seed).integers(-128, 128, shape).astype("int8")


def i7(*shape: int, seed: int = 0) -> Array:
    """Weights of 7 bits: on CPUs without VNNI, ONNX Runtime's sums of two products saturate at 16 bits beyond those."""
    return rng(seed).integers(-64, 64, shape).astype("int8")


def scalar(value: float, dtype: str = "float32") -> Array:
    return np.asarray(value, dtype)


def model_of(
    op: str, arrays: Sequence[Array | None], outputs: int, constant: Sequence[int] = (), domain: str = "com.microsoft", **attrs: Any
) -> onnx.ModelProto:
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(arrays)]
    given = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    fixed = {names[i] for i in constant}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in given.items()
        if name not in fixed
    ]
    weights = [numpy_helper.from_array(given[name], name) for name in given if name in fixed]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, name="node", domain=domain, **attrs)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info(name) for name in results], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def compare(op: str, arrays: Sequence[Array | None], outputs: int = 1, constant: Sequence[int] = (), **attrs: Any) -> None:
    """Floats agree to 2e-5 of the largest; integers are equal but for one in a thousand (at least one), which may be off by one: where
    ONNX Runtime merges scales, its quotient may lie on the other side of a half."""
    model = model_of(op, arrays, outputs, constant, **attrs)
    feeds = {f"x{i}": array for i, array in enumerate(arrays) if array is not None and i not in constant}
    wanted = session(model).run(None, feeds)
    module = import_onnx(model, {name: array.shape for name, array in feeds.items()})
    results = interpret(module.main, [feeds[param.name] for param in module.main.params])
    for have, want in zip(results, wanted, strict=True):
        assert have.shape == want.shape and have.dtype == want.dtype, f"{have.dtype}{have.shape}, not {want.dtype}{want.shape}"
        if want.dtype.kind == "f":
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=2e-5 * max(float(np.abs(want).max(initial=0)), 1e-6))
        else:
            off = np.abs(have.astype("int64") - want.astype("int64"))
            assert off.max(initial=0) <= 1 and np.count_nonzero(off) <= max(1, off.size // 1000), (
                f"{np.count_nonzero(off)} of {off.size} off"
            )


@pytest.mark.parametrize("trans_a, trans_b", list(itertools.product((0, 1), repeat=2)))
def test_fused_matmul(trans_a: int, trans_b: int) -> None:
    a, b = f32(2, 5, 7), f32(2, 7, 3, seed=1)
    a, b = (a.swapaxes(1, 2) if trans_a else a), (b.swapaxes(1, 2) if trans_b else b)
    compare("FusedMatMul", [np.ascontiguousarray(a), np.ascontiguousarray(b)], alpha=0.125, transA=trans_a, transB=trans_b)


def test_fused_matmul_with_moved_batch() -> None:
    compare("FusedMatMul", [f32(5, 2, 7), f32(2, 7, 3)], transBatchA=1)
    compare("FusedMatMul", [f32(5, 2, 6, 7), f32(3, 2, 6, 7)], transBatchA=1, transBatchB=1, transB=1)


@pytest.mark.parametrize("name, given", [("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.2}), ("Sigmoid", {}), ("Tanh", {})])
def test_fused_gemm(name: str, given: dict[str, float]) -> None:
    compare("FusedGemm", [f32(4, 6), f32(5, 6), f32(5)], transB=1, alpha=0.5, beta=2.0, activation=name, **given)


@pytest.mark.parametrize("name, params", [("Relu", []), ("LeakyRelu", [0.3]), ("Clip", [-0.5, 0.75]), ("HardSigmoid", [0.3, 0.4])])
def test_fused_conv(name: str, params: list[float]) -> None:
    given = {"activation": name} | ({"activation_params": params} if params else {})
    compare("FusedConv", [f32(1, 3, 8, 9), f32(4, 3, 3, 3), f32(4)], pads=[1, 1, 1, 1], kernel_shape=[3, 3], **given)
    compare("FusedConv", [f32(1, 3, 8, 9), f32(4, 3, 1, 1), f32(4), f32(1, 4, 8, 9)], kernel_shape=[1, 1], **given)


def test_activations() -> None:
    x = f32(3, 5, 8, scale=3)
    compare("Gelu", [x])
    compare("FastGelu", [x])
    compare("FastGelu", [x, f32(8)])
    compare("BiasGelu", [x, f32(8)])
    compare("QuickGelu", [x], alpha=1.5)


@pytest.mark.parametrize(
    "bias, beta, skip", [(True, True, (2, 5, 16)), (False, True, (2, 5, 16)), (False, False, (1, 5, 16)), (True, True, (5, 16))]
)
def test_skip_layer_norm(bias: bool, beta: bool, skip: tuple[int, ...]) -> None:
    arrays = [f32(2, 5, 16), f32(*skip, seed=1), f32(16, seed=2), f32(16, seed=3) if beta else None, f32(16, seed=4) if bias else None]
    compare("SkipLayerNormalization", arrays, epsilon=1e-6)
    rms = [*arrays[:3], arrays[4]] if bias else arrays[:3]
    compare("SkipSimplifiedLayerNormalization", rms, epsilon=1e-6)


def test_the_sum_before_a_skip_layer_norm() -> None:
    model = model_of("SkipLayerNormalization", [f32(2, 5, 16), f32(2, 5, 16, seed=1), f32(16), f32(16)], 4, epsilon=1e-6)
    for output in ("y1", "y2"):
        model.graph.node[0].output[int(output[1])] = ""
    del model.graph.output[1:3]
    feeds = {"x0": f32(2, 5, 16), "x1": f32(2, 5, 16, seed=1), "x2": f32(16), "x3": f32(16)}
    module = import_onnx(model)
    results = interpret(module.main, [feeds[param.name] for param in module.main.params])
    for have, want in zip(results, session(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(have, want, atol=1e-5)


def test_simplified_layer_norm() -> None:
    compare("SimplifiedLayerNormalization", [f32(2, 5, 16), f32(16)], domain="", axis=-1, epsilon=1e-6)


@pytest.mark.parametrize("mask, segments, positions", list(itertools.product((True, False), repeat=3)))
def test_embed_layer_norm(mask: bool, segments: bool, positions: bool) -> None:
    words, seen = rng().integers(0, 30, (2, 6)).astype("int32"), (np.arange(6) < [[4], [6]]).astype("int32")
    tables = [f32(30, 8), f32(10, 8, seed=1), f32(2, 8, seed=2) if segments else None]
    kinds = rng(1).integers(0, 2, (2, 6)).astype("int32") if segments else None
    places = rng(2).integers(0, 10, (2, 6)).astype("int32") if positions else None
    arrays = [words, kinds, *tables, f32(8, seed=3), f32(8, seed=4), seen if mask else None, places]
    while arrays[-1] is None:
        arrays.pop()
    compare("EmbedLayerNormalization", arrays, 2, epsilon=1e-5)


MASKS = {
    "none": None,
    "lengths": np.array([3, 6], "int32"),
    "ends and starts": np.array([5, 6, 1, 0], "int32"),
    "keys": (np.arange(6) < [[4], [6]]).astype("int32"),
    "pairs": np.tril(np.ones((2, 6, 6), "int32")),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(mask: str, causal: int) -> None:
    arrays: list[Array | None] = [f32(2, 6, 16), f32(16, 24, scale=0.3), f32(24)]
    if MASKS[mask] is not None:
        arrays.append(MASKS[mask])
    compare("Attention", arrays, constant=(1, 2), num_heads=2, unidirectional=causal)


def test_attention_with_past() -> None:
    past = f32(2, 2, 2, 3, 4, seed=5)
    compare("Attention", [f32(2, 4, 8), f32(8, 24), f32(24), None, past], 2, constant=(1, 2), num_heads=2, unidirectional=1)
    compare("Attention", [f32(2, 6, 8), f32(8, 24), f32(24), None, None, f32(2, 2, 6, 6)], constant=(1, 2), num_heads=2, scale=0.4)
    compare("Attention", [f32(2, 6, 8), f32(8, 20), f32(20)], constant=(1, 2), num_heads=2, qkv_hidden_sizes=[8, 8, 4])


def test_multi_head_attention() -> None:
    q, k, v = f32(2, 5, 8), f32(2, 7, 8, seed=1), f32(2, 7, 12, seed=2)
    compare("MultiHeadAttention", [q, k, v], num_heads=2)
    compare("MultiHeadAttention", [q, k, v, f32(28)], num_heads=2, scale=0.3)
    compare("MultiHeadAttention", [q, k, v, None, np.array([[1] * 5 + [0] * 2, [1] * 7], "int32")], num_heads=2)
    compare("MultiHeadAttention", [q, k, v, None, None, f32(1, 2, 5, 7)], num_heads=2)
    compare("MultiHeadAttention", [q, f32(2, 2, 7, 4), f32(2, 2, 7, 4, seed=1)], num_heads=2)
    past = f32(2, 2, 3, 4), f32(2, 2, 3, 4, seed=4)
    compare("MultiHeadAttention", [q, f32(2, 5, 8), f32(2, 5, 8), None, None, None, *past], 3, num_heads=2)
    compare("MultiHeadAttention", [q, f32(2, 5, 8), f32(2, 5, 8)], num_heads=2, unidirectional=1)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    angles = rng(3).random((20, 4)).astype("float32") * 6
    tables = [np.cos(angles), np.sin(angles)]
    x, places = f32(2, 5, 24), rng().integers(0, 20, (2, 5)).astype("int64")
    compare("RotaryEmbedding", [x, places, *tables], interleaved=interleaved)
    compare("RotaryEmbedding", [x, np.array([7]), *tables], interleaved=interleaved)
    compare("RotaryEmbedding", [f32(2, 3, 5, 8), places, *tables], interleaved=interleaved)
    compare("RotaryEmbedding", [f32(2, 5, 48), places, *tables], interleaved=interleaved, num_heads=3, rotary_embedding_dim=8)


@pytest.mark.parametrize("past, length", [(0, 5), (4, 1)])
@pytest.mark.parametrize("rotary", [0, 1])
def test_group_query_attention(past: int, length: int, rotary: int) -> None:
    angles = rng(3).random((20, 8)).astype("float32") * 6
    tables = [np.cos(angles), np.sin(angles)] if rotary else []
    counts = [np.full(2, past + length - 1, "int32"), np.asarray(past + length, "int32")]
    caches = [f32(2, 2, past, 16, seed=4), f32(2, 2, past, 16, seed=5)]
    apart = [f32(2, length, 64), f32(2, length, 32, seed=1), f32(2, length, 32, seed=2)]
    given = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": rotary}
    compare("GroupQueryAttention", [*apart, *caches, *counts, *tables], 3, **given)
    compare("GroupQueryAttention", [*apart, *caches, *counts, *tables], 3, **given, local_window_size=3, softcap=5.0, scale=0.4)
    compare("GroupQueryAttention", [np.concatenate(apart, 2), None, None, *caches, *counts, *tables], 3, **given, rotary_interleaved=rotary)


QUANTISED = [(u8, "uint8"), (i8, "int8")]


@pytest.mark.parametrize("make, dtype", QUANTISED)
def test_qlinear_elementwise(make: Any, dtype: str) -> None:
    a, b = make(2, 37, 5), make(37, 1, seed=1)
    second_zero = scalar(-3 if dtype == "int8" else 130, dtype)
    first, second, result = (scalar(0.0213), scalar(7, dtype)), (scalar(0.0517), second_zero), scalar(0.0631)
    for op in ("QLinearAdd", "QLinearMul"):
        compare(op, [a, *first, b, *second, result, scalar(11, dtype)])
    compare("QLinearSigmoid", [a, *second, scalar(1 / 256), scalar(0, dtype)], constant=(1, 2, 3, 4))
    compare("QLinearLeakyRelu", [a, *second, result, scalar(11, dtype)], constant=(1, 2, 3, 4), alpha=0.1)
    compare(
        "QLinearSoftmax",
        [make(4, 33), scalar(0.1), scalar(3, dtype), scalar(1 / 256), scalar(0, dtype)],
        constant=(1, 2, 3, 4),
        axis=-1,
        opset=13,
    )
    parts = [part for i in range(3) for part in (make(2, 5 + i, 3, seed=i), scalar(0.02 + 0.01 * i), scalar(i, dtype))]
    compare("QLinearConcat", [scalar(0.04), scalar(5, dtype), *parts], axis=1)


@pytest.mark.parametrize("make, dtype", QUANTISED)
def test_other_qlinear_operators(make: Any, dtype: str) -> None:
    condition = rng().random((2, 5, 3)) < 0.5
    first, second, result = (scalar(0.0213), scalar(7, dtype)), (scalar(0.0517), scalar(3, dtype)), (scalar(0.0631), scalar(11, dtype))
    compare("QLinearWhere", [condition, make(2, 5, 3), *first, make(5, 1, seed=1), *second, *result], constant=(2, 3, 5, 6, 7, 8))
    x = make(1, 8, 9, 4)
    compare("NhwcMaxPool", [x], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0])


def test_bias_add() -> None:
    """ONNX Runtime has it on GPUs only; so numpy says what is right."""
    x, bias, skip = f32(2, 5, 8), f32(8, seed=1), f32(2, 5, 8, seed=2)
    module = import_onnx(model_of("BiasAdd", [x, bias, skip], 1))
    np.testing.assert_array_equal(interpret(module.main, [x, bias, skip])[0], x + bias + skip)


@pytest.mark.parametrize("make, dtype", QUANTISED)
@pytest.mark.parametrize("last", [0, 1])
def test_qlinear_pools(make: Any, dtype: str, last: int) -> None:
    scales = [scalar(0.02), scalar(7, dtype), scalar(0.015), scalar(3, dtype)]
    x = make(2, 9, 8, 6) if last else make(2, 6, 9, 8)
    window = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0], "channels_last": last}
    compare("QLinearAveragePool", [x, *scales], constant=(1, 2, 3, 4), **window)
    compare("QLinearAveragePool", [x, *scales], constant=(1, 2, 3, 4), count_include_pad=1, **window)
    compare("QLinearGlobalAveragePool", [x, *scales], channels_last=last)


@pytest.mark.parametrize("last", [0, 1])
def test_qlinear_conv(last: int) -> None:
    x = u8(1, 9, 8, 6) if last else u8(1, 6, 9, 8)
    arrays = [x, scalar(0.02), scalar(131, "uint8"), i7(4, 6, 3, 3), rng().random(4).astype("float32") * 0.02 + np.float32(0.001)]
    arrays += [np.zeros(4, "int8"), scalar(0.3), scalar(100, "uint8"), rng(1).integers(-900, 900, 4).astype("int32")]
    given = {"channels_last": 1} if last else {"domain": ""}
    compare("QLinearConv", arrays, constant=tuple(range(1, 9)), pads=[1, 1, 1, 1], kernel_shape=[3, 3], **given)


@pytest.mark.parametrize("trans_b", [0, 1])
def test_qgemm(trans_b: int) -> None:
    b, scales = i7(9, 12) if trans_b else i7(12, 9), rng(2).random(9).astype("float32") * 0.02
    c = rng(3).integers(-999, 999, 9).astype("int32")
    for scale, zero in ((scalar(0.01), scalar(0, "int8")), (scales, np.zeros(9, "int8"))):
        arrays = [u8(5, 12), scalar(0.02), scalar(120, "uint8"), b, scale, zero, c]
        compare("QGemm", [*arrays, scalar(0.2), scalar(90, "uint8")], constant=(3,), transB=trans_b, alpha=0.5)
        compare("QGemm", arrays, constant=(3,), transB=trans_b)


@pytest.mark.parametrize("make, dtype", [(u8, "uint8"), (i7, "int8")])
def test_products_to_float(make: Any, dtype: str) -> None:
    b, scales = make(12, 9), rng(2).random(9).astype("float32") * 0.02
    zero = scalar(9, dtype)
    compare("MatMulIntegerToFloat", [u8(2, 5, 12), b, scalar(0.02), scalar(0.01), scalar(120, "uint8"), zero, f32(9)])
    compare("MatMulIntegerToFloat", [u8(2, 5, 12), b, scalar(0.02), scales, scalar(120, "uint8"), np.full(9, 9, dtype)])
    compare("DynamicQuantizeMatMul", [f32(2, 5, 12), b, scalar(0.01), zero, f32(9)])
    compare("DynamicQuantizeMatMul", [f32(2, 5, 12), b, scales, np.full(9, 9, dtype)], constant=(1, 2, 3))


@pytest.mark.parametrize("bits, block, depth", [(4, 16, 48), (4, 32, 40), (8, 16, 48), (4, 32, 96)])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])  # ONNX Runtime has the last for 4 bits only
def test_matmul_nbits(bits: int, block: int, depth: int, zeros: str) -> None:
    columns, blocks = 9, -(-depth // block)
    arrays: list[Array | None] = [f32(3, depth), u8(columns, blocks, block * bits // 8), rng(1).random(columns * blocks).astype("float32")]
    if zeros == "packed":
        arrays.append(u8(columns * -(-blocks * bits // 8), seed=2))
    elif zeros == "float" and bits == 4:
        arrays.append(rng(2).random(columns * blocks).astype("float32") * np.float32(2**bits))
    compare("MatMulNBits", arrays, constant=range(1, len(arrays)), K=depth, N=columns, bits=bits, block_size=block)
