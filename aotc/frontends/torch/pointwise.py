"""Recipes of ATen's elementwise operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Operand, Recipe, dtype_of, is_float, promoted
from aotc.ir.expr import Expr
from aotc.ops import OpDef

aten = torch.ops.aten


def float_unary(op: OpDef, **attrs: Any) -> Recipe:
    """Functions on floats; torch raises integers to the default float first."""

    def recipe(b: Builder, x: Expr) -> Expr:
        return b.emit(op, b.cast(x, b.dtype), **attrs)

    return recipe


def _rounding(op: OpDef) -> Recipe:
    def recipe(b: Builder, x: Expr) -> Expr:
        return b.emit(op, x) if is_float(dtype_of(x)) else x

    return recipe


def aten_round_decimals(b: Builder, x: Expr, *, decimals: int) -> Expr:
    """As torch does it: scaled, rounded and scaled back."""
    if not is_float(dtype_of(x)):
        return x
    up, down = (ops.multiply, ops.divide) if decimals >= 0 else (ops.divide, ops.multiply)
    power = float(10 ** abs(decimals))
    return b.binary(down, b.emit(ops.round_, b.binary(up, x, power, b.dtype)), power, b.dtype)


def _binary(op: OpDef, on_bool: OpDef | None = None) -> Recipe:
    """Arithmetic in the dtype of the result; ``on_bool`` does for bool."""

    def recipe(b: Builder, x: Operand, y: Operand) -> Expr:
        return b.binary(on_bool if on_bool is not None and b.dtype == "bool" else op, x, y, b.dtype)

    return recipe


def _comparison(op: OpDef) -> Recipe:
    def recipe(b: Builder, x: Operand, y: Operand) -> Expr:
        dtype = promoted(x, y)
        return b.binary(op, x, y, "uint8" if dtype == "bool" and op not in (ops.equal, ops.not_equal) else dtype)

    return recipe


def _logical(op: OpDef) -> Recipe:
    def recipe(b: Builder, *operands: Operand) -> Expr:
        return b.emit(op, *(b.tensor(operand, "bool") for operand in operands))

    return recipe


def aten_add(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Expr:
    if alpha != 1:
        y = b.binary(ops.multiply, y, alpha, b.dtype)
    return b.binary(ops.logical_or if b.dtype == "bool" else ops.add, x, y, b.dtype)


def aten_sub(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Expr:
    if alpha != 1:
        y = b.binary(ops.multiply, y, alpha, b.dtype)
    return b.binary(ops.subtract, x, y, b.dtype)


def aten_rsub(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Expr:
    return aten_sub(b, y, x, alpha)


def aten_div(b: Builder, x: Operand, y: Operand, rounding_mode: str | None = None) -> Expr:
    if rounding_mode == "floor":
        return b.binary(ops.floor_divide, x, y, b.dtype)
    quotient = b.binary(ops.divide, x, y, b.dtype)
    return b.emit(ops.trunc, quotient) if rounding_mode == "trunc" and is_float(b.dtype) else quotient


def aten_fmod(b: Builder, x: Operand, y: Operand) -> Expr:
    return b.emit(ops.modulo, b.tensor(x, b.dtype), b.tensor(y, b.dtype), fmod=True)


def aten_pow(b: Builder, x: Operand, exponent: Operand) -> Expr:
    base = b.tensor(x, b.dtype)
    if exponent == 2:
        return b.emit(ops.multiply, base, base)
    if is_float(b.dtype) and exponent in (0.5, -0.5, -1):
        return b.emit({0.5: ops.sqrt, -0.5: ops.rsqrt, -1: ops.reciprocal}[exponent], base)  # type: ignore[index]
    return b.emit(ops.power, base, b.tensor(exponent, b.dtype))


def aten_clamp(b: Builder, x: Expr, minimum: Operand | None = None, maximum: Operand | None = None) -> Expr:
    x = b.cast(x, b.dtype)
    if all(limit is None or isinstance(limit, (int, float)) for limit in (minimum, maximum)):
        return b.emit(ops.clip, x, minimum=minimum, maximum=maximum)
    x = x if minimum is None else b.binary(ops.maximum, x, minimum, b.dtype)
    return x if maximum is None else b.binary(ops.minimum, x, maximum, b.dtype)


def aten_clamp_max(b: Builder, x: Expr, maximum: Operand) -> Expr:
    return aten_clamp(b, x, None, maximum)


def aten_where(b: Builder, condition: Expr, x: Operand, y: Operand) -> Expr:
    return b.emit(ops.where, b.cast(condition, "bool"), b.tensor(x, b.dtype), b.tensor(y, b.dtype))


def aten_masked_fill(b: Builder, x: Expr, mask: Expr, value: Operand) -> Expr:
    return aten_where(b, mask, value, x)


def aten_to_copy(b: Builder, x: Expr, **options: Any) -> Expr:
    """Device, layout and memory format say nothing about values."""
    return b.cast(x, b.dtype)


def aten_to(b: Builder, x: Expr, *options: Any, **more: Any) -> Expr:
    return b.cast(x, b.dtype)


def aten_identity(b: Builder, x: Expr, *options: Any, **more: Any) -> Expr:
    return x


def aten_dropout(b: Builder, x: Expr, p: float, train: bool | None = True) -> Expr:
    if train and p > 0:
        raise b.unsupported("dropout in training mode: call module.eval() before exporting")
    return x


def aten_native_dropout(b: Builder, x: Expr, p: float, train: bool | None) -> tuple[Expr, None]:
    return aten_dropout(b, x, p, train), None


def aten_log_of_base(base: float) -> Callable[[Builder, Expr], Expr]:
    """Logarithms to another base."""
    factor = 1 / float(torch.log(torch.tensor(base, dtype=torch.float64)))

    def recipe(b: Builder, x: Expr) -> Expr:
        return b.binary(ops.multiply, b.emit(ops.log, b.cast(x, b.dtype)), factor, b.dtype)

    return recipe


def aten_exp2(b: Builder, x: Expr) -> Expr:
    return b.emit(ops.exp, b.binary(ops.multiply, x, 0.6931471805599453, b.dtype))


def aten_erfc(b: Builder, x: Expr) -> Expr:
    return b.binary(ops.subtract, 1, b.emit(ops.erf, b.cast(x, b.dtype)), b.dtype)


def aten_isnan(b: Builder, x: Expr) -> Expr:
    return b.emit(ops.isnan, x) if is_float(dtype_of(x)) else b.binary(ops.not_equal, x, x, dtype_of(x))


def aten_isinf(b: Builder, x: Expr) -> Expr:
    return b.emit(ops.isinf, x) if is_float(dtype_of(x)) else b.binary(ops.not_equal, x, x, dtype_of(x))


def aten_isfinite(b: Builder, x: Expr) -> Expr:
    if not is_float(dtype_of(x)):
        return b.binary(ops.equal, x, x, dtype_of(x))
    return b.emit(ops.logical_not, b.emit(ops.logical_or, b.emit(ops.isnan, x), b.emit(ops.isinf, x)))


def _fmax_or_fmin(op: OpDef) -> Recipe:
    """As maximum and minimum, but a NaN yields to a number."""

    def recipe(b: Builder, x: Expr, y: Expr) -> Expr:
        x, y = b.cast(x, b.dtype), b.cast(y, b.dtype)
        either = b.emit(op, x, y)
        if not is_float(b.dtype):
            return either
        return b.emit(ops.where, b.emit(ops.isnan, x), y, b.emit(ops.where, b.emit(ops.isnan, y), x, either))

    return recipe


def aten_hypot(b: Builder, x: Expr, y: Expr) -> Expr:
    return b.emit(ops.sqrt, b.emit(ops.add, b.emit(ops.multiply, x, x), b.emit(ops.multiply, y, y)))


def aten_signbit(b: Builder, x: Expr) -> Expr:
    """True for what is below zero and for minus zero, whose reciprocal is."""
    dtype = dtype_of(x)
    below = b.binary(ops.less, x, 0, dtype)
    return b.emit(ops.logical_or, below, b.binary(ops.less, b.emit(ops.reciprocal, x), 0, dtype)) if is_float(dtype) else below


def aten_copysign(b: Builder, x: Operand, y: Operand) -> Expr:
    size = b.emit(ops.abs_, b.tensor(x, b.dtype))
    return b.emit(ops.where, aten_signbit(b, b.tensor(y, b.dtype)), b.emit(ops.negative, size), size)


def aten_addcmul(b: Builder, x: Expr, first: Expr, second: Expr, value: Any = 1) -> Expr:
    return aten_add(b, x, b.binary(ops.multiply, first, second, b.dtype), value)


def aten_addcdiv(b: Builder, x: Expr, first: Expr, second: Expr, value: Any = 1) -> Expr:
    return aten_add(b, x, b.binary(ops.divide, first, second, b.dtype), value)


def aten_lerp(b: Builder, x: Expr, end: Expr, weight: Operand) -> Expr:
    return b.emit(ops.add, x, b.binary(ops.multiply, b.emit(ops.subtract, end, x), weight, b.dtype))


def aten_copy(b: Builder, x: Expr, source: Expr, non_blocking: bool = False) -> Expr:
    return b.broadcast(b.cast(source, b.dtype), b.shape)


def aten_sign(b: Builder, x: Expr) -> Expr:
    """A NaN has the sign 0, other than in ONNX."""
    dtype = dtype_of(x)
    if dtype == "bool":
        return x
    return b.emit(ops.sign, b.emit(ops.where, b.emit(ops.isnan, x), b.constant(0, dtype), x) if is_float(dtype) else x)


def aten_abs(b: Builder, x: Expr) -> Expr:
    return x if dtype_of(x) in ("bool", "uint8", "uint16", "uint32", "uint64") else b.emit(ops.abs_, x)


def aten_frac(b: Builder, x: Expr) -> Expr:
    return b.emit(ops.subtract, x, b.emit(ops.trunc, x))


def aten_square(b: Builder, x: Expr) -> Expr:
    return b.emit(ops.multiply, x, x)


RECIPES: dict[Any, Recipe] = {
    aten.exp.default: float_unary(ops.exp),
    aten.expm1.default: float_unary(ops.expm1),
    aten.exp2.default: aten_exp2,
    aten.log.default: float_unary(ops.log),
    aten.log1p.default: float_unary(ops.log1p),
    aten.log2.default: aten_log_of_base(2.0),
    aten.log10.default: aten_log_of_base(10.0),
    aten.sqrt.default: float_unary(ops.sqrt),
    aten.rsqrt.default: float_unary(ops.rsqrt),
    aten.reciprocal.default: float_unary(ops.reciprocal),
    aten.sin.default: float_unary(ops.sin),
    aten.cos.default: float_unary(ops.cos),
    aten.tan.default: float_unary(ops.tan),
    aten.asin.default: float_unary(ops.asin),
    aten.acos.default: float_unary(ops.acos),
    aten.atan.default: float_unary(ops.atan),
    aten.sinh.default: float_unary(ops.sinh),
    aten.cosh.default: float_unary(ops.cosh),
    aten.tanh.default: float_unary(ops.tanh),
    aten.asinh.default: float_unary(ops.asinh),
    aten.acosh.default: float_unary(ops.acosh),
    aten.atanh.default: float_unary(ops.atanh),
    aten.erf.default: float_unary(ops.erf),
    aten.erfc.default: aten_erfc,
    aten.neg.default: float_unary(ops.negative),
    aten.abs.default: aten_abs,
    aten.sign.default: aten_sign,
    aten.sgn.default: aten_sign,
    aten.square.default: aten_square,
    aten.frac.default: aten_frac,
    aten.floor.default: _rounding(ops.floor),
    aten.ceil.default: _rounding(ops.ceil),
    aten.round.default: _rounding(ops.round_),
    aten.round.decimals: aten_round_decimals,
    aten.trunc.default: _rounding(ops.trunc),
    aten.isnan.default: aten_isnan,
    aten.isinf.default: aten_isinf,
    aten.isfinite.default: aten_isfinite,
    aten.logical_not.default: _logical(ops.logical_not),
    aten.logical_and.default: _logical(ops.logical_and),
    aten.logical_or.default: _logical(ops.logical_or),
    aten.logical_xor.default: _logical(ops.logical_xor),
    aten.bitwise_not.default: float_unary(ops.bitwise_not),
    aten.bitwise_and.Tensor: _binary(ops.bitwise_and),
    aten.bitwise_and.Scalar: _binary(ops.bitwise_and),
    aten.bitwise_or.Tensor: _binary(ops.bitwise_or),
    aten.bitwise_or.Scalar: _binary(ops.bitwise_or),
    aten.bitwise_xor.Tensor: _binary(ops.bitwise_xor),
    aten.bitwise_xor.Scalar: _binary(ops.bitwise_xor),
    aten.bitwise_left_shift.Tensor: _binary(ops.left_shift),
    aten.bitwise_left_shift.Tensor_Scalar: _binary(ops.left_shift),
    aten.bitwise_right_shift.Tensor: _binary(ops.right_shift),
    aten.bitwise_right_shift.Tensor_Scalar: _binary(ops.right_shift),
    aten.__lshift__.Scalar: _binary(ops.left_shift),
    aten.__lshift__.Tensor: _binary(ops.left_shift),
    aten.__rshift__.Scalar: _binary(ops.right_shift),
    aten.__rshift__.Tensor: _binary(ops.right_shift),
    aten.add.Tensor: aten_add,
    aten.add.Scalar: aten_add,
    aten.sub.Tensor: aten_sub,
    aten.sub.Scalar: aten_sub,
    aten.rsub.Tensor: aten_rsub,
    aten.rsub.Scalar: aten_rsub,
    aten.mul.Tensor: _binary(ops.multiply, ops.logical_and),
    aten.mul.Scalar: _binary(ops.multiply, ops.logical_and),
    aten.div.Tensor: aten_div,
    aten.div.Scalar: aten_div,
    aten.div.Tensor_mode: aten_div,
    aten.div.Scalar_mode: aten_div,
    aten.floor_divide.default: _binary(ops.floor_divide),
    aten.floor_divide.Scalar: _binary(ops.floor_divide),
    aten.remainder.Tensor: _binary(ops.modulo),
    aten.remainder.Scalar: _binary(ops.modulo),
    aten.remainder.Scalar_Tensor: _binary(ops.modulo),
    aten.fmod.Tensor: aten_fmod,
    aten.fmod.Scalar: aten_fmod,
    aten.pow.Tensor_Tensor: aten_pow,
    aten.pow.Tensor_Scalar: aten_pow,
    aten.pow.Scalar: aten_pow,
    aten.maximum.default: _binary(ops.maximum, ops.logical_or),
    aten.minimum.default: _binary(ops.minimum, ops.logical_and),
    aten.fmax.default: _fmax_or_fmin(ops.maximum),
    aten.fmin.default: _fmax_or_fmin(ops.minimum),
    aten.atan2.default: _binary(ops.atan2),
    aten.hypot.default: aten_hypot,
    aten.signbit.default: aten_signbit,
    aten.copysign.Tensor: aten_copysign,
    aten.copysign.Scalar: aten_copysign,
    aten.eq.Tensor: _comparison(ops.equal),
    aten.eq.Scalar: _comparison(ops.equal),
    aten.ne.Tensor: _comparison(ops.not_equal),
    aten.ne.Scalar: _comparison(ops.not_equal),
    aten.lt.Tensor: _comparison(ops.less),
    aten.lt.Scalar: _comparison(ops.less),
    aten.le.Tensor: _comparison(ops.less_equal),
    aten.le.Scalar: _comparison(ops.less_equal),
    aten.gt.Tensor: _comparison(ops.greater),
    aten.gt.Scalar: _comparison(ops.greater),
    aten.ge.Tensor: _comparison(ops.greater_equal),
    aten.ge.Scalar: _comparison(ops.greater_equal),
    aten.clamp.default: aten_clamp,
    aten.clamp.Tensor: aten_clamp,
    aten.clamp_min.default: aten_clamp,
    aten.clamp_min.Tensor: aten_clamp,
    aten.clamp_max.default: aten_clamp_max,
    aten.clamp_max.Tensor: aten_clamp_max,
    aten.where.self: aten_where,
    aten.where.ScalarSelf: aten_where,
    aten.where.ScalarOther: aten_where,
    aten.where.Scalar: aten_where,
    aten.masked_fill.Scalar: aten_masked_fill,
    aten.masked_fill.Tensor: aten_masked_fill,
    aten._to_copy.default: aten_to_copy,
    aten.to.dtype: aten_to,
    aten.to.dtype_layout: aten_to,
    aten.to.device: aten_to,
    aten.to.other: aten_to,
    aten.type_as.default: aten_to,
    aten.clone.default: aten_identity,
    aten.alias.default: aten_identity,
    aten.detach.default: aten_identity,
    aten.contiguous.default: aten_identity,
    aten.lift_fresh_copy.default: aten_identity,
    aten.positive.default: aten_identity,
    aten.copy.default: aten_copy,
    aten.dropout.default: aten_dropout,
    aten.feature_dropout.default: aten_dropout,
    aten.alpha_dropout.default: aten_dropout,
    aten.feature_alpha_dropout.default: aten_dropout,
    aten.native_dropout.default: aten_native_dropout,
    aten.addcmul.default: aten_addcmul,
    aten.addcdiv.default: aten_addcdiv,
    aten.lerp.Scalar: aten_lerp,
    aten.lerp.Tensor: aten_lerp,
}
