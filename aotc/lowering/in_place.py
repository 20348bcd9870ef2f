"""Which fused functions may write their result over one of their arguments.

A function may where each element of the result needs the argument's element at the same place and no other, and where the
call is the last that reads the argument's memory: the residual add behind a convolution is the common case. Kernels of
elementwise work, convolutions and matrix products write each element once, after its operands are read; reductions, softmax
and norms may use the result's memory on the way, so they are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from aotc import ops
from aotc.ir.expr import Call, Expr, Function, If, Loop, Module, Var, bodies, children
from aotc.ir.symbols import schedule
from aotc.ir.types import TensorType
from aotc.ir.visitor import all_functions, post_order, users
from aotc.lowering.joined import choose_joined
from aotc.lowering.views import is_view, resolve_view, results_of
from aotc.ops.base import Fusion, OpDef

InPlace = Mapping[Function, int]
"""The parameter of a function over which its result is written."""

SCATTERED_INTO = (ops.scatter_elements, ops.scatter_nd)
"""Operators that copy their first argument, then write elements of it: over that argument, the copy is nothing."""
WRITTEN_ONCE = (ops.conv, ops.conv_transpose, ops.dense, ops.packed_dense, ops.matmul, ops.integer_conv, ops.integer_matmul)
"""Operators that are not elementwise, and whose kernels write each element once, when its epilogue is done."""


def choose_in_place(module: Module) -> InPlace:
    """For each fused function that may compute in place, the first parameter that allows it."""
    chosen: dict[Function, int] = {}
    calls: dict[Function, int] = {}
    joined = choose_joined(module)
    for function, owned in _functions(module):
        results = results_of(function.body)
        order = schedule(*results)
        last_reader = _last_readers(order)
        kept = {resolve_view(result) for result in results}
        for node in order:
            if isinstance(node, Call) and isinstance(node.op, Function) and not is_view(node):
                calls[node.op] = calls.get(node.op, 0) + 1
                if joined.is_fixed(node):
                    continue
                free = (
                    i
                    for i in range(len(node.args))
                    if not joined.is_fixed(resolve_view(node.args[i])[0])
                    and _dies_here(node, i, last_reader, kept, owned)
                    and is_aligned(node.op, i)
                )
                index = next(free, None)
                # What the user receives is written to the user's memory; what the next iteration reads may stay where it is.
                if index is not None and ((node, 0) not in kept or resolve_view(node.args[index])[0] in owned):
                    chosen[node.op] = index
    # A function that is called twice would need the same answer for both calls.
    return {function: index for function, index in chosen.items() if calls[function] == 1}


def _functions(module: Module) -> list[tuple[Function, frozenset[Expr]]]:
    """Entry points and bodies, with those of their parameters whose memory is theirs to write: states, and what loops carry."""
    found = [(function, frozenset[Expr](p for p in function.params if p.name in module.states)) for function in module.functions.values()]
    for function in all_functions(module):
        for node in post_order(function.body):
            owned = frozenset[Expr](node.body.params[1 : 1 + len(node.initial)]) if isinstance(node, Loop) else frozenset[Expr]()
            found += [(body, owned) for body in bodies(node)]
    return found


def is_aligned(function: Function, index: int) -> bool:
    """Whether each element of the result needs only the element at the same place of parameter ``index``."""
    param, body = function.params[index], function.body
    if isinstance(body, Call) and body.op in SCATTERED_INTO and body.args[0] is param:
        return param not in body.args[1:] and all(isinstance(arg, Var) for arg in body.args)
    if param.type != function.body.type or not all(_writes_once(node) for node in post_order(function.body)):
        return False
    readers = users(function.body)
    if param not in readers:
        return False
    frontier: list[Expr] = [param]
    for node in frontier:
        for reader in readers[node]:
            if not (isinstance(reader, Call) and isinstance(reader.op, OpDef) and reader.op.fusion <= Fusion.BROADCAST):
                return False
            if not isinstance(reader.type, TensorType) or reader.type.shape != param.type.shape:  # type: ignore[union-attr]
                return False
            if reader not in frontier:
                frontier.append(reader)
    return True


def _writes_once(node: Expr) -> bool:
    if not isinstance(node, Call):
        return True
    return node.op in WRITTEN_ONCE or (isinstance(node.op, OpDef) and node.op.fusion <= Fusion.BROADCAST)


def _last_readers(order: list[Expr]) -> dict[tuple[Expr, int], Expr]:
    """For each tensor, the last node that reads it or a view of it."""
    last: dict[tuple[Expr, int], Expr] = {}
    for node in order:
        if isinstance(node, (Call, If, Loop)) and not is_view(node):
            for arg in children(node):
                last[resolve_view(arg)] = node
    return last


def _dies_here(
    node: Call, index: int, last_reader: Mapping[tuple[Expr, int], Expr], kept: set[tuple[Expr, int]], owned: frozenset[Expr]
) -> bool:  # fmt: skip
    source = resolve_view(node.args[index])
    if source in kept or not (isinstance(source[0], (Call, If, Loop)) or source[0] in owned):
        return False  # an input or a weight, which are not ours to write, or what the user receives
    return last_reader[source] is node and sum(resolve_view(arg) == source for arg in node.args) == 1
