"""Tensor expressions of matmul, dense, packed_dense and determinants. float16 sums in float32."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, accumulator, cast
from aotc.lowering.ops.extern import extern, local, rows


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


def _determinant(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    """Gauss's elimination on a copy of each matrix, the greatest of a column as its pivot."""
    (x,) = inputs
    result, size, wide = results[0], x.shape[-1], accumulator(results[0].dtype)
    outer = common.extents(scope, result.shape)

    def body(source: Any, target: Any, work: Any) -> None:
        with rows(scope, result.shape, scope.dim(size * size)) as row:
            total, factor, pivot = local(wide), local(wide), local("int32")
            with T.serial(0, size) as i, T.serial(0, size) as j:
                work[[*row, i, j]] = cast(source[[*row, i, j]], wide)
            total[0] = common.constant(1, wide)
            with T.serial(0, size) as k:
                pivot[0] = k
                with T.serial(0, size - k) as i:
                    larger = tirx.abs(work[[*row, k + i, k]]) > tirx.abs(work[[*row, pivot[0], k]])
                    pivot[0] = tirx.Select(larger, k + i, pivot[0])
                with T.If(pivot[0] != k), T.Then():
                    total[0] = -total[0]
                    with T.serial(0, size) as j:
                        factor[0] = work[[*row, k, j]]
                        work[[*row, k, j]] = work[[*row, pivot[0], j]]
                        work[[*row, pivot[0], j]] = factor[0]
                total[0] = total[0] * work[[*row, k, k]]
                with T.If(total[0] != common.constant(0, wide)), T.Then(), T.serial(0, size - 1 - k) as i:
                    factor[0] = work[[*row, k + 1 + i, k]] / work[[*row, k, k]]
                    with T.serial(0, size - k) as j:
                        work[[*row, k + 1 + i, k + j]] = work[[*row, k + 1 + i, k + j]] - factor[0] * work[[*row, k, k + j]]
            target[row if outer else []] = cast(total[0], result.dtype)

    return extern(inputs, [(outer, result.dtype), ((*outer, size, size), wide)], body, "determinant")[:1]


EXPRESSIONS: dict[str, Expression] = {
    "matmul": _matmul,
    "dense": _dense,
    "packed_dense": _packed_dense,
    "determinant": _determinant,
}
