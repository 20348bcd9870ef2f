"""A small classifier with what quantisers meet: batch norms, several activations, residual sums, a depthwise layer, pools."""

from __future__ import annotations

import torch
from torch import nn

SHAPE = (3, 32, 32)
KINDS = {"residual": nn.ReLU, "mobile": nn.ReLU6, "plain": nn.Hardswish}
"""Activations by kind of network; ``mobile`` has depthwise layers."""


class Block(nn.Module):
    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, groups=width if kind == "mobile" else 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.activation = KINDS[kind]()
        self.second = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(self.activation(self.norm(self.first(x)))))


class Classifier(nn.Module):
    """Ten classes from images [N, 3, 32, 32], with random weights."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.Sequential(Block(kind, 16), Block(kind, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blocks(self.stem(x))
        return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(y, 1), 1))


def classifier(kind: str) -> Classifier:
    """In training mode; its batch norms have seen images."""
    torch.manual_seed(0)
    network = Classifier(kind)
    for seed in range(4):
        network(images(8, seed))
    return network


def images(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))
