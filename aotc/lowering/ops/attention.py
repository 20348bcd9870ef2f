"""The tensor expression of attention."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, accumulator, cast, constant
from aotc.lowering.ops.elementwise import exp_of_negative
from aotc.ops.attention import heads_first


def at(tensor: Any, tokens_first: int, index: tuple[Expr, ...]) -> Expr:
    """The element of a tensor at [batch, head, token, lane]."""
    return tensor(*heads_first(index, tokens_first))


def masked(attrs: Any, score: Expr, mask: Expr | None) -> Expr:
    """A score under the element of the mask that belongs to it."""
    if mask is None:
        return score
    dtype = common.dtype_of(score)
    if common.dtype_of(mask) == "bool":
        return tirx.Select(mask, score, constant(attrs.fill, dtype))
    return score + cast(mask, dtype)


def _attention(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    q, k, v, *mask = inputs
    own = attrs.tokens_first
    dtype, wide = results[0].dtype, accumulator(results[0].dtype)
    (batch, heads, rows, width), keys = heads_first(q.shape, own[0]), heads_first(k.shape, own[1])[2]
    d, t, t2, t3 = (te.reduce_axis((0, extent), name) for extent, name in ((width, "d"), (keys, "t"), (keys, "t2"), (keys, "t3")))

    def product(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        return te.sum(cast(at(q, own[0], (b, h, i, d.var)), wide) * cast(at(k, own[1], (b, h, j, d.var)), wide), axis=[d])

    raw = common.compute((batch, heads, rows, keys), product, "products")

    def score(*index: Expr) -> Expr:
        return masked(attrs, raw(*index) * constant(attrs.scale, wide), common.load_broadcast(mask[0], index) if mask else None)

    scores = common.kept((batch, heads, rows, keys), score, "scores")
    greatest = common.compute((batch, heads, rows), lambda *i: common.max_reduce(scores(*i, t.var), axis=[t]), "greatest")

    def top(*i: Expr) -> Expr:
        value = greatest(*i)
        return tirx.Select(value == constant(float("-inf"), wide), constant(0, wide), value) if attrs.zero_rows else value

    power = common.kept((batch, heads, rows, keys), lambda b, h, i, j: exp_of_negative(scores(b, h, i, j) - top(b, h, i)), "power")
    total = common.compute((batch, heads, rows), lambda *i: te.sum(power(*i, t2.var), axis=[t2]), "total")

    def mix(*index: Expr) -> Expr:
        b, h, i, lane = heads_first(index, own[3])
        return te.sum(power(b, h, i, t3.var) * cast(at(v, own[2], (b, h, t3.var, lane)), wide), axis=[t3])

    mixed = common.compute(common.extents(scope, results[0].shape), mix, "mixed")

    def divided(*index: Expr) -> Expr:
        b, h, i, _ = heads_first(index, own[3])
        nothing = tirx.all(total(b, h, i) == constant(0, wide)) if attrs.zero_rows else None
        quotient = mixed(*index) / total(b, h, i)
        return cast(quotient if nothing is None else tirx.Select(nothing, constant(0, wide), quotient), dtype)

    return [common.compute(common.extents(scope, results[0].shape), divided, "attention")]


EXPRESSIONS: dict[str, Expression] = {"attention": _attention}
