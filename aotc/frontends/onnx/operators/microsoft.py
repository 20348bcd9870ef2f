"""Operators of the domain com.microsoft over floats, which ONNX Runtime's optimiser and its exporters write: products with more
on them, activations, normalisations. Meanings are those of ONNX Runtime's documentation of contributed operators and its CPU kernels."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators import conv as conv_family
from aotc.frontends.onnx.operators import linear
from aotc.frontends.onnx.operators.norm import statistics, uniform
from aotc.ir.expr import Expr

OPSET = 21
"""The opset of ONNX's own whose meaning the contributed operators follow."""


def over(node: Node, inputs: Sequence[Expr | None]) -> Node:
    """``node`` with other inputs, for a handler of ONNX's own domain."""
    changed = copy.copy(node)
    changed.inputs, changed.opset = list(inputs), OPSET
    return changed


def one(results: Results) -> Expr:
    """The only result of a handler."""
    first = results[0] if isinstance(results, (list, tuple)) else results
    assert first is not None
    return first  # type: ignore[return-value]


def number(node: Node, value: float, like: Expr) -> Expr:
    return node.constant(value, node.dtype(like))


def activated(node: Node, y: Expr) -> Expr:
    """The activation that is named in a fused operator."""
    name = node.text("activation", "")
    given = list(node.numbers("activation_params", ()))
    given = given or [node.number(f"activation_{each}") for each in ("alpha", "beta", "gamma") if node.has(f"activation_{each}")]
    plain = {"": None, "Relu": ops.relu, "Sigmoid": ops.sigmoid, "Tanh": ops.tanh, "Softplus": ops.softplus, "HardSwish": ops.hard_swish}
    if name in plain:
        operator = plain[name]
        return y if operator is None else node.call(operator, y)
    if name in ("LeakyRelu", "Elu", "ThresholdedRelu"):
        operators = {"LeakyRelu": (ops.leaky_relu, 0.01), "Elu": (ops.elu, 1.0), "ThresholdedRelu": (ops.thresholded_relu, 1.0)}
        operator, default = operators[name]
        return node.call(operator, y, alpha=given[0] if given else default)
    if name == "Clip":
        low, high = given if len(given) == 2 else (None, None)
        return node.call(ops.clip, y, minimum=low, maximum=high)
    if name == "HardSigmoid":
        alpha, beta = given if len(given) == 2 else (0.2, 0.5)
        return node.call(ops.hard_sigmoid, y, alpha=alpha, beta=beta)
    node.unsupported(f"the activation {name!r} is unknown; build the model before ONNX Runtime's optimiser fused it")


def _fused_matmul(node: Node) -> Results:
    a, b = (_transposed(node, node.input(i), side) for i, side in enumerate("AB"))
    y = node.call(ops.matmul, a, b)
    alpha = node.number("alpha", 1.0)
    return y if alpha == 1 else node.call(ops.multiply, y, number(node, alpha, y))


def _transposed(node: Node, x: Expr, side: str) -> Expr:
    """transBatch moves the first axis to the last but one; trans swaps the last two."""
    rank = node.rank(x)
    axes = list(range(rank))
    if node.flag(f"transBatch{side}") and rank > 2:
        axes = [*axes[1:-1], 0, axes[-1]]
    if node.flag(f"trans{side}") and rank > 1:
        axes[-2:] = [axes[-1], axes[-2]]
    return x if axes == list(range(rank)) else node.call(ops.transpose, x, axes=tuple(axes))


def _fused_gemm(node: Node) -> Results:
    return activated(node, one(linear.HANDLERS["Gemm"](over(node, node.inputs))))


def _fused_conv(node: Node) -> Results:
    """The activation of the convolution with bias, plus the fourth input."""
    y = one(conv_family.HANDLERS["Conv"](over(node, node.inputs[:3])))
    extra = node.optional(3)
    return activated(node, y if extra is None else node.call(ops.add, y, extra))


def _plus(node: Node, x: Expr, *more: Expr | None) -> Expr:
    for each in more:
        x = x if each is None else node.call(ops.add, x, each)
    return x


def _gelu(node: Node) -> Results:
    return node.call(ops.gelu, node.input(0))


def _bias_gelu(node: Node) -> Results:
    return node.call(ops.gelu, _plus(node, node.input(0), node.input(1)))


def _fast_gelu(node: Node) -> Results:
    return node.call(ops.gelu, _plus(node, node.input(0), node.optional(1)), approximate="tanh")


def _quick_gelu(node: Node) -> Results:
    x, alpha = node.input(0), node.number("alpha", 1.702)
    gate = node.call(ops.sigmoid, node.call(ops.multiply, x, number(node, alpha, x)))
    return node.call(ops.multiply, x, gate)


def _bias_add(node: Node) -> Results:
    return _plus(node, node.input(0), node.input(1), node.input(2))


def layer_normalised(node: Node, x: Expr, gamma: Expr, beta: Expr | None, epsilon: float) -> Expr:
    if beta is None:
        beta = node.call(ops.full, shape=node.shape(gamma), value=0.0, dtype=node.dtype(gamma))
    return uniform(node, ops.layer_norm, [x, gamma, beta], axis=node.rank(x) - 1, epsilon=epsilon)


def _skip_layer_norm(node: Node) -> Results:
    x, skip, gamma, beta, bias = node.input(0), node.input(1), node.input(2), node.optional(3), node.optional(4)
    total = _plus(node, x, skip, bias)
    y = layer_normalised(node, total, gamma, beta, node.number("epsilon", 1e-12))
    extra = statistics(node, total, node.rank(total) - 1) if node.wants(1) or node.wants(2) else [None, None]
    return [y, *extra, total]


def _skip_rms_norm(node: Node) -> Results:
    x, skip, gamma, bias = node.input(0), node.input(1), node.input(2), node.optional(3)
    total = _plus(node, x, skip, bias)
    y = uniform(node, ops.rms_norm, [total, gamma], axis=node.rank(x) - 1, epsilon=node.number("epsilon", 1e-12))
    return [y, None, None, total]


def _rms_norm(node: Node) -> Results:
    x = node.input(0)
    axis = node.axis(node.integer("axis", -1), node.rank(x))
    y = uniform(node, ops.rms_norm, [x, node.input(1)], axis=axis, epsilon=node.number("epsilon", 1e-5))
    return [y, statistics(node, x, axis, centred=False)[1]] if node.wants(1) else y


def embedded(
    node: Node, ids: Sequence[Expr | None], tables: Sequence[Expr | None], gamma: Expr, beta: Expr, positions: Expr | None
) -> list[Expr]:
    """The normalised sum of the embeddings of words, positions and segments, and the sum."""
    words, segments = ids
    if words is None or tables[0] is None or tables[1] is None:
        node.invalid("the ids and the embeddings of words and positions must be there")
    total: Expr = node.call(ops.gather, tables[0], words, axis=0)
    if positions is None:
        length = node.shape(words)[1]
        rows = (0, 0), (length, node.shape(tables[1])[1]), (1, 1)
        total = _plus(node, total, node.call(ops.slice_, tables[1], begins=rows[0], ends=rows[1], steps=rows[2]))
    else:
        total = _plus(node, total, node.call(ops.gather, tables[1], positions, axis=0))
    if segments is not None and tables[2] is not None:
        total = _plus(node, total, node.call(ops.gather, tables[2], segments, axis=0))
    return [layer_normalised(node, total, gamma, beta, node.number("epsilon", 1e-12)), total]


def mask_lengths(node: Node, words: Expr, mask: Expr | None) -> Expr:
    """The number of unmasked tokens of each sequence; zeros without a mask."""
    if mask is None:
        return node.call(ops.full, shape=(node.shape(words)[0],), value=0, dtype="int32")
    return node.call(ops.sum_, mask, axes=(1,), keepdims=False)


def _embed_layer_norm(node: Node) -> Results:
    words, segments, mask = node.input(0), node.optional(1), node.optional(7)
    tables = [node.input(2), node.input(3), node.optional(4)]
    y, total = embedded(node, [words, segments], tables, node.input(5), node.input(6), node.optional(8))
    return [y, mask_lengths(node, words, mask), total]


HANDLERS: dict[str, Handler] = {
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
    "Gelu": _gelu,
    "BiasGelu": _bias_gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "BiasAdd": _bias_add,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "EmbedLayerNormalization": _embed_layer_norm,
}

OWN_DOMAIN: dict[str, Handler] = {"SimplifiedLayerNormalization": _rms_norm}
"""What ONNX Runtime puts into ONNX's own domain."""
