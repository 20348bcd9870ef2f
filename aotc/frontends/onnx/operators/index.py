"""Operators that pick and place elements by index."""

from __future__ import annotations

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators import run_time
from aotc.ir.dims import Dim

REDUCTIONS = ("none", "add", "mul", "min", "max")


def _gather(node: Node) -> Results:
    x = node.input(0)
    return node.call(ops.gather, x, node.input(1), axis=node.axis(node.integer("axis", 0), node.rank(x)))


def _gather_elements(node: Node) -> Results:
    x = node.input(0)
    return node.call(ops.gather_elements, x, node.input(1), axis=node.axis(node.integer("axis", 0), node.rank(x)))


def _gather_nd(node: Node) -> Results:
    return node.call(ops.gather_nd, node.input(0), node.input(1), batch_dims=node.integer("batch_dims", 0))


def _reduction(node: Node) -> str:
    reduction = node.text("reduction", "none")
    if reduction not in REDUCTIONS:
        node.invalid(f"reduction must be one of {', '.join(REDUCTIONS)}, not {reduction!r}")
    return reduction


def _scatter_elements(node: Node) -> Results:
    x = node.input(0)
    axis = node.axis(node.integer("axis", 0), node.rank(x))
    return node.call(ops.scatter_elements, x, node.input(1), node.input(2), axis=axis, reduction=_reduction(node))


def _scatter_nd(node: Node) -> Results:
    return node.call(ops.scatter_nd, *(node.input(i) for i in range(3)), reduction=_reduction(node))


def _one_hot(node: Node) -> Results:
    """Indices and depth may be of any number type."""
    indices, values = node.input(0), node.input(2)
    count = _depth(node)
    if node.dtype(indices) not in ("int32", "int64"):
        indices = node.call(ops.cast, indices, dtype="int64")
    axis = node.axis(node.integer("axis", -1), node.rank(indices) + 1)
    return node.call(ops.one_hot, indices, values, depth=count, axis=axis)


def _depth(node: Node) -> Dim:
    if not node.is_known(1):
        return node.measured(run_time.as_int64(node, node.call(ops.reshape, node.input(1), shape=(1,))), "depth")[0]
    depth = node.value(1, "depth")
    if depth is None or depth.size != 1:
        node.invalid("depth must be one number")
    return depth.reshape(-1)[0] if depth.dtype == object else int(depth.reshape(-1)[0])


def _tensor_scatter(node: Node) -> Results:
    """Writes the update into the cache from each batch's own place on, around the end where the mode is circular."""
    cache, update, begin = node.input(0), node.input(1), node.optional(2)
    shape, rank = node.shape(update), node.rank(update)
    axis = node.axis(node.integer("axis", -2), rank)
    mode = node.text("mode", "linear")
    if mode not in ("linear", "circular") or axis == 0:
        node.invalid(f"mode must be linear or circular and the axis not that of the batch, not {mode!r} and {axis}")
    place = node.call(ops.arange, start=0, step=1, count=shape[axis], dtype="int64")
    place = node.call(ops.reshape, place, shape=tuple(shape[axis] if i == axis else 1 for i in range(rank)))
    if begin is not None:
        first = node.call(ops.reshape, run_time.as_int64(node, begin), shape=tuple(shape[0] if i == 0 else 1 for i in range(rank)))
        place = node.call(ops.add, place, first)
    if mode == "circular":
        length = node.call(ops.reshape, run_time.sizes(node, [node.shape(cache)[axis]]), shape=())
        place = node.call(ops.modulo, place, length)
    return node.call(ops.scatter_elements, cache, node.call(ops.broadcast_to, place, shape=shape), update, axis=axis)


HANDLERS: dict[str, Handler] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "OneHot": _one_hot,
    "TensorScatter": _tensor_scatter,
}
