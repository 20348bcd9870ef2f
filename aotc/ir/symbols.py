"""Symbols whose values are found while a model runs: which nodes define them, and an order in which they are known in time.

A symbol that is a dim of an entry point's input is known at once. Every other one is defined by one node of the function that
uses it, or of a function around that: by ``define_dims``, or by an ``If`` or ``Loop`` in the dims of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from aotc.ir.dims import Symbol, as_symbol, symbols_of
from aotc.ir.expr import Call, Expr, Function, Module, bodies, children, defined_symbols
from aotc.ir.printer import dims_of_node
from aotc.ir.visitor import all_functions, post_order

PLANNED = frozenset({"define_dims", "check_dims", "anchor"})
"""Operators that are no kernels: the plan does their work."""


def is_planned(node: Expr) -> bool:
    """Whether ``node`` is a call of one of the operators that the plan itself carries out."""
    return isinstance(node, Call) and not isinstance(node.op, Function) and node.op.name in PLANNED


def symbols_defined(node: Expr) -> dict[str, Symbol]:
    """The symbols that ``node`` defines, by name."""
    if is_planned(node):
        call = cast(Call, node)
        defined = cast(Any, call.attrs).dims if cast(Any, call.op).name == "define_dims" else ()
        return {symbol.name: symbol for dim in defined if (symbol := as_symbol(dim)) is not None}
    return defined_symbols(node)


def all_symbols(module: Module) -> dict[str, Symbol]:
    """Every symbol that a module mentions, in bodies of control flow too, by name."""
    found: dict[str, Symbol] = {}
    for function in all_functions(module):
        for node in (*function.params, *post_order(function.body)):
            for name, symbol in symbols_of(*dims_of_node(node)).items():
                found.setdefault(name, symbol)
    return found


def definitions(function: Function) -> dict[str, Expr]:
    """The node that defines each symbol, by name, of those that nodes of ``function`` itself define."""
    return {name: node for node in post_order(function.body) for name in symbols_defined(node)}


def schedule(*roots: Expr) -> list[Expr]:
    """Each node below ``roots`` once, children first, and each behind those that define the symbols it mentions.

    The order is the one in which a plan runs; it is fixed by the graph.
    """
    everything = post_order(*roots)
    if not any(symbols_defined(node) for node in everything):
        return everything
    defining = definers(everything)
    order: list[Expr] = []
    done: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in done:
            continue
        if expanded:
            done.add(id(node))
            order.append(node)
            continue
        stack.append((node, True))
        below: Sequence[Expr] = [*defining(node), *children(node)]
        stack.extend((child, False) for child in reversed(below) if id(child) not in done)
    return order


def definers(nodes: Sequence[Expr]) -> Callable[[Expr], list[Expr]]:
    """A function that gives those of ``nodes`` that define the symbols which a node mentions."""
    found = {name: node for node in nodes for name in symbols_defined(node)}

    def of(node: Expr) -> list[Expr]:
        if not found:
            return []
        used = symbols_of(*(dim for each in (node, *_inside(node)) for dim in dims_of_node(each)))
        return [found[name] for name in used if name in found and found[name] is not node]

    return of


def _inside(node: Expr) -> list[Expr]:
    """The nodes of the functions that ``node`` calls or runs: they may mention a symbol that no type around them has."""
    called = [node.op] if isinstance(node, Call) and isinstance(node.op, Function) else bodies(node)
    return [each for function in called for inner in post_order(function.body) for each in (inner, *_inside(inner))]
