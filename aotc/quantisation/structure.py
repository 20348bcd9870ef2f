"""What of a network can be int8: its layers, the values they read, and which values share one scale.

A *layer* is a convolution or matrix product with all its arithmetic. A value is quantised where it is made: what only moves elements
(reshapes, maximum pools, concatenations) is looked through, so that regions between layers stay integers, and values that meet in a
concatenation form one *group* with one scale. A group is stored in int8 as soon as one of the layers that demand it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from aotc.errors import InvalidOption
from aotc.ir.dims import evaluate, symbols_of
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, Tuple, Var
from aotc.ir.tap import visible_nodes
from aotc.ir.types import TensorType
from aotc.ir.visitor import users
from aotc.ops.base import Fusion, OpDef

LAYERS = ("conv", "dense", "matmul")
FLOATS = ("conv_transpose", "attention", "lstm", "gru", "rnn")
"""Layers without an integer form."""
MOVES = frozenset({"reshape", "transpose", "slice", "concat", "max_pool", "broadcast_to", "tile", "gather"})
"""They give elements of their first operand (``concat``: of all) unchanged, so integers pass through them."""
LIGHT = frozenset({"mean", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "resize", *MOVES})
"""With elementwise arithmetic: what reads a stored value with little arithmetic of its own. It gains from a value of a quarter of
the bytes."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution or matrix product. ``weight`` is the place of its constant operand, ``axis`` that of the output channels in it;
    ``data`` are the places of the others. ``groups`` are the numbers of the groups that it wants to be int8: those it reads, and
    its result where only light work follows."""

    name: str
    call: Call
    weight: int | None
    axis: int
    data: tuple[int, ...]
    groups: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        return cast(OpDef, self.call.op).name


@dataclass(frozen=True, eq=False)
class Network:
    """``roots`` are the values that may become int8, with the number of their group, ``names`` the names of these by number."""

    module: Module
    layers: tuple[Layer, ...]
    roots: Mapping[Expr, int]
    names: tuple[str, ...]
    left: Mapping[str, str] = field(default_factory=dict)
    """Layers that have no integer form, with the reason."""

    def demanding(self) -> list[list[int]]:
        """By group the numbers of the layers that want it to be int8."""
        found: list[list[int]] = [[] for _ in self.names]
        for number, layer in enumerate(self.layers):
            for group in layer.groups:
                found[group].append(number)
        return found


def analyse(module: Module) -> Network:
    """The layers and values of the entry point ``main`` of a clean module. What stands in loops and branches is left as it is.
    Raises InvalidOption where there is nothing to quantise, or several entry points."""
    if len(module.functions) != 1:
        raise InvalidOption(f"int8 takes one model, not {len(module.functions)} entry points: quantise each alone")
    finder = _Finder(module.main)
    if not finder.layers:
        raise InvalidOption("the model has no convolution or matrix product that could be int8; build it with --precision fp32")
    return finder.network(module)


class _Finder:
    def __init__(self, function: Function) -> None:
        self.nodes = visible_nodes(function)
        self.users = users(function.body)
        self.results = set(function.body.fields) if isinstance(function.body, Tuple) else {function.body}
        self.taken: set[str] = set()
        self.left: dict[str, str] = {}
        self.parent: dict[Expr, Expr] = {}
        self.claimed: set[Expr] = set()
        self.layers = [layer for node in self.nodes if (layer := self._layer(node)) is not None]
        self.wanted = {layer: self._wanted(layer) for layer in self.layers}

    def network(self, module: Module) -> Network:
        found = {self._find(root) for roots in self.wanted.values() for root in roots}
        heads = [node for node in self.nodes if node in found]
        number = {head: i for i, head in enumerate(heads)}
        roots = {root: number[self._find(root)] for root in self.nodes if root in self.parent and self._find(root) in number}
        names = [self._fresh(_name_of(head)) for head in heads]
        layers = [
            Layer(each.name, each.call, each.weight, each.axis, each.data, tuple(dict.fromkeys(roots[r] for r in self.wanted[each])))
            for each in self.layers
        ]
        return Network(module, tuple(layers), roots, tuple(names), self.left)

    def _layer(self, node: Expr) -> Layer | None:
        if not _is_operator(node):
            return None
        call_ = cast(Call, node)
        name = cast(OpDef, call_.op).name
        if name in FLOATS:
            self.left[self._fresh(_name_of(node))] = f"{name} has no integer form"
        if name not in LAYERS or _dtype(node) != "float32":
            return None
        constant = [i for i, arg in enumerate(call_.args) if isinstance(arg, (Constant, Parameter))]
        if constant not in ([], [1]) or (name != "matmul" and not constant):
            self.left[self._fresh(_name_of(node))] = "its weights are computed"
            return None
        weight = 1 if constant else None
        data = tuple(i for i in range(len(call_.args)) if i != weight)
        return Layer(self._fresh(_name_of(node)), call_, weight, -1 if name == "matmul" else 0, data)

    def _wanted(self, layer: Layer) -> list[Expr]:
        """The roots that the layer wants in int8."""
        found = [root for place in layer.data for root in self._roots(layer.call.args[place])]
        end = self._end(layer.call)
        if end not in self.results and any(self._is_light(user, end) for user in self.users[end]):
            found += self._roots(end)
        return found

    def _end(self, node: Expr) -> Expr:
        """The last of the elementwise calls behind a layer that one kernel computes with it; the first layer claims what two could."""
        while node not in self.results and len(self.users[node]) == 1:
            (user,) = self.users[node]
            if user in self.claimed or not _is_elementwise(user) or _shape(user) != _shape(node):
                return node
            self.claimed.add(user)
            node = user
        return node

    def _is_light(self, user: Expr, value: Expr) -> bool:
        if not _is_operator(user):
            return False
        same = _shape(user) == _shape(value)
        return cast(OpDef, cast(Call, user).op).name in LIGHT or (_is_elementwise(user) and same and len(_activations(user)) == 2)

    def _roots(self, value: Expr) -> list[Expr]:
        """Where the elements of ``value`` come from; what a concatenation joins becomes one group."""
        found: list[Expr] = []
        stack = [value]
        while stack:
            node = stack.pop()
            moved = moved_operands(node)
            if moved:
                stack.extend(reversed(moved))
            elif node not in found and not isinstance(node, (Constant, Parameter)):
                found.append(node)
        for root in found:
            self.parent.setdefault(root, root)
            self.parent[self._find(root)] = self._find(found[0])
        return found

    def _find(self, root: Expr) -> Expr:
        while self.parent[root] is not root:
            root = self.parent[root]
        return root

    def _fresh(self, base: str) -> str:
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}:{count}"
        self.taken.add(name)
        return name


def moved_operands(node: Expr) -> list[Expr]:
    """The operands whose elements ``node`` gives unchanged, none where it computes."""
    if not _is_operator(node) or _dtype(node) != "float32":
        return []
    call_ = cast(Call, node)
    name, attrs = cast(OpDef, call_.op).name, cast(Any, call_.attrs)
    if name == "pad" and (attrs.mode != "constant" or attrs.value == 0):
        return [call_.args[0]]
    if name == "resize" and attrs.mode == "nearest" and attrs.coordinate != "tf_crop_and_resize":
        return [call_.args[0]]
    if name not in MOVES or isinstance(call_.args[0], (Constant, Parameter)):
        return []
    return list(call_.args) if name == "concat" else [call_.args[0]]


def channel_axis(layer: Layer) -> int:
    """The axis of the input channels in a layer's data."""
    return 1 if layer.kind == "conv" else -1


def multiply_adds(layer: Layer, sizes: Mapping[str, int]) -> int:
    """Products that a layer sums up, with ``sizes`` of symbolic dims (1 where unknown)."""

    def size(shape: Iterable[Any]) -> int:
        return int(np.prod([evaluate(dim, {**dict.fromkeys(symbols_of(dim), 1), **sizes}) for dim in shape], dtype=np.int64))

    result = cast(TensorType, layer.call.type).shape
    if layer.kind == "conv":
        return size(result) * size(cast(TensorType, layer.call.args[1].type).shape[1:])
    return size(result) * size(cast(TensorType, layer.call.args[0].type).shape[-1:])


def _activations(node: Expr) -> list[Expr]:
    return [arg for arg in cast(Call, node).args if not isinstance(arg, (Constant, Parameter)) and _dtype(arg) == "float32"]


def _is_operator(node: Expr) -> bool:
    return isinstance(node, Call) and isinstance(node.op, OpDef)


def _is_elementwise(node: Expr) -> bool:
    return _is_operator(node) and cast(OpDef, cast(Call, node).op).fusion <= Fusion.BROADCAST


def _name_of(node: Expr) -> str:
    if isinstance(node, (Var, Parameter)):
        return node.name
    return getattr(node, "origin", "") or (cast(OpDef, node.op).name if _is_operator(node) else type(node).__name__.lower())  # type: ignore[union-attr]


def _dtype(node: Expr) -> str:
    return node.type.dtype if isinstance(node.type, TensorType) else ""


def _shape(node: Expr) -> Any:
    return node.type.shape if isinstance(node.type, TensorType) else None
