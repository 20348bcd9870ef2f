"""Random numbers. Every run draws the same ones: from the seed, where the node has one, else from the node's name."""

from __future__ import annotations

import hashlib
import struct

from onnx import AttributeProto

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.tensors import dtype_of
from aotc.ir.dims import Dim
from aotc.ir.expr import Expr
from aotc.ops.random import normal, uniform


def key_of(node: Node) -> tuple[int, int]:
    """Two words from the seed, or from the node's name."""
    text = node.origin.encode()
    if node.has("seed"):
        seed = node.attributes["seed"]  # a float, of Dropout an integer
        text = struct.pack("<f", seed.f) if seed.type == AttributeProto.FLOAT else struct.pack("<q", seed.i)
    low, high = struct.unpack("<II", hashlib.sha256(text).digest()[:8])
    return low, high


def _shape_and_dtype(node: Node) -> tuple[tuple[Dim, ...], str]:
    if node.proto.op_type.endswith("Like"):
        x = node.input(0)
        shape, dtype = node.shape(x), node.dtype(x)
        return shape, dtype_of(node.integer("dtype"), f"the result of {node.origin!r}") if node.has("dtype") else dtype
    return node.integers("shape"), dtype_of(node.integer("dtype", 1), f"the result of {node.origin!r}")


def _computed(dtype: str) -> str:
    """The dtype that numbers are drawn in: small floats are rounded from float32."""
    return dtype if dtype in ("float16", "float32", "float64") else "float32"


def _random_uniform(node: Node) -> Results:
    shape, dtype = _shape_and_dtype(node)
    low, high = node.number("low", 0.0), node.number("high", 1.0)
    return _scaled(node, uniform(shape, key_of(node), _computed(dtype), origin=node.origin), high - low, low, dtype)


def _random_normal(node: Node) -> Results:
    shape, dtype = _shape_and_dtype(node)
    drawn = normal(shape, key_of(node), _computed(dtype), origin=node.origin)
    return _scaled(node, drawn, node.number("scale", 1.0), node.number("mean", 0.0), dtype)


def _scaled(node: Node, x: Expr, scale: float, offset: float, dtype: str) -> Expr:
    wide = node.dtype(x)
    if (scale, offset) != (1.0, 0.0):
        x = node.call(ops.add, node.call(ops.multiply, x, node.constant(scale, wide)), node.constant(offset, wide))
    return x if wide == dtype else node.call(ops.cast, x, dtype=dtype)


def _bernoulli(node: Node) -> Results:
    """1 where a number in [0, 1) is below the probability."""
    x = node.input(0)
    dtype = dtype_of(node.integer("dtype"), f"the result of {node.origin!r}") if node.has("dtype") else node.dtype(x)
    wide = _computed(node.dtype(x))
    x = x if node.dtype(x) == wide else node.call(ops.cast, x, dtype=wide)
    drawn = uniform(node.shape(x), key_of(node), wide, origin=node.origin)
    return node.call(ops.cast, node.call(ops.less, drawn, x), dtype=dtype)


def _multinomial(node: Node) -> Results:
    """Classes drawn by their unnormalised log probabilities: where a number falls in their running sum."""
    x, count = node.input(0), node.integer("sample_size", 1)
    if node.rank(x) != 2:
        node.invalid(f"takes log probabilities [batch, classes], not {node.type(x)}")
    batch, classes = node.shape(x)
    bounds = node.call(ops.cumsum, node.call(ops.softmax, node.call(ops.cast, x, dtype="float32"), axis=1), axis=1)
    drawn = node.call(ops.reshape, uniform((batch, count), key_of(node), origin=node.origin), shape=(batch, count, 1))
    above = node.call(ops.greater_equal, drawn, node.call(ops.reshape, bounds, shape=(batch, 1, classes)))
    chosen = node.call(ops.sum_, node.call(ops.cast, above, dtype="int64"), axes=(2,), keepdims=False)
    last = node.call(ops.subtract, node.call(ops.reshape, node.call(ops.dims, values=(classes,)), shape=()), node.constant(1, "int64"))
    chosen = node.call(ops.minimum, chosen, last)
    dtype = dtype_of(node.integer("dtype", 6), f"the result of {node.origin!r}")
    return chosen if dtype == "int64" else node.call(ops.cast, chosen, dtype=dtype)


def dropped(node: Node, x: Expr, ratio: Expr | float) -> tuple[Expr, Expr]:
    """Dropout in training: the scaled data, and the mask of what was kept."""
    dtype = _computed(node.dtype(x))
    one = node.constant(1.0, dtype)
    rate = (
        node.constant(ratio, dtype)
        if isinstance(ratio, float)
        else node.call(ops.cast, node.call(ops.reshape, ratio, shape=()), dtype=dtype)
    )
    mask = node.call(ops.greater_equal, uniform(node.shape(x), key_of(node), dtype, origin=node.origin), rate)
    scale = node.call(ops.divide, one, node.call(ops.subtract, one, rate))
    scaled = node.call(ops.multiply, node.call(ops.cast, x, dtype=dtype), scale)
    kept = node.call(ops.where, mask, scaled, node.constant(0.0, dtype))
    return node.call(ops.cast, kept, dtype=node.dtype(x)), mask


HANDLERS: dict[str, Handler] = {
    "RandomUniform": _random_uniform,
    "RandomUniformLike": _random_uniform,
    "RandomNormal": _random_normal,
    "RandomNormalLike": _random_normal,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
}
