"""Tensor expressions of the elementwise operators: unary, binary with numpy broadcasting, where, cast, clip.

float16 is computed in float32 and rounded once per operator. Integer division never traps: a zero divisor gives 0, as in
numpy, and the most negative value over -1 wraps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering import vector_math
from aotc.lowering.ops import arithmetic, common
from aotc.lowering.ops.common import Expr, Expression, Scope, cast, constant, dtype_of, is_float

Unary = Callable[[Expr, Any], Expr]
Binary = Callable[[Expr, Expr, Any], Expr]


def _like(value: float, x: Expr) -> Expr:
    return constant(value, dtype_of(x))


def _fast(name: str, fallback: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """A function that has a vector form in float32; libm's in float64."""

    def apply(x: Expr) -> Expr:
        return getattr(vector_math, name)(x) if dtype_of(x) == "float32" else fallback(x)

    return apply


def _double(name: str) -> Callable[[Expr], Expr]:
    return lambda x: tirx.call_pure_extern("float64", name, x)


exp, log, tanh, erf = (_fast(name, _double(name)) for name in ("exp", "log", "tanh", "erf"))
exp_of_negative = _fast("exp_of_negative", _double("exp"))


def _libm_sigmoid(x: Expr) -> Expr:
    return constant(1, "float64") / (constant(1, "float64") + exp(-x))


sigmoid = _fast("sigmoid", _libm_sigmoid)
silu = _fast("silu", lambda x: x * _libm_sigmoid(x))


def _libm(name: str) -> Unary:
    """A libm function that TVM has no right intrinsic for, called by its C name."""

    def apply(x: Expr, attrs: Any) -> Expr:
        dtype = dtype_of(x)
        return tirx.call_pure_extern(dtype, name + ("f" if dtype == "float32" else ""), x)

    return apply


def _absolute(x: Expr, attrs: Any) -> Expr:
    if dtype_of(x).startswith("u"):
        return x
    return tirx.abs(x) if is_float(dtype_of(x)) else tirx.Select(x < _like(0, x), _negative(x, attrs), x)


def _negative(x: Expr, attrs: Any) -> Expr:
    if is_float(dtype_of(x)):
        return x * _like(-1, x)  # 0 - x would give +0 for x = 0
    if dtype_of(x).startswith("u"):
        return tirx.bitwise_not(x) + _like(1, x)  # TVM takes 0 - x of an unsigned x to be 0
    return _like(0, x) - x


def _sign(x: Expr, attrs: Any) -> Expr:
    zero, one = _like(0, x), _like(1, x)
    if dtype_of(x).startswith("u"):
        return tirx.Select(x > zero, one, zero)
    return tirx.Select(x > zero, one, tirx.Select(x < zero, _like(-1, x), x))


def _relu(x: Expr, attrs: Any) -> Expr:
    return tirx.Select(x < _like(0, x), _like(0, x), x)  # a NaN stays


def _softplus(x: Expr, attrs: Any) -> Expr:
    # log(1 + exp(x)) without overflow.
    return common.let(exp(_like(0, x) - tirx.abs(x)), log1p) + tirx.Select(x < _like(0, x), _like(0, x), x)


def log1p(x: Expr) -> Expr:
    """log(1 + x) to full precision for x near 0 (Goldberg 1991, theorem 4) on top of ``log``."""
    if dtype_of(x) == "float64":
        return tirx.call_pure_extern("float64", "log1p", x)
    one = _like(1, x)

    def body(u: Expr) -> Expr:
        exact = tirx.any(u == one, u == _like(math.inf, x))
        near = common.let(log(u), lambda y: tirx.Select(exact, tirx.Select(u == one, x, y), y * x / tirx.Select(exact, one, u - one)))
        return near

    # By way of its bits: TVM would simplify (1 + x) - 1 to x, which is what this must not be.
    return common.let(tirx.reinterpret("float32", tirx.reinterpret("int32", one + x)), body)


def _expm1(x: Expr, attrs: Any) -> Expr:
    """exp(x) - 1: a Taylor series where cancellation would hurt."""
    if dtype_of(x) == "float64":
        return tirx.call_pure_extern("float64", "expm1", x)
    series: Expr = _like(1 / 5040, x)
    for divisor in (720, 120, 24, 6, 2, 1):
        series = series * x + _like(1 / divisor, x)
    return tirx.Select(tirx.abs(x) < _like(0.5, x), series * x + _rest(x), exp(x) - _like(1, x))


def _rest(x: Expr) -> Expr:
    """The terms x^8/8! and x^9/9! of exp's series."""
    square = x * x
    fourth = square * square
    return fourth * fourth * (x * _like(1 / 362880, x) + _like(1 / 40320, x))


def _gelu(x: Expr, attrs: Any) -> Expr:
    half, one = _like(0.5, x), _like(1, x)
    if attrs.approximate == "tanh":
        inner = _like(math.sqrt(2 / math.pi), x) * (x + _like(0.044715, x) * x * x * x)
        return half * x * (one + tanh(inner))
    return vector_math.gelu(x) if dtype_of(x) == "float32" else half * x * (one + erf(x * _like(math.sqrt(0.5), x)))


def _elu(x: Expr, attrs: Any) -> Expr:
    return tirx.Select(x < _like(0, x), _like(attrs.alpha, x) * _expm1(x, attrs), x)


def _selu(x: Expr, attrs: Any) -> Expr:
    negative = _like(attrs.alpha * attrs.gamma, x) * _expm1(x, attrs)
    return tirx.Select(x < _like(0, x), negative, _like(attrs.gamma, x) * x)


def _celu(x: Expr, attrs: Any) -> Expr:
    alpha = _like(attrs.alpha, x)
    return tirx.Select(x < _like(0, x), alpha * _expm1(x / alpha, attrs), x)


def _leaky_relu(x: Expr, attrs: Any) -> Expr:
    return tirx.Select(x < _like(0, x), x * _like(attrs.alpha, x), x)


def between(x: Expr, low: Expr, high: Expr) -> Expr:
    """x held in [low, high]; a NaN stays."""
    x = tirx.Select(x < low, low, x)
    return tirx.Select(x > high, high, x)


def _hard_sigmoid(x: Expr, attrs: Any) -> Expr:
    return between(x * _like(attrs.alpha, x) + _like(attrs.beta, x), _like(0, x), _like(1, x))


def _hard_swish(x: Expr, attrs: Any) -> Expr:
    return x * between(x * _like(1 / 6, x) + _like(0.5, x), _like(0, x), _like(1, x))


def _thresholded_relu(x: Expr, attrs: Any) -> Expr:
    return tirx.Select(x > _like(attrs.alpha, x), x, _like(0, x))


def _isinf(x: Expr, attrs: Any) -> Expr:
    infinity = _like(math.inf, x)
    found = [x == infinity] * attrs.positive + [x == _like(-math.inf, x)] * attrs.negative
    return tirx.any(*found, constant(False, "bool"))


def _clip(x: Expr, attrs: Any) -> Expr:
    if attrs.minimum is not None:
        x = common.maximum(x, _saturated(attrs.minimum, dtype_of(x), math.ceil))
    if attrs.maximum is not None:
        x = common.minimum(x, _saturated(attrs.maximum, dtype_of(x), math.floor))
    return x


def _saturated(bound: float | int, dtype: str, rounded: Callable[[Any], int]) -> Expr:
    """A bound as a literal; for integers a whole number within the dtype's range."""
    if is_float(dtype):
        return constant(bound, dtype)
    bits = int(dtype.lstrip("uint"))
    low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return constant(rounded(min(max(bound, low), high)), dtype)


def _cast(x: Expr, attrs: Any) -> Expr:
    return cast(x, attrs.dtype)


def _whole(name: str) -> Unary:
    """floor and its kind: integers stay."""

    def apply(x: Expr, attrs: Any) -> Expr:
        return getattr(tirx, name)(x) if is_float(dtype_of(x)) else x

    return apply


def _isnan(x: Expr, attrs: Any) -> Expr:
    return common.is_nan(x) if is_float(dtype_of(x)) else constant(False, "bool")


def _plain(function: Callable[[Expr], Expr]) -> Unary:
    return lambda x, attrs: function(x)


UNARY: dict[str, Unary] = {
    "negative": _negative,
    "abs": _absolute,
    "sign": _sign,
    "exp": _plain(exp),
    "log": _plain(log),
    "log1p": _plain(log1p),
    "expm1": _expm1,
    "sqrt": _plain(tirx.sqrt),
    "rsqrt": lambda x, attrs: _like(1, x) / tirx.sqrt(x),
    "reciprocal": lambda x, attrs: _like(1, x) / x,
    **{name: _libm(name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")},
    "tanh": _plain(tanh),
    "erf": _plain(erf),
    "sigmoid": _plain(sigmoid),
    "floor": _whole("floor"),
    "ceil": _whole("ceil"),
    "round": _whole("nearbyint"),
    "trunc": _whole("trunc"),
    "relu": _relu,
    "softplus": _softplus,
    "softsign": lambda x, attrs: x / (_like(1, x) + tirx.abs(x)),
    "silu": _plain(silu),
    "hard_swish": _hard_swish,
    "mish": lambda x, attrs: x * tanh(_softplus(x, attrs)),
    "gelu": _gelu,
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "leaky_relu": _leaky_relu,
    "hard_sigmoid": _hard_sigmoid,
    "thresholded_relu": _thresholded_relu,
    "logical_not": lambda x, attrs: tirx.Not(cast(x, "bool")),
    "bitwise_not": lambda x, attrs: tirx.Not(x) if dtype_of(x) == "bool" else tirx.bitwise_not(x),
    "isnan": _isnan,
    "isinf": _isinf,
    "cast": _cast,
    "clip": _clip,
}

# Computed in float16 itself: exact, or only moving bits.
_EXACT = {"negative", "abs", "sign", "relu", "thresholded_relu", "isnan", "isinf", "cast", "clip"}


def _compare(op: Callable[[Expr, Expr], Expr], a: Expr, b: Expr, attrs: Any) -> Expr:
    if dtype_of(a) == "bool":
        a, b = cast(a, "uint8"), cast(b, "uint8")
    return op(a, b)


def _bits(name: str, on_bool: Callable[[Expr, Expr], Expr], a: Expr, b: Expr, attrs: Any) -> Expr:
    return on_bool(a, b) if dtype_of(a) == "bool" else getattr(tirx, f"bitwise_{name}")(a, b)


def _xor(a: Expr, b: Expr) -> Expr:
    return tirx.Select(a, tirx.Not(b), b)


def _logical(op: Callable[[Expr, Expr], Expr], a: Expr, b: Expr, attrs: Any) -> Expr:
    return op(cast(a, "bool"), cast(b, "bool"))


def _add(a: Expr, b: Expr, attrs: Any) -> Expr:
    return tirx.Or(a, b) if dtype_of(a) == "bool" else a + b


def _multiply(a: Expr, b: Expr, attrs: Any) -> Expr:
    return tirx.And(a, b) if dtype_of(a) == "bool" else a * b


def _atan2(a: Expr, b: Expr, attrs: Any) -> Expr:
    dtype = dtype_of(a)
    return tirx.call_pure_extern(dtype, "atan2f" if dtype == "float32" else "atan2", a, b)


BINARY: dict[str, Binary] = {
    "add": _add,
    "subtract": lambda a, b, attrs: a - b,
    "multiply": _multiply,
    "divide": arithmetic.divide,
    "floor_divide": arithmetic.floor_divide,
    "power": arithmetic.power,
    "maximum": lambda a, b, attrs: common.maximum(a, b),
    "minimum": lambda a, b, attrs: common.minimum(a, b),
    "modulo": arithmetic.modulo,
    "atan2": _atan2,
    "equal": partial(_compare, tirx.EQ),
    "not_equal": partial(_compare, common.differ),
    "less": partial(_compare, lambda a, b: a < b),
    "less_equal": partial(_compare, lambda a, b: a <= b),
    "greater": partial(_compare, lambda a, b: a > b),
    "greater_equal": partial(_compare, lambda a, b: a >= b),
    "logical_and": partial(_logical, tirx.And),
    "logical_or": partial(_logical, tirx.Or),
    "logical_xor": partial(_logical, _xor),
    "bitwise_and": partial(_bits, "and", tirx.And),
    "bitwise_or": partial(_bits, "or", tirx.Or),
    "bitwise_xor": partial(_bits, "xor", _xor),
    "left_shift": partial(arithmetic.shift, True),
    "right_shift": partial(arithmetic.shift, False),
    "prelu": lambda a, b, attrs: tirx.Select(a < _like(0, a), a * b, a),
}

_HALF_SAFE = {"maximum", "minimum", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}


def _widened(x: Expr, exact: bool) -> Expr:
    return cast(x, "float32") if dtype_of(x) == "float16" and not exact else x


def _unary_expression(name: str, function: Unary) -> Expression:
    def build(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
        def body(*i: Expr) -> Expr:
            return cast(function(_widened(inputs[0](*i), name in _EXACT), attrs), results[0].dtype)

        return [common.compute(inputs[0].shape, body, name)]

    return build


def _binary_expression(name: str, function: Binary) -> Expression:
    def build(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
        def body(*i: Expr) -> Expr:
            a, b = (_widened(common.load_broadcast(x, i), name in _HALF_SAFE) for x in inputs)
            return cast(function(a, b, attrs), results[0].dtype)

        return [common.compute(common.extents(scope, results[0].shape), body, name)]

    return build


def _where(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    def body(*i: Expr) -> Expr:
        condition, x, y = (common.load_broadcast(value, i) for value in inputs)
        return tirx.Select(condition, x, y)

    return [common.compute(common.extents(scope, results[0].shape), body, "where")]


EXPRESSIONS: dict[str, Expression] = {
    **{name: _unary_expression(name, function) for name, function in UNARY.items()},
    **{name: _binary_expression(name, function) for name, function in BINARY.items()},
    "where": _where,
}
