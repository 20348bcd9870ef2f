"""Tensor expressions of matmul, dense and packed_dense. float16 sums in float32."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, accumulator, cast


def summed(shape: tuple[Expr, ...], body: Any, axes: list[te.IterVar], dtype: str, name: str) -> list[te.Tensor]:
    """A sum over ``axes``, run in the accumulator of ``dtype`` and rounded once."""
    wide = accumulator(dtype)
    total = common.compute(shape, lambda *i: te.sum(body(*i), axis=axes), name)
    return [total if wide == dtype else common.compute(shape, lambda *i: cast(total(*i), dtype), f"{name}_rounded")]


def _matmul(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    a, b = inputs
    dtype, wide = results[0].dtype, accumulator(results[0].dtype)
    shape = common.extents(scope, results[0].shape)
    k = te.reduce_axis((0, a.shape[-1]), "k")

    def body(*i: Expr) -> Expr:
        rest = list(i)
        column = [rest.pop()] if len(b.shape) > 1 else []
        row = [rest.pop()] if len(a.shape) > 1 else []
        left = [*_batch(a, rest), *row, k.var]
        right = [*_batch(b, rest), k.var, *column]
        return cast(a(*left), wide) * cast(b(*right), wide)

    return summed(shape, body, [k], dtype, "matmul")


def _batch(tensor: te.Tensor, indices: list[Expr]) -> list[Expr]:
    """The indices of the batch axes, numpy broadcasting included."""
    count = max(len(tensor.shape) - 2, 0)
    chosen = indices[len(indices) - count :] if count else []
    return [common.int_constant(0) if common.is_one(extent) else i for extent, i in zip(tensor.shape[:count], chosen, strict=True)]


def _dense(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, weight = inputs
    wide = accumulator(results[0].dtype)
    k = te.reduce_axis((0, x.shape[-1]), "k")

    def body(*i: Expr) -> Expr:
        return cast(x(*i[:-1], k.var), wide) * cast(weight(i[-1], k.var), wide)

    return summed(common.extents(scope, results[0].shape), body, [k], results[0].dtype, "dense")


def _packed_dense(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    """Weight [ceil(N / b), K, b]."""
    x, weight = inputs
    block = weight.shape[2]
    wide = accumulator(results[0].dtype)
    k = te.reduce_axis((0, x.shape[-1]), "k")

    def body(*i: Expr) -> Expr:
        unit = i[-1]
        return cast(x(*i[:-1], k.var), wide) * cast(weight(tirx.floordiv(unit, block), k.var, tirx.floormod(unit, block)), wide)

    return summed(common.extents(scope, results[0].shape), body, [k], results[0].dtype, "packed_dense")


EXPRESSIONS: dict[str, Expression] = {"matmul": _matmul, "dense": _dense, "packed_dense": _packed_dense}
