"""A small detector, as ONNX: convolutions, SiLU, a feature pyramid, box decoding, non-maximum suppression. Seeded random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.zoo.cache import derived

SHAPE = (1, 3, 64, 64)
CLASSES = 5


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(11)

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def constant(self, value: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def conv(self, x: str, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, bias: float = 0.0) -> str:
        scale = (2 / (inputs * kernel * kernel)) ** 0.5
        weight = self.constant((self.random.standard_normal((outputs, inputs, kernel, kernel)) * scale).astype(np.float32))
        shift = self.constant((self.random.standard_normal(outputs) * 0.1 + bias).astype(np.float32))
        pads = [kernel // 2] * 4
        return self.node("Conv", x, weight, shift, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)

    def silu(self, x: str) -> str:
        return self.node("Mul", x, self.node("Sigmoid", x))

    def layer(self, x: str, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> str:
        return self.silu(self.conv(x, inputs, outputs, kernel, stride))


def onnx_path() -> Path:
    """Input ``image`` of ``SHAPE``; outputs ``boxes`` [N, 4] and ``scores`` [N, classes] of all anchors, and ``chosen`` [M, 3]: image,
    class and anchor of what is left."""
    return derived("detector.onnx", lambda path: onnx.save(_model(), path), "detector")


def _model() -> onnx.ModelProto:
    g = _Graph()
    x = g.layer("image", 3, 8, stride=2)
    x = g.layer(x, 8, 16, stride=2)
    fine = g.layer(_residual(g, x, 16), 16, 24, stride=2)
    coarse = g.layer(_residual(g, fine, 24), 24, 32, stride=2)
    top = g.layer(coarse, 32, 24, kernel=1)
    up = g.node("Resize", top, "", g.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    merged = g.layer(g.node("Concat", up, fine, axis=1), 48, 24)
    levels = [_head(g, merged, 24, 8), _head(g, top, 24, 16)]
    boxes = g.node("Concat", *(level[0] for level in levels), axis=1)
    scores = g.node("Concat", *(level[1] for level in levels), axis=1)
    per_class = g.node("Transpose", scores, perm=[0, 2, 1])
    limits = [g.constant(np.array([value], dtype)) for value, dtype in ((20, np.int64), (0.5, np.float32), (0.3, np.float32))]
    chosen = g.node("NonMaxSuppression", boxes, per_class, *limits, center_point_box=1)
    anchors = sum((SHAPE[2] // stride) * (SHAPE[3] // stride) for stride in (8, 16))
    outputs = []
    for name, result, dtype, shape in (
        ("boxes", boxes, TensorProto.FLOAT, [1, anchors, 4]),
        ("scores", scores, TensorProto.FLOAT, [1, anchors, CLASSES]),
        ("chosen", chosen, TensorProto.INT64, ["count", 3]),
    ):
        g.nodes.append(helper.make_node("Identity", [result], [name], name))
        outputs.append(helper.make_tensor_value_info(name, dtype, shape))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, SHAPE)
    graph = helper.make_graph(g.nodes, "detector", [image], outputs, g.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def _residual(g: _Graph, x: str, channels: int) -> str:
    return g.node("Add", x, g.layer(g.layer(x, channels, channels, kernel=1), channels, channels))


def _head(g: _Graph, x: str, channels: int, stride: int) -> tuple[str, str]:
    """Boxes (centre and size in pixels) [1, anchors, 4] and scores [1, anchors, classes] of one level."""
    rows, columns = SHAPE[2] // stride, SHAPE[3] // stride

    def flat(y: str, count: int) -> str:
        return g.node("Transpose", g.node("Reshape", y, g.constant(np.array([1, count, rows * columns], np.int64))), perm=[0, 2, 1])

    place = flat(g.conv(g.layer(x, channels, channels), channels, 4, kernel=1), 4)
    score = g.node("Sigmoid", flat(g.conv(g.layer(x, channels, channels), channels, CLASSES, kernel=1), CLASSES))
    offset, size = (g.node("Slice", place, *(g.constant(np.array([v], np.int64)) for v in (a, a + 2, 2))) for a in (0, 2))
    grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(1, -1, 2).astype(np.float32)
    centre = g.node("Mul", g.node("Add", g.node("Sigmoid", offset), g.constant(grid)), g.constant(np.float32(stride)))
    extent = g.node("Mul", g.node("Exp", size), g.constant(np.float32(stride)))
    return g.node("Concat", centre, extent, axis=2), score


def example() -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(3).random(SHAPE, np.float32)}
