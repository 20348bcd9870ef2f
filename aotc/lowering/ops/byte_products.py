"""Tensor expressions of convolutions and products over units of bytes: summed in int32."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, cast, int_constant
from aotc.lowering.ops.conv import padded, positions, tap_axes
from aotc.lowering.ops.linear import summed
from aotc.ops.byte_products import BLOCK

SUM = "int32"


def _padded(attrs: Any, x: te.Tensor) -> te.Tensor:
    n = len(attrs.strides)
    return padded(x, 2, attrs.padding[:n], attrs.padding[n:], attrs.pad_value)


def _conv(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, w = _padded(attrs, inputs[0]), inputs[1]
    unit, panel = int(w.shape[-1]), int(w.shape[-2])
    block, c = te.reduce_axis((0, w.shape[1]), "block"), te.reduce_axis((0, x.shape[-1]), "c")
    taps = tap_axes(w.shape[2:-3])

    def body(*i: Expr) -> Expr:
        output = i[1] * int_constant(BLOCK) + i[-1]
        weight = w(
            tirx.floordiv(output, int_constant(panel)),
            block.var,
            *[t.var for t in taps],
            tirx.floordiv(c.var, int_constant(unit)),
            tirx.floormod(output, int_constant(panel)),
            tirx.floormod(c.var, int_constant(unit)),
        )
        at = positions(i[2:-1], taps, attrs.strides, attrs.dilation)
        return cast(x(i[0], block.var, *at, c.var), SUM) * cast(weight, SUM)

    return summed(common.extents(scope, results[0].shape), body, [block, *taps, c], SUM, "byte_conv")


def _depthwise(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, w = _padded(attrs, inputs[0]), inputs[1]
    unit = int_constant(int(w.shape[-1]))
    taps = tap_axes([int_constant(k) for k in attrs.kernel])

    def body(*i: Expr) -> Expr:
        row, column = (tap.var for tap in taps)
        at = positions(i[2:-1], taps, attrs.strides, attrs.dilation)
        weight = w(i[1], tirx.floordiv(row, unit), column, i[-1], tirx.floormod(row, unit))
        return cast(x(i[0], i[1], *at, i[-1]), SUM) * cast(weight, SUM)

    return summed(common.extents(scope, results[0].shape), body, taps, SUM, "byte_depthwise_conv")


def _matmul(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, w = inputs
    panel, unit = int_constant(int(w.shape[2])), int_constant(int(w.shape[3]))
    k = te.reduce_axis((0, x.shape[-1]), "k")

    def body(*i: Expr) -> Expr:
        at = (tirx.floordiv(i[-1], panel), tirx.floordiv(k.var, unit), tirx.floormod(i[-1], panel), tirx.floormod(k.var, unit))
        return cast(x(*i[:-1], k.var), SUM) * cast(w(*at), SUM)

    return summed(common.extents(scope, results[0].shape), body, [k], SUM, "byte_matmul")


EXPRESSIONS: dict[str, Expression] = {"byte_conv": _conv, "byte_depthwise_conv": _depthwise, "byte_matmul": _matmul}
