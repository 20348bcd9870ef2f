"""Reshapes move below what does not mind them, where they meet others and vanish.

Exporters flatten [batch, sequence, width] around each matrix product and restore it. A reshape is free by itself, but it
stands between a dense layer and the bias, activation or residual that should be its epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from aotc import ops
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Call, Expr, Function, Module, call
from aotc.ir.types import TensorType
from aotc.ir.visitor import map_functions, rewrite_body, rewrite_with_uses, with_body
from aotc.ops.base import Fusion, OpDef, attribute_values
from aotc.passes.options import Options
from aotc.passes.weights import array_of


def sink_reshapes(module: Module, options: Options) -> Module:
    """``op(reshape(x))`` becomes ``reshape(op(x))`` for elementwise calls, and for dense layers, matrix products and
    row-wise norms where the reshape touches leading dims only. A reshape that ends a chain of such calls goes to the one
    that begins it."""
    return map_functions(module, _sink_all)


def _sink_all(function: Function) -> Function:
    sunk = rewrite_body(function, _sink)
    risen = rewrite_with_uses(sunk.body, _rise)
    return sunk if risen is sunk.body else with_body(function, risen)


def _sink(node: Expr) -> Expr | None:
    if not isinstance(node, Call) or isinstance(node.op, Function) or not isinstance(node.type, TensorType):
        return None
    if ops.reshape.is_call(node):
        return _merge(node)
    below = _below(node)
    if below is None:
        return None
    moved = ops.reshape(below, shape=node.type.shape, origin=node.origin)
    return _merge(moved) or moved


def _merge(node: Call) -> Expr | None:
    """A reshape of a reshape is one; one that changes nothing goes."""
    x = node.args[0]
    if ops.reshape.is_call(x):
        x = cast(Call, x).args[0]
    elif x.type != node.type:
        return None
    return x if x.type == node.type else ops.reshape(x, shape=_shape(node), origin=node.origin)


def _rise(node: Expr, uses: Callable[[Expr], int]) -> Expr | None:
    """Takes a reshape of leading dims up through rows' calls that nobody else uses, where another reshape waits for it."""
    if not isinstance(node, Call) or not ops.reshape.is_call(node) or not _shape(node):
        return None
    lead = _shape(node)[:-1]
    chain: list[Call] = []
    top = node.args[0]
    width = _shape(node)[-1]
    while isinstance(top, Call) and uses(top) == 1 and _is_row_call(top) and _shape(top)[-1] == width:
        chain.append(top)
        top = top.args[0]
        width = _shape(top)[-1] if _shape(top) else 0
    if not chain or not ops.reshape.is_call(top) or _shape(top)[-1:] != (width,) or product(_shape(top)[:-1]) != product(lead):
        return None
    raised = ops.reshape(top, shape=(*lead, width), origin=top.origin)
    moved: Expr = _merge(raised) or raised
    for each in reversed(chain):
        moved = call(each.op, [moved, *each.args[1:]], each.attrs, each.origin)
    return moved if moved.type == node.type else None


def _is_row_call(node: Call) -> bool:
    """A dense layer, or an elementwise call whose other operands are vectors over the last axis or single numbers."""
    if isinstance(node.op, Function) or not node.args or not _shape(node):
        return False
    if ops.dense.is_call(node):
        return True
    op = cast(OpDef, node.op)
    if op.fusion > Fusion.BROADCAST or op.name in EXCLUDED or _shape(node.args[0]) != _shape(node):
        return False
    return all(all(dim == 1 for dim in _shape(arg)[:-1]) and len(_shape(arg)) <= 1 for arg in node.args[1:])


def _below(node: Call) -> Call | None:
    """``node`` over what its operands were before they were reshaped; ``None`` where it is not the same."""
    op = cast(OpDef, node.op)
    if not node.args or not any(map(ops.reshape.is_call, node.args)):
        return None
    rule = RULES.get(op.name) or (_elementwise if op.fusion <= Fusion.BROADCAST and op.name not in EXCLUDED else None)
    return rule(node) if rule else None


EXCLUDED = ("broadcast_to", "batch_norm", "prelu")


def _elementwise(node: Call) -> Call | None:
    """All operands are reshaped from one shape to the result's, or are single values, or vectors over a last dim that stays."""
    sources = [_source(arg) for arg in node.args if ops.reshape.is_call(arg) and _shape(arg) == _shape(node)]
    if not sources or any(_shape(source) != _shape(sources[0]) for source in sources):
        return None
    shape = _shape(sources[0])
    same_last = bool(shape) and bool(_shape(node)) and shape[-1] == _shape(node)[-1]
    args: list[Expr] = []
    for arg in node.args:
        if ops.reshape.is_call(arg) and _shape(arg) == _shape(node):
            args.append(_source(arg))
        elif array_of(arg) is not None and all(dim == 1 for dim in _shape(arg)):
            args.append(_with_shape(arg, ()))
        elif same_last and _shape(arg) and all(dim == 1 for dim in _shape(arg)[:-1]) and _shape(arg)[-1] == shape[-1]:
            args.append(_with_shape(arg, shape[-1:]))
        else:
            return None
    moved = call(node.op, args, node.attrs, node.origin)
    return moved if _shape(moved) == shape else None


def _rows(node: Call) -> Call | None:
    """Operators that treat each row of the last axis by itself."""
    attrs: Any = node.attrs
    x = node.args[0]
    rank = len(_shape(node))
    if not ops.reshape.is_call(x) or getattr(attrs, "axis", -1) not in (-1, rank - 1):
        return None
    source = _source(x)
    if not _shape(source) or not _shape(x) or _shape(source)[-1] != _shape(x)[-1]:
        return None
    if hasattr(attrs, "axis"):
        return cast(OpDef, node.op)(source, *node.args[1:], origin=node.origin, **{**_fields(attrs), "axis": -1})
    return call(node.op, [source, *node.args[1:]], attrs, node.origin)


def _matmul(node: Call) -> Call | None:
    """Batches that were flattened for the product of two stacks of matrices."""
    left, right = node.args
    if not (ops.reshape.is_call(left) and ops.reshape.is_call(right)):
        return None
    shapes = [_shape(_source(arg)) for arg in node.args]
    kept = all(len(new) >= 2 and len(_shape(arg)) >= 2 and new[-2:] == _shape(arg)[-2:] for new, arg in zip(shapes, node.args, strict=True))
    if not kept or shapes[0][:-2] != shapes[1][:-2] or _shape(left)[:-2] != _shape(right)[:-2]:
        return None
    return call(node.op, [_source(left), _source(right)], node.attrs, node.origin)


RULES: dict[str, Callable[[Call], Call | None]] = {
    "dense": _rows,
    "packed_dense": _rows,
    "softmax": _rows,
    "log_softmax": _rows,
    "layer_norm": _rows,
    "rms_norm": _rows,
    "matmul": _matmul,
}


def _shape(expr: Expr) -> tuple[Dim, ...]:
    return expr.type.shape if isinstance(expr.type, TensorType) else ()


def _source(expr: Expr) -> Expr:
    return cast(Call, expr).args[0]


def _with_shape(expr: Expr, shape: tuple[Dim, ...]) -> Expr:
    return expr if _shape(expr) == shape else ops.reshape(expr, shape=shape, origin=expr.origin)


def _fields(attrs: Any) -> dict[str, Any]:
    return attribute_values(attrs)
