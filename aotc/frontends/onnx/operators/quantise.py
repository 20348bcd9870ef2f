"""Quantised operators of ONNX's own domain."""

from __future__ import annotations

from collections.abc import Callable

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators.conv import kernel_of, padded, windows
from aotc.frontends.onnx.tensors import dtype_of
from aotc.ir.dims import ceildiv
from aotc.ir.expr import Expr
from aotc.ir.types import FLOATS, SMALL, SMALL_FLOATS, SMALL_INTEGERS
from aotc.ops.small import BITS


def cast(node: Node, x: Expr, dtype: str) -> Expr:
    """``x`` in ``dtype``; itself where it is."""
    return x if node.dtype(x) == dtype else node.call(ops.cast, x, dtype=dtype)


def is_single(node: Node, x: Expr) -> bool:
    """Whether a scale or zero point is one number for the whole tensor."""
    return all(dim == 1 for dim in node.shape(x))


def scalar(node: Node, x: Expr) -> Expr:
    return x if not node.rank(x) else node.call(ops.reshape, x, shape=())


def along(node: Node, vector: Expr, rank: int, axis: int) -> Expr:
    """A scale or zero point of one element, or one per index of ``axis``, in a shape that broadcasts to ``rank`` axes."""
    if is_single(node, vector):
        return scalar(node, vector)
    if node.rank(vector) != 1:
        node.invalid(f"a scale and its zero point have one axis, not {node.type(vector)}")
    return node.call(ops.reshape, vector, shape=(*[1] * axis, node.shape(vector)[0], *[1] * (rank - axis - 1)))


Values = Callable[[Expr, Expr, "Expr | None"], Expr]


def _by_granularity(node: Node, x: Expr, scale: Expr, zero: Expr | None, compute: Values) -> Expr:
    """``compute`` of x, scale and zero point, which broadcast: they are given by tensor, by axis or by blocks along an axis."""
    block, shape = node.integer("block_size", 0), node.shape(x)
    if not block:
        if is_single(node, scale):
            return compute(x, scalar(node, scale), None if zero is None else scalar(node, zero))
        axis = node.axis(node.integer("axis", 1), node.rank(x))
        return compute(x, along(node, scale, len(shape), axis), None if zero is None else along(node, zero, len(shape), axis))
    axis = node.axis(node.integer("axis", 1), node.rank(x))
    own, size = node.shape(scale), shape[axis]
    wanted = (*shape[:axis], ceildiv(size, block), *shape[axis + 1 :])
    if own != wanted:
        node.invalid(f"blocks of {block} along axis {axis} of {node.type(x)} need a scale of {list(wanted)}, not {list(own)}")
    missing = own[axis] * block - size
    if missing != 0:  # the last block is not full
        x = node.call(ops.pad, x, before=(0,) * len(shape), after=(*[0] * axis, missing, *[0] * (len(shape) - axis - 1)), value=0)
    x = node.call(ops.reshape, x, shape=(*own[: axis + 1], block, *own[axis + 1 :]))
    once = (*own[: axis + 1], 1, *own[axis + 1 :])
    scale, zero = node.call(ops.reshape, scale, shape=once), None if zero is None else node.call(ops.reshape, zero, shape=once)
    y = node.call(ops.reshape, compute(x, scale, zero), shape=(*own[:axis], own[axis] * block, *own[axis + 1 :]))
    return y if missing == 0 else node.call(ops.slice_, y, begins=(0,) * len(shape), ends=shape, steps=(1,) * len(shape))


def quantised(node: Node, x: Expr, scale: Expr, zero: Expr | None, dtype: str, saturate: bool = True) -> Expr:
    """x, in the dtype of the scale, as ``dtype``; scale and zero point broadcast to it."""
    if dtype in SMALL_FLOATS:
        y = node.call(ops.divide, x, scale)
        if zero is not None and dtype in BITS:
            y = node.call(ops.add, y, cast(node, zero, node.dtype(y)))
        return node.call(ops.cast, y, dtype=dtype, saturate=saturate)
    if dtype not in SMALL_INTEGERS:
        return node.call(ops.quantise, x, scale, *_given(zero), dtype=dtype)
    wide, bits = ("uint8" if dtype.startswith("u") else "int8"), BITS[dtype]
    low = 0 if wide == "uint8" else -(2 ** (bits - 1))
    zero = None if zero is None else cast(node, zero, wide)
    y = node.call(ops.quantise, x, scale, *_given(zero), dtype=wide, low=low, high=low + 2**bits - 1)
    return node.call(ops.cast, y, dtype=dtype)


def dequantised(node: Node, x: Expr, scale: Expr, zero: Expr | None) -> Expr:
    """x as numbers in the dtype of the scale; scale and zero point broadcast to it."""
    if node.dtype(x) in SMALL_FLOATS:
        y = cast(node, x, "float32")
        if zero is not None and node.dtype(x) in BITS:
            y = node.call(ops.subtract, y, cast(node, zero, "float32"))
        return cast(node, node.call(ops.multiply, y, cast(node, scale, "float32")), node.dtype(scale))
    if node.dtype(x) in SMALL_INTEGERS:
        x, zero = cast(node, x, "int8"), None if zero is None else cast(node, zero, "int8")
    return node.call(ops.dequantise, x, scale, *_given(zero))


def _given(zero: Expr | None) -> list[Expr]:
    return [] if zero is None else [zero]


def _quantize_linear(node: Node) -> Results:
    zero = node.optional(2)
    dtype = "uint8" if zero is None else node.dtype(zero)
    if zero is None and node.integer("output_dtype", 0):
        dtype = dtype_of(node.integer("output_dtype"), f"the result of {node.origin!r}")
    precision = node.dtype(node.input(1))
    if node.integer("precision", 0):
        precision = dtype_of(node.integer("precision"), f"the precision of {node.origin!r}")

    def compute(x: Expr, scale: Expr, zero: Expr | None) -> Expr:
        if precision not in FLOATS:  # a small float: the quotient is rounded to it, and that is what is quantised
            x, scale = (cast(node, cast(node, each, precision), "float32") for each in (x, scale))
            x = cast(node, cast(node, node.call(ops.divide, x, scale), precision), "float32")
            scale = node.constant(1, "float32")
        else:
            x, scale = cast(node, x, precision), cast(node, scale, precision)
        return quantised(node, x, scale, zero, dtype, node.flag("saturate", True))

    return _by_granularity(node, node.input(0), node.input(1), zero, compute)


def _dequantize_linear(node: Node) -> Results:
    dtype = node.dtype(node.input(1))
    if node.integer("output_dtype", 0):
        dtype = dtype_of(node.integer("output_dtype"), f"the result of {node.origin!r}")

    def compute(x: Expr, scale: Expr, zero: Expr | None) -> Expr:
        return dequantised(node, x, cast(node, scale, "float32") if dtype in SMALL else scale, zero)

    return cast(node, _by_granularity(node, node.input(0), node.input(1), node.optional(2), compute), dtype)


def known_zero(node: Node, zero: Expr | None) -> bool:
    """Whether a zero point is left out, or known to be 0."""
    value = None if zero is None else node.known.get(zero)
    return zero is None or (value is not None and value.dtype != object and not value.astype("int32").any())


def centred(node: Node, x: Expr, zero: Expr | None) -> Expr:
    """Integers of 8 bits without their zero point, which broadcasts to them; itself where it is 0."""
    if zero is None or known_zero(node, zero):
        return x
    return node.call(ops.subtract, cast(node, x, "int16"), cast(node, zero, "int16"))


def matrix_product(node: Node, a: Expr, b: Expr, a_zero: Expr | None, b_zero: Expr | None) -> Expr:
    """(a - a_zero) @ (b - b_zero) in int32. One zero point for all of ``a`` is taken off the sums, times those of b's columns."""
    rank = node.rank(b)
    if b_zero is not None and node.rank(b_zero) == 1 and rank > 1:
        b_zero = along(node, b_zero, rank, rank - 1)
    b = centred(node, b, b_zero if b_zero is None or node.rank(b_zero) <= rank else scalar(node, b_zero))
    if a_zero is None or known_zero(node, a_zero):
        return node.call(ops.integer_matmul, a, b)
    if not is_single(node, a_zero):
        rows = along(node, a_zero, node.rank(a), node.rank(a) - 2) if node.rank(a_zero) == 1 else a_zero
        return node.call(ops.integer_matmul, centred(node, a, rows), b)
    sums = node.call(ops.sum_, cast(node, b, "int32"), axes=(max(rank - 2, 0),), keepdims=rank > 1 and node.rank(a) > 1)
    correction = node.call(ops.multiply, sums, cast(node, scalar(node, a_zero), "int32"))
    return node.call(ops.subtract, node.call(ops.integer_matmul, a, b), correction)


def convolution(node: Node, x: Expr, w: Expr, x_zero: Expr | None, w_zero: Expr | None) -> Expr:
    """The sums of a convolution in int32. Where x's zero point is known, x is padded with it and it is taken off the sums, times
    those of the weights; else it is taken off x."""
    rank = node.rank(w)
    w = centred(node, w, None if w_zero is None else along(node, w_zero, rank, 0))
    kernel = kernel_of(node, w)
    strides, dilation = windows(node, x, kernel)
    found = None if x_zero is None else node.known.get(x_zero)
    zero = 0 if x_zero is None else None if found is None or found.size != 1 else int(found.reshape(())[()])
    if zero is None and x_zero is not None:
        x = centred(node, x, scalar(node, x_zero) if is_single(node, x_zero) else along(node, x_zero, rank, 1))
    x, padding = padded(node, x, kernel, strides, dilation, zero or 0)
    attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": node.integer("group", 1)}
    y = node.call(ops.integer_conv, x, w, pad_value=zero or 0, **attrs)
    if not zero:
        return y
    sums = node.call(ops.sum_, cast(node, w, "int32"), axes=tuple(range(1, rank)), keepdims=False)
    correction = node.call(ops.multiply, sums, node.constant(zero, "int32"))
    return node.call(ops.subtract, y, node.call(ops.reshape, correction, shape=(node.shape(w)[0], *[1] * (rank - 2))))


def product_scale(node: Node, first: Expr, second: Expr, result: Expr) -> Expr:
    """What an int32 sum of products is multiplied by: first * second / result, in float32."""
    first, second, result = (cast(node, each, "float32") for each in (first, second, result))
    return node.call(ops.divide, node.call(ops.multiply, first, second), result)


def _qlinear_conv(node: Node) -> Results:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    y = convolution(node, x, w, x_zero, w_zero)
    bias = node.optional(8)
    if bias is not None:
        y = node.call(ops.add, y, along(node, bias, node.rank(y), 1) if not is_single(node, bias) else scalar(node, bias))
    scale = product_scale(node, scalar(node, x_scale), along(node, w_scale, node.rank(y), 1), scalar(node, y_scale))
    return node.call(ops.requantise, y, scale, scalar(node, y_zero), dtype=node.dtype(y_zero))


def _qlinear_matmul(node: Node) -> Results:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    if node.dtype(a) in SMALL or node.dtype(b) in SMALL:
        left, right = dequantised(node, a, _rows(node, a, a_scale), None), dequantised(node, b, _columns(node, b, b_scale), None)
        real = node.call(ops.matmul, left, right)
        return quantised(node, real, _rows(node, real, y_scale), None, node.dtype(y_zero))
    y = matrix_product(node, a, b, a_zero, b_zero)
    scale = product_scale(node, _rows(node, a, a_scale), _columns(node, b, b_scale), _rows(node, y, y_scale))
    return node.call(ops.requantise, y, scale, _rows(node, y, y_zero), dtype=node.dtype(y_zero))


def _rows(node: Node, x: Expr, values: Expr) -> Expr:
    if is_single(node, values):
        return scalar(node, values)
    return along(node, values, node.rank(x), node.rank(x) - 2) if node.rank(values) == 1 else values


def _columns(node: Node, x: Expr, values: Expr) -> Expr:
    return scalar(node, values) if is_single(node, values) else values


def _matmul_integer(node: Node) -> Results:
    return matrix_product(node, node.input(0), node.input(1), node.optional(2), node.optional(3))


def _conv_integer(node: Node) -> Results:
    return convolution(node, node.input(0), node.input(1), node.optional(2), node.optional(3))


def dynamic_range(node: Node, x: Expr) -> tuple[Expr, Expr]:
    """Scale and zero point (uint8) that spread the range of ``x``, with 0 in it, over uint8."""
    axes, zero = tuple(range(node.rank(x))), node.constant(0, "float32")
    high = node.call(ops.maximum, node.call(ops.max_, x, axes=axes, keepdims=False), zero)
    low = node.call(ops.minimum, node.call(ops.min_, x, axes=axes, keepdims=False), zero)
    scale = node.call(ops.divide, node.call(ops.subtract, high, low), node.constant(255, "float32"))
    flat = node.call(ops.equal, high, low)
    scale = node.call(ops.where, flat, node.constant(1, "float32"), scale)
    place = node.call(ops.subtract, zero, node.call(ops.divide, low, scale))
    return scale, node.call(ops.quantise, place, node.constant(1, "float32"), dtype="uint8")


def _dynamic_quantize_linear(node: Node) -> Results:
    x = node.input(0)
    scale, zero = dynamic_range(node, x)
    return [node.call(ops.quantise, x, scale, zero, dtype="uint8"), scale, zero]


HANDLERS: dict[str, Handler] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "ConvInteger": _conv_integer,
    "MatMulInteger": _matmul_integer,
    "DynamicQuantizeLinear": _dynamic_quantize_linear,
}
