"""A float network in int8: calibration, bias correction, accuracy control. docs/int8.md tells how it is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aotc.errors import InvalidOption
from aotc.ir.expr import Module
from aotc.passes.options import Options
from aotc.passes.pipeline import CLEAN, run_passes
from aotc.quantisation.accuracy import Search, accuracy_control, metric_of, parse_drop
from aotc.quantisation.bias import correct_bias
from aotc.quantisation.calibrate import Feeds, Progress, calibrate, make_recipe
from aotc.quantisation.dynamic import quantise_dynamic
from aotc.quantisation.equalise import equalisation, equalise
from aotc.quantisation.insert import quantise_network
from aotc.quantisation.observers import check_observer
from aotc.quantisation.recipe import FLOAT, INT8, LayerRecipe, Recipe, read_recipe
from aotc.quantisation.statistics import Statistics
from aotc.quantisation.structure import Network, analyse
from aotc.quantisation.timing import LayerTime, measure, without_slower

DYNAMIC = "dynamic"
"""Instead of calibration data: dense layers find their scales as they run."""
LABELS = "labels"
"""The member of a batch that holds the right answers and is no input."""


@dataclass(frozen=True)
class Int8Options:
    """How a network becomes int8.

    ``observer``: minmax, percentile, entropy, mse, or auto, which takes for each value the one with the least error. ``max_drop``: what the
    ``metric`` may lose, as a number or such as ``"1%"`` or ``"30dB"``; layers go back to float until it holds. ``metric``: ``top1`` (with labels, else
    agreement with float), ``cosine``, ``sqnr`` (1 less noise over signal), or ``module:function`` of (outputs, float outputs, labels); by default ``top1`` where
    there are labels, else ``cosine``. ``equalise``: channels of very different size are made alike where that leaves the network's
    function as it is. ``bias_correction``: the mean error of rounded weights is taken off. ``timing``: each layer is timed on this machine, in
    float and in int8, and stays float where int8 is slower.
    """

    observer: str = "auto"
    max_drop: str | float | None = None
    metric: str | None = None
    equalise: bool = True
    bias_correction: bool = True
    timing: bool = False


@dataclass(frozen=True)
class Samples:
    """Calibration data: ``batches`` makes an iterator over them each time it is called. ``identity`` names their content, for the cache of
    statistics; ``count`` is how many there are, 0 where that is not known."""

    batches: Callable[[], Iterable[Feeds]]
    identity: str = ""
    count: int = 0


@dataclass(frozen=True)
class Quantised:
    """``module`` has quantise and dequantise nodes; ``statistics`` and ``search`` are None where they were not needed."""

    module: Module
    network: Network
    recipe: Recipe
    statistics: Statistics | None = None
    search: Search | None = None
    times: Mapping[str, LayerTime] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """What became int8, and what did not, for people."""
        floats = [(name, each.reason) for name, each in self.recipe.layers.items() if each.dtype != INT8]
        found = [f"int8: {len(self.recipe.layers) - len(floats)} of {len(self.recipe.layers)} layers"]
        if self.search is not None:
            found[0] += f", {self.search.int8_share:.0%} of the multiply-adds"
            score = (
                f"{self.search.score:.4g} instead of {self.search.float_score:.4g} in float, {self.search.first_score:.4g} with all in int8"
            )
            found.append(f"int8: the metric is {score}" + ("" if self.search.kept else ": the bound cannot be kept"))
        shown = "; ".join(f"{name} ({reason or 'as the recipe says'})" for name, reason in floats[:3])
        more = f"; and {len(floats) - 3} more" if len(floats) > 3 else ""
        return (*found, f"int8: float stay {shown}{more}") if floats else tuple(found)


def quantise(module: Module, calibration: Any, options: Int8Options | None = None, progress: Progress | None = None) -> Quantised:
    """``module``, as it was imported, in int8.

    ``calibration`` is a sequence of batches (an array for each input by name; ``labels`` beside them are the right answers), a function that
    returns an iterable of them, ``Samples``, or a recipe or the path of one, with which nothing is run; or ``DYNAMIC``. Raises InvalidOption for data that do not
    fit, UnsupportedModel or BuildError as a build does.
    """
    options, progress = options or Int8Options(), progress or (lambda stage, done, total: None)
    check_observer(options.observer)
    clean = run_passes(module, CLEAN, Options())
    if isinstance(calibration, str) and calibration == DYNAMIC:
        return _dynamic(analyse(clean))
    recipe = (
        calibration
        if isinstance(calibration, Recipe)
        else read_recipe(calibration)
        if isinstance(calibration, (str, os.PathLike))
        else None
    )
    if recipe is not None and recipe.facts.get("calibration") == DYNAMIC:
        return _dynamic(analyse(clean))
    if recipe is not None:
        network = equalise(analyse(clean), recipe.equalised)
        _check(network, recipe)
        return Quantised(quantise_network(network, recipe), network, recipe)
    samples = samples_of(calibration)
    network, recipe, statistics = _calibrated(analyse(clean), samples, options, progress)
    search = None
    if options.max_drop is not None:
        search = _controlled(network, recipe, samples, options, progress)
        recipe = search.recipe
    times = {}
    if options.timing:
        progress("time", 0, 1)
        times = measure(network, recipe, _first(network, samples))
        recipe = without_slower(recipe, times)
    return Quantised(quantise_network(network, recipe), network, recipe, statistics, search, times)


def _first(network: Network, samples: Samples) -> Feeds:
    return _inputs(next(iter(samples.batches())), {param.name for param in network.module.main.params})


def _dynamic(network: Network) -> Quantised:
    layers = {
        each.name: LayerRecipe() if each.kind == "dense" else LayerRecipe(FLOAT, "dynamic quantisation is for dense layers")
        for each in network.layers
    }
    layers |= {name: LayerRecipe(FLOAT, reason) for name, reason in network.left.items()}
    return Quantised(quantise_dynamic(network), network, Recipe({}, layers, {}, {"calibration": DYNAMIC}))


def _calibrated(network: Network, samples: Samples, options: Int8Options, progress: Progress) -> tuple[Network, Recipe, Statistics]:
    inputs = {param.name for param in network.module.main.params}

    def batches() -> Iterable[Feeds]:
        return (_inputs(batch, inputs) for batch in samples.batches())

    statistics = calibrate(network, batches(), progress, samples.identity, samples.count)
    factors: dict[str, tuple[float, ...]] = {}
    if options.equalise and (factors := equalisation(network, statistics)):
        network = equalise(network, factors)
        statistics = calibrate(network, batches(), progress, samples.identity, samples.count)
    recipe = make_recipe(network, statistics, options.observer, factors, {"batches": statistics.samples})
    if options.bias_correction:
        recipe = correct_bias(network, recipe, statistics)
    return network, recipe, statistics


def _controlled(network: Network, recipe: Recipe, samples: Samples, options: Int8Options, progress: Progress) -> Search:
    inputs = {param.name for param in network.module.main.params}
    batches = list(samples.batches())
    labelled = all(LABELS in batch for batch in batches) and LABELS not in inputs
    labels = [np.asarray(batch[LABELS]) for batch in batches] if labelled else None
    drop = parse_drop(options.max_drop) if isinstance(options.max_drop, str) else float(options.max_drop or 0)
    metric = metric_of(options.metric or ("top1" if labelled else "cosine"))
    return accuracy_control(network, recipe, [_inputs(batch, inputs) for batch in batches], labels, metric, drop, progress)


def _inputs(batch: Feeds, inputs: set[str]) -> Feeds:
    if not isinstance(batch, dict) or not inputs <= batch.keys():
        given = ", ".join(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        raise InvalidOption(f"a batch of the calibration data has {given}; expected an array for each input: {', '.join(sorted(inputs))}")
    return {name: np.asarray(batch[name]) for name in inputs}


def samples_of(data: Any) -> Samples:
    """Raises InvalidOption for what is neither batches nor a function that returns them."""
    if isinstance(data, Samples):
        return data
    if callable(data):
        return Samples(data)
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return Samples(lambda: data, count=len(data))
    raise InvalidOption(
        f"calibration is {type(data).__name__}; expected a list of batches (dicts of an array for each input), a function that returns an "
        "iterable of them, or the path of a recipe"
    )


def _check(network: Network, recipe: Recipe) -> None:
    """That a recipe is of this network."""
    known = {layer.name for layer in network.layers}
    missing = [*(known - recipe.layers.keys()), *(set(network.names) - recipe.values.keys())]
    if missing:
        raise InvalidOption(
            f"the recipe has nothing on {', '.join(sorted(missing)[:3])}: it was made for another model; run `aotc quantize` again"
        )
