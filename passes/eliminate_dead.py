"""Drops what no output needs. In a functional graph most of that is unreachable anyway; this finds the rest."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from aotc import ops
from aotc.ir.expr import Call, Expr, Function, Let, Module, Tuple, TupleGetItem
from aotc.ir.visitor import map_functions, rewrite_body, users
from aotc.passes.options import Options


def eliminate_dead(module: Module, options: Options) -> Module:
    """Fields of tuples that are at hand are taken directly, ``Let`` of an unused variable goes, and a max pool whose
    indices are not used becomes a plain one. Parameters of entry points stay: they are the user's inputs."""
    return map_functions(module, _eliminate)


def _eliminate(function: Function) -> Function:
    changed = _eliminate_once(function)
    while changed is not function:  # a pool behind a pool is found the next time round
        function, changed = changed, _eliminate_once(changed)
    return function


def _eliminate_once(function: Function) -> Function:
    uses = users(function.body)
    pools = {id(node) for node in uses if ops.max_pool_with_indices.is_call(node) and _only_values(uses[node])}

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Let) and node.var not in uses:
            return node.body
        if isinstance(node, TupleGetItem) and isinstance(node.value, Tuple):
            return node.value.fields[node.index]
        if isinstance(node, TupleGetItem) and id(node.value) in pools:
            return _plain_pool(cast(Call, node.value))
        return None

    return rewrite_body(function, rule)


def _only_values(uses: list[Expr]) -> bool:
    return bool(uses) and all(isinstance(use, TupleGetItem) and use.index == 0 for use in uses)


def _plain_pool(node: Call) -> Call:
    attrs: Any = node.attrs
    kept = {field.name: getattr(attrs, field.name) for field in fields(attrs) if field.name != "storage_order"}
    return ops.max_pool(node.args[0], origin=node.origin, **kept)
