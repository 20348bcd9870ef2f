"""Reductions, softmax and its kin, running sums, the k greatest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators import run_time
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Expr
from aotc.ir.types import FLOATS
from aotc.ops.base import OpDef

Axes = tuple[int, ...]
Reduction = Callable[[Node, Expr, Axes, bool], Expr]


def _reduction(reduce: Reduction, axes_input_since: int = 18) -> Handler:
    """Axes are an attribute before opset ``axes_input_since`` and an input after; none at all means every axis."""

    def handler(node: Node) -> Results:
        x = node.input(0)
        rank = node.rank(x)
        if node.opset < axes_input_since:
            axes = node.integers("axes", ())
        else:
            axes = node.static_integers(1, "axes") or ()
        if not axes and not node.flag("noop_with_empty_axes"):
            axes = tuple(range(rank))
        return reduce(node, x, tuple(sorted(node.axis(axis, rank) for axis in axes)), node.flag("keepdims", True))

    return handler


def _plain(operator: OpDef) -> Reduction:
    return lambda node, x, axes, keepdims: node.call(operator, x, axes=axes, keepdims=keepdims)


_sum = _plain(ops.sum_)


def _extreme(operator: OpDef, of_booleans: OpDef) -> Reduction:
    def reduce(node: Node, x: Expr, axes: Axes, keepdims: bool) -> Expr:
        return node.call(of_booleans if node.dtype(x) == "bool" else operator, x, axes=axes, keepdims=keepdims)

    return reduce


def _mean(node: Node, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    if node.dtype(x) in FLOATS:
        return node.call(ops.mean, x, axes=axes, keepdims=keepdims)
    count = product(node.shape(x)[axis] for axis in axes)
    divisor = node.call(ops.cast, node.call(ops.dims, values=(count,), scalar=True), dtype=node.dtype(x))
    return node.call(ops.divide, _sum(node, x, axes, keepdims), divisor)


def _l1(node: Node, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    return _sum(node, node.call(ops.abs_, x), axes, keepdims)


def _sum_square(node: Node, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    return _sum(node, node.call(ops.multiply, x, x), axes, keepdims)


def _in_float(reduce: Reduction) -> Reduction:
    """Integers go through float64."""

    def run(node: Node, x: Expr, axes: Axes, keepdims: bool) -> Expr:
        dtype = node.dtype(x)
        if dtype in FLOATS:
            return reduce(node, x, axes, keepdims)
        return node.call(ops.cast, reduce(node, node.call(ops.cast, x, dtype="float64"), axes, keepdims), dtype=dtype)

    return run


def _l2(node: Node, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    return node.call(ops.sqrt, _sum_square(node, x, axes, keepdims))


def _log_sum(node: Node, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    return node.call(ops.log, _sum(node, x, axes, keepdims))


def _log_sum_exp(node: Node, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    """Less the greatest element, which is held finite so that infinities do not meet."""
    limit = float(np.finfo(node.dtype(x)).max)
    greatest = node.call(ops.clip, node.call(ops.max_, x, axes=axes, keepdims=True), minimum=-limit, maximum=limit)
    powers = node.call(ops.exp, node.call(ops.subtract, x, greatest))
    result = node.call(ops.add, _log_sum(node, powers, axes, True), greatest)
    return result if keepdims else node.call(ops.reshape, result, shape=_without(node.shape(result), axes))


def _without(shape: tuple[Dim, ...], axes: Axes) -> tuple[Dim, ...]:
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def _arg(operator: OpDef) -> Handler:
    def handler(node: Node) -> Results:
        x = node.input(0)
        axis = node.axis(node.integer("axis", 0), max(node.rank(x), 1))
        return node.call(operator, x, axis=axis, keepdims=node.flag("keepdims", True), select_last=node.flag("select_last_index"))

    return handler


def _along_axis(compute: Callable[[Node, Expr, int], Expr]) -> Handler:
    """Since opset 13 along one axis, by default the last; before, over all axes from ``axis``, by default 1, together."""

    def handler(node: Node) -> Results:
        x = node.input(0)
        rank, shape = node.rank(x), node.shape(x)
        if node.opset >= 13:
            return compute(node, x, node.axis(node.integer("axis", -1), max(rank, 1)))
        axis = node.integer("axis", 1)
        axis = axis + rank if axis < 0 else axis
        if not 0 <= axis <= rank:
            node.invalid(f"axis {axis} is not in a tensor of rank {rank}")
        if axis == rank - 1:
            return compute(node, x, axis)
        matrix = node.call(ops.reshape, x, shape=(product(shape[:axis]), product(shape[axis:])))
        return node.call(ops.reshape, compute(node, matrix, 1), shape=shape)

    return handler


def _hardmax(node: Node, x: Expr, axis: int) -> Expr:
    if not node.rank(x):
        node.invalid("takes a tensor of rank 1 or more, not a scalar")
    first = node.call(ops.argmax, x, axis=axis)
    return node.call(ops.one_hot, first, node.constant([0, 1], node.dtype(x)), depth=node.shape(x)[axis], axis=axis)


def _running(operator: OpDef) -> Handler:
    def handler(node: Node) -> Results:
        x = node.input(0)
        axes = node.static_integers(1, "axis") or ()
        if len(axes) != 1:
            node.invalid(f"axis must be one number, not {list(axes)}")
        axis = node.axis(axes[0], node.rank(x))
        return node.call(operator, x, axis=axis, exclusive=node.flag("exclusive"), reverse=node.flag("reverse"))

    return handler


def _top_k(node: Node) -> Results:
    """k is an attribute before opset 10."""
    x = node.input(0)
    if node.opset >= 10 and not node.is_known(1):
        chosen = node.axis(node.integer("axis", -1), node.rank(x))
        return run_time.top_k(node, x, node.input(1), chosen, node.flag("largest", True), node.flag("sorted", True))
    counts = (node.integer("k"),) if node.opset < 10 else node.dims(1, "k") or ()
    if len(counts) != 1:
        node.invalid(f"k must be one number, not {list(counts)}")
    axis = node.axis(node.integer("axis", -1), node.rank(x))
    largest, in_order = node.flag("largest", True), node.flag("sorted", True)
    both = node.call(ops.top_k, x, k=counts[0], axis=axis, largest=largest, sorted=in_order)
    return [node.item(both, 0), node.item(both, 1)]


HANDLERS: dict[str, Handler] = {
    "ReduceSum": _reduction(_sum, 13),
    "ReduceMean": _reduction(_mean),
    "ReduceProd": _reduction(_plain(ops.prod)),
    "ReduceMax": _reduction(_extreme(ops.max_, ops.any_)),
    "ReduceMin": _reduction(_extreme(ops.min_, ops.all_)),
    "ReduceL1": _reduction(_l1),
    "ReduceL2": _reduction(_in_float(_l2)),
    "ReduceLogSum": _reduction(_in_float(_log_sum)),
    "ReduceLogSumExp": _reduction(_in_float(_log_sum_exp)),
    "ReduceSumSquare": _reduction(_sum_square),
    "ArgMax": _arg(ops.argmax),
    "ArgMin": _arg(ops.argmin),
    "Softmax": _along_axis(lambda node, x, axis: node.call(ops.softmax, x, axis=axis)),
    "LogSoftmax": _along_axis(lambda node, x, axis: node.call(ops.log_softmax, x, axis=axis)),
    "Hardmax": _along_axis(_hardmax),
    "CumSum": _running(ops.cumsum),
    "CumProd": _running(ops.cumprod),
    "TopK": _top_k,
}
