"""Tensor expressions of quantised arithmetic."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common, conv, linear, reduce
from aotc.lowering.ops.common import Expr, Expression, Scope, cast, constant, dtype_of
from aotc.ops.quantise import limits

_ROUND_MAGIC, _MAGIC_BITS = 12582912.0, 0x4B400000
"""1.5 * 2^23: the sum of it and a float32 below 2^22 is rounded to an integer, to even at ties, which stands in its low bits."""


def _rounded(x: Expr, zero: Expr | None, attrs: Any) -> Expr:
    """x rounded to integers around the zero point, within the limits; a NaN gives the least one."""
    low, high = (constant(limit, "int32") for limit in limits(attrs))
    if zero is not None:
        zero = cast(zero, "int32")
        low, high = low - zero, high - zero
    low, high = cast(low, dtype_of(x)), cast(high, dtype_of(x))

    def rounded(held: Expr) -> Expr:
        if dtype_of(x) == "float32":
            whole = tirx.reinterpret("int32", held + constant(_ROUND_MAGIC, "float32")) - constant(_MAGIC_BITS, "int32")
        else:
            whole = cast(tirx.nearbyint(held), "int32")
        return cast(whole if zero is None else whole + zero, attrs.dtype)

    # One name each makes a maximum and a minimum of the two.
    return common.let(tirx.Select(x > low, x, low), lambda t: common.let(tirx.Select(t < high, t, high), rounded))


def _quotient(x: Expr, scale: Expr) -> Expr:
    if dtype_of(x) != "float16":
        return x / scale
    return cast(cast(cast(x, "float32") / cast(scale, "float32"), "float16"), "float32")


def _quantise(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    def body(*i: Expr) -> Expr:
        x, scale, *zero = (common.load_broadcast(value, i) for value in inputs)
        return common.let(_quotient(x, scale), lambda value: _rounded(value, zero[0] if zero else None, attrs))

    return [common.compute(common.extents(scope, results[0].shape), body, "quantise")]


def _requantise(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    def body(*i: Expr) -> Expr:
        x, scale, *zero = (common.load_broadcast(value, i) for value in inputs)
        return common.let(cast(x, "float32") * scale, lambda value: _rounded(value, zero[0] if zero else None, attrs))

    return [common.compute(common.extents(scope, results[0].shape), body, "requantise")]


def _dequantise(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    real = "float64" if results[0].dtype == "float64" else "float32"

    def body(*i: Expr) -> Expr:
        x, scale, *zero = (common.load_broadcast(value, i) for value in inputs)
        wide = cast(x, "int32") - cast(zero[0], "int32") if zero else cast(x, "int32")
        return cast(cast(wide, real) * cast(scale, real), results[0].dtype)

    return [common.compute(common.extents(scope, results[0].shape), body, "dequantise")]


def _look_up(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, table = inputs

    def body(*i: Expr) -> Expr:
        return table(cast(x(*i), "int32") & constant(255, "int32"))

    return [common.compute(common.extents(scope, results[0].shape), body, "look_up")]


EXPRESSIONS: dict[str, Expression] = {
    "quantise": _quantise,
    "dequantise": _dequantise,
    "requantise": _requantise,
    "integer_matmul": linear.EXPRESSIONS["matmul"],
    "integer_conv": conv.EXPRESSIONS["conv"],
    "integer_sum": reduce.EXPRESSIONS["sum"],
    "look_up": _look_up,
}
"""The sums are those of matmul, conv and sum: the results' dtype, int32, is what they multiply and add in."""
