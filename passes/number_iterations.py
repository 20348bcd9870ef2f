"""Gives each loop a symbol for the number of its iteration, by which slices and rows are addressed."""

from __future__ import annotations

from dataclasses import replace

from aotc import ops
from aotc.ir.dims import symbol, symbols_of
from aotc.ir.expr import Expr, Loop, Module
from aotc.ir.printer import dims_of_node
from aotc.ir.visitor import all_functions, post_order, rewrite_module, substitute, with_body
from aotc.passes.options import Options

MAX_TRIPS = 2**31 - 1


def number_iterations(module: Module, options: Options) -> Module:
    """Every ``Loop`` has a symbol of its own for its iteration; bodies that read the number as a tensor make it from that."""
    functions = all_functions(module)
    used = {
        name
        for function in functions
        for node in (*function.params, *post_order(function.body))
        for name in symbols_of(*dims_of_node(node))
    }
    count = 0

    def rule(node: Expr) -> Expr | None:
        nonlocal count
        if not isinstance(node, Loop) or node.iteration is not None:
            return None
        while f"i{count}" in used:
            count += 1
        iteration = symbol(f"i{count}", 0, MAX_TRIPS)
        count += 1
        number = ops.dims(values=(iteration,), scalar=True, origin=node.origin)
        body = with_body(node.body, substitute(node.body.body, {node.body.params[0]: number}))
        return replace(node, body=body, iteration=iteration)

    return rewrite_module(module, rule)
