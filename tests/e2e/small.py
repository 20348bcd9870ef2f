"""Small ONNX models and Modules for tests that need a built file, and helpers to build and run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import aotc

TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
Shape = Sequence[int | str | None]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Shape | None]],
    outputs: Mapping[str, tuple[str, Shape | None]],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
) -> onnx.ModelProto:
    """An ONNX model of nodes; inputs and outputs as name -> (dtype, shape)."""

    def infos(values: Mapping[str, tuple[str, Shape | None]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TYPES[dtype], shape) for name, (dtype, shape) in values.items()]

    initialisers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "small", infos(inputs), infos(outputs), initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run(source: Any, feeds: Mapping[str, np.ndarray], folder: Path, **options: Any) -> dict[str, np.ndarray]:
    """The outputs of a model, compiled for this machine and run once."""
    output = folder / "small.so"
    aotc.compile(source, output=output, **options)
    return dict(aotc.load(output, num_threads=1).run(feeds))


def mlp(hidden: int = 64, layers: int = 2, seed: int = 0, name: str = "x", batch: int | str = 4) -> onnx.ModelProto:
    """Dense layers with Relu over ``hidden`` features; input ``name``, output ``y``."""
    random = np.random.default_rng(seed)
    nodes, weights, value = [], {}, name
    for layer in range(layers):
        weights[f"w{layer}"] = random.standard_normal((hidden, hidden), dtype=np.float32) / np.float32(np.sqrt(hidden))
        weights[f"b{layer}"] = random.standard_normal(hidden, dtype=np.float32)
        nodes.append(helper.make_node("Gemm", [value, f"w{layer}", f"b{layer}"], [f"g{layer}"], name=f"dense{layer}"))
        nodes.append(helper.make_node("Relu", [f"g{layer}"], [f"r{layer}"], name=f"relu{layer}"))
        value = f"r{layer}"
    nodes[-1].output[0] = "y"
    return model(nodes, {name: ("float32", [batch, hidden])}, {"y": ("float32", [batch, hidden])}, weights)


def transcendental() -> onnx.ModelProto:
    """Everything that may call libm: exp, pow, log, fmod and their kin."""
    unary = ("Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Atanh", "Erf", "Tanh", "Sqrt")
    nodes = [helper.make_node(operator, ["x"], [operator], name=operator) for operator in unary]
    nodes += [helper.make_node("Acosh", ["one"], ["Acosh"]), helper.make_node("Pow", ["x", "x"], ["Pow"])]
    nodes += [helper.make_node("Add", ["x", "c"], ["one"]), helper.make_node("Mod", ["one", "x"], ["Mod"], fmod=1)]
    names = [*unary, "Acosh", "Pow", "Mod"]
    outputs = {name: ("float32", [64]) for name in names}
    return model(nodes, {"x": ("float32", [64])}, outputs, {"c": np.ones(64, np.float32)})


def convolutional(seed: int = 0, channels: int = 8, size: int = 16) -> onnx.ModelProto:
    """Conv, BatchNormalization, Relu, a residual, a pool and a Gemm: input ``x``, output ``y`` of 10 classes."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(0.3)

    weights = {
        "w1": normal(channels, 3, 3, 3),
        "w2": normal(channels, channels, 3, 3),
        "b1": normal(channels),
        "scale": 1 + normal(channels),
        "bias": normal(channels),
        "mean": normal(channels),
        "var": np.abs(1 + normal(channels)),
        "fc": normal(channels, 10),
        "fcb": normal(10),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", "scale", "bias", "mean", "var"], ["n1"], name="bn1"),
        helper.make_node("Relu", ["n1"], ["a1"], name="relu1"),
        helper.make_node("Conv", ["a1", "w2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "a1"], ["s2"], name="add2"),
        helper.make_node("Relu", ["s2"], ["a2"], name="relu2"),
        helper.make_node("GlobalAveragePool", ["a2"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "fc", "fcb"], ["y"], name="fc"),
    ]
    shape = ["n", 3, size, size]
    return model(nodes, {"x": ("float32", shape)}, {"y": ("float32", ["n", 10])}, weights)
