"""Recipes of ATen's operators that move elements: views, cuts, joins and padding. In the IR a view is a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Recipe, axis_of, dtype_of, rank_of, shape_of
from aotc.ir import dims
from aotc.ir.dims import Dim
from aotc.ir.expr import Expr

aten = torch.ops.aten
END = 2**63 - 1
"""What torch writes for "to the end"."""


def aten_reshape(b: Builder, x: Expr, *shape: Any) -> Expr:
    """All operators that keep the order of elements; the result's shape is as torch found it."""
    return b.reshape(x, b.shape)


def aten_permute(b: Builder, x: Expr, axes: Sequence[int]) -> Expr:
    return b.transpose(x, [axis_of(axis, rank_of(x)) for axis in axes])


def aten_transpose(b: Builder, x: Expr, first: int = 0, second: int = 1) -> Expr:
    rank = rank_of(x)
    axes = list(range(rank))
    if rank:
        first, second = first % rank, second % rank if rank > 1 else 0
        axes[first], axes[second] = axes[second], axes[first]
    return b.transpose(x, axes)


def aten_reverse_axes(b: Builder, x: Expr) -> Expr:
    return b.transpose(x, list(range(rank_of(x)))[::-1])


def aten_swap_last(b: Builder, x: Expr) -> Expr:
    return aten_transpose(b, x, -1, -2)


def aten_movedim(b: Builder, x: Expr, source: Any, destination: Any) -> Expr:
    rank = rank_of(x)
    sources = [axis_of(axis, rank) for axis in ([source] if isinstance(source, int) else source)]
    places = [axis_of(axis, rank) for axis in ([destination] if isinstance(destination, int) else destination)]
    rest = iter(axis for axis in range(rank) if axis not in sources)
    order = [sources[places.index(axis)] if axis in places else next(rest) for axis in range(rank)]
    return b.transpose(x, order)


def aten_expand(b: Builder, x: Expr, *shape: Any, **options: Any) -> Expr:
    return b.broadcast(x, b.shape)


def normalised(index: Dim, length: Dim) -> Dim:
    """A slice's end as torch understands it: negative from the end, then clipped into [0, length]."""
    low, high = dims.bounds(index)
    if high is not None and high < 0:
        index = index + length
    elif low is None or low < 0:
        index = index + length * _is_negative(index)
    return dims.maximum(0, dims.minimum(index, length))


def _is_negative(index: Dim) -> Dim:
    """1 where ``index`` is below 0, else 0."""
    return dims.minimum(1, dims.maximum(0, -index))


def aten_slice(b: Builder, x: Expr, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1) -> Expr:
    axis = axis_of(dim, rank_of(x))
    length = shape_of(x)[axis]
    begin = normalised(0 if start is None else start, length)
    stop = length if end is None or end == END else normalised(end, length)
    return b.slice(x, axis, begin, dims.maximum(begin, stop), step)


def aten_narrow(b: Builder, x: Expr, dim: int, start: Dim, length: Dim) -> Expr:
    axis = axis_of(dim, rank_of(x))
    begin = normalised(start, shape_of(x)[axis])
    return b.slice(x, axis, begin, begin + length)


def aten_select(b: Builder, x: Expr, dim: int, index: Dim) -> Expr:
    axis = axis_of(dim, rank_of(x))
    length = shape_of(x)[axis]
    low, high = dims.bounds(index)
    place = index + length if high is not None and high < 0 else index if low is not None and low >= 0 else normalised(index, length)
    shape = shape_of(x)
    return b.reshape(b.slice(x, axis, place, place + 1), (*shape[:axis], *shape[axis + 1 :]))


def aten_cat(b: Builder, tensors: Sequence[Expr], dim: int = 0) -> Expr:
    """torch skips tensors of shape [0] whatever the others' rank."""
    parts = [b.cast(x, b.dtype) for x in tensors]
    rank = len(b.shape)
    kept = [x for x in parts if rank == 1 or shape_of(x) != (0,)]
    return b.concat(kept or parts, axis_of(dim, rank))


def aten_stack(b: Builder, tensors: Sequence[Expr], dim: int = 0) -> Expr:
    axis = axis_of(dim, rank_of(tensors[0]) + 1)
    rows = [b.reshape(b.cast(x, b.dtype), (*shape_of(x)[:axis], 1, *shape_of(x)[axis:])) for x in tensors]
    return b.concat(rows, axis)


def _pieces(b: Builder, x: Expr, axis: int, lengths: Sequence[Dim]) -> tuple[Expr | None, ...]:
    """``x`` cut into pieces along an axis; pieces that nobody uses are left out."""
    begin: Dim = 0
    pieces: list[Expr | None] = []
    for i, length in enumerate(lengths):
        pieces.append(b.slice(x, axis, begin, begin + length) if i in b.used_outputs else None)
        begin = begin + length
    return tuple(pieces)


def aten_split(b: Builder, x: Expr, size: Any, dim: int = 0) -> tuple[Expr | None, ...]:
    """All ways to split: the lengths of the pieces are as torch found them."""
    axis = axis_of(dim, rank_of(x))
    return _pieces(b, x, axis, [b.symbols.dim(piece.shape[axis]) for piece in b.meta])


def aten_unbind(b: Builder, x: Expr, dim: int = 0) -> tuple[Expr | None, ...]:
    axis = axis_of(dim, rank_of(x))
    pieces = _pieces(b, x, axis, [1] * len(b.meta))
    return tuple(piece if piece is None else b.reshape(piece, b.shape) for piece in pieces)


def aten_repeat(b: Builder, x: Expr, repeats: Sequence[Dim]) -> Expr:
    x = b.reshape(x, (1,) * (len(repeats) - rank_of(x)) + shape_of(x))
    return x if all(count == 1 for count in repeats) else b.emit(ops.tile, x, repeats=tuple(repeats))


def aten_tile(b: Builder, x: Expr, repeats: Sequence[Dim]) -> Expr:
    return aten_repeat(b, x, [1] * (rank_of(x) - len(repeats)) + list(repeats))


def aten_repeat_interleave(b: Builder, x: Expr, repeats: Dim, dim: int | None = None, **options: Any) -> Expr:
    if dim is None:
        x, dim = b.reshape(x, (dims.product(shape_of(x)),)), 0
    axis, shape = axis_of(dim, rank_of(x)), shape_of(x)
    spread = b.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    spread = b.broadcast(spread, (*shape[: axis + 1], repeats, *shape[axis + 1 :]))
    return b.reshape(spread, (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))


def aten_flip(b: Builder, x: Expr, axes: Sequence[int]) -> Expr:
    turned = {axis_of(axis, rank_of(x)) for axis in axes}
    if not turned or not rank_of(x):
        return x
    shape = shape_of(x)
    begins = tuple(dim - 1 if i in turned else 0 for i, dim in enumerate(shape))
    ends = tuple(-1 if i in turned else dim for i, dim in enumerate(shape))
    return b.emit(ops.slice_, x, begins=begins, ends=ends, steps=tuple(-1 if i in turned else 1 for i in range(len(shape))))


def aten_roll(b: Builder, x: Expr, shifts: Any, axes: Any = ()) -> Expr:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [axes] if isinstance(axes, int) else list(axes)
    if not axes:
        flat = b.reshape(x, (dims.product(shape_of(x)),))
        return b.reshape(aten_roll(b, flat, shifts, [0]), shape_of(x))
    for shift, axis in zip(shifts, axes, strict=True):
        axis = axis_of(axis, rank_of(x))
        length = shape_of(x)[axis]
        if length == 0 or dims.mod(shift, length) == 0:
            continue
        cut = length - dims.mod(shift, length) if isinstance(length, int) else dims.mod(length - shift, length)
        x = b.concat([b.slice(x, axis, cut, length), b.slice(x, axis, 0, cut)], axis)
    return x


def _padded(b: Builder, x: Expr, pads: Sequence[Dim], mode: str, value: Any = 0) -> Expr:
    """``pads`` are (before, after) of the last axis, then of the one before; negative ones cut."""
    rank = rank_of(x)
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for i, (low, high) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        before[rank - 1 - i], after[rank - 1 - i] = low, high
    for axis in range(rank):
        length = shape_of(x)[axis]
        x = b.slice(x, axis, dims.maximum(0, -before[axis]), length - dims.maximum(0, -after[axis]))
    widths = [tuple(dims.maximum(0, each) for each in pads) for pads in (before, after)]
    if not any(each != 0 for pads in widths for each in pads):
        return x
    return b.emit(ops.pad, x, before=widths[0], after=widths[1], mode=mode, value=value)


def aten_constant_pad(b: Builder, x: Expr, pads: Sequence[Dim], value: Any = 0) -> Expr:
    return _padded(b, x, pads, "constant", value)


def aten_reflection_pad(b: Builder, x: Expr, pads: Sequence[Dim]) -> Expr:
    return _padded(b, x, pads, "reflect")


def aten_replication_pad(b: Builder, x: Expr, pads: Sequence[Dim]) -> Expr:
    return _padded(b, x, pads, "edge")


def aten_pad(b: Builder, x: Expr, pads: Sequence[Dim], mode: str = "constant", value: Any = None) -> Expr:
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return _padded(b, x, pads, names[mode], value or 0)


def aten_diagonal(b: Builder, x: Expr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Expr:
    """The two axes are flattened and every (columns + 1)-th element is taken."""
    rank = rank_of(x)
    first, second = axis_of(dim1, rank), axis_of(dim2, rank)
    rest = [axis for axis in range(rank) if axis not in (first, second)]
    moved = b.transpose(x, [*rest, first, second])
    *batch, rows, columns = shape_of(moved)
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise b.unsupported("the diagonal of axes whose lengths are known only at run time")
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    start = max(offset, 0) + max(-offset, 0) * columns
    flat = b.reshape(moved, (*batch, rows * columns))
    return b.emit(ops.gather, flat, b.constant([start + i * (columns + 1) for i in range(count)], "int64"), axis=len(batch))


def aten_as_strided(b: Builder, x: Expr, size: Sequence[Dim], stride: Sequence[Dim], storage_offset: Dim | None = 0) -> Expr:
    """Of a whole, contiguous tensor of known size: a gather from the flat one."""
    shape = shape_of(x)
    if not all(isinstance(each, int) for each in (*shape, *size, *stride)):
        raise b.unsupported("as_strided with sizes that are known only at run time")
    places = torch.arange(int(dims.product(shape))).as_strided(tuple(size), tuple(stride), storage_offset or 0)  # type: ignore[arg-type]
    return b.emit(ops.gather, b.reshape(x, (dims.product(shape),)), b.constant(places.numpy(), "int64"), axis=0)


def aten_slice_scatter(
    b: Builder, x: Expr, source: Expr, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1
) -> Expr:
    """``x`` with a slice replaced."""
    axis = axis_of(dim, rank_of(x))
    length = shape_of(x)[axis]
    begin = normalised(0 if start is None else start, length)
    stop = dims.maximum(begin, length if end is None or end == END else normalised(end, length))
    source = b.cast(source, dtype_of(x))
    if step == 1:
        parts = [b.slice(x, axis, 0, begin), source, b.slice(x, axis, stop, length)]
        return b.concat([part for part in parts if shape_of(part)[axis] != 0] or [x], axis)
    if not isinstance(length, int) or not isinstance(begin, int) or not isinstance(stop, int):
        raise b.unsupported("replacing a slice with a step along an axis whose length is known only at run time")
    picked = list(range(length))
    for i, place in enumerate(range(begin, stop, step)):
        picked[place] = length + i
    return b.emit(ops.gather, b.concat([x, source], axis), b.constant(picked, "int64"), axis=axis)


def aten_select_scatter(b: Builder, x: Expr, source: Expr, dim: int, index: int) -> Expr:
    axis = axis_of(dim, rank_of(x))
    shape = shape_of(x)
    begin = index + shape[axis] if isinstance(index, int) and index < 0 else index
    return aten_slice_scatter(b, x, b.reshape(source, (*shape[:axis], 1, *shape[axis + 1 :])), axis, begin, begin + 1)


RECIPES: dict[Any, Recipe] = {
    aten.view.default: aten_reshape,
    aten.view_copy.default: aten_reshape,
    aten._unsafe_view.default: aten_reshape,
    aten._reshape_alias.default: aten_reshape,
    aten.reshape.default: aten_reshape,
    aten.view_as.default: aten_reshape,
    aten.reshape_as.default: aten_reshape,
    aten.flatten.using_ints: aten_reshape,
    aten.unflatten.int: aten_reshape,
    aten.ravel.default: aten_reshape,
    aten.unsqueeze.default: aten_reshape,
    aten.squeeze.default: aten_reshape,
    aten.squeeze.dim: aten_reshape,
    aten.squeeze.dims: aten_reshape,
    aten.atleast_1d.default: aten_reshape,
    aten.permute.default: aten_permute,
    aten.transpose.int: aten_transpose,
    aten.swapaxes.default: aten_transpose,
    aten.t.default: lambda b, x: aten_transpose(b, x) if rank_of(x) > 1 else x,
    aten.numpy_T.default: aten_reverse_axes,
    aten.mT.default: aten_swap_last,
    aten.adjoint.default: aten_swap_last,
    aten.movedim.int: aten_movedim,
    aten.movedim.intlist: aten_movedim,
    aten.expand.default: aten_expand,
    aten.expand_as.default: aten_expand,
    aten.broadcast_to.default: aten_expand,
    aten.slice.Tensor: aten_slice,
    aten.narrow.default: aten_narrow,
    aten.select.int: aten_select,
    aten.cat.default: aten_cat,
    aten.stack.default: aten_stack,
    aten.split.Tensor: aten_split,
    aten.split_with_sizes.default: aten_split,
    aten.chunk.default: aten_split,
    aten.tensor_split.sections: aten_split,
    aten.unbind.int: aten_unbind,
    aten.repeat.default: aten_repeat,
    aten.tile.default: aten_tile,
    aten.repeat_interleave.self_int: aten_repeat_interleave,
    aten.flip.default: aten_flip,
    aten.roll.default: aten_roll,
    aten.constant_pad_nd.default: aten_constant_pad,
    aten.reflection_pad1d.default: aten_reflection_pad,
    aten.reflection_pad2d.default: aten_reflection_pad,
    aten.reflection_pad3d.default: aten_reflection_pad,
    aten.replication_pad1d.default: aten_replication_pad,
    aten.replication_pad2d.default: aten_replication_pad,
    aten.replication_pad3d.default: aten_replication_pad,
    aten.pad.default: aten_pad,
    aten.diagonal.default: aten_diagonal,
    aten.as_strided.default: aten_as_strided,
    aten.slice_scatter.default: aten_slice_scatter,
    aten.select_scatter.default: aten_select_scatter,
}
