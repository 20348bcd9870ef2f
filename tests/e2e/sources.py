"""Whole networks as arguments of ``aotc.compile``, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.zoo import classifiers, efficientnet, light, minilm, ocr, silero


def _efficientnet_torch() -> dict[str, Any]:
    return {"model": efficientnet.module(), "args": (torch.zeros(efficientnet.SHAPE),)}


def _minilm_torch() -> dict[str, Any]:
    args, dynamic_shapes = minilm.torch_arguments()
    return {"model": minilm.module(), "args": args, "dynamic_shapes": dynamic_shapes}


SOURCES: dict[str, Callable[[], dict[str, Any]]] = {
    "efficientnet-torch": _efficientnet_torch,
    "efficientnet-onnx": lambda: {"model": efficientnet.onnx_path()},
    "minilm-torch": _minilm_torch,
    "minilm-onnx": lambda: {"model": minilm.onnx_path()},
    "resnet50-onnx": lambda: {"model": classifiers.onnx_path("resnet50")},
    "mobilenet-torch": lambda: {"model": classifiers.module("mobilenet_v2"), "args": (torch.zeros(classifiers.SHAPE),)},
    "ocr-detection": lambda: {"model": ocr.onnx_path("detection")},
    # its reshapes take for granted that the height is 48
    "ocr-recognition": lambda: {"model": ocr.onnx_path("recognition")},
    "ocr-direction": lambda: {"model": ocr.onnx_path("direction")},
    **{f"silero-{name}": lambda name=name: {"model": silero.onnx_path(name)} for name in silero.FILES},  # type: ignore[misc]
    **{f"light-{name}": lambda name=name: {"model": light.onnx_path(name)} for name in light.NAMES},  # type: ignore[misc]
}
