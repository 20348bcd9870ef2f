"""Rules that find layer norms, RMS norms and softmaxes in their parts; ``simplify_algebra`` applies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Parameter
from aotc.ir.patterns import Operation, PatternRule, rule
from aotc.ir.types import FLOATS, TensorType
from aotc.passes.weights import scalar_of


def _normalised(op: Any, x: Any, total: Any) -> list[Any]:
    """The ways to write x / sqrt(total)."""
    return [
        op.divide(x, op.sqrt(total)),
        op.divide(x, op.power(total, 0.5)),
        op.multiply(x, op.rsqrt(total)),
        op.multiply(x, op.reciprocal(op.sqrt(total))),
        op.multiply(x, op.divide(1.0, op.sqrt(total))),
        op.multiply(x, op.power(total, -0.5)),
    ]


FORMS = 6


def _centred(op: Any, x: Any) -> Any:
    return op.subtract(x, op.mean(x, keepdims=True).named("mean"))


def _layer_pattern(form: int, squared: int, affine: int) -> Callable[..., Operation]:
    """``affine``: 2 for gamma and beta, 1 for gamma alone."""

    def pattern(op: Any, x: Any, eps: Any, gamma: Any, beta: Any) -> Operation:
        distance = _centred(op, x)
        square = op.multiply(distance, distance) if squared == 0 else op.power(distance, 2.0)
        variance = op.mean(square, keepdims=True).named("variance")
        product = op.multiply(_normalised(op, distance, op.add(variance, eps))[form], gamma)
        return op.add(product, beta) if affine == 2 else product

    return pattern


def _rms_pattern(form: int, squared: int) -> Callable[..., Operation]:
    def pattern(op: Any, x: Any, eps: Any, gamma: Any) -> Operation:
        square = op.multiply(x, x) if squared == 0 else op.power(x, 2.0)
        variance = op.mean(square, keepdims=True).named("variance")
        return op.multiply(_normalised(op, x, op.add(variance, eps))[form], gamma)

    return pattern


def _norm_axis(x: Expr, means: list[Call]) -> int | None:
    """The first axis where all ``means`` are over the last axes of ``x``, all the same."""
    assert isinstance(x.type, TensorType)
    rank = x.type.rank
    axes = {tuple(sorted(axis % rank for axis in mean.attrs.axes)) for mean in means}  # type: ignore[attr-defined]
    if len(axes) != 1 or x.type.dtype not in FLOATS:
        return None
    (found,) = axes
    return found[0] if found and found == tuple(range(found[0], rank)) else None


def _fits(vector: Expr, x: Expr, axis: int) -> Expr | None:
    """``vector`` with the shape x.shape[axis:], leading ones dropped; ``None`` where it has another."""
    assert isinstance(x.type, TensorType) and isinstance(vector.type, TensorType)
    wanted, given = x.type.shape[axis:], vector.type.shape
    extra = len(given) - len(wanted)
    if vector.type.dtype != x.type.dtype or extra < 0 or given[extra:] != wanted or any(dim != 1 for dim in given[:extra]):
        return None
    return vector if not extra else ops.reshape(vector, shape=wanted, origin=vector.origin)


def _to_layer_norm(root: Call, x: Expr, eps: Expr, gamma: Expr, beta: Expr, mean: Call, variance: Call) -> Expr | None:
    axis, epsilon = _norm_axis(x, [mean, variance]), scalar_of(eps)
    if axis is None or epsilon is None or root.type != x.type:
        return None
    scale, shift = _fits(gamma, x, axis), _fits(beta, x, axis)
    if scale is None or shift is None:
        return None
    return ops.layer_norm(x, scale, shift, axis=axis - len(x.type.shape), epsilon=epsilon, origin=root.origin)  # type: ignore[union-attr]


def _to_layer_norm_without_beta(root: Call, x: Expr, eps: Expr, gamma: Expr, mean: Call, variance: Call) -> Expr | None:
    if not isinstance(gamma, (Constant, Parameter)):
        return None
    return _to_layer_norm(root, x, eps, gamma, Constant(np.zeros_like(gamma.data)), mean, variance)


def _to_rms_norm(root: Call, x: Expr, eps: Expr, gamma: Expr, variance: Call) -> Expr | None:
    axis, epsilon = _norm_axis(x, [variance]), scalar_of(eps)
    scale = None if axis is None else _fits(gamma, x, axis)
    if axis is None or epsilon is None or scale is None or root.type != x.type:
        return None
    return ops.rms_norm(x, scale, axis=axis - len(x.type.shape), epsilon=epsilon, origin=root.origin)  # type: ignore[union-attr]


def _softmax_stable(op: Any, x: Any) -> Operation:
    exponential = op.exp(op.subtract(x, op.max(x, keepdims=True).named("greatest")))
    return op.divide(exponential, op.sum(exponential, keepdims=True).named("total"))


def _softmax_plain(op: Any, x: Any) -> Operation:
    exponential = op.exp(x)
    return op.divide(exponential, op.sum(exponential, keepdims=True).named("total"))


def _to_softmax(root: Call, x: Expr, total: Call) -> Expr | None:
    axes = total.attrs.axes  # type: ignore[attr-defined]
    return ops.softmax(x, axis=axes[0], origin=root.origin) if len(axes) == 1 else None


def _to_softmax_stable(root: Call, x: Expr, total: Call, greatest: Call) -> Expr | None:
    return _to_softmax(root, x, total) if total.attrs.axes == greatest.attrs.axes else None  # type: ignore[attr-defined]


LAYER_NORM_RULES: list[PatternRule] = [
    *(rule(_layer_pattern(form, squared, 2), _to_layer_norm) for form in range(FORMS) for squared in range(2)),
]
RMS_NORM_RULES: list[PatternRule] = [
    *(rule(_layer_pattern(form, squared, 1), _to_layer_norm_without_beta) for form in range(FORMS) for squared in range(2)),
    *(rule(_rms_pattern(form, squared), _to_rms_norm) for form in range(FORMS) for squared in range(2)),
]
SOFTMAX_RULES: list[PatternRule] = [
    rule(_softmax_stable, _to_softmax_stable),
    rule(_softmax_plain, _to_softmax),
]
