"""The module with chosen intermediates as extra outputs.

``compare`` (where do two runs depart?), calibration (what ranges occur?) and searches for overflow are all built on
this one transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aotc.ir.expr import Call, Constant, Expr, Function, Let, Module, Parameter, Tuple, TupleGetItem, Var, children
from aotc.ir.types import TensorType, TupleType
from aotc.ir.visitor import post_order, with_body


@dataclass(frozen=True)
class Tapped:
    """``module`` returns what it did, then each of ``taps``; ``names`` are those of the extra outputs, in order."""

    module: Module
    taps: tuple[Expr, ...]
    names: tuple[str, ...]


def tap(module: Module, choose: Callable[[Expr], bool] | None = None, entry: str = "main") -> Tapped:
    """``module`` with the tensors for which ``choose`` holds as extra outputs of ``entry``, in order of computation.

    By default these are the results of all calls. Tuples are tapped field by field. Nodes in the bodies of
    ``If`` and ``Loop``, and those that depend on a variable bound by ``Let``, cannot be seen from outside and are left
    out. An extra output is named by its node's origin, else by its operator; numbered where a name is taken.
    """
    function = module.functions[entry]
    chosen = choose or (lambda node: isinstance(node, Call))
    tensors: list[Expr] = []
    for node in visible_nodes(function):
        if not isinstance(node, (Var, Constant, Parameter)) and chosen(node):
            tensors += _tensors(node)
    outputs = [*_tensors(function.body), *tensors]
    taken = list(module.output_names[entry])
    names = tuple(_fresh_name(node, taken) for node in tensors)
    if not tensors:
        return Tapped(module, (), ())
    functions = {**module.functions, entry: with_body(function, Tuple(tuple(outputs)))}
    named = {**module.output_names, entry: (*module.output_names[entry], *names)}
    return Tapped(module.with_functions(functions, named), tuple(tensors), names)


def last_of_each_origin(function: Function) -> dict[str, Expr]:
    """The last node that each of the user's names led to: what that node of the user's model computes."""
    return {node.origin: node for node in visible_nodes(function) if node.origin and not isinstance(node, (Var, Constant, Parameter))}


def visible_nodes(function: Function) -> list[Expr]:
    """The nodes, in order, that are computed on every run and stand for one value each."""
    hidden: set[Expr] = set()
    order = post_order(function.body, into_functions=False)
    bound = {node.var for node in order if isinstance(node, Let)}
    for node in order:
        below: Iterable[Expr] = (node.value,) if isinstance(node, Let) else children(node)
        if node in bound or (not isinstance(node, Function) and any(child in hidden for child in below)):
            hidden.add(node)
    return [node for node in order if node not in hidden]


def _tensors(node: Expr) -> list[Expr]:
    """``node`` as tensors, tuples taken apart (tuples in tuples too)."""
    found: list[Expr] = []
    stack = [node]
    while stack:
        top = stack.pop()
        if isinstance(top.type, TupleType):
            fields = top.fields if isinstance(top, Tuple) else [TupleGetItem(top, i, top.origin) for i in range(len(top.type.fields))]
            stack.extend(reversed(fields))
        elif isinstance(top.type, TensorType):
            found.append(top)
    return found


def _fresh_name(node: Expr, taken: list[str]) -> str:
    source = node.value if isinstance(node, TupleGetItem) else node
    base = node.origin or (source.op.name if isinstance(source, Call) else type(source).__name__.lower())
    if isinstance(node, TupleGetItem):
        base += f".{node.index}"
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}:{count}"
    taken.append(name)
    return name
