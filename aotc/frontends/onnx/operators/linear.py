"""Matrix products."""

from __future__ import annotations

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.ir.expr import Expr


def _matmul(node: Node) -> Results:
    return node.call(ops.matmul, node.input(0), node.input(1))


def _gemm(node: Node) -> Results:
    """alpha * A' * B' + beta * C."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if node.rank(a) != 2 or node.rank(b) != 2:
        node.invalid(f"takes two matrices, not {node.type(a)} and {node.type(b)}")
    if node.flag("transA"):
        a = node.call(ops.transpose, a, axes=(1, 0))
    y: Expr = node.call(ops.dense, a, b) if node.flag("transB") else node.call(ops.matmul, a, b)
    y = _scaled(node, y, node.number("alpha", 1.0))
    beta = node.number("beta", 1.0)
    return y if c is None or beta == 0 else node.call(ops.add, y, _scaled(node, c, beta))


def _scaled(node: Node, x: Expr, factor: float) -> Expr:
    return x if factor == 1 else node.call(ops.multiply, x, node.constant(factor, node.dtype(x)))


HANDLERS: dict[str, Handler] = {"MatMul": _matmul, "Gemm": _gemm, "Det": lambda node: node.call(ops.determinant, node.input(0))}
