"""Concatenations that cost nothing: their parts are computed straight into the memory of the whole.

That works where the parts lie one after the other, so where all axes before the one that is joined have extent 1: channels of
a single picture, the rows of a matrix. A whole may be a part of a larger one (dense blocks). A part that cannot be computed
there (an input, a weight, a part of something else already) is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from aotc import ops
from aotc.ir.dims import Dim, symbols_of
from aotc.ir.expr import Call, Expr, Function, Module, Var, bodies
from aotc.ir.symbols import schedule
from aotc.ir.types import TensorType, flatten
from aotc.ir.visitor import all_functions, post_order
from aotc.lowering.views import is_empty, is_view, resolve_view, results_of


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the result of ``whole``, ``offset`` elements from its start."""

    whole: Call
    offset: Dim


@dataclass(frozen=True, slots=True)
class Joined:
    """``slots``: calls whose result has its place in a whole. ``wholes``: the concatenations that no kernel computes."""

    slots: Mapping[Expr, Slot]
    wholes: frozenset[Expr]

    def is_fixed(self, node: Expr) -> bool:
        """Whether the memory of a node's result is part of another's, or holds others': nothing may be written over it."""
        return node in self.slots or node in self.wholes


def choose_joined(module: Module) -> Joined:
    """Where parts of concatenations are computed. The largest whole comes first: smaller ones become parts of it."""
    slots: dict[Expr, Slot] = {}
    wholes: set[Expr] = set()
    for function in _functions(module):
        results = results_of(function.body)
        kept = {resolve_view(result)[0] for result in results}
        known = symbols_of(*(dim for param in function.params for tensor in flatten(param.type) for dim in tensor.shape))
        for node in reversed(schedule(*results)):
            parts = _parts(node, frozenset(known))
            found = {part: slot for part, slot in parts.items() if part not in kept and part not in slots}
            if found:
                slots |= found
                wholes.add(node)
    return Joined(slots, frozenset(wholes))


def _functions(module: Module) -> list[Function]:
    """Entry points and bodies."""
    inner = [body for function in all_functions(module) for node in post_order(function.body) for body in bodies(node)]
    return [*module.functions.values(), *inner]


def _parts(node: Expr, known: frozenset[str]) -> dict[Expr, Slot]:
    """The kernels' results that ``node`` puts one after the other, if that is all it does and their sizes follow from
    ``known`` symbols."""
    if not isinstance(node, Call) or not isinstance(node.op, Function):
        return {}
    body, type_ = node.op.body, cast(TensorType, node.type)
    if not ops.concat.is_call(body) or not set(cast(Call, body).args) <= set(node.op.params):
        return {}
    axis = cast(Any, cast(Call, body).attrs).axis % type_.rank
    if any(dim != 1 for dim in type_.shape[:axis]) or not symbols_of(*type_.shape).keys() <= known:
        return {}
    found: dict[Expr, Slot] = {}
    offset: Dim = 0
    for arg in parts_of(node):
        source, _ = resolve_view(arg, parts=False)
        if _is_kernel(source) and source.type.size == arg.type.size:  # type: ignore[union-attr]
            found.setdefault(source, Slot(node, offset))
        offset = offset + cast(TensorType, arg.type).size
    return found


def parts_of(whole: Call) -> list[Expr]:
    """What a concatenation puts one after the other: the arguments of the fused function, in its body's order."""
    function = cast(Function, whole.op)
    return [whole.args[function.params.index(cast(Var, arg))] for arg in cast(Call, function.body).args]


def _is_kernel(node: Expr) -> bool:
    """Whether a kernel computes ``node``, and it is one tensor."""
    call = isinstance(node, Call) and isinstance(node.op, Function) and isinstance(node.type, TensorType)
    return call and not is_view(node) and not is_empty(node)
