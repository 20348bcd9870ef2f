"""Tensor expressions of conv (plain and channel-blocked) and conv_transpose. float16 sums in float32.

Padding is a stage of its own, ``pad``, so that a schedule may keep it, inline it or split it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, accumulator, cast, constant, int_constant
from aotc.lowering.ops.linear import summed


def padded(x: te.Tensor, first: int, before: Sequence[int], after: Sequence[int], value: int = 0) -> te.Tensor:
    """``x`` with ``value`` around the axes from ``first`` on; ``x`` itself where there is no padding."""
    if not any(before) and not any(after):
        return x
    axes = range(first, first + len(before))
    shape = list(x.shape)
    for axis, low, high in zip(axes, before, after, strict=True):
        shape[axis] = x.shape[axis] + int_constant(low + high)

    def body(*i: Expr) -> Expr:
        at, inside = list(i), []
        for axis, low, high in zip(axes, before, after, strict=True):
            at[axis] = i[axis] - int_constant(low)
            if low:
                inside.append(i[axis] >= int_constant(low))
            if high:
                inside.append(i[axis] < x.shape[axis] + int_constant(low))
        return tirx.if_then_else(tirx.all(*inside), x(*at), constant(value, str(x.dtype)))

    return common.compute(shape, body, "pad")


def positions(outer: Sequence[Expr], taps: Sequence[te.IterVar], strides: Sequence[int], dilation: Sequence[int]) -> list[Expr]:
    return [o * int_constant(s) + t.var * int_constant(d) for o, t, s, d in zip(outer, taps, strides, dilation, strict=True)]


def tap_axes(extents: Sequence[Expr]) -> list[te.IterVar]:
    return [te.reduce_axis((0, extent), f"k{axis}") for axis, extent in enumerate(extents)]


def _conv(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, w = inputs
    n = len(attrs.strides)
    x = padded(x, 2, attrs.padding[:n], attrs.padding[n:], getattr(attrs, "pad_value", 0))
    shape = common.extents(scope, results[0].shape)
    if attrs.channel_block:
        build = _blocked_depthwise if attrs.groups > 1 else _blocked
        return build(attrs, x, w, shape, results[0].dtype)
    wide = accumulator(results[0].dtype)
    per_group_in, per_group_out = w.shape[1], int(results[0].shape[1]) // attrs.groups  # type: ignore[arg-type]
    c = te.reduce_axis((0, per_group_in), "c")
    taps = tap_axes(w.shape[2:])

    def body(*i: Expr) -> Expr:
        at = positions(i[2:], taps, attrs.strides, attrs.dilation)
        channel = c.var
        if attrs.groups > 1:
            channel = tirx.floordiv(i[1], int_constant(per_group_out)) * per_group_in + c.var
        return cast(x(i[0], channel, *at), wide) * cast(w(i[1], c.var, *[t.var for t in taps]), wide)

    return summed(shape, body, [c, *taps], results[0].dtype, "conv")


def _blocked(attrs: Any, x: te.Tensor, w: te.Tensor, shape: tuple[Expr, ...], dtype: str) -> list[te.Tensor]:
    """x[N, C/b_in, *S, b_in], w[O/b/m, C/b_in, *k, b_in, m*b]."""
    wide = accumulator(dtype)
    c_outer, c_inner = te.reduce_axis((0, w.shape[1]), "c0"), te.reduce_axis((0, w.shape[-2]), "c1")
    taps = tap_axes(w.shape[2:-2])
    panel = int(w.shape[-1]) // attrs.channel_block

    def body(*i: Expr) -> Expr:
        at = positions(i[2:-1], taps, attrs.strides, attrs.dilation)
        which, lane = i[1], i[-1]
        if panel > 1:
            which = tirx.floordiv(i[1], int_constant(panel))
            lane = tirx.floormod(i[1], int_constant(panel)) * int_constant(attrs.channel_block) + i[-1]
        weight = w(which, c_outer.var, *[t.var for t in taps], c_inner.var, lane)
        return cast(x(i[0], c_outer.var, *at, c_inner.var), wide) * cast(weight, wide)

    return summed(shape, body, [c_outer, *taps, c_inner], dtype, "conv")


def _blocked_depthwise(attrs: Any, x: te.Tensor, w: te.Tensor, shape: tuple[Expr, ...], dtype: str) -> list[te.Tensor]:
    """x[N, C/b, *S, b], w[C/b, *k, b]."""
    wide = accumulator(dtype)
    taps = tap_axes(w.shape[1:-1])

    def body(*i: Expr) -> Expr:
        at = positions(i[2:-1], taps, attrs.strides, attrs.dilation)
        return cast(x(i[0], i[1], *at, i[-1]), wide) * cast(w(i[1], *[t.var for t in taps], i[-1]), wide)

    return summed(shape, body, taps, dtype, "depthwise_conv")


def _conv_transpose(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    """Each output gathers the inputs that would scatter into it: those where (y + pad - k * dilation) is a multiple of the stride."""
    x, w = inputs
    n = len(attrs.strides)
    wide = accumulator(results[0].dtype)
    per_group_out = w.shape[1]
    per_group_in = int(w.shape[0]) // attrs.groups
    c = te.reduce_axis((0, per_group_in), "c")
    taps = tap_axes(w.shape[2:])

    def body(*i: Expr) -> Expr:
        at, inside = [], []
        for axis in range(n):
            stride = int_constant(attrs.strides[axis])
            scattered = i[2 + axis] + int_constant(attrs.padding[axis]) - taps[axis].var * int_constant(attrs.dilation[axis])
            position = tirx.floordiv(scattered, stride)
            at.append(position)
            inside += [scattered >= int_constant(0), position < x.shape[2 + axis]]
            if attrs.strides[axis] > 1:
                inside.append(tirx.floormod(scattered, stride) == int_constant(0))
        group = tirx.floordiv(i[1], per_group_out) if attrs.groups > 1 else int_constant(0)
        channel = group * int_constant(per_group_in) + c.var
        out_channel = tirx.floormod(i[1], per_group_out) if attrs.groups > 1 else i[1]
        value = cast(x(i[0], channel, *at), wide)
        weight = cast(w(channel, out_channel, *[t.var for t in taps]), wide)
        return tirx.if_then_else(tirx.all(*inside), value * weight, constant(0, wide))

    return summed(common.extents(scope, results[0].shape), body, [c, *taps], results[0].dtype, "conv_transpose")


EXPRESSIONS: dict[str, Expression] = {"conv": _conv, "conv_transpose": _conv_transpose}
