"""Constants and weights that control flow passes into its bodies move into them, so that the other passes see them there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotc.ir.expr import Constant, Expr, Function, If, Loop, Module, Parameter, Var
from aotc.ir.visitor import post_order, rewrite_module, substitute
from aotc.passes.options import Options


def sink_constants(module: Module, options: Options) -> Module:
    """Arguments of an ``If`` and captured values of a ``Loop`` that are constants or weights stand inside the bodies; what no
    body reads is no longer passed."""
    return rewrite_module(module, _sink)


def _sink(node: Expr) -> Expr | None:
    if isinstance(node, If):
        kept = _kept(node.args, [node.then.params, node.otherwise.params], [node.then, node.otherwise])
        if len(kept) == len(node.args):
            return None
        then, otherwise = (_without(branch, branch.params, node.args, kept) for branch in (node.then, node.otherwise))
        return replace(node, then=then, otherwise=otherwise, args=tuple(node.args[i] for i in kept))
    if isinstance(node, Loop):
        first = 1 + len(node.initial) + len(node.scanned)
        kept = _kept(node.captured, [node.body.params[first:]], [node.body])
        if len(kept) == len(node.captured):
            return None
        body = _without(node.body, node.body.params[first:], node.captured, kept)
        return replace(node, body=body, captured=tuple(node.captured[i] for i in kept))
    return None


def _kept(args: Sequence[Expr], params: Sequence[Sequence[Var]], functions: Sequence[Function]) -> list[int]:
    """The numbers of the arguments that must still be passed."""
    used = {node for function in functions for node in post_order(function.body)}
    return [
        i for i, arg in enumerate(args) if not isinstance(arg, (Constant, Parameter)) and any(each[i] in used for each in params)
    ]  # fmt: skip


def _without(function: Function, params: Sequence[Var], args: Sequence[Expr], kept: Sequence[int]) -> Function:
    """``function`` with those of ``params`` replaced by ``args`` that are not ``kept``."""
    inside = {param: arg for i, (param, arg) in enumerate(zip(params, args, strict=True)) if i not in kept}
    constants = {param: arg for param, arg in inside.items() if isinstance(arg, (Constant, Parameter))}
    body = substitute(function.body, constants) if constants else function.body
    return Function(tuple(p for p in function.params if p not in inside), body, function.name, False, function.origin)
