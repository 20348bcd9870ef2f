"""Real classifiers with random weights against torch, with any batch and at a small image size."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from tests.frontends.torch.check import check, operators

pytest.importorskip("tests.zoo.classifiers")


@pytest.mark.parametrize("name,convolutions", [("resnet18", 20), ("mobilenet_v2", 52), ("shufflenet_v2_x0_5", 56)])
def test_classifier(name: str, convolutions: int) -> None:
    from tests.zoo.classifiers import module

    imported = check(module(name), (torch.randn(2, 3, 64, 64),), ({0: Dim("batch")},), [(torch.randn(1, 3, 64, 64),)], rtol=1e-5)
    assert operators(imported).count("conv") == convolutions
    assert operators(imported).count("batch_norm") == convolutions
