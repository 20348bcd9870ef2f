"""Tensor expressions of the operators that move elements or make them from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from aotc.ir.dims import Dim, DimExpr
from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, cast, constant, int_constant


def matching_groups(old: Sequence[Dim], new: Sequence[Dim]) -> list[tuple[range, range]]:
    """The finest split of two shapes of equal size into groups of axes of equal size: a reshape acts within each alone."""
    groups: list[tuple[range, range]] = []
    start_old = start_new = 0
    size_old: Dim = 1
    for end_old in range(1, len(old) + 1):
        size_old = size_old * old[end_old - 1]
        size_new: Dim = 1
        for end_new in range(start_new, len(new) + 1):
            if end_new > start_new:
                size_new = size_new * new[end_new - 1]
            if size_new == size_old and (end_new > start_new or size_old == 1):
                groups.append((range(start_old, end_old), range(start_new, end_new)))
                start_old, start_new, size_old = end_old, end_new, 1
                break
    if start_old < len(old) or start_new < len(new):
        groups.append((range(start_old, len(old)), range(start_new, len(new))))
    return groups


def _reshape(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]
    old, new = [scope.dim(extent) for extent in x.shape], list(results[0].shape)
    shape = common.extents(scope, new)
    groups = matching_groups(old, new)

    def body(*i: Expr) -> Expr:
        at: list[Expr] = []
        if 0 in old:
            return constant(0, common.dtype_of(x))
        for before, after in groups:
            flat = common.row_major([i[axis] for axis in after], [shape[axis] for axis in after])
            at += common.unravel(flat, [x.shape[axis] for axis in before])
        return x(*at)

    return [common.compute(shape, body, "reshape")]


def _transpose(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]

    def body(*i: Expr) -> Expr:
        at: list[Expr] = [None] * len(i)
        for position, axis in enumerate(attrs.axes):
            at[axis] = i[position]
        return x(*at)

    return [common.compute([x.shape[axis] for axis in attrs.axes], body, "transpose")]


def _broadcast_to(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    return [common.compute(common.extents(scope, attrs.shape), lambda *i: common.load_broadcast(inputs[0], i), "broadcast")]


def _tile(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]

    def body(*i: Expr) -> Expr:
        return x(*[j if count == 1 else tirx.floormod(j, n) for j, n, count in zip(i, x.shape, attrs.repeats, strict=True)])

    return [common.compute(common.extents(scope, results[0].shape), body, "tile")]


def _slice(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]

    def position(i: Expr, begin: Dim, step: int) -> Expr:
        scaled = i if step == 1 else i * int_constant(step)
        return scaled if begin == 0 else scaled + scope.expr(begin)

    def body(*i: Expr) -> Expr:
        return x(*[position(j, begin, step) for j, begin, step in zip(i, attrs.begins, attrs.steps, strict=True)])

    return [common.compute(common.extents(scope, results[0].shape), body, "slice")]


def _concat(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    """A chain of conditions on one axis, which a schedule may cut into one loop nest for each input."""
    axis = attrs.axis % len(inputs[0].shape)
    offsets: list[Dim] = [0]
    for x in inputs:
        offsets.append(offsets[-1] + scope.dim(x.shape[axis]))

    def body(*i: Expr) -> Expr:
        value: Expr = None
        for x, begin, end in reversed(list(zip(inputs, offsets[:-1], offsets[1:], strict=True))):
            at = list(i)
            at[axis] = i[axis] if begin == 0 else i[axis] - scope.expr(begin)
            value = x(*at) if value is None else tirx.if_then_else(i[axis] < scope.expr(end), x(*at), value)
        return value

    return [common.compute(common.extents(scope, results[0].shape), body, "concat")]


def _reflected(position: Expr, size: Expr) -> Expr:
    """A position up to ``size - 1`` beyond either end, mirrored at the edge elements; bounces for longer pads."""
    period = tirx.max(size * 2 - 2, int_constant(1))
    folded = tirx.floormod(position, period)
    return tirx.min(folded, period - folded)


def _pad(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x = inputs[0]
    shape = common.extents(scope, results[0].shape)

    def body(*i: Expr) -> Expr:
        at, inside = list(i), []
        for axis, (before, after) in enumerate(zip(attrs.before, attrs.after, strict=True)):
            if before == 0 and after == 0:
                continue
            size, low = x.shape[axis], scope.expr(before)
            at[axis] = i[axis] - low
            if attrs.mode == "constant":
                inside += [i[axis] >= low, i[axis] < scope.expr(before + scope.dim(size))]
            elif attrs.mode == "edge":
                at[axis] = tirx.max(tirx.min(at[axis], size - 1), int_constant(0))
            elif attrs.mode == "wrap":
                at[axis] = tirx.floormod(at[axis], size)
            else:
                at[axis] = _reflected(at[axis], size)
        return tirx.if_then_else(tirx.all(*inside), x(*at), constant(attrs.value, common.dtype_of(x))) if inside else x(*at)

    return [common.compute(shape, body, "pad")]


def _layout_transform(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, axis, block = inputs[0], attrs.axis, int_constant(attrs.block)
    shape = common.extents(scope, results[0].shape)

    def plain(*i: Expr) -> Expr:
        return x(*i[:axis], tirx.floordiv(i[axis], block), *i[axis + 1 :], tirx.floormod(i[axis], block))

    def blocked(*i: Expr) -> Expr:
        channel = i[axis] * block + i[-1]
        value = x(*i[:axis], channel, *i[axis + 1 : -1])
        if attrs.channels % attrs.block == 0:
            return value
        return tirx.if_then_else(channel < int_constant(attrs.channels), value, constant(0, common.dtype_of(x)))

    return [common.compute(shape, plain if attrs.inverse else blocked, "layout_transform")]


def _full(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    return [common.compute(common.extents(scope, attrs.shape), lambda *i: constant(attrs.value, attrs.dtype), "full")]


def _number(value: float | Dim, dtype: str, scope: Scope) -> Expr:
    return cast(scope.expr(value), dtype) if isinstance(value, DimExpr) else constant(value, dtype)


def _arange(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    wide = "float64" if isinstance(attrs.start, float) or isinstance(attrs.step, float) else "int64"
    start, step = _number(attrs.start, wide, scope), _number(attrs.step, wide, scope)

    def body(i: Expr) -> Expr:
        return cast(cast(i, wide) * step + start, attrs.dtype)

    return [common.compute([scope.expr(attrs.count)], body, "arange")]


def _dim_table(values: Sequence[Dim], scalar: bool, scope: Scope) -> te.Tensor:
    numbers = [_number(value, "int64", scope) for value in values]
    if scalar:
        return common.compute((), lambda: numbers[0], "dims")

    def body(i: Expr) -> Expr:
        result = numbers[-1] if numbers else constant(0, "int64")
        for position in range(len(numbers) - 2, -1, -1):
            result = tirx.Select(i == int_constant(position), numbers[position], result)
        return result

    return common.compute([int_constant(len(numbers))], body, "dims")


def _shape_of(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    return [_dim_table([scope.dim(extent) for extent in inputs[0].shape], False, scope)]


def _dims(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    return [_dim_table(attrs.values, attrs.scalar, scope)]


def _trilu(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, k = inputs[0], constant(attrs.k, "int64")

    def body(*i: Expr) -> Expr:
        diagonal = cast(i[-1], "int64") - cast(i[-2], "int64")
        return tirx.Select(diagonal >= k if attrs.upper else diagonal <= k, x(*i), constant(0, common.dtype_of(x)))

    return [common.compute(x.shape, body, "trilu")]


EXPRESSIONS: dict[str, Expression] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "tile": _tile,
    "slice": _slice,
    "concat": _concat,
    "pad": _pad,
    "layout_transform": _layout_transform,
    "full": _full,
    "arange": _arange,
    "shape_of": _shape_of,
    "dims": _dims,
    "trilu": _trilu,
}
