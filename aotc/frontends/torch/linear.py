"""Recipes of ATen's matrix products and of attention, which is written as its parts."""

from __future__ import annotations

import math
from typing import Any

import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Recipe, dtype_of, rank_of, shape_of
from aotc.ir.expr import Expr

aten = torch.ops.aten


def aten_linear(b: Builder, x: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    """weight[N, K], or [K] for a single output without its axis."""
    if rank_of(weight) != 2 or rank_of(x) == 0:
        y = b.emit(ops.matmul, x, weight)
    else:
        y = b.emit(ops.dense, x, weight)
    return y if bias is None else b.emit(ops.add, y, bias)


def aten_matmul(b: Builder, x: Expr, y: Expr) -> Expr:
    return b.emit(ops.matmul, x, y)


def aten_addmm(b: Builder, bias: Expr, x: Expr, y: Expr, beta: Any = 1, alpha: Any = 1) -> Expr:
    """beta * bias + alpha * (x @ y)."""
    product = _scaled(b, b.emit(ops.matmul, x, y), alpha)
    return product if beta == 0 else b.emit(ops.add, product, _scaled(b, bias, beta))


def aten_addr(b: Builder, bias: Expr, x: Expr, y: Expr, beta: Any = 1, alpha: Any = 1) -> Expr:
    return aten_addmm(b, bias, b.reshape(x, (*shape_of(x), 1)), b.reshape(y, (1, *shape_of(y))), beta, alpha)


def _scaled(b: Builder, x: Expr, factor: Any) -> Expr:
    return x if factor == 1 else b.binary(ops.multiply, x, factor, dtype_of(x))


def aten_outer(b: Builder, x: Expr, y: Expr) -> Expr:
    return b.emit(ops.multiply, b.reshape(x, (*shape_of(x), 1)), y)


def aten_bilinear(b: Builder, x: Expr, y: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    """out[.., o] = sum over i, j of x[.., i] weight[o, i, j] y[.., j]."""
    rows = b.reshape(x, (*shape_of(x)[:-1], 1, 1, shape_of(x)[-1]))
    columns = b.reshape(y, (*shape_of(y)[:-1], 1, shape_of(y)[-1], 1))
    products = b.emit(ops.matmul, b.emit(ops.matmul, rows, weight), columns)
    result = b.reshape(products, shape_of(products)[:-2])
    return result if bias is None else b.emit(ops.add, result, bias)


def aten_scaled_dot_product_attention(
    b: Builder,
    query: Expr,
    key: Expr,
    value: Expr,
    attn_mask: Expr | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Expr:
    """softmax(query @ key^T * scale + mask) @ value. A row whose keys are all masked gives 0, as torch does."""
    if dropout_p:
        raise b.unsupported("attention with dropout: call module.eval() before exporting")
    if enable_gqa:
        heads = shape_of(query)[-3]
        key, value = _repeat_heads(b, key, heads), _repeat_heads(b, value, heads)
    width = shape_of(query)[-1]
    if scale is None:
        if not isinstance(width, int):
            raise b.unsupported("attention over heads whose width is known only at run time")
        scale = 1 / math.sqrt(width)
    dtype = dtype_of(query)
    rank = rank_of(key)
    key = b.transpose(key, [*range(rank - 2), rank - 1, rank - 2])
    scores = b.emit(ops.matmul, _scaled(b, query, float(scale)), key)
    if is_causal:
        scores = b.emit(ops.where, _causal(b, scores), scores, b.constant(-math.inf, dtype))
    elif attn_mask is not None and dtype_of(attn_mask) == "bool":
        scores = b.emit(ops.where, attn_mask, scores, b.constant(-math.inf, dtype))
    elif attn_mask is not None:
        scores = b.emit(ops.add, scores, b.cast(attn_mask, dtype))
    result = b.emit(ops.matmul, b.emit(ops.softmax, scores, axis=-1), value)
    return result if attn_mask is None else _without_masked_rows(b, scores, result)


def _repeat_heads(b: Builder, x: Expr, heads: Any) -> Expr:
    """Grouped attention: each head of x [.., H, S, E] serves heads / H neighbours."""
    *batch, own, length, width = shape_of(x)
    if own == heads:
        return x
    times = heads // own
    spread = b.broadcast(b.reshape(x, (*batch, own, 1, length, width)), (*batch, own, times, length, width))
    return b.reshape(spread, (*batch, heads, length, width))


def _causal(b: Builder, scores: Expr) -> Expr:
    """bool[L, S]: key s is seen by query l where s <= l."""
    rows, columns = shape_of(scores)[-2:]
    row = b.emit(ops.arange, start=0, step=1, count=rows, dtype="int32")
    column = b.emit(ops.arange, start=0, step=1, count=columns, dtype="int32")
    return b.emit(ops.greater_equal, b.reshape(row, (rows, 1)), column)


def _without_masked_rows(b: Builder, scores: Expr, x: Expr) -> Expr:
    dtype = dtype_of(x)
    greatest = b.emit(ops.max_, scores, axes=(rank_of(scores) - 1,), keepdims=True)
    masked = b.emit(ops.equal, greatest, b.constant(-math.inf, dtype))
    return b.emit(ops.where, masked, b.constant(0, dtype), x)


def aten_flash_attention_for_cpu(
    b: Builder,
    query: Expr,
    key: Expr,
    value: Expr,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Expr | None = None,
    scale: float | None = None,
) -> tuple[Expr, None]:
    return aten_scaled_dot_product_attention(b, query, key, value, attn_mask, dropout_p, is_causal, scale), None


def aten_det(b: Builder, x: Expr) -> tuple[Expr, None, None]:
    """Without the factors, which only a gradient needs."""
    return b.emit(ops.determinant, x), None, None


RECIPES: dict[Any, Recipe] = {
    aten.linear.default: aten_linear,
    aten.matmul.default: aten_matmul,
    aten.mm.default: aten_matmul,
    aten.bmm.default: aten_matmul,
    aten.mv.default: aten_matmul,
    aten.dot.default: aten_matmul,
    aten.vdot.default: aten_matmul,
    aten.outer.default: aten_outer,
    aten.addmm.default: aten_addmm,
    aten.addmv.default: aten_addmm,
    aten.addr.default: aten_addr,
    aten.baddbmm.default: aten_addmm,
    aten.bilinear.default: aten_bilinear,
    aten._linalg_det.default: aten_det,
    aten.scaled_dot_product_attention.default: aten_scaled_dot_product_attention,
    aten._scaled_dot_product_flash_attention_for_cpu.default: aten_flash_attention_for_cpu,
}
