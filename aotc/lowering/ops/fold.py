"""Tensor expression of fold: each element of the image sums up the windows that hold it, so no two tasks write one place."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, accumulator, cast, constant, int_constant
from aotc.ops.fold import window_counts


def _fold(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    (x,) = inputs
    dtype, wide = results[0].dtype, accumulator(results[0].dtype)
    shape, counts = common.extents(scope, results[0].shape), [scope.expr(n) for n in window_counts(attrs)]
    kernel = [scope.expr(k) for k in attrs.kernel]
    taps = [te.reduce_axis((0, k), f"k{axis}") for axis, k in enumerate(kernel)]

    def body(n: Expr, c: Expr, *image: Expr) -> Expr:
        inside, windows = [], []
        for axis, place in enumerate(image):
            stride = attrs.strides[axis]
            start = place + attrs.padding[axis] - taps[axis].var * attrs.dilation[axis]
            inside.append(start >= int_constant(0))
            if stride > 1:
                inside.append(tirx.floormod(start, int_constant(stride)) == int_constant(0))
            windows.append(tirx.floordiv(start, int_constant(stride)) if stride > 1 else start)
            inside.append(windows[-1] < counts[axis])
        row = common.row_major([c, *(tap.var for tap in taps)], [shape[1], *kernel])
        value = cast(x(n, row, common.row_major(windows, counts)), wide)
        return te.sum(tirx.if_then_else(tirx.all(*inside), value, constant(0, wide)), axis=taps)

    total = common.compute(shape, body, "fold")
    return [total if dtype == wide else common.compute(shape, lambda *i: cast(total(*i), dtype), "fold_rounded")]


EXPRESSIONS: dict[str, Expression] = {"fold": _fold}
