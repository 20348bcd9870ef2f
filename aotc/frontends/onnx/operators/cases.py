"""Inputs that say which axes an operator works along, known only at run time: one branch for each answer.

The kernels of an operator differ with its axes, and there are few answers; so each becomes a body, and an ``If`` chooses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.ir.expr import Expr

MOST = 64  # branches of one node

Wrapper = Callable[[Handler], Handler]


def by_axes(index: int, added: bool = False, ordered: bool = False) -> Wrapper:
    """Input ``index`` names axes of input 0, or of the result, which has them in addition (``added``). ``ordered``: other inputs
    follow their order."""

    def wrap(handler: Handler) -> Handler:
        def run(node: Node) -> Results:
            if node.is_known(index):
                return handler(node)
            axes = node.input(index)
            count = node.type(axes).size
            if not isinstance(count, int):
                node.unsupported(f"the number of axes in input {index} ({node.proto.input[index]!r}) is known only at run time")
            rank = node.rank(node.input(0)) + (count if added else 0)
            chosen = list((itertools.permutations if ordered else itertools.combinations)(range(rank), count))
            if not chosen or len(chosen) > MOST:
                node.unsupported(
                    f"{count} axes of {rank}, known only at run time, make {len(chosen)} cases; from 1 to {MOST} are possible: make input {index} a constant"
                )
            weights = [rank**place for place in range(count)] if ordered else None
            codes = _codes(node, axes, rank, weights)
            return _chosen(node, index, [np.array(each, np.int64) for each in chosen], codes, [_code(each, weights) for each in chosen])

        return run

    return wrap


def by_axis(index: int, rank: Callable[[Node], int] | None = None) -> Wrapper:
    """Input ``index`` is one axis of input 0."""

    def wrap(handler: Handler) -> Handler:
        def run(node: Node) -> Results:
            if node.is_known(index):
                return handler(node)
            axis = node.input(index)
            count = rank(node) if rank is not None else node.rank(node.input(0))
            shape = node.shape(axis)
            chosen = [np.full([int(dim) for dim in shape], each, node.dtype(axis)) for each in range(count)]  # type: ignore[arg-type]
            flat = node.call(ops.reshape, axis, shape=(1,))
            return _chosen(node, index, chosen, _codes(node, flat, count, [1]), list(range(count)))

        return run

    return wrap


def by_boolean(index: int) -> Wrapper:
    """Input ``index`` is a boolean scalar."""

    def wrap(handler: Handler) -> Handler:
        def run(node: Node) -> Results:
            if node.is_known(index):
                return handler(node)
            scalar = node.call(ops.reshape, node.input(index), shape=())
            return node.graphs.cases(index, [np.array(True), np.array(False)], [scalar])

        return run

    return wrap


def _codes(node: Node, axes: Expr, rank: int, weights: Sequence[int] | None) -> Expr:
    """One number that says which axes a tensor holds: a sum of powers of two, or of digits where order counts."""
    axes = node.call(ops.cast, axes, dtype="int64") if node.dtype(axes) != "int64" else axes
    negative = node.call(ops.less, axes, node.constant(0, "int64"))
    axes = node.call(ops.where, negative, node.call(ops.add, axes, node.constant(rank, "int64")), axes)
    if weights is None:
        parts = node.call(ops.left_shift, node.constant(1, "int64"), axes)
    else:
        parts = node.call(ops.multiply, axes, node.constant(list(weights), "int64"))
    return node.call(ops.sum_, parts, axes=(0,), keepdims=False)


def _code(axes: Sequence[int], weights: Sequence[int] | None) -> int:
    return sum(1 << axis for axis in axes) if weights is None else sum(axis * weight for axis, weight in zip(axes, weights, strict=True))


def _chosen(node: Node, index: int, chosen: Sequence[np.ndarray], code: Expr, codes: Sequence[int]) -> Results:
    conditions = [node.call(ops.equal, code, node.constant(each, "int64")) for each in codes[:-1]]
    return node.graphs.cases(index, chosen, conditions)


CASES: dict[str, Wrapper] = {
    **{f"Reduce{kind}": by_axes(1) for kind in ("Sum", "Max", "Min", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")},
    "Squeeze": by_axes(1),
    "Unsqueeze": by_axes(1, added=True),
    "Pad": by_axes(3, ordered=True),
    "Slice": by_axes(3, ordered=True),
    "CumSum": by_axis(1),
    "CumProd": by_axis(1),
    "DFT": by_axis(2, lambda node: node.rank(node.input(0)) - 1),
    "Dropout": by_boolean(2),
}
"""What each operator's axes are."""
