"""Shapes that the model computes with tensors become dims: Shape -> Gather -> Mul -> Concat and the like are solved."""

from __future__ import annotations

import numpy as np

from aotc import ops
from aotc.ir.dims import DimExpr
from aotc.ir.expr import Call, Constant, Expr, Function, Module
from aotc.ir.types import INTEGERS, TensorType
from aotc.ir.visitor import rewrite_module
from aotc.ops.shape_values import value_of
from aotc.passes.options import Options

SOLVED_ALREADY = ("dims", "full", "arange")


def solve_shapes(module: Module, options: Options) -> Module:
    """Integer and boolean tensors whose value is known as dims at compile time become constants, or ``dims`` where
    symbols remain."""
    return rewrite_module(module, _solve)


def _solve(node: Expr) -> Expr | None:
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
