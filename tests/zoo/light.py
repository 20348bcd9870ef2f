"""The nine "light" networks of the onnx package, whose constant weights are replaced by seeded random ones.

The light files make each weight by ConstantOfShape, so that they stay small; such weights make nearly all values of a
network equal. Refilled as below, activations keep a scale of about one and each output depends on each layer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from tests.zoo.cache import derived, package_folder

NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)


def _roles(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    """For each value, the operator that uses it and at which position, seen through Unsqueeze and Reshape."""
    roles: dict[str, tuple[str, int]] = {}
    for node in reversed(graph.node):
        for position, name in enumerate(node.input):
            through = node.op_type in ("Unsqueeze", "Reshape") and position == 0
            roles[name] = roles.get(node.output[0], ("", 0)) if through else (node.op_type, position)
    return roles


def _weight(random: np.random.Generator, shape: tuple[int, ...], role: tuple[str, int]) -> np.ndarray:
    noise = random.standard_normal(shape, dtype=np.float32)
    match role:
        case ("Conv", 1):
            return noise * np.float32(np.sqrt(2.0 / np.prod(shape[1:])))
        case ("Gemm", 1):
            return noise * np.float32(np.sqrt(2.0 / shape[-1]))
        case ("BatchNormalization", 1) | ("Mul", _):
            return 1.0 + 0.1 * noise
        case ("BatchNormalization", 4):
            return np.abs(1.0 + 0.2 * noise)
        case _:
            return 0.1 * noise


def _refill(name: str, path: Path) -> None:
    model = onnx.load(package_folder("onnx") / "backend" / "test" / "data" / "light" / f"light_{name}.onnx")
    graph = model.graph
    random = np.random.default_rng(NAMES.index(name))
    shapes = {tensor.name: tuple(numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    roles = _roles(graph)
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            output = node.output[0]
            array = _weight(random, shapes[node.input[0]], roles[output])
            graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), output))
    del graph.node[:]
    graph.node.extend(kept)
    _temper(model)
    onnx.save(model, path)


def _temper(model: onnx.ModelProto, deviation: float = 2.0) -> None:
    """Scales the last Gemm so that the logits' standard deviation is ``deviation``: Softmax of larger ones is 0 and 1 only."""
    gemms = [node for node in model.graph.node if node.op_type == "Gemm"]
    if not gemms:
        return
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.append(helper.make_tensor_value_info(gemms[-1].output[0], onnx.TensorProto.FLOAT, None))
    name, shape = _input(model.graph)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(probe.SerializeToString(), options)
    logits = session.run([gemms[-1].output[0]], {name: np.random.default_rng(0).standard_normal(shape, dtype=np.float32)})[0]
    reshaped = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Reshape"}
    parameters = {reshaped.get(name, name) for name in gemms[-1].input[1:]}
    for tensor in model.graph.initializer:
        if tensor.name in parameters:
            scaled = numpy_helper.to_array(tensor) * np.float32(deviation / logits.std())
            tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))


def onnx_path(name: str) -> Path:
    """The refilled network; its one true input and one output keep their names."""
    return derived(f"light_{name}.onnx", lambda path: _refill(name, path), "light")


def input_of(path: Path) -> tuple[str, tuple[int, ...]]:
    """Name and shape of the only graph input that is no initialiser."""
    return _input(onnx.load(path).graph)


def _input(graph: onnx.GraphProto) -> tuple[str, tuple[int, ...]]:
    weights = {tensor.name for tensor in graph.initializer}
    (value,) = [value for value in graph.input if value.name not in weights]
    return value.name, tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
