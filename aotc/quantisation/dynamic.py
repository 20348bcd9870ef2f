"""Dynamic quantisation: weights are int8, and each row of what a dense layer reads gets its scale as the network runs.

It needs no calibration data. Layers of few rows are bound by the memory of their weights, of which there is a quarter then.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from aotc import ops
from aotc.errors import InvalidOption
from aotc.ir.expr import Call, Constant, Expr, Module, children, with_children
from aotc.ir.types import TensorType
from aotc.ir.visitor import post_order, with_body
from aotc.passes.weights import Weights, array_of
from aotc.quantisation.insert import LARGEST, quantise_weight
from aotc.quantisation.structure import Layer, Network

LEAST = np.array(1e-30, "float32")
"""A row of zeros gets this scale."""


def quantise_dynamic(network: Network) -> Module:
    """The module with its dense layers in int8. Raises InvalidOption where there are none."""
    layers = {layer.call: layer for layer in network.layers if layer.kind == "dense"}
    if not layers:
        raise InvalidOption("the model has no dense layer: dynamic quantisation is for these; give calibration data for convolutions")
    weights, new = Weights(network.module), dict[Expr, Expr]()
    for node in post_order(network.module.main.body):
        below = [new[child] for child in children(node)]
        layer = layers.get(node) if isinstance(node, Call) else None
        new[node] = with_children(node, below) if layer is None else _dense(layer, below[0], weights)
    return network.module.with_functions({"main": with_body(network.module.main, new[network.module.main.body])})


def _dense(layer: Layer, x: Expr, weights: Weights) -> Expr:
    source = layer.call.args[1]
    data = array_of(source)
    assert data is not None
    origin = layer.call.origin
    weight = weights.derive([source], "int8", lambda: np.ascontiguousarray(quantise_weight(data, 0)[0].T))  # [inputs, outputs]
    by_output = weights.derive([source], "scale", lambda: quantise_weight(data, 0)[1].reshape(-1))
    largest = ops.max_(ops.abs_(x), axes=(cast(TensorType, x.type).rank - 1,), keepdims=True, origin=origin)
    scale = ops.maximum(ops.multiply(largest, Constant(np.array(1 / LARGEST, "float32"))), Constant(LEAST), origin=origin)
    rounded = ops.quantise(x, scale, dtype="int8", origin=origin)
    total = ops.cast(ops.integer_matmul(rounded, weight, origin=origin), dtype="float32", origin=origin)
    return ops.multiply(ops.multiply(total, scale, origin=origin), by_output, origin=origin)
