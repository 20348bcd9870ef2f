"""What both frontends build recurrent layers with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from aotc import ops
from aotc.ir.dims import Dim
from aotc.ir.expr import Constant, Expr, TupleGetItem
from aotc.ir.types import TensorType, flatten
from aotc.ops.base import OpDef, attribute_values
from aotc.ops.recurrent import ARGUMENTS, FLOATS, GATES, RnnAttributes

Emit = Callable[..., Expr]
"""``emit(operator, *args, **attributes)``."""


def layer(emit: Emit, op: OpDef, attrs: RnnAttributes, x: Expr, weights: Mapping[str, Expr]) -> list[Expr]:
    """One direction of a layer over x [T, B, I]: y [T, B, outputs] and the states after the last step.

    ``weights`` has "input" [G * H, I], "recurrent" [G * H, outputs], "bias" [G * H] if the gates have one, and the operator's
    other arguments by their names there; "projected" is [outputs, H] here. Types other than float32 and float64 are computed
    in float32.
    """
    dtype = _type(x).dtype
    if dtype not in FLOATS:
        wide = {name: each if name == "lengths" else emit(ops.cast, each, dtype="float32") for name, each in weights.items()}
        results = layer(emit, op, attrs, emit(ops.cast, x, dtype="float32"), wide)
        return [emit(ops.cast, each, dtype=dtype) for each in results]
    gates: Expr = emit(ops.dense, x, weights["input"])
    if "bias" in weights:
        gates = emit(ops.add, gates, weights["bias"])
    given = {**weights, "gates": gates, "recurrent": packed(emit, weights["recurrent"], GATES[op])}
    if "projected" in weights:
        given["projected"] = packed(emit, weights["projected"], 1)
    call = emit(op, *(given[name] for name in ARGUMENTS[op](attrs)), **attribute_values(attrs))
    return [TupleGetItem(call, i, call.origin) for i in range(len(flatten(call.type)))]


def packed(emit: Emit, weight: Expr, gates: Dim) -> Expr:
    """A weight [G * H, K] as one block [1, K, G, H]."""
    rows, inputs = _type(weight).shape
    split = emit(ops.reshape, weight, shape=(gates, rows // gates, inputs))
    return emit(ops.reshape, emit(ops.transpose, split, axes=(2, 0, 1)), shape=(1, inputs, gates, rows // gates))


def permuted(emit: Emit, weight: Expr, order: Sequence[int]) -> Expr:
    """``weight`` with its axis 0, parts of equal size, in another order of parts."""
    shape = _type(weight).shape
    parts = emit(ops.reshape, weight, shape=(len(order), shape[0] // len(order), *shape[1:]))
    return emit(ops.reshape, emit(ops.gather, parts, Constant(np.array(order, "int64")), axis=0), shape=shape)


def both(emit: Emit, parts: Sequence[Expr], axis: int) -> Expr:
    """Directions beside each other on a new axis."""
    spread = [emit(ops.reshape, each, shape=(*_type(each).shape[:axis], 1, *_type(each).shape[axis:])) for each in parts]
    return spread[0] if len(spread) == 1 else emit(ops.concat, *spread, axis=axis)


def _type(expr: Expr) -> TensorType:
    assert isinstance(expr.type, TensorType)
    return expr.type
