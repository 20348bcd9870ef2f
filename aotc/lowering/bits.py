"""Fused functions over types that kernels cannot name (bfloat16, float8, int4, ...), as functions over the elements' bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Function, Parameter, Var, call, children, with_children
from aotc.ir.types import SMALL, TensorType, bits_of, flatten, storage_dtype
from aotc.ir.visitor import post_order
from aotc.ops.small import wide_dtype


def over_bits(function: Function) -> Function:
    """``function`` with each small type replaced by the unsigned integer that stores it: casts become arithmetic on bits, and
    what only moves elements moves bits. The same function where there are none."""
    nodes = post_order(*function.params, function.body)
    if not any(tensor.dtype in SMALL for node in nodes for tensor in flatten(node.type)):
        return function
    new: dict[Expr, Expr] = {}
    for node in nodes:
        new[node] = _over_bits(node, [new[child] for child in children(node)])
    params = tuple(new[param] for param in function.params)
    return Function(params, new[function.body], function.name, function.primitive, function.origin)  # type: ignore[arg-type]


def _over_bits(node: Expr, args: Sequence[Expr]) -> Expr:
    match node:
        case Var(type=TensorType() as type_) if type_.dtype in SMALL:
            return Var(node.name, replace(type_, dtype=storage_dtype(type_.dtype)), node.origin)
        case Constant() | Parameter() if node.type.dtype in SMALL:
            return Constant(bits_of(node.data), node.origin)
        case Call() if ops.cast.is_call(node):
            return _cast(node, args[0])
        case Call() if isinstance(node.type, TensorType) and node.type.dtype in SMALL:
            return call(node.op, args, _attributes(node, node.type.dtype), node.origin)
        case _:
            return with_children(node, args)


def _cast(node: Call, x: Expr) -> Expr:
    """By way of float32 or int32 where a small type is on either side."""
    attrs: Any = node.attrs
    source = flatten(node.args[0].type)[0].dtype
    if source in SMALL:
        x = ops.decode(x, dtype=source, origin=node.origin)
    if attrs.dtype not in SMALL:
        return ops.cast(x, dtype=attrs.dtype, origin=node.origin)
    x = ops.cast(x, dtype=wide_dtype(attrs.dtype), origin=node.origin)
    return ops.encode(x, dtype=attrs.dtype, saturate=attrs.saturate, round_mode=attrs.round_mode, origin=node.origin)


def _attributes(node: Call, dtype: str) -> Any:
    """The attributes with a value or dtype in them as bits."""
    attrs: Any = node.attrs
    changed: dict[str, Any] = {}
    if hasattr(attrs, "dtype"):
        changed["dtype"] = storage_dtype(dtype)
    if hasattr(attrs, "value"):
        changed["value"] = int(bits_of(np.asarray(attrs.value).astype(dtype)))
    return replace(attrs, **changed) if changed else attrs
