"""Normalisations."""

from __future__ import annotations

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.ir.expr import Expr
from aotc.ops.base import OpDef


def uniform(node: Node, operator: OpDef, args: list[Expr], **attrs: object) -> Expr:
    """The call in the widest of the arguments' dtypes, and its result in the first one's."""
    dtypes = [node.dtype(arg) for arg in args]
    widest = max(dtypes, key=lambda dtype: int(dtype.removeprefix("float") or 0) if dtype.startswith("float") else 0)
    same = [arg if node.dtype(arg) == widest else node.call(ops.cast, arg, dtype=widest) for arg in args]
    y = node.call(operator, *same, **attrs)
    return y if widest == dtypes[0] else node.call(ops.cast, y, dtype=dtypes[0])


def _batch_norm(node: Node) -> Results:
    if node.flag("training_mode"):
        return _batch_norm_in_training(node)
    if any(node.wants(i) for i in range(1, 5)):
        node.unsupported("it is in training mode; export the model for inference")
    if node.opset < 9 and not node.flag("spatial", True):
        node.unsupported("spatial=0 normalises each position on its own; aotc has the form by channel only")
    return uniform(node, ops.batch_norm, [node.input(i) for i in range(5)], epsilon=node.number("epsilon", 1e-5))


def _batch_norm_in_training(node: Node) -> Results:
    """With the statistics of the batch itself; and the running ones, moved towards these."""
    x, gamma, beta = (node.input(i) for i in range(3))
    axes = tuple(axis for axis in range(node.rank(x)) if axis != 1)
    mean = node.call(ops.mean, x, axes=axes, keepdims=False)
    column = tuple(-1 if axis == 1 else 1 for axis in range(node.rank(x)))
    shape = tuple(node.shape(x)[1] if each == -1 else each for each in column)
    centred = node.call(ops.subtract, x, node.call(ops.reshape, mean, shape=shape))
    variance = node.call(ops.mean, node.call(ops.multiply, centred, centred), axes=axes, keepdims=False)
    y = node.call(ops.batch_norm, x, gamma, beta, mean, variance, epsilon=node.number("epsilon", 1e-5))
    momentum, results = node.number("momentum", 0.9), [y]
    for running, batch in ((node.input(3), mean), (node.input(4), variance)):
        old = node.call(ops.multiply, running, node.constant(momentum, node.dtype(running)))
        results.append(node.call(ops.add, old, node.call(ops.multiply, batch, node.constant(1 - momentum, node.dtype(batch)))))
    return results


def _instance_norm(node: Node) -> Results:
    return uniform(node, ops.instance_norm, [node.input(i) for i in range(3)], epsilon=node.number("epsilon", 1e-5))


def _group_norm(node: Node) -> Results:
    """Scale and bias have one entry per group in opset 18 and one per channel since 21."""
    x, gamma, beta = (node.input(i) for i in range(3))
    groups = node.integer("num_groups")
    if node.opset < 21:
        gamma, beta = (_per_channel(node, x, vector, groups) for vector in (gamma, beta))
    return uniform(node, ops.group_norm, [x, gamma, beta], groups=groups, epsilon=node.number("epsilon", 1e-5))


def _per_channel(node: Node, x: Expr, vector: Expr, groups: int) -> Expr:
    channels = node.shape(x)[1]
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        node.invalid(f"the {channels} channels of {node.type(x)} do not divide into {groups} groups")
    column = node.call(ops.reshape, vector, shape=(groups, 1))
    spread = node.call(ops.broadcast_to, column, shape=(groups, channels // groups))
    return node.call(ops.reshape, spread, shape=(channels,))


def _layer_norm(node: Node) -> Results:
    x = node.input(0)
    axis = node.axis(node.integer("axis", -1), node.rank(x))
    gamma = _full_vector(node, x, node.input(1), axis)
    bias = node.optional(2)
    dtype, shape = node.dtype(x), node.shape(x)[axis:]
    beta = node.call(ops.full, shape=shape, value=0.0, dtype=dtype) if bias is None else _full_vector(node, x, bias, axis)
    y = uniform(node, ops.layer_norm, [x, gamma, beta], axis=axis, epsilon=node.number("epsilon", 1e-5))
    return [y, *statistics(node, x, axis)] if node.wants(1) or node.wants(2) else y


def statistics(node: Node, x: Expr, axis: int, centred: bool = True) -> list[Expr]:
    """The mean and the reciprocal standard deviation (root of the mean square where not ``centred``), in float32 unless the data
    is float64."""
    axes = tuple(range(axis, node.rank(x)))
    wide = node.call(ops.cast, x, dtype="float32") if node.dtype(x) == "float16" else x
    mean = node.call(ops.mean, wide, axes=axes, keepdims=True)
    parts = node.call(ops.subtract, wide, mean) if centred else wide
    variance = node.call(ops.mean, node.call(ops.multiply, parts, parts), axes=axes, keepdims=True)
    epsilon = node.constant(node.number("epsilon", 1e-5), node.dtype(wide))
    return [mean, node.call(ops.rsqrt, node.call(ops.add, variance, epsilon))]


def _full_vector(node: Node, x: Expr, vector: Expr, axis: int) -> Expr:
    """A scale or bias of the normalised shape; it may come in one that broadcasts to it."""
    shape = node.shape(x)[axis:]
    if node.shape(vector) == shape:
        return vector
    if node.rank(vector) > len(shape):
        node.invalid(f"the scale {node.type(vector)} must broadcast to the normalised axes of {node.type(x)}")
    return node.call(ops.broadcast_to, vector, shape=shape)


def _rms_norm(node: Node) -> Results:
    x = node.input(0)
    axis = node.axis(node.integer("axis", -1), node.rank(x))
    gamma = _full_vector(node, x, node.input(1), axis)
    return uniform(node, ops.rms_norm, [x, gamma], axis=axis, epsilon=node.number("epsilon", 1e-5))


def _lrn(node: Node) -> Results:
    return node.call(
        ops.lrn,
        node.input(0),
        size=node.integer("size"),
        alpha=node.number("alpha", 1e-4),
        beta=node.number("beta", 0.75),
        bias=node.number("bias", 1.0),
    )


def _lp_normalization(node: Node) -> Results:
    """Divided by the norm along an axis; zeros stay zeros."""
    x, p = node.input(0), node.integer("p", 2)
    if p not in (1, 2):
        node.invalid(f"p must be 1 or 2, not {p}")
    axes = (node.axis(node.integer("axis", -1), node.rank(x)),)
    powers = node.call(ops.abs_, x) if p == 1 else node.call(ops.multiply, x, x)
    total = node.call(ops.sum_, powers, axes=axes, keepdims=True)
    norm = total if p == 1 else node.call(ops.sqrt, total)
    zero, one = (node.constant(value, node.dtype(x)) for value in (0, 1))
    return node.call(ops.divide, x, node.call(ops.where, node.call(ops.equal, norm, zero), one, norm))


def _mean_variance_normalization(node: Node) -> Results:
    """(x - mean) / (deviation + 1e-9), as ONNX defines it."""
    x = node.input(0)
    axes = tuple(node.axis(axis, node.rank(x)) for axis in node.integers("axes", (0, 2, 3)))
    centred = node.call(ops.subtract, x, node.call(ops.mean, x, axes=axes, keepdims=True))
    variance = node.call(ops.mean, node.call(ops.multiply, centred, centred), axes=axes, keepdims=True)
    deviation = node.call(ops.add, node.call(ops.sqrt, variance), node.constant(1e-9, node.dtype(x)))
    return node.call(ops.divide, centred, deviation)


HANDLERS: dict[str, Handler] = {
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "LRN": _lrn,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
}
