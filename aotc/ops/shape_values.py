"""Values of shape tensors at compile time: what ``Shape -> Gather -> Mul -> Concat`` computes, as dims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import DimExpr
from aotc.ir.expr import Attributes, Call, Constant, Expr, Function, Tuple, TupleGetItem, children
from aotc.ir.types import INTEGERS, TensorType
from aotc.ops.base import OpDef, attribute_values

MAX_ELEMENTS = 4096


def value_of(expr: Expr) -> np.ndarray | None:
    """The value of an integer or boolean tensor as an object array of ints, bools and dims, or ``None`` where it is not
    known at compile time. Tensors of more than 4096 elements count as unknown: no shape is that long."""
    values: dict[int, np.ndarray | None] = {}
    stack = [expr]
    while stack:
        node = stack[-1]
        if id(node) in values:
            stack.pop()
            continue
        below = _needed(node)
        missing = [child for child in below if id(child) not in values]
        if missing and not any(id(child) in values and values[id(child)] is None for child in below):
            stack.extend(missing[:1])
            continue
        values[id(node)] = _compute(node, [values.get(id(child)) for child in below])
        stack.pop()
    return values[id(expr)]


def _needed(node: Expr) -> tuple[Expr, ...]:
    """The children whose values decide the value of ``node``; none for the shape of a tensor, and for what is unknown."""
    if isinstance(node, TupleGetItem) and isinstance(node.value, Tuple):
        return (node.value.fields[node.index],)
    if isinstance(node, Call) and isinstance(node.op, OpDef) and node.op.shape_value and node.op.name != "shape_of" and _is_small(node):
        return children(node)
    return ()


def _is_small(node: Expr) -> bool:
    type_ = node.type
    if not isinstance(type_, TensorType) or type_.dtype not in (*INTEGERS, "bool"):
        return False
    return isinstance(type_.size, int) and type_.size <= MAX_ELEMENTS


def _compute(node: Expr, args: list[np.ndarray | None]) -> np.ndarray | None:
    if isinstance(node, TupleGetItem) and isinstance(node.value, Tuple):
        return args[0]
    if not _is_small(node):
        return None
    if isinstance(node, Constant):
        return node.data.astype(object)
    if not isinstance(node, Call) or isinstance(node.op, Function):
        return None
    operator = cast(OpDef, node.op)
    if operator.name == "define_dims":
        return _objects(cast(Any, node.attrs).dims).reshape(cast(TensorType, node.type).static_shape())
    if not operator.shape_value or any(arg is None for arg in args):
        return None
    if operator.name == "shape_of":
        return _objects(cast(TensorType, node.args[0].type).shape)
    try:
        return np.asarray(operator.reference(node.attrs, *args), dtype=object)
    except (TypeError, InvalidModel):
        return None  # the value depends on how two dims compare, which is known only at run time
    except (ArithmeticError, AttributeError, ValueError):
        return None  # Python's integers know no division by zero, and numpy no fmod of them


def _objects(values: tuple[Any, ...]) -> np.ndarray:
    result = np.empty(len(values), object)
    result[:] = values
    return result


def with_dims(attrs: Attributes, change: Any) -> Attributes:
    """``attrs`` with ``change`` applied to every symbolic dim, in tuples too; the same object where there is none."""
    if type(attrs) is Attributes:  # of a call of a function
        return attrs
    old = attribute_values(attrs)
    new = {name: _mapped(value, change) for name, value in old.items()}
    return attrs if all(new[name] is old[name] for name in old) else replace(cast(Any, attrs), **new)


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, DimExpr):
        return change(value)
    if isinstance(value, tuple):
        new = tuple(_mapped(each, change) for each in value)
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return value
