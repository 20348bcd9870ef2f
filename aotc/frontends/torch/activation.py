"""Recipes of ATen's activation functions."""

from __future__ import annotations

from typing import Any

import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Recipe, shape_of
from aotc.frontends.torch.pointwise import float_unary
from aotc.ir.expr import Expr

aten = torch.ops.aten


def aten_gelu(b: Builder, x: Expr, approximate: str = "none") -> Expr:
    return b.emit(ops.gelu, x, approximate=approximate)


def aten_leaky_relu(b: Builder, x: Expr, negative_slope: float = 0.01) -> Expr:
    return b.emit(ops.leaky_relu, x, alpha=float(negative_slope))


def aten_elu(b: Builder, x: Expr, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Expr:
    """scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))."""
    if (scale, input_scale) == (1, 1):
        return b.emit(ops.elu, x, alpha=float(alpha))
    if input_scale == 1:
        return b.emit(ops.selu, x, alpha=float(alpha), gamma=float(scale))
    curve = b.emit(ops.expm1, b.binary(ops.multiply, x, input_scale, b.dtype))
    curve = b.binary(ops.multiply, curve, alpha * scale, b.dtype)
    return b.emit(ops.where, b.binary(ops.greater, x, 0, b.dtype), b.binary(ops.multiply, x, scale, b.dtype), curve)


def aten_selu(b: Builder, x: Expr) -> Expr:
    return b.emit(ops.selu, x)


def aten_celu(b: Builder, x: Expr, alpha: float = 1.0) -> Expr:
    return b.emit(ops.celu, x, alpha=float(alpha))


def aten_hardsigmoid(b: Builder, x: Expr) -> Expr:
    return b.emit(ops.hard_sigmoid, x, alpha=1 / 6, beta=0.5)


def aten_hardtanh(b: Builder, x: Expr, minimum: float = -1, maximum: float = 1) -> Expr:
    return b.emit(ops.clip, x, minimum=minimum, maximum=maximum)


def aten_relu6(b: Builder, x: Expr) -> Expr:
    return b.emit(ops.clip, x, minimum=0, maximum=6)


def aten_softplus(b: Builder, x: Expr, beta: float = 1, threshold: float = 20) -> Expr:
    """The threshold is torch's guard against overflow; the operator needs none, and differs by less than 2e-9 above it."""
    if beta == 1:
        return b.emit(ops.softplus, x)
    soft = b.emit(ops.softplus, b.binary(ops.multiply, x, beta, b.dtype))
    return b.binary(ops.divide, soft, beta, b.dtype)


def aten_threshold(b: Builder, x: Expr, threshold: float, value: float) -> Expr:
    keep = b.binary(ops.less_equal, x, threshold, b.dtype)
    return b.emit(ops.where, keep, b.constant(value, b.dtype), x)


def aten_prelu(b: Builder, x: Expr, slope: Expr) -> Expr:
    rank, count = len(shape_of(x)), shape_of(slope)
    if rank > 1 and count:
        slope = b.reshape(slope, (*count, *(1,) * (rank - 2)))
    return b.emit(ops.prelu, x, slope)


def aten_log_sigmoid(b: Builder, x: Expr) -> Expr:
    return b.emit(ops.negative, b.emit(ops.softplus, b.emit(ops.negative, x)))


def aten_glu(b: Builder, x: Expr, dim: int = -1) -> Expr:
    axis = dim % len(shape_of(x))
    half = shape_of(x)[axis] // 2
    return b.emit(ops.multiply, b.slice(x, axis, 0, half), b.emit(ops.sigmoid, b.slice(x, axis, half, 2 * half)))


RECIPES: dict[Any, Recipe] = {
    aten.sigmoid.default: float_unary(ops.sigmoid),
    aten.silu.default: float_unary(ops.silu),
    aten.mish.default: float_unary(ops.mish),
    aten.hardswish.default: float_unary(ops.hard_swish),
    aten.relu.default: float_unary(ops.relu),
    aten.relu6.default: aten_relu6,
    aten.gelu.default: aten_gelu,
    aten.glu.default: aten_glu,
    aten.leaky_relu.default: aten_leaky_relu,
    aten.elu.default: aten_elu,
    aten.selu.default: aten_selu,
    aten.celu.default: aten_celu,
    aten.hardsigmoid.default: aten_hardsigmoid,
    aten.hardtanh.default: aten_hardtanh,
    aten.softplus.default: aten_softplus,
    aten.threshold.default: aten_threshold,
    aten.prelu.default: aten_prelu,
    aten._prelu_kernel.default: lambda b, x, slope: b.emit(ops.prelu, x, slope),
    aten.log_sigmoid.default: aten_log_sigmoid,
}
