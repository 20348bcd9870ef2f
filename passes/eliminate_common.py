"""Computes once what the model computes twice."""

from __future__ import annotations

from aotc.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem
from aotc.ir.printer import array_hash
from aotc.ir.visitor import map_functions, rewrite_body
from aotc.passes.options import Options


def eliminate_common(module: Module, options: Options) -> Module:
    """Equal calls of equal operands become one node, which keeps the origin of the first. Operators have no state and no
    randomness, so this is exact."""
    return map_functions(module, _share)


def _share(function: Function) -> Function:
    known: dict[tuple[object, ...], Expr] = {}

    def rule(node: Expr) -> Expr | None:
        key = _key(node)
        return None if key is None or known.setdefault(key, node) is node else known[key]

    return rewrite_body(function, rule)


def _key(node: Expr) -> tuple[object, ...] | None:
    """What makes a node equal to another whose operands are the same objects."""
    match node:
        case Call():
            return (id(node.op), repr(node.attrs), *map(id, node.args))  # repr, since -0.0 and 0.0 are equal and hash alike
        case Tuple():
            return ("tuple", *map(id, node.fields))
        case TupleGetItem():
            return ("item", id(node.value), node.index)
        case Constant():
            return ("constant", str(node.data.dtype), node.data.shape, array_hash(node.data))
        case _:
            return None
