"""Operators that compute each output element from the input elements at the same place, after numpy broadcasting.

A table: one row per operator, its numpy reference in the row. Semantics follow ONNX, and PyTorch where ONNX has no such
operator. In float16, functions that are made of several steps are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir import dims
from aotc.ir.dims import Dim
from aotc.ir.expr import Attributes
from aotc.ir.types import DTYPES, FLOATS, INTEGERS, PLAIN, SMALL, TensorType
from aotc.ops.base import Fusion, NoAttributes, OpDef, TypeRelation, broadcast_shapes, format_shape, same_dtype
from aotc.ops.small import check_round_mode, to_small, wide_dtype

NUMBERS = FLOATS + INTEGERS
BITS = (*INTEGERS, "bool")
BOOL = ("bool",)
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class AlphaAttributes(Attributes):
    """``alpha``: the slope or scale of the negative part, or the threshold."""

    alpha: float = 1.0


@dataclass(frozen=True, slots=True)
class LeakyReluAttributes(Attributes):
    alpha: float = 0.01


@dataclass(frozen=True, slots=True)
class SeluAttributes(Attributes):
    alpha: float = 1.6732632423543772
    gamma: float = 1.0507009873554805


@dataclass(frozen=True, slots=True)
class HardSigmoidAttributes(Attributes):
    alpha: float = 0.2
    beta: float = 0.5


@dataclass(frozen=True, slots=True)
class GeluAttributes(Attributes):
    """``approximate``: ``none`` for the error function, ``tanh`` for its approximation."""

    approximate: str = "none"


@dataclass(frozen=True, slots=True)
class IsInfAttributes(Attributes):
    negative: bool = True
    positive: bool = True


@dataclass(frozen=True, slots=True)
class CastAttributes(Attributes):
    """``saturate``: whether what is beyond a float8 becomes its largest value. ``round_mode`` (up, down, nearest) is for
    float8_e8m0fnu, which holds powers of two."""

    dtype: str
    saturate: bool = True
    round_mode: str = "up"


@dataclass(frozen=True, slots=True)
class ClipAttributes(Attributes):
    """``None`` is without limit on that side."""

    minimum: float | int | None = None
    maximum: float | int | None = None


@dataclass(frozen=True, slots=True)
class ModuloAttributes(Attributes):
    """``fmod``: the result has the sign of the dividend (C's ``fmod``), else of the divisor (Python's ``%``)."""

    fmod: bool = False


def accept(arg: TensorType, dtypes: Sequence[str]) -> None:
    """Raises InvalidModel where the dtype of ``arg`` is none of ``dtypes``."""
    if arg.dtype not in dtypes:
        raise InvalidModel(f"takes {', '.join(dtypes)}, not {arg.dtype}")


def _unary_relation(dtypes: Sequence[str], result: str | None) -> TypeRelation:
    def relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
        accept(types[0], dtypes)
        return TensorType(types[0].shape, result or types[0].dtype, types[0].device)

    return relation


def _binary_relation(dtypes: Sequence[str], result: str | None) -> TypeRelation:
    def relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
        accept(types[0], dtypes)
        dtype = same_dtype(types)
        return TensorType(broadcast_shapes(types[0].shape, types[1].shape), result or dtype, types[0].device)

    return relation


def _unary(
    name: str,
    reference: Callable[..., Array],
    dtypes: Sequence[str] = FLOATS,
    attributes: type[Attributes] | None = None,
    result: str | None = None,
    shape_value: bool = False,
) -> OpDef:
    """A row: ``reference(x)``, or ``reference(attrs, x)`` where the operator has attributes."""

    def compute(attrs: Any, x: Array) -> Array:
        value = x.astype("float32") if x.dtype == np.float16 else x
        with np.errstate(all="ignore"):
            done = reference(attrs, value) if attributes else reference(value)
            return np.asarray(done).astype(result or x.dtype, copy=False)

    relation = _unary_relation(dtypes, result)
    return OpDef(name, relation, compute, Fusion.ELEMENTWISE, attributes or NoAttributes, 1, shape_value)


def _binary(
    name: str,
    reference: Callable[[Array, Array], Array],
    dtypes: Sequence[str] = NUMBERS,
    result: str | None = None,
    on_dims: Callable[[Any, Any], Any] | None = None,
) -> OpDef:
    """A row: ``reference(a, b)``, and ``on_dims(a, b)`` for two dims where shapes may be computed by the operator."""
    dim_function = np.frompyfunc(on_dims, 2, 1) if on_dims else None

    def compute(attrs: Any, a: Array, b: Array) -> Array:
        if a.dtype == object or b.dtype == object:
            assert dim_function is not None
            return np.asarray(dim_function(a, b), dtype=object)
        with np.errstate(all="ignore"):
            return np.asarray(reference(a, b)).astype(result or a.dtype, copy=False)

    relation = _binary_relation(dtypes, result)
    return OpDef(name, relation, compute, Fusion.BROADCAST, NoAttributes, 2, on_dims is not None)


# What one step of each function does ------------------------------------------------------------------------------


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype("float64"))).astype("float64")


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _softplus(x: Array) -> Array:
    return np.logaddexp(np.zeros((), x.dtype), x)


def _gelu(attrs: GeluAttributes, x: Array) -> Array:
    if attrs.approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _isinf(attrs: IsInfAttributes, x: Array) -> Array:
    return (np.isposinf(x) & attrs.positive) | (np.isneginf(x) & attrs.negative)


def _relu(x: Array) -> Array:
    return np.maximum(x, np.zeros((), x.dtype))


def _clip(attrs: ClipAttributes, x: Array) -> Array:
    """Limits beyond the range of an integer dtype are without effect. NaN stays NaN."""
    low, high = attrs.minimum, attrs.maximum
    if x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        low = None if low is None else min(max(math.ceil(low), int(info.min)), int(info.max)) if math.isfinite(low) else None
        high = None if high is None else min(max(math.floor(high), int(info.min)), int(info.max)) if math.isfinite(high) else None
    x = x if low is None else np.maximum(x, np.asarray(low, x.dtype))
    return x if high is None else np.minimum(x, np.asarray(high, x.dtype))


def _elu(alpha: float, x: Array) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _celu(attrs: AlphaAttributes, x: Array) -> Array:
    return np.where(x > 0, x, attrs.alpha * np.expm1(np.minimum(x, 0) / attrs.alpha))


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    inexact = (a - quotient * b != 0) & ((a < 0) ^ (b < 0)) & (b != 0)
    return quotient + inexact.astype(a.dtype)


def _power(attrs: Any, base: Array, exponent: Array) -> Array:
    with np.errstate(all="ignore"):
        if base.dtype.kind in "iu" and exponent.dtype.kind in "iu":
            powers = np.power(base, np.maximum(exponent, 0).astype(base.dtype))
            inverse = np.where(base == 1, 1, np.where(np.abs(base) == 1, np.where(exponent % 2 == 0, 1, -1), 0))
            return np.asarray(np.where(exponent < 0, inverse.astype(base.dtype), powers)).astype(base.dtype)
        wide = "float64" if base.dtype.kind in "iu" or base.dtype == np.float64 else "float32"
        return np.asarray(np.power(base.astype(wide), exponent.astype(wide))).astype(base.dtype)


def _power_relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
    accept(types[0], NUMBERS)
    accept(types[1], NUMBERS)
    return TensorType(broadcast_shapes(types[0].shape, types[1].shape), types[0].dtype, types[0].device)


def _modulo(attrs: ModuloAttributes, a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.fmod(a, b) if attrs.fmod else np.mod(a, b)


def _prelu_relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
    accept(types[0], FLOATS)
    dtype = same_dtype(types)
    if broadcast_shapes(types[0].shape, types[1].shape) != types[0].shape:
        raise InvalidModel(f"the slope {format_shape(types[1].shape)} must broadcast to x {format_shape(types[0].shape)}")
    return TensorType(types[0].shape, dtype, types[0].device)


def _where_relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
    accept(types[0], BOOL)
    dtype = same_dtype(types[1:])
    return TensorType(broadcast_shapes(*(t.shape for t in types)), dtype, types[0].device)


def _where(attrs: Any, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition.astype(bool), x, y)


def _cast(attrs: CastAttributes, x: Array) -> Array:
    if x.dtype == object:
        if attrs.dtype not in INTEGERS:
            raise TypeError(f"dims cannot be computed in {attrs.dtype}")
        return x
    if attrs.dtype == str(x.dtype):
        return x
    if str(x.dtype) in SMALL:
        x = x.astype(wide_dtype(str(x.dtype)))
    with np.errstate(all="ignore"):
        if attrs.dtype not in SMALL:
            return x.astype(attrs.dtype)
        return to_small(x.astype(wide_dtype(attrs.dtype)), attrs.dtype, attrs.saturate, attrs.round_mode)


def _cast_relation(types: Sequence[TensorType], attrs: CastAttributes) -> TensorType:
    if attrs.dtype not in DTYPES:
        raise InvalidModel(f"casts to {', '.join(DTYPES)}, not to {attrs.dtype!r}")
    check_round_mode(attrs.round_mode)
    return TensorType(types[0].shape, attrs.dtype, types[0].device)


def _gelu_relation(types: Sequence[TensorType], attrs: GeluAttributes) -> TensorType:
    accept(types[0], FLOATS)
    if attrs.approximate not in ("none", "tanh"):
        raise InvalidModel(f"approximate is 'none' or 'tanh', not {attrs.approximate!r}")
    return types[0]


def _decide(low_is_true: bool, left: Dim, right: Dim, strict: bool) -> bool:
    """Whether ``left - right`` is negative (or positive); raises TypeError where bounds do not decide it."""
    low, high = dims.bounds(left - right if low_is_true else right - left)
    if high is not None and (high < 0 or (not strict and high <= 0)):
        return True
    if low is not None and (low > 0 or (strict and low >= 0)):
        return False
    raise TypeError(f"whether {left} is less than {right} is known only at run time")


def _equal_dims(left: Dim, right: Dim) -> bool:
    low, high = dims.bounds(left - right)
    if low == high == 0:
        return True
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    raise TypeError(f"whether {left} equals {right} is known only at run time")


def _truncated_quotient(left: Dim, right: Dim) -> Dim:
    low, divisor = dims.bounds(left)[0], dims.bounds(right)[0]
    if isinstance(left, int) and isinstance(right, int) and right:
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    if low is None or low < 0 or divisor is None or divisor <= 0:
        raise TypeError(f"the sign of {left} / {right} is known only at run time")
    return dims.floordiv(left, right)


# The operators ----------------------------------------------------------------------------------------------------

negative = _unary("negative", np.negative, NUMBERS, shape_value=True)
abs_ = _unary("abs", np.abs, NUMBERS)
sign = _unary("sign", np.sign, NUMBERS)
exp = _unary("exp", np.exp)
log = _unary("log", np.log)
log1p = _unary("log1p", np.log1p)
expm1 = _unary("expm1", np.expm1)
sqrt = _unary("sqrt", np.sqrt)
rsqrt = _unary("rsqrt", lambda x: 1 / np.sqrt(x))
reciprocal = _unary("reciprocal", lambda x: 1 / x)
sin = _unary("sin", np.sin)
cos = _unary("cos", np.cos)
tan = _unary("tan", np.tan)
asin = _unary("asin", np.arcsin)
acos = _unary("acos", np.arccos)
atan = _unary("atan", np.arctan)
sinh = _unary("sinh", np.sinh)
cosh = _unary("cosh", np.cosh)
tanh = _unary("tanh", np.tanh)
asinh = _unary("asinh", np.arcsinh)
acosh = _unary("acosh", np.arccosh)
atanh = _unary("atanh", np.arctanh)
erf = _unary("erf", _erf)
sigmoid = _unary("sigmoid", _sigmoid)
floor = _unary("floor", np.floor)
ceil = _unary("ceil", np.ceil)
round_ = _unary("round", np.round)
trunc = _unary("trunc", np.trunc)
relu = _unary("relu", _relu, NUMBERS)
softplus = _unary("softplus", _softplus)
softsign = _unary("softsign", lambda x: x / (1 + np.abs(x)))
silu = _unary("silu", lambda x: x * _sigmoid(x))
hard_swish = _unary("hard_swish", lambda x: x * (np.clip(x + 3, 0, 6) / 6))
mish = _unary("mish", lambda x: x * np.tanh(_softplus(x)))
elu = _unary("elu", lambda attrs, x: _elu(attrs.alpha, x), attributes=AlphaAttributes)
selu = _unary("selu", lambda attrs, x: attrs.gamma * _elu(attrs.alpha, x), attributes=SeluAttributes)
celu = _unary("celu", _celu, attributes=AlphaAttributes)
leaky_relu = _unary("leaky_relu", lambda attrs, x: np.where(x >= 0, x, attrs.alpha * x), attributes=LeakyReluAttributes)
hard_sigmoid = _unary("hard_sigmoid", lambda attrs, x: np.clip(attrs.alpha * x + attrs.beta, 0, 1), attributes=HardSigmoidAttributes)
thresholded_relu = _unary("thresholded_relu", lambda attrs, x: np.where(x > attrs.alpha, x, 0), attributes=AlphaAttributes)
gelu = OpDef("gelu", _gelu_relation, _unary("gelu", _gelu, attributes=GeluAttributes).reference, Fusion.ELEMENTWISE, GeluAttributes)
clip = _unary("clip", _clip, NUMBERS, attributes=ClipAttributes)
isnan = _unary("isnan", np.isnan, result="bool")
isinf = _unary("isinf", _isinf, attributes=IsInfAttributes, result="bool")
logical_not = _unary("logical_not", np.logical_not, BOOL)
bitwise_not = _unary("bitwise_not", np.invert, BITS)
cast = OpDef("cast", _cast_relation, _cast, Fusion.ELEMENTWISE, CastAttributes, shape_value=True)

add = _binary("add", np.add, on_dims=lambda a, b: a + b)
subtract = _binary("subtract", np.subtract, on_dims=lambda a, b: a - b)
multiply = _binary("multiply", np.multiply, on_dims=lambda a, b: a * b)
divide = _binary("divide", _divide, on_dims=_truncated_quotient)
floor_divide = _binary("floor_divide", np.floor_divide, on_dims=dims.floordiv)
maximum = _binary("maximum", np.maximum, on_dims=dims.maximum)
minimum = _binary("minimum", np.minimum, on_dims=dims.minimum)
atan2 = _binary("atan2", np.arctan2, FLOATS)
equal = _binary("equal", np.equal, PLAIN, "bool", on_dims=_equal_dims)
not_equal = _binary("not_equal", np.not_equal, PLAIN, "bool", on_dims=lambda a, b: not _equal_dims(a, b))
less = _binary("less", np.less, result="bool", on_dims=lambda a, b: _decide(True, a, b, True))
less_equal = _binary("less_equal", np.less_equal, result="bool", on_dims=lambda a, b: _decide(True, a, b, False))
greater = _binary("greater", np.greater, result="bool", on_dims=lambda a, b: _decide(False, a, b, True))
greater_equal = _binary("greater_equal", np.greater_equal, result="bool", on_dims=lambda a, b: _decide(False, a, b, False))
logical_and = _binary("logical_and", np.logical_and, BOOL)
logical_or = _binary("logical_or", np.logical_or, BOOL)
logical_xor = _binary("logical_xor", np.logical_xor, BOOL)
bitwise_and = _binary("bitwise_and", np.bitwise_and, BITS)
bitwise_or = _binary("bitwise_or", np.bitwise_or, BITS)
bitwise_xor = _binary("bitwise_xor", np.bitwise_xor, BITS)
left_shift = _binary("left_shift", np.left_shift, INTEGERS)
right_shift = _binary("right_shift", np.right_shift, INTEGERS)
power = OpDef("power", _power_relation, _power, Fusion.BROADCAST, arity=2)
modulo = OpDef("modulo", _binary_relation(NUMBERS, None), _modulo, Fusion.BROADCAST, ModuloAttributes, 2, shape_value=True)
prelu = OpDef("prelu", _prelu_relation, lambda attrs, x, slope: np.where(x >= 0, x, x * slope), Fusion.BROADCAST, arity=2)
where = OpDef("where", _where_relation, _where, Fusion.BROADCAST, arity=3, shape_value=True)

__all__ = [
    "abs_", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_not", "bitwise_or",
    "bitwise_xor", "cast", "ceil", "celu", "clip", "cos", "cosh", "divide", "elu", "equal", "erf", "exp", "expm1", "floor",
    "floor_divide", "gelu", "greater", "greater_equal", "hard_sigmoid", "hard_swish", "isinf", "isnan", "leaky_relu", "left_shift",
    "less", "less_equal", "log", "log1p", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "mish",
    "modulo", "multiply", "negative", "not_equal", "power", "prelu", "reciprocal", "relu", "right_shift", "round_", "rsqrt",
    "selu", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "softsign", "sqrt", "subtract", "tan", "tanh",
    "thresholded_relu", "trunc", "where",
]  # fmt: skip
