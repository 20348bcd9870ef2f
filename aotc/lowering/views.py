"""Results that need no kernel: other values' memory (reshapes, ranges of rows, fields of tuples), and tensors without elements."""

from __future__ import annotations

from typing import Any, cast

from aotc.ir.dims import Dim, product
from aotc.ir.expr import Call, Expr, Function, Tuple, TupleGetItem
from aotc.ir.symbols import is_planned
from aotc.ir.types import TensorType, flatten
from aotc.ops.base import OpDef


def is_view(node: Expr) -> bool:
    """Whether a call of a fused function is a reshape or a range of rows and nothing else, so that its result is its
    argument's memory or a part of it in one piece."""
    return _operator_alone(node) is not None and view_offset(node) is not None


def view_offset(node: Expr) -> Dim | None:
    """Where the result of a call begins in its argument, in elements; ``None`` for what is no view."""
    body = _operator_alone(node)
    if body is None:
        return None
    if cast(OpDef, body.op).name == "reshape":
        return 0
    return _rows_offset(cast(TensorType, body.args[0].type).shape, body.attrs) if cast(OpDef, body.op).name == "slice" else None


def _operator_alone(node: Expr) -> Call | None:
    """The only operator call of the function that ``node`` calls."""
    if not (isinstance(node, Call) and isinstance(node.op, Function) and len(node.op.params) == 1):
        return None
    body = node.op.body
    alone = isinstance(body, Call) and isinstance(body.op, OpDef) and body.args and body.args[0] is node.op.params[0]
    return cast(Call, body) if alone else None


def _rows_offset(shape: tuple[Dim, ...], attrs: Any) -> Dim | None:
    """The first element of a slice that is contiguous: axes of extent 1, one range, then whole axes."""
    if any(step != 1 for step in attrs.steps):
        return None
    extents = [end - begin for begin, end in zip(attrs.begins, attrs.ends, strict=True)]
    whole = [begin == 0 and end == dim for begin, end, dim in zip(attrs.begins, attrs.ends, shape, strict=True)]
    range_axis = next((axis for axis in range(len(shape)) if extents[axis] != 1), len(shape))
    if not all(whole[range_axis + 1 :]):
        return None
    offset: Dim = 0
    for axis, begin in enumerate(attrs.begins):
        offset = offset + begin * product(shape[axis + 1 :])
    return offset


def is_empty(node: Expr) -> bool:
    """Whether a result has no elements whatever the inputs are: there is nothing for a kernel to write."""
    return all(0 in tensor.shape for tensor in flatten(node.type))


def needs_kernel(node: Expr) -> bool:
    """Whether ``node`` is a call of a fused function that a kernel computes."""
    return isinstance(node, Call) and isinstance(node.op, Function) and not (is_view(node) or is_empty(node))


def resolve_view(expr: Expr, parts: bool = True) -> tuple[Expr, int]:
    """The expression, and which of its results, whose memory ``expr`` is. ``parts``: also where it is but a part of it."""
    index = 0
    while True:
        if isinstance(expr, TupleGetItem):
            index, expr = expr.index, expr.value
        elif isinstance(expr, Tuple):
            index, expr = 0, expr.fields[index]
        elif (is_planned(expr) and isinstance(expr, Call)) or (isinstance(expr, Call) and is_view(expr) and (parts or _is_whole(expr))):
            expr = expr.args[0]
        else:
            return expr, index


def _is_whole(view: Call) -> bool:
    return cast(TensorType, view.type).size == cast(TensorType, view.args[0].type).size or cast(Any, view.op).body.op.name == "reshape"


def results_of(body: Expr) -> tuple[Expr, ...]:
    """The results of a function as tensors."""
    if isinstance(body, Tuple):
        return tuple(tensor for field in body.fields for tensor in results_of(field))
    if isinstance(body.type, TensorType):
        return (body,)
    return tuple(TupleGetItem(body, i) for i in range(len(flatten(body.type))))
