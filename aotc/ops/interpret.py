"""Runs the IR with the operators' numpy references: slow and right. Constant folding and tests stand on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, bounds, evaluate, symbols_of
from aotc.ir.expr import Call, Constant, Expr, Function, If, Let, Parameter, Tuple, TupleGetItem, Var
from aotc.ir.types import TensorType
from aotc.ir.visitor import post_order
from aotc.ops.base import OpDef
from aotc.ops.bind import solve_linear
from aotc.ops.shape_values import with_dims

Value = Any
"""An array, or a tuple of values."""


def interpret(function: Function, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of ``function``, tuples flattened. Raises InvalidModel where an array does not fit its parameter."""
    if len(arrays) != len(function.params):
        raise InvalidModel(f"{function.name or 'the function'} takes {len(function.params)} arrays, not {len(arrays)}")
    dims = solve_symbols([(param.name, param.type, array.shape) for param, array in zip(function.params, arrays, strict=True)])
    for param, array in zip(function.params, arrays, strict=True):
        if isinstance(param.type, TensorType) and str(array.dtype) != param.type.dtype:
            raise InvalidModel(f"input {param.name!r} is {param.type.dtype}, not {array.dtype}")
    return _flat(_run(function.body, dict(zip(function.params, arrays, strict=True)), dims))


def solve_symbols(shapes: Sequence[tuple[str, Any, tuple[int, ...]]]) -> dict[str, int]:
    """The symbols' values from (input name, type, actual shape). Dims that are one symbol define it, or a multiple of
    it plus a constant; every other dim is checked. Raises InvalidModel where a shape does not fit."""
    pairs = [(name, axis, dim, size) for name, type_, shape in shapes for axis, (dim, size) in enumerate(_zip_shape(name, type_, shape))]
    values: dict[str, int] = {}
    for _, _, dim, size in pairs:
        solved = solve_linear(dim, size)
        if solved is not None and solved[0] not in values and isinstance(solved[1], int):
            values[solved[0]] = solved[1]
    for name, axis, dim, size in pairs:
        missing = [symbol for symbol in symbols_of(dim) if symbol not in values]
        if missing and len(symbols_of(dim)) == 1 and solve_linear(dim, evaluate(dim, {missing[0]: 1})) is not None:
            raise InvalidModel(f"input {name!r}: axis {axis} must be {dim}, which is {size} for no {missing[0]}")
        if missing:
            raise InvalidModel(f"input {name!r}: the symbol {missing[0]} of {dim} cannot be found from any input's shape")
        if evaluate(dim, values) != size:
            raise InvalidModel(f"input {name!r}: axis {axis} must be {dim} = {evaluate(dim, values)}, not {size}")
        low, high = bounds(dim)
        if (low is not None and size < low) or (high is not None and size > high):
            raise InvalidModel(f"input {name!r}: axis {axis} must be from {low} to {high}, not {size}")
    return values


def _zip_shape(name: str, type_: Any, shape: tuple[int, ...]) -> list[tuple[Dim, int]]:
    if not isinstance(type_, TensorType) or type_.rank != len(shape):
        raise InvalidModel(f"input {name!r} is {type_}, not of shape {list(shape)}")
    return list(zip(type_.shape, shape, strict=True))


def _run(root: Expr, values: dict[Expr, Value], dims: Mapping[str, int]) -> Value:
    """The value of ``root``. A branch of ``If`` and the body of ``Let`` are entered only with their variables known."""
    entered = [node for node in post_order_outside_scopes(root) if node not in values]
    for node in entered:
        values[node] = _evaluate(node, values, dims)
    return values[root]


def post_order_outside_scopes(root: Expr) -> list[Expr]:
    """As ``post_order``, without what stands in the branches of an ``If`` and the body of a ``Let``."""
    scoped = [node for node in post_order(root) if isinstance(node, (If, Let))]
    if not scoped:
        return post_order(root)
    order: list[Expr] = []
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(_outside(node)))
    return order


def _outside(node: Expr) -> tuple[Expr, ...]:
    match node:
        case Call():
            return node.args
        case Tuple():
            return node.fields
        case TupleGetItem() | Let():
            return (node.value,)
        case If():
            return (node.condition,)
        case _:
            return ()


def _evaluate(node: Expr, values: dict[Expr, Value], dims: Mapping[str, int]) -> Value:
    match node:
        case Constant() | Parameter():
            return node.data
        case Tuple():
            return tuple(values[field] for field in node.fields)
        case TupleGetItem():
            return values[node.value][node.index]
        case Let():
            return _run(node.body, {**values, node.var: values[node.value]}, dims)
        case If():
            return _run(node.then if bool(values[node.condition]) else node.otherwise, dict(values), dims)
        case Call():
            return evaluate_call(node, [values[arg] for arg in node.args], dims)
        case Var():
            raise InvalidModel(f"the variable {node.name!r} has no value")
        case _:
            raise InvalidModel(f"a {type(node).__name__} has no value of its own")


def evaluate_call(node: Call, args: Sequence[Value], dims: Mapping[str, int]) -> Value:
    """The value of one call, given those of its arguments and of the symbols."""
    if isinstance(node.op, Function):
        return _run(node.op.body, dict(zip(node.op.params, args, strict=True)), dims)
    assert isinstance(node.op, OpDef)
    attrs = with_dims(node.attrs, lambda dim: evaluate(dim, dims))
    return node.op.reference(attrs, *args)


def _flat(value: Value) -> list[np.ndarray]:
    return [each for field in value for each in _flat(field)] if isinstance(value, tuple) else [np.asarray(value)]
