"""Recipes of ATen's normalisations. Missing weights are ones, missing biases zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Recipe, dtype_of, rank_of, shape_of
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Expr

aten = torch.ops.aten


def _vector(b: Builder, given: Expr | None, shape: Sequence[Dim], value: float, dtype: str) -> Expr:
    if given is not None:
        return b.cast(given, dtype)
    if not all(isinstance(dim, int) for dim in shape):
        return b.emit(ops.full, shape=tuple(shape), value=value, dtype=dtype)
    return b.constant(np.full(shape, value), dtype)


def _affine(b: Builder, x: Expr, weight: Expr | None, bias: Expr | None, shape: Sequence[Dim]) -> tuple[Expr, Expr]:
    dtype = dtype_of(x)
    return _vector(b, weight, shape, 1, dtype), _vector(b, bias, shape, 0, dtype)


def aten_batch_norm(
    b: Builder,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean: Expr | None,
    var: Expr | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Expr:
    """In training the batch's own statistics serve; that running ones are updated then is of no consequence to the results."""
    if training or mean is None or var is None:
        return _by_own_statistics(b, x, weight, bias, eps)
    if rank_of(x) < 2:
        return x  # torch takes a tensor without elements in any shape
    gamma, beta = _affine(b, x, weight, bias, shape_of(mean))
    return b.emit(ops.batch_norm, x, gamma, beta, b.cast(mean, dtype_of(x)), b.cast(var, dtype_of(x)), epsilon=float(eps))


def aten_functional_batch_norm(
    b: Builder,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean: Expr,
    var: Expr,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Expr, None, None, Expr, Expr]:
    if training and b.used_outputs & {3, 4}:
        raise b.unsupported("running statistics that a batch norm updates: call module.eval()")
    return aten_batch_norm(b, x, weight, bias, mean, var, training, momentum, eps), None, None, mean, var


def _by_own_statistics(b: Builder, x: Expr, weight: Expr | None, bias: Expr | None, eps: float) -> Expr:
    """Each channel by its mean and variance over the batch."""
    if not product(shape_of(x)):
        return x
    axes = tuple(axis for axis in range(rank_of(x)) if axis != 1)
    dtype = dtype_of(x)
    rest = b.emit(ops.subtract, x, b.emit(ops.mean, x, axes=axes, keepdims=True))
    variance = b.emit(ops.mean, b.emit(ops.multiply, rest, rest), axes=axes, keepdims=True)
    result = b.emit(ops.multiply, rest, b.emit(ops.rsqrt, b.binary(ops.add, variance, float(eps), dtype)))
    tail = (1,) * (rank_of(x) - 2)
    result = result if weight is None else b.emit(ops.multiply, result, b.reshape(b.cast(weight, dtype), (*shape_of(weight), *tail)))
    return result if bias is None else b.emit(ops.add, result, b.reshape(b.cast(bias, dtype), (*shape_of(bias), *tail)))


def aten_no_statistics(
    b: Builder, x: Expr, weight: Expr | None, bias: Expr | None, training: bool, momentum: float, eps: float
) -> tuple[Expr, None, None]:
    return _by_own_statistics(b, x, weight, bias, eps), None, None


def aten_batch_norm_no_training(
    b: Builder, x: Expr, weight: Expr | None, bias: Expr | None, mean: Expr, var: Expr, momentum: float, eps: float
) -> tuple[Expr, None, None]:
    return aten_batch_norm(b, x, weight, bias, mean, var, False, momentum, eps), None, None


def aten_native_batch_norm(
    b: Builder,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean: Expr | None,
    var: Expr | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Expr, None, None]:
    return aten_batch_norm(b, x, weight, bias, mean, var, training, momentum, eps), None, None


def aten_layer_norm(
    b: Builder,
    x: Expr,
    normalized_shape: Sequence[Dim],
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Expr:
    axis = rank_of(x) - len(normalized_shape)
    gamma, beta = _affine(b, x, weight, bias, shape_of(x)[axis:])
    return b.emit(ops.layer_norm, x, gamma, beta, axis=axis, epsilon=float(eps))


def aten_native_layer_norm(
    b: Builder, x: Expr, normalized_shape: Sequence[Dim], weight: Expr | None, bias: Expr | None, eps: float
) -> tuple[Expr, None, None]:
    return aten_layer_norm(b, x, normalized_shape, weight, bias, eps), None, None


def aten_rms_norm(b: Builder, x: Expr, normalized_shape: Sequence[Dim], weight: Expr | None = None, eps: float | None = None) -> Expr:
    """Without eps torch takes the smallest step of the dtype in which it computes: float32's for float16."""
    axis = rank_of(x) - len(normalized_shape)
    if eps is None:
        eps = float(np.finfo("float64" if dtype_of(x) == "float64" else "float32").eps)
    gamma = _vector(b, weight, shape_of(x)[axis:], 1, dtype_of(x))
    return b.emit(ops.rms_norm, x, gamma, axis=axis, epsilon=float(eps))


def aten_fused_rms_norm(
    b: Builder, x: Expr, normalized_shape: Sequence[Dim], weight: Expr | None = None, eps: float | None = None
) -> tuple[Expr, None]:
    return aten_rms_norm(b, x, normalized_shape, weight, eps), None


def aten_group_norm(
    b: Builder,
    x: Expr,
    groups: int,
    weight: Expr | None = None,
    bias: Expr | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Expr:
    gamma, beta = _affine(b, x, weight, bias, shape_of(x)[1:2])
    return b.emit(ops.group_norm, x, gamma, beta, groups=groups, epsilon=float(eps))


def aten_native_group_norm(
    b: Builder,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    batch: Dim,
    channels: Dim,
    spatial: Dim,
    groups: int,
    eps: float,
) -> tuple[Expr, None, None]:
    return aten_group_norm(b, x, groups, weight, bias, eps), None, None


def aten_instance_norm(
    b: Builder,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean: Expr | None,
    var: Expr | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Expr:
    if not use_input_stats:
        return aten_batch_norm(b, x, weight, bias, mean, var, False, momentum, eps)
    gamma, beta = _affine(b, x, weight, bias, shape_of(x)[1:2])
    return b.emit(ops.instance_norm, x, gamma, beta, epsilon=float(eps))


def aten_softmax(b: Builder, x: Expr, dim: int, dtype: Any = None) -> Expr:
    return b.emit(ops.softmax, b.cast(x, b.dtype), axis=dim)


def aten_log_softmax(b: Builder, x: Expr, dim: int, dtype: Any = None) -> Expr:
    return b.emit(ops.log_softmax, b.cast(x, b.dtype), axis=dim)


def aten_safe_softmax(b: Builder, x: Expr, dim: int, dtype: Any = None) -> Expr:
    """As softmax, but 0 where a whole row is -inf."""
    x = b.cast(x, b.dtype)
    low = b.constant(-np.inf, b.dtype)
    masked = b.emit(ops.equal, b.emit(ops.max_, x, axes=(dim % max(rank_of(x), 1),), keepdims=True), low)
    return b.emit(ops.where, masked, b.constant(0, b.dtype), b.emit(ops.softmax, x, axis=dim))


RECIPES: dict[Any, Recipe] = {
    aten.batch_norm.default: aten_batch_norm,
    aten._native_batch_norm_legit_no_training.default: aten_batch_norm_no_training,
    aten._native_batch_norm_legit.default: aten_native_batch_norm,
    aten._native_batch_norm_legit.no_stats: aten_no_statistics,
    aten._native_batch_norm_legit_functional.default: aten_functional_batch_norm,
    aten.native_batch_norm.default: aten_native_batch_norm,
    aten.layer_norm.default: aten_layer_norm,
    aten.native_layer_norm.default: aten_native_layer_norm,
    aten.rms_norm.default: aten_rms_norm,
    aten._fused_rms_norm.default: aten_fused_rms_norm,
    aten.group_norm.default: aten_group_norm,
    aten.native_group_norm.default: aten_native_group_norm,
    aten.instance_norm.default: aten_instance_norm,
    aten._softmax.default: aten_softmax,
    aten.softmax.int: aten_softmax,
    aten._log_softmax.default: aten_log_softmax,
    aten.log_softmax.int: aten_log_softmax,
    aten._safe_softmax.default: aten_safe_softmax,
}
