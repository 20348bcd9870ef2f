"""Dense layers of one input, such as the query, key and value of attention, become one matrix product.

A GPU starts one kernel instead of several, with more blocks to share out. The results lie one after the other in the product, so each
is a view of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, children, with_children
from aotc.ir.types import FLOATS, TensorType
from aotc.ir.visitor import map_functions, post_order, users, with_body
from aotc.passes.options import Options
from aotc.passes.weights import Weights, array_of

Array = Constant | Parameter


@dataclass(frozen=True)
class _Layer:
    """``root`` is the layer with its bias, if it has one."""

    root: Call
    x: Expr
    weight: Expr
    bias: Expr | None


def merge_products(module: Module, options: Options) -> Module:
    """Layers whose weights are constant and of one shape, and that all have a bias or none."""
    if not options.merge_products:
        return module
    weights = Weights(module)
    return map_functions(module, lambda function: _merged(function, weights))


def _merged(function: Function, weights: Weights) -> Function:
    uses = users(function.body)
    groups: dict[tuple[object, ...], list[_Layer]] = {}
    order = post_order(function.body)
    for node in order:
        layer = _layer(node, uses)
        if layer is not None:
            shape = cast(TensorType, layer.weight.type).shape
            groups.setdefault((layer.x, shape, layer.bias is None), []).append(layer)
    together = {layer.root: group for group in groups.values() if len(group) > 1 for layer in group}
    if not together:
        return function
    new: dict[Expr, Expr] = {}
    products: dict[Expr, Expr] = {}
    for node in order:
        group = together.get(cast(Call, node))
        if group is None:
            new[node] = with_children(node, [new[child] for child in children(node)])
            continue
        first = group[0].root
        if first not in products:
            products[first] = _product(new[group[0].x], group, weights)
        new[node] = _part(products[first], [layer.root for layer in group].index(cast(Call, node)), cast(Call, node))
    return with_body(function, new[function.body])


def _layer(node: Expr, uses: dict[Expr, list[Expr]]) -> _Layer | None:
    if not isinstance(node, Call) or not ops.dense.is_call(node):
        return None
    x, weight = node.args
    data, type_ = array_of(weight), cast(TensorType, x.type)
    if data is None or str(data.dtype) not in FLOATS or not data.size or type_.rank < 2 or all(dim == 1 for dim in type_.shape[:-1]):
        return None
    readers = uses[node]
    if len(readers) == 1 and ops.add.is_call(readers[0]):
        add = cast(Call, readers[0])
        bias = next((arg for arg in add.args if arg is not node), node)
        values = array_of(bias)
        if values is not None and values.shape == data.shape[:1]:
            return _Layer(add, x, weight, bias)
    return _Layer(node, x, weight, None)


def _product(x: Expr, group: list[_Layer], weights: Weights) -> Expr:
    """[layers, *rows, outputs]."""
    rank, origin = cast(TensorType, x.type).rank, group[0].root.origin
    outputs, inputs = cast(np.ndarray, array_of(group[0].weight)).shape
    ones = (1,) * (rank - 2)

    def stacked(sources: list[Expr], shape: tuple[int, ...], transposed: bool) -> Parameter:
        arrays = [cast(np.ndarray, array_of(source)) for source in sources]
        return weights.derive(sources, "stacked", lambda: np.stack([a.T if transposed else a for a in arrays]).reshape(shape), (shape,))

    weight = stacked([layer.weight for layer in group], (len(group), *ones, inputs, outputs), True)
    product: Expr = ops.matmul(x, weight, origin=origin)
    if group[0].bias is None:
        return product
    biases = stacked([cast(Expr, layer.bias) for layer in group], (len(group), *ones, 1, outputs), False)
    return ops.add(product, biases, origin=origin)


def _part(product: Expr, index: int, layer: Call) -> Expr:
    shape = cast(TensorType, product.type).shape
    begins, ends = (index, *(0 for _ in shape[1:])), (index + 1, *shape[1:])
    part = ops.slice_(product, begins=begins, ends=ends, steps=(1,) * len(shape), origin=layer.origin)
    return ops.reshape(part, shape=shape[1:], origin=layer.origin)
