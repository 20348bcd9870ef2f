"""Results that need no kernel: other values' memory (reshapes, fields of tuples), and tensors without elements."""

from __future__ import annotations

from aotc.ir.expr import Call, Expr, Function, Tuple, TupleGetItem
from aotc.ir.types import TensorType, flatten


def is_view(node: Expr) -> bool:
    """Whether a call of a fused function is a reshape alone, so that its result is its argument's memory."""
    if not (isinstance(node, Call) and isinstance(node.op, Function) and len(node.op.params) == 1):
        return False
    body = node.op.body
    return isinstance(body, Call) and not isinstance(body.op, Function) and body.op.name == "reshape" and body.args[0] is node.op.params[0]


def is_empty(node: Expr) -> bool:
    """Whether a result has no elements whatever the inputs are: there is nothing for a kernel to write."""
    return all(0 in tensor.shape and tensor.is_static for tensor in flatten(node.type))


def resolve_view(expr: Expr) -> tuple[Expr, int]:
    """The expression, and which of its results, that ``expr`` is a view of."""
    index = 0
    while True:
        if isinstance(expr, TupleGetItem):
            index, expr = expr.index, expr.value
        elif isinstance(expr, Tuple):
            index, expr = 0, expr.fields[index]
        elif is_view(expr) and isinstance(expr, Call):
            expr = expr.args[0]
        else:
            return expr, index


def results_of(body: Expr) -> tuple[Expr, ...]:
    """The results of a function as tensors."""
    if isinstance(body, Tuple):
        return tuple(tensor for field in body.fields for tensor in results_of(field))
    if isinstance(body.type, TensorType):
        return (body,)
    return tuple(TupleGetItem(body, i) for i in range(len(flatten(body.type))))
