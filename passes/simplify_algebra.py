"""Algebra that keeps the value: neutral elements go, constants meet, and decomposed activations and norms are raised."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Module, Parameter
from aotc.ir.patterns import Operation, PatternRule, any_of, rule
from aotc.ir.types import FLOATS, TensorType
from aotc.ir.visitor import rewrite_module
from aotc.passes.options import Options
from aotc.passes.raise_norms import LAYER_NORM_RULES, RMS_NORM_RULES, SOFTMAX_RULES
from aotc.passes.weights import array_of, scalar_of


def simplify_algebra(module: Module, options: Options) -> Module:
    """Applies the rules below, one set after the other: raising comes before the arithmetic that would break patterns up,
    and layer norms before RMS norms, which look like their second half."""
    for rules in (ACTIVATION_RULES, LAYER_NORM_RULES, RMS_NORM_RULES, SOFTMAX_RULES):
        module = rewrite_module(module, any_of(rules))
    while True:
        changed = rewrite_module(module, any_of(ARITHMETIC_RULES))
        if changed is module:
            return module
        module = changed


# Activations --------------------------------------------------------------------------------------------------------

Build = Callable[..., Any]


def _halved_product(op: Any, x: Any, factor: Any) -> list[Operation]:
    """The ways to write ``0.5 * x * factor``."""
    return [
        op.multiply(op.multiply(x, factor), 0.5),
        op.multiply(x, op.multiply(factor, 0.5)),
        op.multiply(op.multiply(x, 0.5), factor),
        op.divide(op.multiply(x, factor), 2.0),
    ]


def _one_plus_erf(op: Any, argument: Any) -> Any:
    return op.add(op.erf(argument), 1.0)


def _cube(op: Any, x: Any) -> list[Any]:
    return [op.power(x, 3.0), op.multiply(op.multiply(x, x), x)]


def _tanh_arguments(op: Any, x: Any) -> list[Any]:
    """The ways to write sqrt(2 / pi) * (x + 0.044715 * x^3)."""
    scale = math.sqrt(2 / math.pi)
    sums = [op.add(x, op.multiply(cube, 0.044715)) for cube in _cube(op, x)]
    square = op.multiply(x, x)
    factored = [op.add(op.multiply(square, 0.044715), 1.0), op.add(op.multiply(op.multiply(x, 0.044715), x), 1.0)]
    return [op.multiply(each, scale) for each in sums] + [
        form for each in factored for form in (op.multiply(op.multiply(x, each), scale), op.multiply(op.multiply(x, scale), each))
    ]


def _gelu_patterns() -> list[tuple[Callable[..., Operation], str]]:
    def erf_form(i: int, j: int) -> Callable[..., Operation]:
        def pattern(op: Any, x: Any) -> Operation:
            argument = op.divide(x, math.sqrt(2)) if j == 0 else op.multiply(x, math.sqrt(0.5))
            return _halved_product(op, x, _one_plus_erf(op, argument))[i]

        return pattern

    def tanh_form(i: int, j: int) -> Callable[..., Operation]:
        def pattern(op: Any, x: Any) -> Operation:
            return _halved_product(op, x, op.add(op.tanh(_tanh_arguments(op, x)[j]), 1.0))[i]

        return pattern

    forms = [(erf_form(i, j), "none") for i in range(4) for j in range(2)]
    return forms + [(tanh_form(i, j), "tanh") for i in range(4) for j in range(6)]


def _to_gelu(approximate: str) -> Callable[..., Expr]:
    def to_gelu(root: Call, x: Expr) -> Expr:
        return ops.gelu(x, approximate=approximate, origin=root.origin)

    return to_gelu


def _to(build: Build, **attrs: Any) -> Callable[..., Expr]:
    def rewrite(root: Call, x: Expr) -> Expr:
        return build(x, origin=root.origin, **attrs)

    return rewrite


def silu(op: Any, x: Any) -> Operation:
    return op.multiply(x, op.sigmoid(x))


def mish(op: Any, x: Any) -> Operation:
    return op.multiply(x, op.tanh(op.softplus(x)))


def softplus(op: Any, x: Any) -> Operation:
    return op.log(op.add(op.exp(x), 1.0))


def _relu6(op: Any, x: Any) -> Any:
    return op.clip(op.add(x, 3.0), minimum=0, maximum=6)


HARD_SWISH: list[Callable[..., Operation]] = [
    lambda op, x: op.divide(op.multiply(x, _relu6(op, x)), 6.0),
    lambda op, x: op.multiply(op.multiply(x, _relu6(op, x)), 1 / 6),
    lambda op, x: op.multiply(x, op.divide(_relu6(op, x), 6.0)),
    lambda op, x: op.multiply(x, op.multiply(_relu6(op, x), 1 / 6)),
    lambda op, x: op.multiply(op.divide(x, 6.0), _relu6(op, x)),
    lambda op, x: op.multiply(op.multiply(x, 1 / 6), _relu6(op, x)),
]


def hard_swish_of_hard_sigmoid(op: Any, x: Any) -> Operation:
    return op.multiply(x, op.hard_sigmoid(x).named("inner"))


def _to_hard_swish(root: Call, x: Expr, inner: Call) -> Expr | None:
    attrs: Any = inner.attrs
    if abs(attrs.alpha - 1 / 6) > 1e-6 or attrs.beta != 0.5:
        return None
    return ops.hard_swish(x, origin=root.origin)


ACTIVATION_RULES: list[PatternRule] = [
    rule(silu, _to(ops.silu)),
    rule(mish, _to(ops.mish)),
    rule(softplus, _to(ops.softplus)),
    *(rule(pattern, _to(ops.hard_swish)) for pattern in HARD_SWISH),
    rule(hard_swish_of_hard_sigmoid, _to_hard_swish),
    *(rule(pattern, _to_gelu(approximate)) for pattern, approximate in _gelu_patterns()),
]


# Arithmetic ---------------------------------------------------------------------------------------------------------


def _is_float(expr: Expr) -> bool:
    return isinstance(expr.type, TensorType) and expr.type.dtype in FLOATS


def _is_all(expr: Expr, value: float) -> bool:
    data = array_of(expr)
    return data is not None and data.dtype != bool and data.size > 0 and bool((data == value).all())


def _neutral(value: float) -> Callable[..., Expr | None]:
    def drop(root: Call, x: Expr, c: Expr) -> Expr | None:
        return x if _is_all(c, value) and x.type == root.type else None

    return drop


def divide_by_power_of_two(root: Call, x: Expr, c: Expr) -> Expr | None:
    """A product is cheaper than a quotient, and the same where the reciprocal is exact."""
    data = array_of(c)
    if data is None or not _is_float(root) or not np.isfinite(data).all() or not (data != 0).all():
        return None
    inverse = (1 / data.astype("float64")).astype(data.dtype)
    exact = (np.abs(np.frexp(data.astype("float64"))[0]) == 0.5).all() and np.isfinite(inverse).all()
    normal = (np.abs(inverse) >= np.finfo(data.dtype).tiny).all()
    if not exact or not normal or (isinstance(c, Parameter) and data.size > 1):
        return None
    return ops.multiply(x, Constant(inverse, c.origin), origin=root.origin)


def merge_constants(combine: Callable[[float, float], float], build: Build) -> Callable[..., Expr | None]:
    def merge(root: Call, x: Expr, a: Expr, b: Expr) -> Expr | None:
        """Two numbers become one, unless it would overflow or vanish."""
        first, second = scalar_of(a), scalar_of(b)
        if first is None or second is None or not _is_float(root) or root.type != x.type:
            return None
        exact = combine(first, second)
        with np.errstate(all="ignore"):
            both = np.asarray(exact).astype(root.type.dtype)  # type: ignore[union-attr]
        if not np.isfinite(both) or (both == 0) != (exact == 0):
            return None
        return build(x, Constant(both, b.origin), origin=root.origin)

    return merge


def relu_under_clip(root: Call, x: Expr) -> Expr | None:
    attrs: Any = root.attrs
    high = attrs.maximum
    if high is None or not high >= 0 or (attrs.minimum is not None and not attrs.minimum <= 0):
        return None
    return ops.clip(x, minimum=0.0 if _is_float(root) else 0, maximum=high, origin=root.origin)


def sum_over_nothing(root: Call, x: Expr, y: Expr) -> Expr | None:
    """A matrix product whose inner dim is 0 is zeros."""
    if not isinstance(x.type, TensorType) or not isinstance(root.type, TensorType) or x.type.shape[-1] != 0:
        return None
    return ops.full(shape=root.type.shape, value=0, dtype=root.type.dtype, origin=root.origin)


def _log_softmax(root: Call, x: Expr, inner: Call) -> Expr:
    attrs: Any = inner.attrs
    return ops.log_softmax(x, axis=attrs.axis, origin=root.origin)


ARITHMETIC_RULES: list[PatternRule] = [
    rule(lambda op, x, c: op.multiply(x, c), _neutral(1)),
    rule(lambda op, x, c: op.divide(x, c), _neutral(1)),
    rule(lambda op, x, c: op.add(x, c), _neutral(0)),
    rule(lambda op, x, c: op.subtract(x, c), _neutral(0)),
    rule(lambda op, x, c: op.divide(x, c), divide_by_power_of_two),
    rule(lambda op, x: op.negative(op.negative(x)), lambda x: x),
    rule(lambda op, x: op.logical_not(op.logical_not(x)), lambda x: x),
    rule(lambda op, x: op.relu(op.relu(x).named("inner")), lambda inner: inner),
    rule(lambda op, x: op.relu(op.sigmoid(x).named("inner")), lambda inner: inner),
    rule(lambda op, x: op.abs(op.abs(x).named("inner")), lambda inner: inner),
    rule(lambda op, x: op.clip(op.relu(x)), relu_under_clip),
    rule(lambda op, x, a, b: op.multiply(op.multiply(x, a), b), merge_constants(operator.mul, ops.multiply)),
    rule(lambda op, x, a, b: op.add(op.add(x, a), b), merge_constants(operator.add, ops.add)),
    rule(lambda op, x: op.log(op.softmax(x).named("inner")), _log_softmax),
    rule(lambda op, x, y: op.matmul(x, y), sum_over_nothing),
    rule(lambda op, x, y: op.dense(x, y), sum_over_nothing),
]
