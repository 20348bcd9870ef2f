"""All recipes by ATen operator. torch's decompositions are applied to every operator that is not in here."""

from __future__ import annotations

from typing import Any

from aotc.frontends.torch import (
    activation,
    convolution,
    creation,
    dynamic,
    indexing,
    linear,
    normalisation,
    pointwise,
    recurrent,
    reduction,
    sampling,
    views,
)  # fmt: skip
from aotc.frontends.torch.builder import Recipe


def _join(*families: dict[Any, Recipe]) -> dict[Any, Recipe]:
    joined: dict[Any, Recipe] = {}
    for family in families:
        for operator, recipe in family.items():
            if operator in joined:
                raise ValueError(f"two recipes for {operator}")
            joined[operator] = recipe
    return joined


RECIPES: dict[Any, Recipe] = _join(
    pointwise.RECIPES,
    activation.RECIPES,
    linear.RECIPES,
    recurrent.RECIPES,
    convolution.RECIPES,
    normalisation.RECIPES,
    reduction.RECIPES,
    views.RECIPES,
    indexing.RECIPES,
    creation.RECIPES,
    dynamic.RECIPES,
    sampling.RECIPES,
)
