"""How long each layer takes in float and in int8, measured here: int8 that is slower is no gain."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aotc import targets
from aotc.compiler import compile as compile_model
from aotc.ir.expr import Module
from aotc.measure.profile import profile
from aotc.quantisation.calibrate import Feeds
from aotc.quantisation.insert import quantise_network
from aotc.quantisation.recipe import FLOAT, INT8, Recipe
from aotc.quantisation.structure import Network

RUNS = 30
SLOWER = 1.1
"""Less of a difference than this is taken for noise."""


@dataclass(frozen=True)
class LayerTime:
    """Microseconds of the kernels that a layer is the anchor of, with one thread: medians."""

    float_us: float
    int8_us: float

    @property
    def is_slower(self) -> bool:
        return self.int8_us > SLOWER * self.float_us > 0


def measure(network: Network, recipe: Recipe, feeds: Feeds) -> dict[str, LayerTime]:
    """By layer the times before and after ``recipe``, both built for this machine."""
    before, after = (_times(network, module, feeds) for module in (network.module, quantise_network(network, recipe)))
    return {name: LayerTime(before[name], after[name]) for name in before.keys() & after.keys()}


def without_slower(recipe: Recipe, times: Mapping[str, LayerTime]) -> Recipe:
    """The recipe with the layers in float that int8 makes slower."""
    layers = dict(recipe.layers)
    for name, each in times.items():
        if layers[name].dtype == INT8 and each.is_slower:
            reason = f"slower here: {each.int8_us:.1f} us in int8, {each.float_us:.1f} in float"
            layers[name] = replace(layers[name], dtype=FLOAT, reason=reason)
    return replace(recipe, layers=layers)


def _times(network: Network, module: Module, feeds: Feeds) -> dict[str, float]:
    layer_of = {layer.call.origin: layer.name for layer in reversed(network.layers) if layer.call.origin}
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="aotc-int8-") as folder:
        output = Path(folder) / "model.so"
        compile_model(module, targets.get("host"), output)
        for step in profile(output, dict(feeds), threads=1, runs=RUNS, measure_peak=False).steps:
            name = layer_of.get(step.name.split(" + ")[0])
            if name is not None:
                found[name] = found.get(name, 0.0) + step.ns / 1000
    return found
