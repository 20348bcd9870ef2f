"""Runs the IR with the operators' numpy references: slow and right. Constant folding and tests stand on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, Symbol, as_symbol, bounds, evaluate, symbols_of
from aotc.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    Loop,
    Parameter,
    Tuple,
    TupleGetItem,
    Var,
    attributes_of,
    children,
    defined_symbols,
)  # fmt: skip
from aotc.ir.symbols import schedule, symbols_defined
from aotc.ir.types import TensorType, Type, flatten
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


def _run(root: Expr, values: dict[Expr, Value], dims: dict[str, int]) -> Value:
    """The value of ``root``. The body of ``Let`` is entered only with its variable known. Symbols that nodes define join
    ``dims``."""
    for node in _order(root):
        if node not in values:
            values[node] = _evaluate(node, values, dims)
    return values[root]


def _order(root: Expr) -> list[Expr]:
    """As ``schedule``, without what stands in the body of a ``Let``."""
    scheduled = schedule(root)
    if not any(isinstance(node, Let) for node in scheduled):
        return scheduled
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
            below = (node.value,) if isinstance(node, Let) else children(node)
            stack.extend((child, False) for child in reversed(below))
    return order


def _evaluate(node: Expr, values: dict[Expr, Value], dims: dict[str, int]) -> Value:
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
            branch = node.then if bool(values[node.condition]) else node.otherwise
            result = _apply(branch, [values[arg] for arg in node.args], dims)
            _learn(flatten(node.type), _flat(result), defined_symbols(node), dims, node.origin or "if")
            return result
        case Loop():
            return _loop(node, values, dims)
        case Call():
            return evaluate_call(node, [values[arg] for arg in node.args], dims)
        case Var():
            raise InvalidModel(f"the variable {node.name!r} has no value")
        case _:
            raise InvalidModel(f"a {type(node).__name__} has no value of its own")


def _apply(function: Function, args: Sequence[Value], dims: dict[str, int]) -> Value:
    return _run(function.body, dict(zip(function.params, args, strict=True)), dims)


def _loop(loop: Loop, values: Mapping[Expr, Value], dims: dict[str, int]) -> Value:
    carried: list[Value] = [values[each] for each in loop.initial]
    scanned, captured = [values[each] for each in loop.scanned], [values[each] for each in loop.captured]
    going = loop.condition is None or bool(values[loop.condition])
    limit = None if loop.limit is None else evaluate(loop.limit, dims)
    defined = defined_symbols(loop)
    stacked: list[list[np.ndarray]] = [[] for _ in loop.type.fields[len(carried) :]]
    count = 0
    while going and (limit is None or count < limit):
        types = [flatten(param.type)[0] for param in loop.body.params[1 : 1 + len(carried)]]
        _learn(types, carried, defined, dims, loop.origin or "loop")
        for name in symbols_of(loop.iteration) if loop.iteration is not None else ():
            dims[name] = count
        args = [np.asarray(count, "int64"), *carried, *(each[count] for each in scanned), *captured]
        results = _flat(_apply(loop.body, args, dims))
        going = bool(results.pop(0)) if loop.condition is not None else True
        carried = list(results[: len(carried)])
        for rows, row in zip(stacked, results[len(carried) :], strict=True):
            rows.append(row)
        count += 1
    if loop.condition is not None:
        dims.update(dict.fromkeys(symbols_of(loop.trips), count))
    _learn([flatten(field)[0] for field in loop.type.fields[: len(carried)]], carried, defined, dims, loop.origin or "loop")
    return (*carried, *(_stack(rows, field, dims) for rows, field in zip(stacked, loop.type.fields[len(carried) :], strict=True)))


def _stack(rows: Sequence[np.ndarray], type_: Type, dims: Mapping[str, int]) -> np.ndarray:
    tensor = flatten(type_)[0]
    return np.stack(rows) if rows else np.zeros([evaluate(dim, dims) for dim in tensor.shape], tensor.dtype)


def _learn(
    types: Sequence[TensorType], arrays: Sequence[np.ndarray], defined: Mapping[str, Symbol], dims: dict[str, int], where: str
) -> None:
    """Sets the symbols of ``defined`` that stand in ``types`` to what ``arrays`` have there, within their bounds."""
    for type_, array in zip(types, arrays, strict=True):
        for dim, size in zip(type_.shape, np.shape(array), strict=True):
            symbol = as_symbol(dim)
            if symbol is not None and symbol.name in defined:
                _set(symbol, size, dims, where)


def _set(symbol: Symbol, value: int, dims: dict[str, int], where: str) -> None:
    if value < symbol.lower or (symbol.upper is not None and value > symbol.upper):
        raise InvalidModel(f"{where}: {symbol} must be from {symbol.lower} to {symbol.upper}, not {value}")
    dims[symbol.name] = value


def evaluate_call(node: Call, args: Sequence[Value], dims: dict[str, int]) -> Value:
    """The value of one call, given those of its arguments and of the symbols. What it defines joins ``dims``."""
    if isinstance(node.op, Function):
        return _apply(node.op, args, dims)
    assert isinstance(node.op, OpDef)
    for symbol, value in _definitions(node, args):
        _set(symbol, value, dims, node.origin or node.op.name)
    attrs = with_dims(node.attrs, lambda dim: evaluate(dim, dims))
    return node.op.reference(attrs, *args)


def _definitions(node: Call, args: Sequence[Value]) -> list[tuple[Symbol, int]]:
    if not symbols_defined(node):
        return []
    pairs = zip(attributes_of(node).dims, np.ravel(args[0]).tolist(), strict=True)
    return [(symbol, value) for dim, value in pairs if (symbol := as_symbol(dim)) is not None]


def _flat(value: Value) -> list[np.ndarray]:
    return [each for field in value for each in _flat(field)] if isinstance(value, tuple) else [np.asarray(value)]
