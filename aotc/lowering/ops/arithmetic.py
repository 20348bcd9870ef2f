"""Divisions, remainders, powers and shifts: what has corner cases that numpy settles and machine instructions do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, tirx

from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, cast, constant, dtype_of, is_float


def _like(value: float, x: Expr) -> Expr:
    return constant(value, dtype_of(x))


def _safe_division(quotient: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    """Integer division that cannot trap: x / 0 is 0; x / -1 is -x."""

    def apply(a: Expr, b: Expr) -> Expr:
        zero, one = _like(0, a), _like(1, a)
        if dtype_of(a).startswith("u"):
            return tirx.Select(b == zero, zero, quotient(a, tirx.Select(b == zero, one, b)))
        special = tirx.any(b == zero, b == _like(-1, b))
        return tirx.Select(special, tirx.Select(b == zero, zero, zero - a), quotient(a, tirx.Select(special, one, b)))

    return apply


def _floor_quotient(a: Expr, b: Expr) -> Expr:
    quotient = tirx.truncdiv(a, b)
    if dtype_of(a).startswith("u"):
        return quotient
    inexact = tirx.all(tirx.NE(a - quotient * b, _like(0, a)), common.differ(a < _like(0, a), b < _like(0, b)))
    return quotient - tirx.Select(inexact, _like(1, a), _like(0, a))


def divide(a: Expr, b: Expr, attrs: Any) -> Expr:
    return _float_quotient(a, b) if is_float(dtype_of(a)) else _safe_division(tirx.truncdiv)(a, b)


def _float_quotient(a: Expr, b: Expr) -> Expr:
    """a / b; TVM refuses a literal 0, by which a division is a product with infinity."""
    literal = _literal(b)
    return a / b if literal != 0 else a * _like(math.copysign(math.inf, literal), a)


def _literal(x: Expr) -> float | None:
    """The number that an expression is, by itself or as the only element of a tensor, which will be put in its place."""
    if isinstance(x, tvm.ir.Call) and len(x.args) and isinstance(x.args[0], te.Tensor) and isinstance(x.args[0].op, te.ComputeOp):
        x = x.args[0].op.body[0]
    return float(x.value) if isinstance(x, tirx.FloatImm) else None


def _fmod(a: Expr, b: Expr) -> Expr:
    dtype = dtype_of(a)
    return tirx.call_pure_extern(dtype, "fmodf" if dtype == "float32" else "fmod", a, b)


def modulo(a: Expr, b: Expr, attrs: Any) -> Expr:
    zero = _like(0, a)
    if not is_float(dtype_of(a)):
        rounding = tirx.truncdiv if attrs.fmod else _floor_quotient
        return tirx.Select(b == zero, zero, a - _safe_division(rounding)(a, b) * b)
    rest = _fmod(a, b)
    if attrs.fmod:
        return rest
    opposite = tirx.all(tirx.NE(rest, zero), common.differ(rest < zero, b < zero))
    zero_like_divisor = tirx.Select(b < zero, _like(-0.0, a), zero)  # the sign of a zero result is the divisor's
    return tirx.Select(rest == zero, zero_like_divisor, tirx.Select(opposite, rest + b, rest))


def floor_divide(a: Expr, b: Expr, attrs: Any) -> Expr:
    """numpy's: by way of the remainder, so that the quotient is exact where ``floor(a / b)`` would round up."""
    if not is_float(dtype_of(a)):
        return _safe_division(_floor_quotient)(a, b)
    zero, one = _like(0, a), _like(1, a)
    rest = _fmod(a, b)
    opposite = tirx.all(tirx.NE(rest, zero), common.differ(rest < zero, b < zero))
    quotient = _float_quotient(a - rest, b) - tirx.Select(opposite, one, zero)
    whole = tirx.floor(quotient)
    nearest = tirx.Select(quotient - whole > _like(0.5, a), whole + one, whole)
    return tirx.Select(b == zero, _float_quotient(a, b), nearest)


def power(a: Expr, b: Expr, attrs: Any) -> Expr:
    dtype = dtype_of(a)
    if is_float(dtype):
        return tirx.call_pure_extern(dtype, "powf" if dtype == "float32" else "pow", a, cast(b, dtype))
    if is_float(dtype_of(b)):
        return cast(tirx.call_pure_extern("float64", "pow", cast(a, "float64"), cast(b, "float64")), dtype)
    return _integer_power(a, b)


def _integer_power(a: Expr, b: Expr) -> Expr:
    """Exact, wrapping; by squaring over the exponent's low 6 bits: beyond 63 only bases 0, 1 and -1 stay in range.

    A negative exponent gives the truncated quotient: 0 but for bases 1 and -1.
    """
    one, zero = _like(1, a), _like(0, a)
    exponent = cast(b, "int64")
    parity = tirx.bitwise_and(exponent, constant(1, "int64")) == constant(0, "int64")
    power, result = a, one
    for bit in range(6):
        taken = tirx.bitwise_and(tirx.shift_right(exponent, constant(bit, "int64")), constant(1, "int64")) == constant(1, "int64")
        result = tirx.Select(taken, result * power, result)
        power = power * power
    if dtype_of(a).startswith("u"):
        return result
    unit = tirx.Select(a == one, one, tirx.Select(a == zero - one, tirx.Select(parity, one, zero - one), zero))
    return tirx.Select(exponent < constant(0, "int64"), unit, result)


def shift(left: bool, a: Expr, b: Expr, attrs: Any) -> Expr:
    """Counts of the width or more push all bits out."""
    dtype = dtype_of(a)
    bits = int(dtype.lstrip("uint"))
    beyond = b >= _like(bits, b)
    if not dtype.startswith("u"):
        beyond = tirx.any(beyond, b < _like(0, b))
    count = tirx.Select(beyond, _like(bits - 1 if not left else 0, b), b)
    shifted = tirx.shift_left(a, count) if left else tirx.shift_right(a, count)
    if not left and not dtype.startswith("u"):
        return shifted
    return tirx.Select(beyond, _like(0, a), shifted)
