"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import helper

from tests.fuzz.builder import ALL, FLOATS, INTEGERS, NUMBERS, SIGNED, UNSIGNED, Builder, Skip, Value

Add = Callable[[Builder], object]
BOTH = (*FLOATS, "int32", "int64", "int8", "uint8")
WIDE = ("float32", "float64", "float16", "int64", "int32", "uint64", "uint32")  # what ONNX Runtime has arithmetic for
REAL = ("float32", "float32", "float16", "float64")
SINGLE = ("float32", "float16")  # where ONNX Runtime has constants in float32, like a sixth


def unary(operator: str, dtypes: Sequence[str] = REAL, kind: str = "normal", since: int = 0, **attributes: Sequence[float]) -> Add:
    """``attributes``: what each may be."""

    def add(g: Builder) -> object:
        if g.opset < since:
            raise Skip
        chosen = {name: g.choose(values) for name, values in attributes.items()}
        return g.node(operator, [g.value(dtypes, kind=kind)], **chosen)

    return add


def binary(operator: str, dtypes: Sequence[str] = WIDE, kind: str = "normal", fits: Callable[[Value, Value], bool] | None = None) -> Add:
    def add(g: Builder) -> object:
        a = g.value(dtypes)
        b = g.broadcast(a, kind)
        pair = (b, a) if g.flag() and kind == "normal" else (a, b)
        if fits is not None and not fits(*pair):
            raise Skip
        return g.node(operator, pair)

    return add


def variadic(operator: str, dtypes: Sequence[str]) -> Add:
    def add(g: Builder) -> object:
        a = g.value(dtypes)
        return g.node(operator, [a, *(g.broadcast(a) for _ in range(g.integer(0, 3)))])

    return add


def _no_zero_divisor(a: Value, b: Value) -> bool:
    return a.dtype in FLOATS or bool(np.all(b.array != 0))


def mod(g: Builder) -> object:
    a = g.value((*SIGNED, *UNSIGNED, "float32", "float64"))
    b = g.broadcast(a)
    if not np.all(b.array != 0):
        raise Skip
    return g.node("Mod", [a, b], fmod=1 if a.dtype in FLOATS else g.integer(0, 1))


def power(g: Builder) -> object:
    base = g.value(("float32", "float64", "int32", "int64"), kind="positive")
    if base.dtype in FLOATS and not np.all(base.array > 0):
        exponent = g.constant(g.choose((2, 3, 0, 1)), g.choose((base.dtype, "int64")))
    else:
        exponent = g.constant(g.choose((2, 3, 0, 1) if base.dtype not in FLOATS else (2, 0.5, -1, 3, 1.5)), base.dtype)
    return g.node("Pow", [base, exponent])


def bit_shift(g: Builder) -> object:
    a = g.value(("uint8", "uint32", "uint64"))
    amount = g.constant(g.rng.integers(0, 8 * a.array.itemsize, a.shape if g.flag() else ()).astype(a.dtype))
    return g.node("BitShift", [a, amount], direction=g.choose(("LEFT", "RIGHT")))


def clip(g: Builder) -> object:
    a = g.value((*FLOATS, "int64", "int32", "int8", "uint8"))
    low = g.constant(g.choose((0, 1)), a.dtype) if g.choose((True, True, False)) else None
    high = g.constant(g.choose((3, 1)), a.dtype) if g.choose((True, True, False)) else None
    return g.node("Clip", [a, low, high])


def where(g: Builder) -> object:
    a = g.value(ALL)
    b = g.broadcast(a)
    shapes = np.broadcast_shapes(a.shape, b.shape)
    there = [value for value in g.values if value.dtype == "bool" and value.shape == shapes]
    condition = g.choose(there) if there and g.flag() else g.input(g.array("bool", shapes))
    return g.node("Where", [condition, a, b])


def cast(g: Builder) -> object:
    a = g.value(ALL)
    to = g.choose([dtype for dtype in ALL if dtype != a.dtype])
    if a.dtype in FLOATS and to not in (*FLOATS, "bool"):
        info = np.iinfo(to)
        if not (np.isfinite(a.array).all() and np.all(a.array.astype("float64") > info.min + 0.5) and np.all(a.array < min(info.max, 6e4))):
            raise Skip
        a = g.node("Floor", [a])[0] if g.flag() else a
    return g.node("Cast", [a], to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


def prelu(g: Builder) -> object:
    a = g.value(("float32", "float64", "float16", "int32", "uint32", "int64"))
    shape = [1 if g.flag() else size for size in a.shape]
    return g.node("PRelu", [a, g.like(a, shape[g.integer(0, len(shape)) :])])


def is_inf(g: Builder) -> object:
    a = g.value(("float32", "float64"))
    odd = a.array.copy()
    odd[g.rng.random(odd.shape) < 0.3] = g.choose((np.inf, -np.inf, np.nan))
    mixed = g.input(odd)
    return g.node(g.choose(("IsInf", "IsNaN")), [mixed])


# Attributes are float32, and in a float64 graph aotc takes the short decimal that was meant: here both are the same.
OPERATORS: dict[str, Add] = {
    **{name: binary(name) for name in ("Add", "Sub", "Mul")},
    "Div": binary("Div", kind="positive", fits=_no_zero_divisor),
    "Mod": mod,
    "Pow": power,
    **{name: variadic(name, (*FLOATS, "int32", "int64", "uint32", "uint64")) for name in ("Max", "Min")},
    **{name: variadic(name, FLOATS) for name in ("Sum", "Mean")},
    **{name: binary(name, ("bool",)) for name in ("And", "Or", "Xor")},
    **{name: binary(name, WIDE) for name in ("Less", "Greater", "LessOrEqual", "GreaterOrEqual")},
    "Equal": binary("Equal", (*WIDE, "bool")),
    **{name: binary(name, INTEGERS) for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "BitwiseNot": unary("BitwiseNot", INTEGERS),
    "BitShift": bit_shift,
    "Not": unary("Not", ("bool",)),
    "Abs": unary("Abs", NUMBERS),
    "Neg": unary("Neg", ("float32", "float16", "float64", *SIGNED)),
    "Sign": unary("Sign", NUMBERS),
    **{name: unary(name, kind="halves") for name in ("Ceil", "Floor", "Round")},
    **{name: unary(name, kind="positive") for name in ("Sqrt", "Reciprocal", "Log")},
    **{name: unary(name) for name in ("Exp", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Erf")},
    **{name: unary(name, kind="unit") for name in ("Asin", "Acos", "Atanh")},
    "Relu": unary("Relu", (*REAL, "int32", "int8")),
    **{name: unary(name) for name in ("Sigmoid", "Softplus", "Softsign", "Identity")},
    "HardSwish": unary("HardSwish", SINGLE),
    "Mish": unary("Mish", since=18),
    "Gelu": unary("Gelu", SINGLE, since=20, approximate=("none", "tanh")),
    "Swish": unary("Swish", since=24, alpha=(1.0, 0.5)),
    "Elu": unary("Elu", alpha=(1.0, 0.5)),
    "Celu": unary("Celu", ("float32",), alpha=(1.0, 2.0)),
    "Selu": unary("Selu", alpha=(1.625, 2.0), gamma=(1.0625,)),
    "LeakyRelu": unary("LeakyRelu", alpha=(0.125, 0.5)),
    "ThresholdedRelu": unary("ThresholdedRelu", alpha=(1.0, 0.125)),
    "HardSigmoid": unary("HardSigmoid", alpha=(0.25, 0.5), beta=(0.5, 0.375)),
    # Of integers, ONNX's own function rounds the bias first, ONNX Runtime the difference.
    "Shrink": unary("Shrink", SINGLE, lambd=(0.5, 1.0), bias=(0.0, 0.25)),
    "PRelu": prelu,
    "Clip": clip,
    "Where": where,
    "Cast": cast,
    "IsInf": is_inf,
}
