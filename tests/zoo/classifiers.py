"""torchvision's classifiers with seeded random weights and settled BatchNorm statistics."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import torch

from tests.zoo.cache import derived
from tests.zoo.export import export_onnx

SHAPE = (1, 3, 224, 224)


@functools.cache
def models() -> Any:
    """torchvision.models. Its compiled operators do not load beside a CPU build of torch; then the two that importing it expects are
    declared here, which no classifier uses."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

        torchvision._declared_operators = library  # the declarations live as long as this object
    return torchvision.models


def _settle(network: torch.nn.Module) -> None:
    """Takes BatchNorm statistics from random batches: with the defaults, activations of deep networks fade to 1e-14."""
    norms = [layer for layer in network.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    network.train()
    for layer in network.modules():
        if type(layer).__name__ in ("Dropout", "StochasticDepth"):
            layer.eval()
    with torch.no_grad():
        for _ in range(2):
            network(torch.randn(4, *SHAPE[1:]))


def module(name: str) -> torch.nn.Module:
    """``name`` of torchvision.models in evaluation mode, e.g. resnet50 or mobilenet_v2."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: torch.nn.Module = getattr(models(), name)(weights=None)
        _settle(network)
    return network.eval()


def onnx_path(name: str) -> Path:
    """The ONNX export: input ``x`` of ``SHAPE``, output ``y``."""
    return derived(
        f"{name}.onnx",
        lambda path: export_onnx(module(name), (torch.zeros(SHAPE),), path, ["x"], ["y"]),
        "classifiers",
        "export",
    )
