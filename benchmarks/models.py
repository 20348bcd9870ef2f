"""The networks that are measured, as ONNX files with one fixed set of inputs each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.zoo import classifiers, efficientnet, images, minilm


@dataclass(frozen=True)
class Model:
    """``inputs`` fixes dims for the build, as ``aotc.compile`` takes them."""

    name: str
    path: Callable[[], Path]
    feeds: Callable[[], dict[str, np.ndarray]]
    note: str = ""


def _picture() -> dict[str, np.ndarray]:
    return {"x": images.prepare(images.paths()[0])}


def _noise() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)}


MODELS = {
    model.name: model
    for model in (
        Model("resnet50", lambda: classifiers.onnx_path("resnet50"), _noise, "1x3x224x224, seeded random weights"),
        Model("mobilenet_v2", lambda: classifiers.onnx_path("mobilenet_v2"), _noise, "1x3x224x224, seeded random weights"),
        Model("efficientnet_lite0", efficientnet.onnx_path, _picture, "1x3x224x224, ImageNet weights"),
        Model(
            "minilm_l6", minilm.onnx_path, lambda: minilm.example(1, 128), "1 x 128 tokens, real weights, built for any batch and length"
        ),
    )
}
