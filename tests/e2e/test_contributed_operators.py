"""Operators of com.microsoft in one built file, against ONNX Runtime, and small types as inputs and outputs of a built file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from aotc.cli.tensors import ParameterSpec, Preprocessing, load_array
from aotc.ir.types import bits_of
from tests.e2e.small import run
from tests.frontends.onnx.test_microsoft import MASKS, Array, f32, i7, model_of, rng, scalar, session, u8

Given = dict[str, object]


def nodes() -> list[tuple[str, list[Array | None], tuple[int, ...], Given]]:
    """Operator, inputs, those of them that are weights, attributes."""
    angles = rng(3).random((20, 8)).astype("float32") * 6
    counts = [np.full(2, 4, "int32"), np.asarray(5, "int32")]
    caches = [f32(2, 2, 4, 16, seed=4), f32(2, 2, 4, 16, seed=5)]
    grouped = [f32(2, 1, 64), f32(2, 1, 32, seed=1), f32(2, 1, 32, seed=2), *caches, *counts, np.cos(angles), np.sin(angles)]
    gemm = [
        u8(5, 12),
        scalar(0.0213),
        scalar(120, "uint8"),
        i7(9, 12),
        scalar(0.0119),
        scalar(0, "int8"),
        rng(3).integers(-99, 99, 9).astype("int32"),
    ]
    pool = [u8(2, 6, 9, 8), scalar(0.0213), scalar(7, "uint8"), scalar(0.0151), scalar(3, "uint8")]
    return [
        ("FusedConv", [f32(1, 3, 8, 9), f32(4, 3, 3, 3), f32(4)], (1, 2), {"pads": [1] * 4, "activation": "LeakyRelu", "activation_params": [0.3]}),
        ("Attention", [f32(2, 6, 16), f32(16, 24, scale=0.3), f32(24), MASKS["keys"]], (1, 2), {"num_heads": 2, "unidirectional": 1}),
        ("MultiHeadAttention", [f32(2, 5, 8), f32(2, 7, 8), f32(2, 7, 12), f32(28)], (3,), {"num_heads": 2}),
        ("GroupQueryAttention", grouped, (7, 8), {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}),
        ("SkipLayerNormalization", [f32(2, 5, 16), f32(2, 5, 16, seed=1), f32(16), f32(16, seed=2)], (2, 3), {"epsilon": 1e-6}),
        ("MatMulNBits", [f32(3, 48), u8(9, 3, 8), rng(1).random(27).astype("float32"), u8(18)], (1, 2, 3), {"K": 48, "N": 9, "block_size": 16}),
        ("DynamicQuantizeMatMul", [f32(2, 5, 12), i7(12, 9), scalar(0.0119), scalar(3, "int8"), f32(9)], (1, 2, 3, 4), {}),
        ("QGemm", [*gemm, scalar(0.0213), scalar(90, "uint8")], (3, 6), {"transB": 1}),
        ("QLinearAveragePool", pool, (1, 2, 3, 4), {"kernel_shape": [3, 2], "strides": [2, 2]}),
        ("QLinearSoftmax", [u8(4, 33), scalar(0.1), scalar(3, "uint8"), scalar(1 / 256), scalar(0, "uint8")], (1, 2, 3, 4), {"axis": -1, "opset": 13}),
    ]  # fmt: skip


def joined() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """All nodes side by side in one model, and its inputs."""
    whole = onnx.ModelProto()
    feeds: dict[str, Array] = {}
    for number, (op, arrays, weights, attrs) in enumerate(nodes()):
        part = onnx.compose.add_prefix(model_of(op, arrays, 3 if op == "GroupQueryAttention" else 1, weights, **attrs), f"n{number}_")
        feeds |= {f"n{number}_x{i}": array for i, array in enumerate(arrays) if array is not None and i not in weights}
        if not number:
            whole.CopyFrom(part)
            continue
        for field in ("node", "input", "output", "initializer"):
            getattr(whole.graph, field).extend(getattr(part.graph, field))
    return whole, feeds


@pytest.mark.slow
def test_contributed_operators_built(tmp_path: Path) -> None:
    model, feeds = joined()
    wanted = session(model).run(None, feeds)
    results = run(model, feeds, tmp_path)
    for (name, have), want in zip(results.items(), wanted, strict=True):
        assert have.shape == want.shape and have.dtype == want.dtype, name
        if want.dtype.kind == "f":
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=2e-5 * float(np.abs(want).max()), err_msg=name)
        else:
            off = np.abs(have.astype("int64") - want.astype("int64"))
            assert off.max() <= 1 and np.count_nonzero(off) <= 1, name


def test_small_types_cross_the_border(tmp_path: Path) -> None:
    """bfloat16, float8 and int4 arrays go in and come out as they are; sums run in float32."""
    types = {"b": "bfloat16", "f": "float8_e4m3fn", "i": "int4"}
    feeds = {name: (rng(1).normal(size=(3, 20)) * 4).astype("float32").astype(dtype) for name, dtype in types.items()}
    infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in feeds.items()]
    made = [
        helper.make_node("Add", ["b", "b"], ["twice"]), helper.make_node("Transpose", ["f"], ["turned"]),
        helper.make_node("Cast", ["i"], ["wide"], to=helper.np_dtype_to_tensor_dtype(np.dtype("bfloat16"))),
        helper.make_node("Concat", ["i", "i"], ["joined"], axis=1),
    ]  # fmt: skip
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("twice", "turned", "wide", "joined")]
    model = helper.make_model(helper.make_graph(made, "small", infos, outputs), opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    got = run(model, feeds, tmp_path)
    b, f, i = feeds.values()
    want = {
        "twice": (b.astype("float32") * 2).astype("bfloat16"),
        "turned": f.T,
        "wide": i.astype("float32").astype("bfloat16"),
        "joined": np.concatenate([i, i], 1),
    }
    for name, reference in want.items():
        assert got[name].dtype == reference.dtype and got[name].tobytes() == np.ascontiguousarray(reference).tobytes(), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "int4"])
def test_arrays_of_small_types_from_files(dtype: str, tmp_path: Path) -> None:
    """numpy writes no more than their bits."""
    array = (rng(2).normal(size=(2, 3)) * 4).astype("float32").astype(dtype)
    np.save(tmp_path / "x.npy", bits_of(array))
    read = load_array(ParameterSpec("x", dtype, (2, 3)), str(tmp_path / "x.npy"), None, rng(), Preprocessing())
    assert read.dtype == array.dtype and read.tobytes() == array.tobytes()
