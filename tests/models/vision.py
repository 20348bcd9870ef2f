"""torchvision's classifiers and segmentation networks of fewer than 100 million parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from tests.models.case import Case, Inputs, enliven, settle
from tests.zoo.classifiers import models

LIMIT = 100_000_000
SIDES = {"inception_v3": 96, "alexnet": 96, "vit": 224, "maxvit": 224, "squeezenet": 96}
"""Smallest sides of images that an architecture takes, by the start of its name; all others run at 64."""
ONNX = {
    "alexnet", "squeezenet1_1", "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "shufflenet_v2_x1_0",
    "densenet121", "efficientnet_b0", "efficientnet_v2_s", "mnasnet1_0", "googlenet", "regnet_y_400mf", "regnet_x_400mf", "convnext_tiny",
    "swin_t", "swin_v2_t", "vit_b_32", "resnext50_32x4d", "wide_resnet50_2", "inception_v3", "lraspp_mobilenet_v3_large",
    "deeplabv3_mobilenet_v3_large", "fcn_resnet50",
}  # fmt: skip


class Segmentation(torch.nn.Module):
    """The main output alone, as a tensor."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.network(image)["out"]


class Classifier(torch.nn.Module):
    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.network(image)


def side_of(name: str) -> int:
    return next((side for start, side in SIDES.items() if name.startswith(start)), 64)


def _inputs(side: int) -> Callable[[int], Inputs]:
    return lambda batch: {"image": torch.randn(batch, 3, side, side)}


def _make(name: str, segmentation: bool, side: int) -> torch.nn.Module:
    group = models().segmentation if segmentation else models()
    options = {"weights_backbone": None} if segmentation else {}
    if name in ("googlenet", "inception_v3"):
        options = {"init_weights": True, "aux_logits": False}
    network = getattr(group, name)(weights=None, **options)
    module = (Segmentation if segmentation else Classifier)(network)
    return settle(enliven(module), [{"image": torch.randn(16, 3, side, side)} for _ in range(2)])


def parameters(name: str) -> int:
    """How many parameters torchvision says that a network has."""
    return int(next(iter(models().get_model_weights(name))).meta["num_params"])


def names() -> Iterator[tuple[str, bool]]:
    """(name, whether it segments) of all networks below the limit, the smallest first."""
    zoo = models()
    found = [(name, False) for name in zoo.list_models(module=zoo)]
    found += [(name, True) for name in zoo.list_models(module=zoo.segmentation)]
    sized = sorted((parameters(each[0]), each) for each in found)
    return (each for count, each in sized if count < LIMIT)


def cases() -> list[Case]:
    return [_case(name, segmentation) for name, segmentation in names()]


def _case(name: str, segmentation: bool) -> Case:
    side = side_of(name)
    return Case(
        f"torchvision/{name}", "torchvision", functools.partial(_make, name, segmentation, side), _inputs(side), {"image": {0: "batch"}},
        onnx=name in ONNX,
    )  # fmt: skip
