"""Tensor expressions of the normalisations: two-pass statistics (mean, then squared distances from it), in float32 for float16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, accumulator, cast, constant, int_constant


def _batch_norm(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, gamma, beta, mean, variance = inputs
    dtype, wide = results[0].dtype, accumulator(results[0].dtype)

    def body(*i: Expr) -> Expr:
        g, b, m, v = (cast(t(i[1]), wide) for t in (gamma, beta, mean, variance))
        scale = g / tirx.sqrt(v + constant(attrs.epsilon, wide))
        return cast((cast(x(*i), wide) - m) * scale + b, dtype)

    return [common.compute(x.shape, body, "batch_norm")]


def _axes(extents: Sequence[Expr], name: str) -> list[te.IterVar]:
    return [te.reduce_axis((0, extent), f"{name}{i}") for i, extent in enumerate(extents)]


def _moments(rows: Sequence[Expr], inner: Sequence[Expr], load: Any, wide: str) -> tuple[te.Tensor, te.Tensor]:
    """Mean and mean squared distance over ``inner`` for each of ``rows``; ``load(row indices, inner indices)`` is an element."""
    axes = _axes(inner, "m")
    mean = common.compute(rows, lambda *r: te.sum(load(r, [a.var for a in axes]), axis=axes), "mean_sum")
    again = _axes(inner, "v")

    def squared(*r: Expr) -> Expr:
        distance = load(r, [a.var for a in again]) - mean(*r) / common.count_of(axes, wide)
        return te.sum(distance * distance, axis=again)

    return (
        common.compute(rows, lambda *r: mean(*r) / common.count_of(axes, wide), "mean"),
        common.compute(rows, squared, "variance_sum"),
    )


def _inverse_deviation(total: Expr, count: Expr, epsilon: float, wide: str) -> Expr:
    return constant(1, wide) / tirx.sqrt(total / count + constant(epsilon, wide))


def _layer_norm(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, gamma, beta = inputs
    dtype, wide = results[0].dtype, accumulator(results[0].dtype)
    axis = attrs.axis % len(x.shape)
    rows, inner = x.shape[:axis], x.shape[axis:]
    mean, variance = _moments(rows, inner, lambda r, k: cast(x(*r, *k), wide), wide)
    count = common.count_of(_axes(inner, "c"), wide)
    scale = common.compute(rows, lambda *r: _inverse_deviation(variance(*r), count, attrs.epsilon, wide), "scale")

    def body(*i: Expr) -> Expr:
        r, k = i[:axis], i[axis:]
        normal = (cast(x(*i), wide) - mean(*r)) * scale(*r)
        return cast(normal * cast(gamma(*k), wide) + cast(beta(*k), wide), dtype)

    return [common.compute(x.shape, body, "layer_norm")]


def _rms_norm(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, gamma = inputs
    dtype, wide = results[0].dtype, accumulator(results[0].dtype)
    axis = attrs.axis % len(x.shape)
    rows, inner = x.shape[:axis], x.shape[axis:]
    axes = _axes(inner, "k")

    def square(*r: Expr) -> Expr:
        value = cast(x(*r, *[a.var for a in axes]), wide)
        return te.sum(value * value, axis=axes)

    total = common.compute(rows, square, "square_sum")
    scale = common.compute(rows, lambda *r: _inverse_deviation(total(*r), common.count_of(axes, wide), attrs.epsilon, wide), "scale")

    def body(*i: Expr) -> Expr:
        return cast(cast(x(*i), wide) * scale(*i[:axis]) * cast(gamma(*i[axis:]), wide), dtype)

    return [common.compute(x.shape, body, "rms_norm")]


def _grouped_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, groups: Expr, epsilon: float, dtype: str) -> te.Tensor:
    """Statistics over the channels of a group and all spatial axes, a stage over [N, G, C / G, *S] as long as groups are not channels."""
    wide = accumulator(dtype)
    size = common.static(x.shape[1])
    count = common.static(groups)
    per_group = size // count if size is not None and count else (1 if groups is x.shape[1] else tirx.floordiv(x.shape[1], groups))
    single = per_group == 1 if isinstance(per_group, int) else False
    rows = [x.shape[0], groups]
    inner = ([] if single else [per_group]) + list(x.shape[2:])

    def load(r: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        channel = r[1] if single else r[1] * per_group + k[0]
        return cast(x(r[0], channel, *(k if single else k[1:])), wide)

    mean, variance = _moments(rows, inner, load, wide)
    elements = common.count_of(_axes(inner, "c"), wide)
    scale = common.compute(rows, lambda *r: _inverse_deviation(variance(*r), elements, epsilon, wide), "scale")

    def body(*i: Expr) -> Expr:
        row = (i[0], i[1] if single else tirx.floordiv(i[1], per_group))
        normal = (cast(x(*i), wide) - mean(*row)) * scale(*row)
        return cast(normal * cast(gamma(i[1]), wide) + cast(beta(i[1]), wide), dtype)

    return common.compute(x.shape, body, "grouped_norm")


def _group_norm(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, gamma, beta = inputs
    return [_grouped_norm(x, gamma, beta, int_constant(attrs.groups), attrs.epsilon, results[0].dtype)]


def _instance_norm(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, gamma, beta = inputs
    return [_grouped_norm(x, gamma, beta, x.shape[1], attrs.epsilon, results[0].dtype)]


def _lrn(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]
    dtype, wide = results[0].dtype, accumulator(results[0].dtype)
    before = (attrs.size - 1) // 2
    tap = te.reduce_axis((0, int_constant(attrs.size)), "tap")

    def square(*i: Expr) -> Expr:
        channel = i[1] + tap.var - int_constant(before)
        value = cast(x(i[0], channel, *i[2:]), wide)
        inside = tirx.all(channel >= int_constant(0), channel < x.shape[1])
        return te.sum(tirx.if_then_else(inside, value * value, constant(0, wide)), axis=[tap])

    total = common.compute(x.shape, square, "square_sum")
    power = "powf" if wide == "float32" else "pow"

    def body(*i: Expr) -> Expr:
        base = constant(attrs.bias, wide) + constant(attrs.alpha / attrs.size, wide) * total(*i)
        return cast(cast(x(*i), wide) / tirx.call_pure_extern(wide, power, base, constant(attrs.beta, wide)), dtype)

    return [common.compute(x.shape, body, "lrn")]


EXPRESSIONS: dict[str, Expression] = {
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "lrn": _lrn,
}
