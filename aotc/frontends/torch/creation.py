"""Recipes of ATen's operators that make tensors from nothing, and of triangles."""

from __future__ import annotations

from typing import Any

import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Operand, Recipe, is_float
from aotc.ir.dims import Dim
from aotc.ir.expr import Expr

aten = torch.ops.aten


def filled(b: Builder, value: Operand) -> Expr:
    """The result's shape full of one value, which may be a number, a dim or a scalar tensor."""
    if isinstance(value, (bool, int, float)):
        return b.emit(ops.full, shape=b.shape, value=value, dtype=b.dtype)
    return b.broadcast(b.tensor(value, b.dtype), b.shape)


def _constant_fill(value: float) -> Recipe:
    def recipe(b: Builder, *args: Any, **options: Any) -> Expr:
        return filled(b, value)

    return recipe


def aten_full(b: Builder, shape: Any, value: Operand, **options: Any) -> Expr:
    return filled(b, value)


def aten_full_like(b: Builder, x: Expr, value: Operand, **options: Any) -> Expr:
    return filled(b, value)


def aten_new_full(b: Builder, x: Expr, shape: Any, value: Operand, **options: Any) -> Expr:
    return filled(b, value)


def aten_scalar_tensor(b: Builder, value: Operand, **options: Any) -> Expr:
    return b.tensor(value, b.dtype)


def aten_arange(b: Builder, start: Any, end: Any, step: Any = 1, **options: Any) -> Expr:
    """The count is as torch found it."""
    return b.emit(ops.arange, start=start, step=step, count=b.shape[0], dtype=b.dtype)


def aten_arange_end(b: Builder, end: Any, **options: Any) -> Expr:
    return aten_arange(b, 0, end)


def aten_linspace(b: Builder, start: Any, end: Any, steps: Dim, **options: Any) -> Expr:
    if not isinstance(steps, int) or not isinstance(start, (int, float)) or not isinstance(end, (int, float)):
        raise b.unsupported("linspace between values or of a length that are known only at run time")
    return b.constant(torch.linspace(start, end, steps, dtype=torch.float64 if is_float(b.dtype) else torch.int64).numpy(), b.dtype)


def aten_eye(b: Builder, rows: Dim, columns: Dim | None = None, **options: Any) -> Expr:
    n, m = b.shape
    row = b.emit(ops.arange, start=0, step=1, count=n, dtype="int64")
    column = b.emit(ops.arange, start=0, step=1, count=m, dtype="int64")
    return b.cast(b.emit(ops.equal, b.reshape(row, (n, 1)), column), b.dtype)


def _triangle(upper: bool) -> Recipe:
    def recipe(b: Builder, x: Expr, diagonal: int = 0) -> Expr:
        return b.emit(ops.trilu, x, upper=upper, k=diagonal)

    return recipe


def _triangle_indices(upper: bool) -> Recipe:
    def recipe(b: Builder, rows: Dim, columns: Dim, offset: int = 0, **options: Any) -> Expr:
        if not isinstance(rows, int) or not isinstance(columns, int):
            raise b.unsupported("indices of a triangle whose size is known only at run time")
        make = torch.triu_indices if upper else torch.tril_indices
        return b.constant(make(rows, columns, offset).numpy(), b.dtype)

    return recipe


RECIPES: dict[Any, Recipe] = {
    aten.full.default: aten_full,
    aten.full_like.default: aten_full_like,
    aten.new_full.default: aten_new_full,
    aten.fill.Scalar: aten_full_like,
    aten.fill.Tensor: aten_full_like,
    aten.zeros.default: _constant_fill(0),
    aten.zeros_like.default: _constant_fill(0),
    aten.new_zeros.default: _constant_fill(0),
    aten.zero.default: _constant_fill(0),
    aten.ones.default: _constant_fill(1),
    aten.ones_like.default: _constant_fill(1),
    aten.new_ones.default: _constant_fill(1),
    aten.empty.memory_format: _constant_fill(0),
    aten.empty_like.default: _constant_fill(0),
    aten.new_empty.default: _constant_fill(0),
    aten.empty_strided.default: _constant_fill(0),
    aten.new_empty_strided.default: _constant_fill(0),
    aten.empty_permuted.default: _constant_fill(0),
    aten.scalar_tensor.default: aten_scalar_tensor,
    aten.arange.default: aten_arange_end,
    aten.arange.start: aten_arange,
    aten.arange.start_step: aten_arange,
    aten.linspace.default: aten_linspace,
    aten.eye.default: aten_eye,
    aten.eye.m: aten_eye,
    aten.triu.default: _triangle(True),
    aten.tril.default: _triangle(False),
    aten.triu_indices.default: _triangle_indices(True),
    aten.tril_indices.default: _triangle_indices(False),
}
