"""Shapes that the model computes with tensors become dims: Shape -> Gather -> Mul -> Concat and the like are solved."""

from __future__ import annotations

import numpy as np

from aotc import ops
from aotc.ir.dims import Dim, DimExpr, Symbol, as_symbol, bounds, symbols_of
from aotc.ir.expr import Call, Constant, Expr, Function, Module, attributes_of
from aotc.ir.symbols import is_planned
from aotc.ir.types import INTEGERS, TensorType
from aotc.ir.visitor import all_functions, calls_of, rewrite_module
from aotc.ops.bind import bind_dims
from aotc.ops.shape_values import value_of
from aotc.passes.options import Options

COUNTABLE = 2**31 - 1  # an upper bound of this says no more than that sizes can be counted
SOLVED_ALREADY = ("dims", "full", "arange", "define_dims", "check_dims", "anchor")


def solve_shapes(module: Module, options: Options) -> Module:
    """Integer and boolean tensors whose value is known as dims at compile time become constants, or ``dims`` where
    symbols remain. A symbol whose definition turns out to be known so is replaced everywhere."""
    while True:
        module = rewrite_module(module, _solve)
        known = _known_symbols(module)
        if not known:
            return module
        module = bind_dims(module, known)


def _known_symbols(module: Module) -> dict[str, Dim]:
    """What the symbols are that ``define_dims`` takes from values known at compile time."""
    known: dict[str, Dim] = {}
    for function in all_functions(module):
        for node in calls_of(function.body, ["define_dims"]):
            value = value_of(node.args[0])
            for dim, each in zip(attributes_of(node).dims, [] if value is None else value.ravel().tolist(), strict=False):
                symbol = as_symbol(dim)
                if symbol is not None and symbol.name not in symbols_of(each) and not _is_check(symbol, each):
                    known[symbol.name] = each
            # A symbol by itself among the dims is defined there: so another one may stand there only if the whole node goes.
            left = [dim for dim in attributes_of(node).dims if as_symbol(dim) is not None and str(dim) not in known]
            if left:
                known = {name: each for name, each in known.items() if as_symbol(each) is None or not _stands_in(name, node)}
        if known:
            break  # one function at a time: a value may mention symbols that were just found
    return known


def _stands_in(name: str, node: Call) -> bool:
    return name in symbols_of(*attributes_of(node).dims)


def _is_check(symbol: Symbol, value: Dim) -> bool:
    """Whether the symbol's bounds say something of ``value`` that must be checked when the model runs."""
    low, high = bounds(value)
    below = symbol.lower > 1 and (low is None or low < symbol.lower)
    above = symbol.upper is not None and symbol.upper < COUNTABLE and (high is None or high > symbol.upper)
    outside = (high is not None and high < symbol.lower) or (symbol.upper is not None and low is not None and low > symbol.upper)
    return below or above or outside


def _solve(node: Expr) -> Expr | None:
    if ops.define_dims.is_call(node):
        value = value_of(node.args[0])  # type: ignore[union-attr]
        return node.args[0] if value is not None and value.ravel().tolist() == list(attributes_of(node).dims) else None  # type: ignore[union-attr]
    if ops.anchor.is_call(node):
        first, *definers = node.args  # type: ignore[union-attr]
        kept = [each for each in definers if is_planned(each)]
        return None if len(kept) == len(definers) else ops.anchor(first, *kept) if kept else first
    if not isinstance(node, Call) or isinstance(node.op, Function) or node.op.name in SOLVED_ALREADY:
        return None
    if not isinstance(node.type, TensorType) or node.type.dtype not in (*INTEGERS, "bool"):
        return None
    value = None if _is_solved(node) else value_of(node)
    return None if value is None else as_expression(value, node.type, node.origin)


def _is_solved(node: Expr) -> bool:
    """Whether ``node`` is what ``as_expression`` makes of symbols."""
    while isinstance(node, Call) and not isinstance(node.op, Function) and node.op.name in ("cast", "reshape"):
        node = node.args[0]
    return ops.dims.is_call(node)


def as_expression(value: np.ndarray, type_: TensorType, origin: str) -> Expr | None:
    """An expression of ``type_`` for an array of ints and dims."""
    flat = value.ravel().tolist()
    if not any(isinstance(each, DimExpr) for each in flat):
        return Constant(np.array(flat, type_.dtype).reshape(value.shape), origin)
    if type_.dtype == "bool":
        return None
    result: Expr = ops.dims(values=tuple(flat), scalar=not value.shape, origin=origin)
    if value.ndim > 1:
        result = ops.reshape(result, shape=type_.shape, origin=origin)
    return result if type_.dtype == "int64" else ops.cast(result, dtype=type_.dtype, origin=origin)
