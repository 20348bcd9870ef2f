"""Writes a small image classifier, an image and the classes' names into a folder: python make_model.py FOLDER

    classifier.onnx   float32 [1, 3, 32, 32] -> "scores" float32 [1, 6]
    image.npy, labels.txt

The weights are random but fixed; the last layer is solved so that the image is a "ring". For networks with real weights see the demo.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

LABELS = ("square", "cross", "ring", "star", "wave", "grid")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    image = ring_image(random)
    weights = {
        "conv1.weight": random.standard_normal((16, 3, 3, 3)) / 5,
        "conv1.bias": random.standard_normal(16) / 10,
        "conv2.weight": random.standard_normal((32, 16, 3, 3)) / 12,
        "conv2.bias": random.standard_normal(32) / 10,
        "fc.weight": random.standard_normal((6, 32)) / 6,
        "fc.bias": np.zeros(6),
    }
    model = classifier(weights)
    # Push each class's logit to where it should be for this image.
    logits = ReferenceEvaluator(model).run(["logits"], {"image": image})[0][0]
    weights["fc.bias"] = np.array([0.5, 1.0, 3.0, 0.0, -0.5, -1.0]) - logits
    onnx.save(classifier(weights), folder / "classifier.onnx")
    np.save(folder / "image.npy", image)
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n")


def ring_image(random: np.random.Generator) -> np.ndarray:
    """A bright ring on noise: float32 [1, 3, 32, 32]."""
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    ring = np.exp(-(((np.hypot(x, y) - 0.6) / 0.1) ** 2))
    return (ring + random.standard_normal((1, 3, 32, 32)) / 10).astype(np.float32)


def classifier(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], "conv1", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "conv2.weight", "conv2.bias"], ["c2"], "conv2", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["logits"], "fc", transB=1),
        helper.make_node("Softmax", ["logits"], ["scores"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 6])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_model.py FOLDER")
    main(Path(sys.argv[1]))
