"""Networks that compute in floats between ``dequantise`` and ``quantise`` (QDQ, as exporters write them) compute in integers."""

from __future__ import annotations

from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, Var, children, with_children
from aotc.ir.visitor import calls_of, map_functions, post_order, rewrite, with_body
from aotc.ops.base import OpDef
from aotc.passes.canonicalise import matmul_to_dense
from aotc.passes.fold_constants import fold
from aotc.passes.options import Options
from aotc.passes.raise_integers_rules import RULES
from aotc.passes.raise_integers_tables import tabulate
from aotc.passes.raise_integers_up import quantise_early
from aotc.passes.raise_integers_values import Quantised
from aotc.passes.weights import Weights


def raise_integers(module: Module, options: Options) -> Module:
    """Convolutions, matrix products and averages of dequantised values become sums of integers, with zero points and biases as
    one constant behind them; what moves values without computing moves bytes. What is elementwise between these sums and the
    next ``quantise`` stays float, and joins their kernel. A function of one byte becomes a table. Constants that are still
    dequantised afterwards are computed."""
    weights = Weights(module)
    return map_functions(module, lambda function: _raise(function, weights))


def _raise(function: Function, weights: Weights) -> Function:
    if not calls_of(function.body, ("quantise", "dequantise")):
        return function
    body = tabulate(_Raising(weights).run(quantise_early(function.body)))
    body = rewrite(body, lambda node: _finished(node, weights))
    return function if body is function.body else with_body(function, body)


def _finished(node: Expr, weights: Weights) -> Expr | None:
    """Weights of float layers are computed, and canonical again."""
    folded = fold(node, weights)
    if folded is None and isinstance(node, Call) and node.op.name == "matmul":
        return matmul_to_dense(node, weights)
    return folded


class _Raising:
    """One body. Every node is ``plain``, ``quantised``, or both once somebody has asked for its real value."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.plain: dict[Expr, Expr] = {}
        self.quantised: dict[Expr, Quantised] = {}

    def run(self, body: Expr) -> Expr:
        for node in post_order(body):
            made = self._made(node)
            if isinstance(made, Quantised):
                self.quantised[node] = made
            else:
                self.plain[node] = self._rebuilt(node) if made is None else made
        return self.real(body)

    def real(self, node: Expr) -> Expr:
        """``node`` as it was, over its new operands."""
        if node not in self.plain:
            self.plain[node] = self.quantised[node].real()
        return self.plain[node]

    def _made(self, node: Expr) -> Quantised | Expr | None:
        if not isinstance(node, Call) or node.op.name not in RULES or not isinstance(node.op, OpDef):
            return None
        return RULES[node.op.name](self, node)

    def _rebuilt(self, node: Expr) -> Expr:
        if isinstance(node, (Var, Constant, Parameter)):
            return node
        return with_children(node, [self.real(child) for child in children(node)])
