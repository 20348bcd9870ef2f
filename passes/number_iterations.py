"""Gives each loop a symbol for the number of its iteration, by which slices and rows are addressed."""

from __future__ import annotations

from dataclasses import replace

from aotc import ops
from aotc.ir.dims import Symbol, symbol
from aotc.ir.expr import Expr, Loop, Module
from aotc.ir.symbols import all_symbols
from aotc.ir.visitor import rewrite_module, substitute, with_body
from aotc.passes.options import Options

MAX_TRIPS = 2**31 - 1


def number_iterations(module: Module, options: Options) -> Module:
    """Every ``Loop`` has a symbol of its own for its iteration; bodies that read the number as a tensor make it from that."""
    used: dict[str, Symbol] | None = None
    count = 0

    def rule(node: Expr) -> Expr | None:
        nonlocal count, used
        if not isinstance(node, Loop) or node.iteration is not None:
            return None
        used = used if used is not None else all_symbols(module)
        while f"i{count}" in used:
            count += 1
        iteration = symbol(f"i{count}", 0, MAX_TRIPS)
        count += 1
        number = ops.dims(values=(iteration,), scalar=True, origin=node.origin)
        body = with_body(node.body, substitute(node.body.body, {node.body.params[0]: number}))
        return replace(node, body=body, iteration=iteration)

    return rewrite_module(module, rule)
