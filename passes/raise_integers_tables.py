"""Functions of one byte become tables: computed once, by the operators' references, so that every machine gives the same bytes."""

from __future__ import annotations

from typing import cast

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Function, Var, call
from aotc.ir.types import TensorType
from aotc.ir.visitor import post_order, rewrite
from aotc.ops.base import Fusion, OpDef
from aotc.ops.interpret import interpret
from aotc.ops.quantise import BYTES
from aotc.passes.weights import array_of

ARITHMETIC = frozenset({
    "quantise", "dequantise", "add", "subtract", "multiply", "maximum", "minimum", "relu", "clip", "negative", "abs", "leaky_relu",
    "hard_sigmoid",
})  # fmt: skip
"""It takes no longer than a table, and is the same everywhere."""


def tabulate(body: Expr) -> Expr:
    """``body`` with each ``quantise`` of a function of one tensor of bytes, elementwise and not just arithmetic, as a table."""
    return rewrite(body, _table)


def _table(node: Expr) -> Expr | None:
    if not isinstance(node, Call) or not ops.quantise.is_call(node) or node.type.dtype not in BYTES:  # type: ignore[union-attr]
        return None
    found = _island(node)
    if found is None or all(cast(OpDef, each.op).name in ARITHMETIC for each in found[1]):
        return None
    source, island = found
    dtype = cast(TensorType, source.type).dtype
    every = Var("byte", TensorType((256,), dtype))
    (table,) = interpret(Function((every,), _in_doubles(island, source, every)), [np.arange(256).astype("uint8").view(dtype)])
    return ops.look_up(source, Constant(table, node.origin), origin=node.origin)


def _island(node: Call) -> tuple[Expr, list[Call]] | None:
    """The bytes that ``node`` is a function of, and the calls up to it, in order; ``None`` where it is none of one tensor alone."""
    sources: set[Expr] = set()
    found: set[Expr] = set()
    stack: list[Expr] = [node]
    while stack:
        each = stack.pop()
        if each in found or _is_number(each):
            continue
        if cast(TensorType, each.type).shape != cast(TensorType, node.type).shape:
            return None
        if each is node or _is_between(each):
            found.add(each)
            stack += cast(Call, each).args[:1] if ops.look_up.is_call(each) else cast(Call, each).args
        elif cast(TensorType, each.type).dtype in BYTES:
            sources.add(each)
        else:
            return None
    if len(sources) != 1:
        return None
    return sources.pop(), [each for each in post_order(node) if isinstance(each, Call) and each in found]


def _is_number(expr: Expr) -> bool:
    data = array_of(expr)
    return data is not None and data.size == 1


def _is_between(expr: Expr) -> bool:
    """Whether ``expr`` is an elementwise call over floats, or a table made before, which another one takes in."""
    if not isinstance(expr, Call) or not isinstance(expr.op, OpDef) or not expr.args:
        return False
    return ops.look_up.is_call(expr) or (expr.op.fusion <= Fusion.BROADCAST and cast(TensorType, expr.type).dtype == "float32")


def _in_doubles(island: list[Call], source: Expr, every: Var) -> Expr:
    """The calls over ``every`` in the place of ``source``, in float64."""
    new: dict[Expr, Expr] = {source: every}
    for each in island:
        args = [new[arg] if arg in new else _wide(arg) for arg in each.args]
        new[each] = call(each.op, args, each.attrs, each.origin)
    return new[island[-1]]


def _wide(number: Expr) -> Expr:
    """A constant without axes where it is one number, in float64 where it is a float."""
    data = array_of(number)
    assert data is not None
    data = data.reshape(()) if data.size == 1 else data
    return Constant(data.astype("float64") if data.dtype == np.float32 else data)
