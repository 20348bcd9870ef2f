"""What calibration computes inside a network. ``observe`` is written as loops: each task counts one part of the rows."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, cast, constant, int_constant
from aotc.lowering.ops.extern import extern, local
from aotc.ops.calibration import FIRST, HALF, PARTS, SHIFT


def _observe(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    outer, channels, inner = inputs[0].shape
    rows = outer * channels
    length = tirx.floordiv(rows + PARTS - 1, PARTS)
    none = constant(0, "float32")

    def body(x: Any, counts: Any, ranges: Any, sums: Any, largest: Any) -> None:
        with T.parallel(0, PARTS) as part:
            with T.serial(0, 2 * HALF) as i:
                counts[[part, i]] = int_constant(0)
            with T.serial(0, channels) as i:
                sums[[part, i]] = none
                largest[[part, i]] = none
            low, high, place, total, most = local("float32"), local("float32"), local("int32"), local("float32"), local("float32")
            low[0], high[0] = constant(float("inf"), "float32"), constant(float("-inf"), "float32")
            with T.serial(0, tirx.max(tirx.min(length, rows - part * length), int_constant(0))) as step:
                row, channel = tirx.floordiv(part * length + step, channels), tirx.floormod(part * length + step, channels)
                total[0], most[0] = none, none
                with T.serial(0, inner) as i:
                    value = x[[row, channel, i]]
                    bits = tirx.reinterpret("int32", value)
                    magnitude = tirx.bitwise_and(bits, int_constant(0x7FFFFFFF))
                    bin_ = tirx.max(
                        tirx.min(tirx.shift_right(magnitude, int_constant(SHIFT)) - FIRST, int_constant(HALF - 1)), int_constant(0)
                    )
                    place[0] = bin_ + tirx.Select(bits < 0, int_constant(HALF), int_constant(0))
                    counts[[part, place[0]]] = counts[[part, place[0]]] + 1
                    low[0] = tirx.Select(value < low[0], value, low[0])
                    high[0] = tirx.Select(value > high[0], value, high[0])
                    total[0] = total[0] + value
                    size = tirx.reinterpret("float32", magnitude)
                    most[0] = tirx.Select(size > most[0], size, most[0])
                sums[[part, channel]] = sums[[part, channel]] + total[0]
                largest[[part, channel]] = tirx.max(largest[[part, channel]], most[0])
            ranges[[part, 0]] = low[0]
            ranges[[part, 1]] = high[0]

    return extern(inputs, [(common.extents(scope, result.shape), result.dtype) for result in results], body, "observe")


def _fake_quantise(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    def body(*i: Expr) -> Expr:
        x, scale, zero, switch = (common.load_broadcast(value, i) for value in inputs)
        low, high = (cast(int_constant(limit) - cast(zero, "int32"), "float32") for limit in (-128, 127))

        def rounded(value: Expr) -> Expr:
            held = common.let(value / scale, lambda q: tirx.Select(q > low, tirx.Select(q < high, q, high), low))
            return value * (constant(1, "float32") - switch) + tirx.nearbyint(held) * scale * switch

        return common.let(x, rounded)

    return [common.compute(common.extents(scope, results[0].shape), body, "fake_quantise")]


EXPRESSIONS: dict[str, Expression] = {"observe": _observe, "fake_quantise": _fake_quantise}
