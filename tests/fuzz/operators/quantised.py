"""Quantised operators. What they compute is exact, so results must be equal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fuzz.builder import Builder, Value

Add = Callable[[Builder], object]


def _scale(g: Builder, shape: tuple[int, ...] = ()) -> Value:
    """Powers of two: a product with one is exact, so that no value lies within rounding of a half."""
    return g.constant((2.0 ** -g.rng.integers(1, 5, shape)).astype(np.float32))


def _zero(g: Builder, dtype: str, shape: tuple[int, ...] = ()) -> Value:
    low = 0 if dtype.startswith("u") else -10
    return g.constant(g.rng.integers(low, 20, shape).astype(dtype))


def _codes(g: Builder, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    info = np.iinfo(dtype)
    return g.rng.integers(info.min, info.max + 1, shape).astype(dtype)


def _weights(g: Builder, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Codes of seven bits: with eight, ONNX Runtime's sums of two products saturate on processors without VNNI."""
    return (_codes(g, dtype, shape) // 2).astype(dtype)


def quantise(g: Builder) -> object:
    a = g.value(("float32",), (2, 1, 3, 4))
    dtype = g.choose(("uint8", "int8"))
    axis = g.integer(0, a.rank - 1)
    shape = (a.shape[axis],) if g.flag() else ()
    return g.node("QuantizeLinear", [a, _scale(g, shape), _zero(g, dtype, shape)], axis=axis)


def dequantise(g: Builder) -> object:
    dtype = g.choose(("uint8", "int8"))
    a = g.input(_codes(g, dtype, g.shape(g.choose((2, 1, 3)))))
    axis = g.integer(0, a.rank - 1)
    shape = (a.shape[axis],) if g.flag() else ()
    return g.node("DequantizeLinear", [a, _scale(g, shape), _zero(g, dtype, shape)], axis=axis)


def matmul_integer(g: Builder) -> object:
    m, k, n = g.choose((3, 1, 5)), g.choose((4, 1, 8, 17)), g.choose((3, 1, 16))
    first, second = g.choose(("uint8", "int8")), g.choose(("uint8", "int8"))
    a, b = g.input(_codes(g, first, (m, k))), g.input(_weights(g, second, (k, n)))
    zeros = [_zero(g, first), _zero(g, second)] if g.flag() else []
    return g.node("MatMulInteger", [a, b, *zeros])


def conv_integer(g: Builder) -> object:
    inputs, outputs = g.choose((1, 2, 4)), g.choose((1, 3, 8))
    a = g.input(_codes(g, "uint8", (g.choose((1, 2)), inputs, *g.shape(2, (5, 4, 7)))))
    w = g.constant(_weights(g, g.choose(("uint8", "int8")), (outputs, inputs, 3, 3)))
    return g.node("ConvInteger", [a, w, *([_zero(g, "uint8")] if g.flag() else [])], pads=[g.integer(0, 1)] * 4)


def qlinear_matmul(g: Builder) -> object:
    m, k, n = g.choose((3, 1, 5)), g.choose((4, 1, 8, 17)), g.choose((3, 1, 16))
    dtype = g.choose(("uint8", "int8"))
    a, b = g.input(_codes(g, dtype, (m, k))), g.constant(_weights(g, dtype, (k, n)))
    return g.node(
        "QLinearMatMul", [a, _scale(g), _zero(g, dtype), b, _scale(g), _zero(g, dtype), g.constant(4.0, "float32"), _zero(g, dtype)]
    )


def qlinear_conv(g: Builder) -> object:
    inputs, outputs = g.choose((1, 2, 4)), g.choose((1, 3, 8))
    dtype = g.choose(("uint8", "int8"))
    a = g.input(_codes(g, dtype, (g.choose((1, 2)), inputs, *g.shape(2, (5, 4, 7)))))
    w = g.constant(_weights(g, "int8", (outputs, inputs, 3, 3)))
    bias = [g.constant(g.rng.integers(-500, 500, outputs).astype(np.int32))] if g.flag() else []
    zero = g.constant(np.zeros((), np.int8))
    return g.node(
        "QLinearConv", [a, _scale(g), _zero(g, dtype), w, _scale(g), zero, g.constant(4.0, "float32"), _zero(g, dtype), *bias], pads=[g.integer(0, 1)] * 4
    )  # fmt: skip


def dynamic_quantise(g: Builder) -> object:
    a = g.value(("float32",), (2, 1, 3), lambda v: v.array.size > 0)
    return g.node("DynamicQuantizeLinear", [a], outputs=3)


OPERATORS: dict[str, Add] = {
    "QuantizeLinear": quantise,
    "DequantizeLinear": dequantise,
    "MatMulInteger": matmul_integer,
    "ConvInteger": conv_integer,
    "QLinearMatMul": qlinear_matmul,
    "QLinearConv": qlinear_conv,
    "DynamicQuantizeLinear": dynamic_quantise,
}
