"""A recipe applied to a network: quantise and dequantise where values become int8, weights as int8 constants.

Two forms come from one rewriting: the network as the recipe has it, and one in which each layer is switched between float and int8 by an
input, with which a search measures any choice of layers and never builds a second file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import cast

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, Tuple, Var, children, with_children
from aotc.ir.types import TensorType
from aotc.ir.visitor import post_order
from aotc.passes.weights import Weights, array_of
from aotc.quantisation.recipe import INT8, Recipe
from aotc.quantisation.structure import Layer, Network

LARGEST = 127
"""Weights are symmetric: -127 to 127."""
SWITCH = "~int8/"
"""What the names of the inputs that switch layers begin with."""


def quantise_network(network: Network, recipe: Recipe) -> Module:
    """The module with ``dequantise(quantise(x))`` on values and ``dequantise`` of int8 weights, as ``recipe`` says. Outputs of the network
    stay as they are computed."""
    return _Static(network, recipe).module()


def switched_network(network: Network, recipe: Recipe) -> Module:
    """The module with an input ``SWITCH`` + name, float32[], for each layer that is int8 in ``recipe``: 1 makes the layer int8, and the
    values that it wants so, 0 leaves it float. It computes in float what integers would give but for the rounding of sums."""
    return _Switched(network, recipe).module()


def quantise_weight(data: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """(int8 weights, float32 scales that broadcast to them), symmetric, one scale for each channel of ``axis``."""
    others = tuple(i for i in range(data.ndim) if i != axis % data.ndim)
    largest = np.abs(data).max(axis=others, keepdims=True, initial=0)
    scale = np.where(largest > 0, largest / np.float32(LARGEST), np.float32(1)).astype("float32")
    scale = np.maximum(scale, np.finfo("float32").tiny)
    return np.clip(np.rint(data / scale), -LARGEST, LARGEST).astype("int8"), scale


def dequantised(quantised: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    weight, scale = quantised
    return weight.astype("float32") * scale


class _Rewriting:
    def __init__(self, network: Network, recipe: Recipe) -> None:
        self.network, self.recipe = network, recipe
        self.weights = Weights(network.module)
        self.layer_of = {layer.call: layer for layer in network.layers}
        self.new: dict[Expr, Expr] = {}
        self.read: dict[Expr, Expr] = {}

    def module(self) -> Module:
        function = self.network.module.main
        body = function.body
        for node in post_order(body):
            plain = node is body and isinstance(node, Tuple)  # the network's outputs
            below = [self.new[child] if plain else self._value(child) for child in children(node)]
            layer = self.layer_of.get(node) if isinstance(node, Call) else None
            self.new[node] = with_children(node, below) if layer is None else self.layer(layer, below)
        made = Function(self.params(function), self.new[body], function.name, function.primitive, function.origin)
        return self.network.module.with_functions({"main": made})

    def _value(self, node: Expr) -> Expr:
        """``node`` as its users read it."""
        if node not in self.network.roots:
            return self.new[node]
        if node not in self.read:
            self.read[node] = self.value(self.new[node], self.network.roots[node])
        return self.read[node]

    def params(self, function: Function) -> tuple[Var, ...]:
        return function.params

    def value(self, node: Expr, group: int) -> Expr:
        raise NotImplementedError

    def layer(self, layer: Layer, args: list[Expr]) -> Expr:
        raise NotImplementedError

    def quantised(self, node: Expr, group: int) -> Expr:
        """``node`` rounded to int8 and back."""
        how = self.recipe.values[self.network.names[group]]
        scale, zero = Constant(np.asarray(how.scale, "float32")), Constant(np.asarray(how.zero_point, how.dtype))
        origin = getattr(node, "origin", "")
        return ops.dequantise(ops.quantise(node, scale, zero, dtype=how.dtype, origin=origin), scale, zero, origin=origin)

    def shifted(self, layer: Layer, made: Call) -> Expr:
        shift = np.asarray(self.recipe.layers[layer.name].shift, "float32")
        if not shift.size:
            return made
        spatial = cast(TensorType, made.type).rank - 2 if layer.kind == "conv" else 0
        return ops.add(made, Constant(shift.reshape(-1, *[1] * spatial)), origin=made.origin)

    def derived(self, layer: Layer, what: str, compute: Callable[[np.ndarray], np.ndarray]) -> Parameter:
        assert layer.weight is not None
        source = layer.call.args[layer.weight]
        data = array_of(source)
        assert data is not None
        return self.weights.derive([source], what, lambda: compute(data), layer.axis)


class _Static(_Rewriting):
    def __init__(self, network: Network, recipe: Recipe) -> None:
        super().__init__(network, recipe)
        self.active = {group for layer in network.layers if recipe.is_int8(layer.name) for group in layer.groups}

    def value(self, node: Expr, group: int) -> Expr:
        return self.quantised(node, group) if group in self.active else node

    def layer(self, layer: Layer, args: list[Expr]) -> Expr:
        if not self.recipe.is_int8(layer.name):
            return with_children(layer.call, args)
        if layer.weight is not None:
            weight = self.derived(layer, INT8, lambda data: quantise_weight(data, layer.axis)[0])
            scale = self.derived(layer, "scale", lambda data: quantise_weight(data, layer.axis)[1])
            args[layer.weight] = ops.dequantise(weight, scale, origin=layer.call.origin)
        return self.shifted(layer, cast(Call, with_children(layer.call, args)))


class _Switched(_Rewriting):
    def __init__(self, network: Network, recipe: Recipe) -> None:
        super().__init__(network, recipe)
        names = [layer.name for layer in network.layers if recipe.is_int8(layer.name)]
        self.switches: Mapping[str, Var] = {name: Var(SWITCH + name, TensorType((), "float32")) for name in names}

    def params(self, function: Function) -> tuple[Var, ...]:
        return (*function.params, *self.switches.values())

    def value(self, node: Expr, group: int) -> Expr:
        wanting = [layer.name for layer in self.network.layers if group in layer.groups and layer.name in self.switches]
        if not wanting:
            return node
        switch = reduce(ops.maximum, (cast(Expr, self.switches[name]) for name in wanting))
        how = self.recipe.values[self.network.names[group]]
        scale, zero = Constant(np.asarray(how.scale, "float32")), Constant(np.asarray(how.zero_point, how.dtype))
        return ops.fake_quantise(node, scale, zero, switch, origin=getattr(node, "origin", ""))

    def layer(self, layer: Layer, args: list[Expr]) -> Expr:
        plain = with_children(layer.call, args)
        if layer.name not in self.switches or layer.weight is None:
            return plain
        args[layer.weight] = self.derived(layer, "rounded", lambda data: dequantised(quantise_weight(data, layer.axis)))
        rounded = self.shifted(layer, cast(Call, with_children(layer.call, args)))
        return _blend(self.switches[layer.name], rounded, plain)


def _blend(switch: Expr, one: Expr, zero: Expr) -> Expr:
    """``one`` where the switch is 1, ``zero`` where it is 0. As arithmetic it stays in the vectors of the kernel that computes them; a
    condition would not."""
    return ops.add(ops.multiply(zero, ops.subtract(Constant(np.ones((), "float32")), switch)), ops.multiply(one, switch))
