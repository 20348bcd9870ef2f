"""Quantised operators of the domain com.microsoft, which ONNX Runtime's quantiser and optimiser write.

Where ONNX Runtime computes in integers so does this; elementwise operators, pools and the like go by way of float32.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators import conv as conv_family
from aotc.frontends.onnx.operators import quantise as quantise_family
from aotc.frontends.onnx.operators import reduce
from aotc.frontends.onnx.operators.microsoft import embedded, mask_lengths, one, over
from aotc.frontends.onnx.operators.microsoft_attention import self_attention
from aotc.frontends.onnx.operators.quantise import (
    cast,
    dequantised,
    dynamic_range,
    is_single,
    matrix_product,
    product_scale,
    quantised,
    scalar,
)
from aotc.ir.dims import ceildiv
from aotc.ir.expr import Expr
from aotc.ops.base import OpDef


def _real(node: Node, first: int) -> Expr:
    """The numbers of input ``first``, whose scale and zero point are the next two inputs."""
    zero = node.optional(first + 2)
    return dequantised(node, node.input(first), scalar(node, node.input(first + 1)), None if zero is None else scalar(node, zero))


def _whole(node: Node, y: Expr, scale: int, like: Expr) -> Expr:
    """Numbers by the scale in input ``scale`` and the zero point behind it; without one they have the dtype of ``like``."""
    zero = node.optional(scale + 1)
    dtype = node.dtype(like if zero is None else zero)
    return quantised(node, y, scalar(node, node.input(scale)), None if zero is None else scalar(node, zero), dtype)


def _binary(operator: OpDef) -> Handler:
    def handler(node: Node) -> Results:
        return _whole(node, node.call(operator, _real(node, 0), _real(node, 3)), 6, node.input(0))

    return handler


def _unary(compute: Callable[[Node, Expr], Expr]) -> Handler:
    def handler(node: Node) -> Results:
        return _whole(node, compute(node, _real(node, 0)), 3, node.input(0))

    return handler


def _average_pool(node: Node, x: Expr) -> Expr:
    return _channels_first(node, x, lambda each: one(conv_family.HANDLERS["AveragePool"](over(node, [each]))))


def _global_average_pool(node: Node, x: Expr) -> Expr:
    return _channels_first(node, x, lambda each: one(conv_family.HANDLERS["GlobalAveragePool"](over(node, [each]))))


def _channels_first(node: Node, x: Expr, compute: Callable[[Expr], Expr]) -> Expr:
    """``compute`` on [N, C, ...]; the data is [N, ..., C] where ``channels_last`` is on."""
    if not node.flag("channels_last"):
        return compute(x)
    rank = node.rank(x)
    y = compute(node.call(ops.transpose, x, axes=(0, rank - 1, *range(1, rank - 1))))
    return node.call(ops.transpose, y, axes=(0, *range(2, rank), 1))


def _conv(node: Node) -> Results:
    handler = quantise_family.HANDLERS["QLinearConv"]
    return _channels_first(node, node.input(0), lambda x: one(handler(over(node, [x, *node.inputs[1:]]))))


def _nhwc_max_pool(node: Node) -> Results:
    x, rank = node.input(0), node.rank(node.input(0))
    moved = node.call(ops.transpose, x, axes=(0, rank - 1, *range(1, rank - 1)))
    return node.call(ops.transpose, one(conv_family.HANDLERS["MaxPool"](over(node, [moved]))), axes=(0, *range(2, rank), 1))


def _softmax(node: Node, x: Expr) -> Expr:
    handler = reduce.HANDLERS["Softmax"]
    changed = over(node, [x])
    changed.opset = node.integer("opset", 13)
    return one(handler(changed))


def _leaky_relu(node: Node, x: Expr) -> Expr:
    return node.call(ops.leaky_relu, x, alpha=node.number("alpha", 0.01))


def _concat(node: Node) -> Results:
    """Result's scale and zero point first, then three inputs a part."""
    parts = [_real(node, i) for i in range(2, len(node.inputs), 3)]
    axis = node.axis(node.integer("axis"), node.rank(parts[0]))
    return _whole(node, node.call(ops.concat, *parts, axis=axis), 0, node.input(2))


def _where(node: Node) -> Results:
    y = node.call(ops.where, node.input(0), _real(node, 1), _real(node, 4))
    return _whole(node, y, 7, node.input(1))


def _gemm(node: Node) -> Results:
    """alpha * a_scale * b_scale * ((A' - a_zero) (B' - b_zero) + C), by y_scale to integers where that is given."""
    a, a_zero, b, b_zero, c = (node.input(i) if i != 6 else node.optional(i) for i in (0, 2, 3, 5, 6))
    assert a is not None and a_zero is not None and b is not None and b_zero is not None
    if node.flag("transA"):
        a = node.call(ops.transpose, a, axes=(1, 0))
    if node.flag("transB"):
        b = node.call(ops.transpose, b, axes=(1, 0))
    y = matrix_product(node, a, b, a_zero, b_zero)
    if c is not None:
        y = node.call(ops.add, y, c)
    scales = [scalar(node, each) if is_single(node, each) else each for each in (node.input(1), node.input(4))]
    alpha, y_scale = node.constant(node.number("alpha", 1.0), "float32"), node.optional(7)
    first = node.call(ops.multiply, alpha, scales[0])
    if y_scale is None:
        return node.call(ops.multiply, cast(node, y, "float32"), node.call(ops.multiply, first, scales[1]))
    zero = node.optional(8)
    scale = product_scale(node, first, scales[1], scalar(node, y_scale))
    dtype = node.dtype(a if zero is None else zero)
    return node.call(ops.requantise, y, scale, *([] if zero is None else [scalar(node, zero)]), dtype=dtype)


def _scaled_product(
    node: Node, a: Expr, b: Expr, scales: tuple[Expr, Expr], zeros: tuple[Expr | None, Expr | None], bias: Expr | None
) -> Expr:
    y = cast(node, matrix_product(node, a, b, *zeros), "float32")
    first, second = (scalar(node, each) if is_single(node, each) else each for each in scales)
    y = node.call(ops.multiply, y, node.call(ops.multiply, first, second))
    return y if bias is None else node.call(ops.add, y, bias)


def _matmul_integer_to_float(node: Node) -> Results:
    zeros = node.optional(4), node.optional(5)
    return _scaled_product(node, node.input(0), node.input(1), (node.input(2), node.input(3)), zeros, node.optional(6))


def _dynamic_quantize_matmul(node: Node) -> Results:
    x = node.input(0)
    scale, zero = dynamic_range(node, x)
    whole = node.call(ops.quantise, x, scale, zero, dtype="uint8")
    return _scaled_product(node, whole, node.input(1), (scale, node.input(2)), (zero, node.optional(3)), node.optional(4))


def _matmul_nbits(node: Node) -> Results:
    """B[N, blocks, block_size * bits / 8]: numbers of ``bits`` bits side by side, the first in the lowest bits, by blocks along K."""
    x, packed, scales, zeros, order, bias = (
        node.input(0),
        node.input(1),
        node.input(2),
        node.optional(3),
        node.optional(4),
        node.optional(5),
    )
    depth, columns = node.integer("K"), node.integer("N")
    bits, block = node.integer("bits", 4), node.integer("block_size")
    if bits not in (2, 4, 8) or order is not None:
        node.unsupported("weights of 2, 4 or 8 bits in their own order are there; quantise the model without g_idx")
    blocks = ceildiv(depth, block)
    if node.type(packed).size != columns * blocks * block * bits // 8:
        node.invalid(f"B {node.type(packed)} does not hold {columns} x {blocks} blocks of {block} numbers of {bits} bits")
    whole = _unpacked(node, node.call(ops.reshape, packed, shape=(columns, -(-blocks * block * bits // 8))), bits)
    whole = node.call(ops.reshape, whole, shape=(columns, blocks, block))
    scale = node.call(ops.reshape, scales, shape=(columns, blocks, 1))
    weight = node.call(ops.reshape, _by_blocks(node, whole, scale, zeros, bits), shape=(columns, blocks * block))
    if blocks * block != depth:
        weight = node.call(ops.slice_, weight, begins=(0, 0), ends=(columns, depth), steps=(1, 1))
    y = node.call(ops.dense, x, cast(node, weight, node.dtype(x)))
    return y if bias is None else node.call(ops.add, y, bias)


def _by_blocks(node: Node, whole: Expr, scale: Expr, zeros: Expr | None, bits: int) -> Expr:
    """Numbers [N, blocks, block] by the scale of their block. Zero points are packed like them, or numbers already."""
    columns, blocks, _ = node.shape(whole)
    if zeros is None:
        middle = node.constant(1 << (bits - 1), "uint8")
        return dequantised(node, whole, scale, middle)
    if node.dtype(zeros) != "uint8":
        numbers = cast(node, cast(node, whole, "float32"), node.dtype(scale))
        zero = cast(node, node.call(ops.reshape, zeros, shape=(columns, blocks, 1)), node.dtype(scale))
        return node.call(ops.multiply, node.call(ops.subtract, numbers, zero), scale)
    count = node.type(zeros).size
    assert isinstance(count, int) and isinstance(columns, int)
    rows = _unpacked(node, node.call(ops.reshape, zeros, shape=(columns, count // columns)), bits)
    rows = node.call(ops.slice_, rows, begins=(0, 0), ends=(columns, blocks), steps=(1, 1))
    return dequantised(node, whole, scale, node.call(ops.reshape, rows, shape=(columns, blocks, 1)))


def _unpacked(node: Node, packed: Expr, bits: int) -> Expr:
    """uint8[N, bytes] as uint8[N, bytes * 8 / bits]."""
    if bits == 8:
        return packed
    rows, length = node.shape(packed)
    parts: list[Expr] = []
    for shift in range(0, 8, bits):
        moved = node.call(ops.right_shift, packed, node.constant(shift, "uint8")) if shift else packed
        low = node.call(ops.bitwise_and, moved, node.constant(2**bits - 1, "uint8"))
        parts.append(node.call(ops.reshape, low, shape=(rows, length, 1)))
    return node.call(ops.reshape, node.call(ops.concat, *parts, axis=2), shape=(rows, length * (8 // bits)))


def _attention(node: Node) -> Results:
    """Input, weight, bias, their scales, mask, zero points, past."""
    zeros = node.optional(6), node.optional(7)
    projected = _scaled_product(node, node.input(0), node.input(1), (node.input(3), node.input(4)), zeros, node.optional(2))
    return self_attention(node, projected, node.optional(5), node.optional(8), None)


def _embed_layer_norm(node: Node) -> Results:
    """Ids; five tables (words, positions, segments, gamma, beta), mask, the tables' scales, their zero points."""

    def real(index: int) -> Expr:
        zero = node.optional(index + 11)
        return dequantised(node, node.input(index), scalar(node, node.input(index + 6)), None if zero is None else scalar(node, zero))

    words, segments = node.input(0), node.optional(1)
    tables = [real(2), real(3), real(4) if node.optional(4) is not None else None]
    y, _ = embedded(node, [words, segments], tables, real(5), real(6), None)
    return [y, mask_lengths(node, words, node.optional(7))]


HANDLERS: dict[str, Handler] = {
    "QuantizeLinear": quantise_family.HANDLERS["QuantizeLinear"],
    "DequantizeLinear": quantise_family.HANDLERS["DequantizeLinear"],
    "QLinearConv": _conv,
    "QLinearAdd": _binary(ops.add),
    "QLinearMul": _binary(ops.multiply),
    "QLinearSigmoid": _unary(lambda node, x: node.call(ops.sigmoid, x)),
    "QLinearLeakyRelu": _unary(_leaky_relu),
    "QLinearAveragePool": _unary(_average_pool),
    "QLinearGlobalAveragePool": _unary(_global_average_pool),
    "QLinearSoftmax": _unary(_softmax),
    "QLinearConcat": _concat,
    "QLinearWhere": _where,
    "NhwcMaxPool": _nhwc_max_pool,
    "QGemm": _gemm,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "MatMulNBits": _matmul_nbits,
    "QAttention": _attention,
    "QEmbedLayerNormalization": _embed_layer_norm,
}
