"""Bias correction: what rounded weights add to the mean of each output channel is taken off again.

After Nagel et al. (Data-free quantization through weight equalization and bias correction, 2019), with the means that calibration saw.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aotc.passes.weights import array_of
from aotc.quantisation.insert import dequantised, quantise_weight
from aotc.quantisation.recipe import Recipe
from aotc.quantisation.statistics import Statistics
from aotc.quantisation.structure import Layer, Network


def correct_bias(network: Network, recipe: Recipe, statistics: Statistics) -> Recipe:
    """The recipe with the shift of each layer that is int8. Padding counts as if it had the mean of its channel."""
    layers = dict(recipe.layers)
    for layer in network.layers:
        mean = statistics.mean(layer.name)
        if layer.weight is not None and recipe.is_int8(layer.name) and mean is not None:
            shift = -_mean_error(layer, mean)
            if np.abs(shift).max() > 0:
                layers[layer.name] = replace(layers[layer.name], shift=tuple(float(np.float32(each)) for each in shift))
    return replace(recipe, layers=layers)


def _mean_error(layer: Layer, mean: np.ndarray) -> np.ndarray:
    """By output channel the mean of what rounding the weights adds."""
    assert layer.weight is not None
    weight = array_of(layer.call.args[layer.weight])
    assert weight is not None
    error = dequantised(quantise_weight(weight, layer.axis)).astype("float64") - weight
    if layer.kind == "matmul":
        return np.asarray(mean @ error.reshape(-1, error.shape[-1])) if error.ndim == 2 else np.zeros(1)
    per_input = error.reshape(*error.shape[:2], -1).sum(axis=2)  # [outputs, inputs of a group]
    groups = len(mean) // per_input.shape[1]
    means = np.repeat(mean.reshape(groups, -1), len(per_input) // groups, axis=0)
    return np.asarray((per_input * means).sum(axis=1))
