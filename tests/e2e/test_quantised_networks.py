"""Networks that ONNX Runtime's quantiser wrote, and its optimiser after it: imported, built and run, against ONNX Runtime itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

import aotc
from aotc.frontends.onnx import import_onnx
from aotc.ops.interpret import interpret
from tests.e2e.emulate import emulate
from tests.e2e.small import run

STEP = 1 / 256
"""Of the outputs, which are the quantised results of a softmax."""


def network() -> onnx.ModelProto:
    """Convolutions of all kinds, a residual sum, a SiLU, pools, a concatenation, dense layers."""
    node, random = helper.make_node, np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4, strides=[2, 2]), node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1] * 4, group=8), node("Clip", ["c2", "low", "high"], ["r2"]),
        node("Conv", ["r2", "w3", "b3"], ["c3"]), node("Add", ["c3", "r1"], ["a1"]), node("LeakyRelu", ["a1"], ["l1"], alpha=0.1),
        node("Conv", ["l1", "w4"], ["c4"], pads=[1] * 4), node("Sigmoid", ["c4"], ["s4"]), node("Mul", ["c4", "s4"], ["m4"]),
        node("MaxPool", ["m4"], ["p4"], kernel_shape=[2, 2], strides=[2, 2]), node("Concat", ["p4", "p4"], ["cc"], axis=1),
        node("AveragePool", ["cc"], ["ap"], kernel_shape=[2, 2]), node("GlobalAveragePool", ["ap"], ["g"]), node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w5", "b5"], ["y5"], transB=1), node("Relu", ["y5"], ["r5"]), node("MatMul", ["r5", "w6"], ["m6"]),
        node("Softmax", ["m6"], ["y"], axis=-1),
    ]  # fmt: skip
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 1, 3, 3), "w3": (8, 8, 1, 1), "w4": (12, 8, 3, 3), "w5": (10, 24), "w6": (10, 5)}
    weights = {name: random.normal(size=shape) * (2 / np.prod(shape[1:])) ** 0.5 for name, shape in shapes.items()}
    weights |= {f"b{i}": random.normal(size=n) * 0.1 for i, n in ((1, 8), (2, 8), (3, 8), (5, 10))} | {
        "low": np.zeros(()),
        "high": np.full((), 6.0),
    }
    initialisers = [numpy_helper.from_array(array.astype("float32"), name) for name, array in weights.items()]
    infos = [helper.make_tensor_value_info(name, 1, ["n", *shape]) for name, shape in (("x", (3, 32, 32)), ("y", (5,)))]
    graph = helper.make_graph(nodes, "quantised", infos[:1], infos[1:], initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class Images(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.left: Iterator[dict[str, np.ndarray]] = iter([{"x": images(1, seed)} for seed in range(8)])

    def get_next(self) -> Any:
        return next(self.left, None)


def images(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3, 32, 32)).astype("float32")


FORMATS = {"qdq": QuantFormat.QDQ, "qoperator": QuantFormat.QOperator}
TYPES = {
    "u8s8": (QuantType.QUInt8, QuantType.QInt8),
    "s8s8": (QuantType.QInt8, QuantType.QInt8),
    "u8u8": (QuantType.QUInt8, QuantType.QUInt8),
}


def quantised(kind: str, types: str, per_channel: bool, folder: Path) -> Path:
    """Weights of 7 bits: beyond them ONNX Runtime saturates on CPUs without VNNI."""
    logging.getLogger().setLevel(logging.ERROR)
    source, target = folder / "float.onnx", folder / f"{kind}.onnx"
    onnx.save(network(), source)
    data, weights = TYPES[types]
    if kind == "dynamic":
        quantize_dynamic(source, target, weight_type=weights, per_channel=per_channel, reduce_range=True)
    else:
        form = FORMATS[kind]
        quantize_static(
            source,
            target,
            Images(),
            quant_format=form,
            activation_type=data,
            weight_type=weights,
            per_channel=per_channel,
            reduce_range=True,
        )
    return target


def session(path: Path, level: str, saved: Path | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    options.log_severity_level = 3
    if saved is not None:
        options.optimized_model_filepath = str(saved)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def optimised(path: Path, level: str) -> Path:
    """What ONNX Runtime's optimiser makes of a model."""
    saved = path.with_name(f"{path.stem}_{level}.onnx")
    session(path, f"ENABLE_{level}", saved)
    return saved


def assert_near(have: np.ndarray, want: np.ndarray, steps: int) -> None:
    assert want.std(axis=0).max() > 4 * STEP, "the network's outputs hardly depend on its input"
    assert np.abs(have - want).max() <= (steps + 0.01) * STEP if steps else np.array_equal(have, want)


@pytest.mark.parametrize("types, per_channel", [("u8s8", True), ("s8s8", False), ("u8u8", False)])
@pytest.mark.parametrize("kind", ["qdq", "qoperator", "dynamic"])
def test_import(kind: str, types: str, per_channel: bool, tmp_path: Path) -> None:
    """Networks wholly of integers give the same integers; where layers in between are float, a step or two may differ."""
    x = images(4, 99)
    path = quantised(kind, types, per_channel, tmp_path)
    for each in (path, optimised(path, "BASIC"), optimised(path, "EXTENDED")):
        (want,) = session(each, "DISABLE_ALL").run(None, {"x": x})
        (have,) = interpret(import_onnx(each).main, [x])
        assert_near(have, want, 2 if kind == "qdq" else 0) if kind != "dynamic" else np.testing.assert_allclose(have, want, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind, types, per_channel", [("qdq", "u8s8", True), ("qoperator", "u8u8", False)])
def test_built(kind: str, types: str, per_channel: bool, tmp_path: Path) -> None:
    x = images(3, 99)
    path = optimised(quantised(kind, types, per_channel, tmp_path), "EXTENDED")
    (want,) = session(path, "DISABLE_ALL").run(None, {"x": x})
    assert_near(run(path, {"x": x}, tmp_path)["y"], want, 2 if kind == "qdq" else 0)


@pytest.mark.slow
def test_arm_gives_the_same_integers(tmp_path: Path) -> None:
    x = images(2, 99)
    path = quantised("qoperator", "u8s8", True, tmp_path)
    aotc.compile(path, output=tmp_path / "arm.so", target="jetson", inputs={"x": x.shape}, device="cpu")
    (want,) = session(path, "DISABLE_ALL").run(None, {"x": x})
    assert_near(emulate(tmp_path / "arm.so", [x], tmp_path)["y"], want, 0)


@pytest.mark.slow
def test_dynamic_network_built(tmp_path: Path) -> None:
    x = images(2, 99)
    path = quantised("dynamic", "s8s8", True, tmp_path)
    (want,) = session(path, "DISABLE_ALL").run(None, {"x": x})
    have = run(path, {"x": x}, tmp_path)["y"]
    np.testing.assert_allclose(have, want, atol=1e-5)
