"""Accuracy control: which layers go back to float so that int8 keeps to a bound.

One file whose layers are switched by inputs gives the result of any choice. Where all layers together break the bound, each is measured
alone; they go back in order of harm per multiply-add saved, so many as are needed and no more.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from aotc.errors import InvalidOption
from aotc.ops.interpret import solve_symbols
from aotc.quantisation.calibrate import Feeds, Progress, Running
from aotc.quantisation.insert import SWITCH, switched_network
from aotc.quantisation.recipe import FLOAT, INT8, Recipe
from aotc.quantisation.structure import Network, multiply_adds

Outputs = list[dict[str, np.ndarray]]
"""By batch what the network gave, by name."""
Metric = Callable[[Outputs, Outputs, Sequence[np.ndarray] | None], float]
"""(result, float result, labels by batch) -> a score, the higher the better."""


@dataclass(frozen=True)
class Sensitivity:
    """``sqnr`` is that of the outputs with this layer alone in int8, in dB; ``drop`` what the metric loses; ``multiply_adds`` of one batch."""

    layer: str
    sqnr: float
    drop: float
    multiply_adds: int


@dataclass(frozen=True)
class Search:
    """``recipe`` keeps the bound if ``kept``. ``score`` is the metric's, ``float_score`` that of the float network and ``first_score`` that
    with all layers in int8. ``int8_share`` is the part of all multiply-adds that is int8; ``runs`` how often the data passed."""

    recipe: Recipe
    kept: bool
    float_score: float
    first_score: float
    score: float
    int8_share: float
    sensitivities: tuple[Sensitivity, ...]
    runs: int


def accuracy_control(
    network: Network, recipe: Recipe, batches: Sequence[Feeds], labels: Sequence[np.ndarray] | None, metric: Metric, drop: float, progress: Progress
) -> Search:  # fmt: skip
    """The recipe with as many layers in int8 as ``metric`` allows to lose at most ``drop``."""
    return _Search(network, recipe, batches, labels, metric, drop, progress).run()


class _Search:
    def __init__(
        self, network: Network, recipe: Recipe, batches: Sequence[Feeds], labels: Sequence[np.ndarray] | None, metric: Metric, drop: float,
        progress: Progress,
    ) -> None:  # fmt: skip
        self.network, self.recipe, self.batches, self.labels = network, recipe, batches, labels
        self.metric, self.drop, self.progress = metric, drop, progress
        self.layers = [layer for layer in network.layers if recipe.is_int8(layer.name)]
        sizes = _sizes(network, batches[0])
        self.work = {layer.name: multiply_adds(layer, sizes) for layer in network.layers}
        self.running = Running(switched_network(network, recipe))
        self.runs = 0
        self.float_outputs = self.outputs(())
        self.float_score = self.score(self.float_outputs)

    def run(self) -> Search:
        everything = [layer.name for layer in self.layers]
        first = self.score(self.outputs(everything))
        if self.allowed(first):
            return self.result(everything, first, first, ())
        found = [self.sensitivity(number, layer.name) for number, layer in enumerate(self.layers)]
        order = sorted(found, key=lambda each: -_harm(each))
        low, high, score = 0, len(order), self.float_score  # with the first `high` layers float the bound holds
        while high - low > 1:
            middle = (low + high) // 2
            tried = self.score(self.outputs(self.without(order[:middle])))
            low, high, score = (low, middle, tried) if self.allowed(tried) else (middle, high, score)
        return self.give_back(order, high, first, score, tuple(found))

    def give_back(self, order: Sequence[Sensitivity], count: int, first: float, score: float, found: tuple[Sensitivity, ...]) -> Search:
        """Of the ``count`` layers that are float, those that are not to blame become int8 again, the largest first."""
        floats = {each.layer for each in order[:count]}
        for each in sorted(order[: count - 1], key=lambda each: -each.multiply_adds)[: max(8, count // 2)]:
            chosen = [layer.name for layer in self.layers if layer.name not in floats - {each.layer}]
            tried = self.score(self.outputs(chosen))
            if self.allowed(tried):
                floats, score = floats - {each.layer}, tried
        return self.result([layer.name for layer in self.layers if layer.name not in floats], first, score, found)

    def without(self, floats: Sequence[Sensitivity]) -> list[str]:
        gone = {each.layer for each in floats}
        return [layer.name for layer in self.layers if layer.name not in gone]

    def allowed(self, score: float) -> bool:
        return self.float_score - score <= self.drop + 1e-9

    def sensitivity(self, number: int, name: str) -> Sensitivity:
        self.progress("sensitivity", number + 1, len(self.layers))
        results = self.outputs([name])
        return Sensitivity(name, sqnr(results, self.float_outputs), self.float_score - self.score(results), self.work[name])

    def outputs(self, chosen: Sequence[str]) -> Outputs:
        """With the layers ``chosen`` in int8."""
        self.runs += 1
        names = set(chosen)
        switches = {SWITCH + layer.name: np.float32(layer.name in names) for layer in self.layers}
        return [self.running({**feeds, **{name: np.asarray(value) for name, value in switches.items()}}) for feeds in self.batches]

    def score(self, outputs: Outputs) -> float:
        return float(self.metric(outputs, self.float_outputs, self.labels))

    def result(self, chosen: Sequence[str], first: float, score: float, found: tuple[Sensitivity, ...]) -> Search:
        sensitivity = {each.layer: each for each in found}
        layers = dict(self.recipe.layers)
        for layer in self.layers:
            if layer.name not in chosen:
                each = sensitivity[layer.name]
                layers[layer.name] = replace(
                    layers[layer.name], dtype=FLOAT, reason=f"alone in int8 it leaves {each.sqnr:.1f} dB of the result"
                )
        share = sum(self.work[name] for name in layers if layers[name].dtype == INT8) / max(sum(self.work.values()), 1)
        recipe = replace(self.recipe, layers=layers)
        return Search(recipe, self.allowed(score), self.float_score, first, score, share, found, self.runs)


def _harm(each: Sensitivity) -> float:
    """Noise that a layer makes, relative to the signal, for each multiply-add that it saves."""
    return 10 ** (-each.sqnr / 10) / max(each.multiply_adds, 1)


def _sizes(network: Network, feeds: Feeds) -> dict[str, int]:
    return solve_symbols([(param.name, param.type, np.shape(feeds[param.name])) for param in network.module.main.params])


# Metrics ------------------------------------------------------------------------------------------------------------


def sqnr(results: Outputs, references: Outputs) -> float:
    """Signal to quantisation noise of all float outputs, in dB."""
    signal = noise = 0.0
    for result, reference in zip(results, references, strict=True):
        for name, array in reference.items():
            if array.dtype.kind == "f":
                signal += float(np.square(array, dtype=np.float64).sum())
                noise += float(np.square(array - result[name], dtype=np.float64).sum())
    return 10 * math.log10(max(signal, 1e-300) / max(noise, signal * 1e-20, 1e-300))


def cosine(results: Outputs, references: Outputs, labels: Sequence[np.ndarray] | None = None) -> float:
    """The mean cosine between outputs and those of the float network, by sample."""
    found = []
    for result, reference in zip(results, references, strict=True):
        for name, array in reference.items():
            if array.dtype.kind != "f" or not array.size:
                continue
            rows = array.shape[0] if array.ndim > 1 else 1
            a, b = (each.reshape(rows, -1).astype("float64") for each in (result[name], array))
            norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
            found.append(float(np.mean(np.where(norms > 0, (a * b).sum(axis=1) / np.maximum(norms, 1e-300), 1.0))))
    return float(np.mean(found)) if found else 1.0


def top1(results: Outputs, references: Outputs, labels: Sequence[np.ndarray] | None) -> float:
    """The share of samples whose greatest output, of the first one, is that of the label; without labels that of the float network."""
    right = total = 0
    for number, (result, reference) in enumerate(zip(results, references, strict=True)):
        answer = next(iter(result.values()))
        wanted = next(iter(reference.values())).argmax(axis=-1) if labels is None else np.asarray(labels[number])
        right += int((answer.argmax(axis=-1).reshape(-1) == wanted.reshape(-1)).sum())
        total += wanted.size
    return right / max(total, 1)


METRICS: dict[str, Metric] = {
    "top1": top1,
    "cosine": cosine,
    "sqnr": lambda results, references, labels: 1 - 10 ** (-sqnr(results, references) / 10),
}


def metric_of(text: str) -> Metric:
    """One of ``METRICS``, or the user's ``module:function`` of (outputs, float outputs, labels). Raises InvalidOption."""
    if text in METRICS:
        return METRICS[text]
    module, mark, name = text.rpartition(":")
    if not mark:
        raise InvalidOption(f"the metric {text!r} is not one of {', '.join(METRICS)}, nor module:function")
    found = load_function(text, module, name, "--metric")
    return lambda results, references, labels: float(found(results, references, labels))


def load_function(text: str, module: str, name: str, option: str) -> Callable[..., Any]:
    """A Python function by name, also of a file beside the user. Raises InvalidOption."""
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidOption(f"{option} {text!r} is no Python function that can be imported: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise InvalidOption(f"{option} {text!r} is of {type(found).__name__}; expected a function")
    return cast(Callable[..., Any], found)


def parse_drop(text: str) -> float:
    """``1%``, ``0.01``, or ``20dB`` for noise of a hundredth of the signal. Raises InvalidOption."""
    try:
        if text.lower().endswith("db"):
            return float(10 ** (-float(text[:-2]) / 10))
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InvalidOption(f"--max-drop {text!r} is not a number, a percentage such as 1%, or decibels such as 20dB")
    return value
