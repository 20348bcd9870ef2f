"""Channels of very different size made alike, where the network's function stays the same.

A channel that is a hundred times the others takes the whole range of a tensor's scale, and one that is a hundredth of them rounds to zero.
What makes a value can be divided, channel by channel, and the weights of the layers that read it multiplied by the same factors: so
cross-layer equalisation (Nagel et al., 2019) does it for weights, and SmoothQuant (Xiao et al., 2023) for activations. Factors are powers of
two, so that no number is rounded anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Parameter, Tuple, children, with_children
from aotc.ir.types import TensorType
from aotc.ir.visitor import post_order, users, with_body
from aotc.passes.weights import array_of
from aotc.quantisation.statistics import Statistics
from aotc.quantisation.structure import Layer, Network, analyse

LEAST_FACTOR = 4.0
"""Channels that differ by less stay as they are."""

Change = tuple[int, np.ndarray]
"""(place of the constant operand, what it is multiplied by)"""


def equalisation(network: Network, statistics: Statistics) -> dict[str, tuple[float, ...]]:
    """By the first layer that reads a value the factor by which each of its channels shall be divided."""
    found: dict[str, tuple[float, ...]] = {}
    for readers in _readers(network).values():
        activation = statistics.largest[readers[0].name].astype("float64")
        weights = np.maximum.reduce([np.abs(_by_input(layer)).max(axis=(1, 3)).reshape(-1) for layer in readers]).astype("float64")
        used = (activation > 0) & (weights > 0)
        if not used.any():
            continue
        raw = np.ones_like(activation)
        raw[used] = np.sqrt(activation[used] / weights[used])
        raw[used] /= np.median(raw[used])
        factors = np.where((raw >= LEAST_FACTOR) | (raw <= 1 / LEAST_FACTOR), np.exp2(np.rint(np.log2(raw))), 1.0)
        if (factors != 1).any():
            found[readers[0].name] = tuple(float(each) for each in factors)
    return found


def equalise(network: Network, factors: Mapping[str, tuple[float, ...]]) -> Network:
    """The network with values divided and weights multiplied; the same one without factors."""
    if not factors:
        return network
    changes: dict[Expr, list[Change]] = {}
    for value, readers in _readers(network).items():
        if readers[0].name not in factors:
            continue
        factor = np.asarray(factors[readers[0].name], "float32")
        for layer in readers:
            weight = _by_input(layer)
            scale = np.broadcast_to(factor.reshape(weight.shape[0], 1, weight.shape[2], 1), (*weight.shape[:3], 1))
            rank = cast(TensorType, layer.call.args[1].type).rank
            changes.setdefault(layer.call, []).append((1, scale.reshape(-1, weight.shape[2], *[1] * (rank - 2))))
        for node in _makers(value) or ():
            data = array_of(node.args[1])
            assert data is not None
            shape = (-1, *[1] * (data.ndim - 1))
            changes.setdefault(node, []).append((1, (1 / factor).reshape(shape)))
    return analyse(network.module.with_functions({"main": with_body(network.module.main, _changed(network, changes))}))


def _changed(network: Network, changes: Mapping[Expr, list[Change]]) -> Expr:
    new: dict[Expr, Expr] = {}
    body = network.module.main.body
    for node in post_order(body):
        below = [new[child] for child in children(node)]
        for place, factor in changes.get(node, ()):
            data = array_of(below[place])
            assert data is not None
            scaled = (data * factor).astype("float32")
            old = below[place]
            below[place] = Parameter(f"{old.name}~equalised:{len(new)}", scaled) if isinstance(old, Parameter) else Constant(scaled)
        new[node] = with_children(node, below)
    return new[body]


def _readers(network: Network) -> dict[Expr, list[Layer]]:
    """The values that can be divided channel by channel, with the layers that read them, which are all that do."""
    by_value: dict[Expr, list[Layer]] = {}
    for layer in network.layers:
        if layer.weight is not None and layer.kind in ("conv", "dense"):
            by_value.setdefault(layer.call.args[0], []).append(layer)
    body = network.module.main.body
    uses = users(body)
    results = set(body.fields) if isinstance(body, Tuple) else {body}
    found = {}
    for value, layers in by_value.items():
        makers = _makers(value)
        if makers is None or value in results or len(uses[value]) != len(layers):
            continue
        between = [node for node in _chain(value) if node is not value]
        if all(len(uses[node]) == 1 and node not in results for node in between):
            found[value] = layers
    return found


def _chain(value: Expr) -> list[Call]:
    """``value`` and what stands between it and the layer that makes it: a rectifier, a bias."""
    found: list[Call] = []
    node = value
    while isinstance(node, Call) and (ops.relu.is_call(node) or _is_bias(node)):
        found.append(node)
        node = node.args[0]
    return [*found, node] if isinstance(node, Call) else found


def _is_bias(node: Call) -> bool:
    if not ops.add.is_call(node) or (data := array_of(node.args[1])) is None or not isinstance(node.args[0], Call):
        return False
    made = node.args[0]
    if ops.conv.is_call(made):
        return data.ndim == made.type.rank - 1 and data.shape[0] == made.type.shape[1] and data.size == data.shape[0]  # type: ignore[union-attr]
    return ops.dense.is_call(made) and data.ndim == 1 and data.shape[0] == made.type.shape[-1]  # type: ignore[union-attr]


def _makers(value: Expr) -> list[Call] | None:
    """The calls with a constant per output channel that make ``value``, which scales with them: a layer and its bias. None where it does not."""
    chain = _chain(value)
    if not chain or not (ops.conv.is_call(chain[-1]) or ops.dense.is_call(chain[-1])) or array_of(chain[-1].args[1]) is None:
        return None
    layer_kind = chain[-1].op
    if any(_is_bias(node) and node.args[0] is not chain[-1] for node in chain) or layer_kind not in (ops.conv, ops.dense):
        return None
    return [node for node in chain if not ops.relu.is_call(node)]


def _by_input(layer: Layer) -> np.ndarray:
    """The weights as [groups, outputs of a group, inputs of a group, window]."""
    data = array_of(layer.call.args[1])
    assert data is not None
    groups = int(getattr(cast(Any, layer.call.attrs), "groups", 1))
    return data.reshape(groups, data.shape[0] // groups, data.shape[1], -1)
