"""Recipes of ATen's operators whose result's size depends on values: nonzero, item, masks as indices, unique.

Each is a static operator over a padded result, and a count that becomes a dim: the symbol that torch made for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aotc import ops
from aotc.frontends.torch.builder import Builder, Recipe, axis_of, dtype_of, rank_of, shape_of
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Expr

aten = torch.ops.aten


def define(b: Builder, value: Expr, most: Dim | None = None) -> Dim:
    """The next symbol that torch made at this node, as the value of an int64 scalar, at most ``most``."""
    dim = b.new_symbol(most)
    b.keep(b.emit(ops.define_dims, value, dims=(dim,)))
    return dim


def _prefix(b: Builder, x: Expr, count: Dim) -> Expr:
    return b.slice(x, 0, 0, count)


def rows_of(b: Builder, mask: Expr) -> Expr:
    """The indices of the elements that are not zero, int64 [count, rank]."""
    both = b.emit(ops.nonzero_padded, mask)
    return _prefix(b, b.item(both, 0), define(b, b.item(both, 1), product(shape_of(mask))))


def columns_of(b: Builder, rows: Expr) -> list[Expr]:
    count, rank = shape_of(rows)
    assert isinstance(rank, int)
    return [b.reshape(b.slice(rows, 1, axis, axis + 1), (count,)) for axis in range(rank)]


def aten_nonzero(b: Builder, x: Expr) -> Expr:
    if rank_of(x):
        return rows_of(b, x)
    return b.slice(rows_of(b, b.reshape(x, (1,))), 1, 0, 0)


def aten_nonzero_static(b: Builder, x: Expr, size: int, fill_value: int = -1) -> Expr:
    """As many rows as asked for: cut, or filled up."""
    both = b.emit(ops.nonzero_padded, x)
    rows, count = b.item(both, 0), b.item(both, 1)
    most = product(shape_of(x))
    if not isinstance(most, int):
        raise b.unsupported("nonzero_static of a tensor whose size is known only at run time")
    rows = b.slice(rows, 0, 0, min(size, most))
    rows = b.emit(ops.pad, rows, before=(0, 0), after=(max(size - most, 0), 0)) if size > most else rows
    place = b.reshape(b.emit(ops.arange, start=0, step=1, count=size, dtype="int64"), (size, 1))
    return b.emit(ops.where, b.emit(ops.less, place, count), rows, b.constant(fill_value, "int64"))


def aten_masked_select(b: Builder, x: Expr, mask: Expr) -> Expr:
    shape = ops.base.broadcast_shapes(shape_of(x), shape_of(mask))
    rows = rows_of(b, b.reshape(b.broadcast(mask, shape), shape or (1,)))
    return b.emit(ops.gather_nd, b.reshape(b.broadcast(x, shape), shape or (1,)), rows)


def aten_masked_scatter(b: Builder, x: Expr, mask: Expr, source: Expr) -> Expr:
    """The elements that the mask marks become those of ``source``, in order."""
    shape = ops.base.broadcast_shapes(shape_of(x), shape_of(mask))
    flat = b.reshape(b.broadcast(mask, shape), (product(shape),))
    place = b.emit(ops.cumsum, b.cast(flat, "int64"), axis=0, exclusive=True)
    last = b.tensor(product(shape_of(source)) - 1, "int64")
    values = b.emit(ops.gather, b.reshape(source, (product(shape_of(source)),)), b.emit(ops.minimum, place, last), axis=0)
    chosen = b.emit(ops.where, flat, values, b.reshape(b.broadcast(x, shape), (product(shape),)))
    return b.reshape(chosen, shape)


def _unique(b: Builder, x: Expr) -> tuple[Expr, Expr, Expr]:
    """(distinct values in ascending order, which of them each element is, how often each comes) of a flat tensor."""
    (count,) = shape_of(x)
    both = b.emit(ops.top_k, x, k=count, axis=0, largest=False)
    values, group = b.item(both, 0), None
    group = _groups(b, values)
    zeros = b.emit(ops.full, shape=(count,), value=0, dtype="int64")
    number = b.emit(ops.scatter_elements, zeros, b.item(both, 1), group, axis=0)
    distinct, counts = _distinct(b, values, group)
    return distinct, number, counts


def _groups(b: Builder, x: Expr) -> Expr:
    """For each element how many changes came before it."""
    (count,) = shape_of(x)
    place = b.emit(ops.arange, start=0, step=1, count=count, dtype="int64")
    before = b.emit(ops.maximum, b.emit(ops.subtract, place, b.constant(1, "int64")), b.constant(0, "int64"))
    changed = b.emit(ops.not_equal, x, b.emit(ops.gather, x, before, axis=0))
    return b.emit(ops.cumsum, b.cast(changed, "int64"), axis=0)


def _distinct(b: Builder, x: Expr, group: Expr) -> tuple[Expr, Expr]:
    """One element of each group, and how many each has."""
    (count,) = shape_of(x)
    zeros, ones = (b.emit(ops.full, shape=(count,), value=value, dtype="int64") for value in (0, 1))
    values = b.emit(ops.scatter_elements, x, group, x, axis=0)
    counts = b.emit(ops.scatter_elements, zeros, group, ones, axis=0, reduction="add")
    used = b.emit(ops.sum_, b.cast(b.emit(ops.greater, counts, zeros), "int64"), axes=(0,))
    dim = define(b, used, count)
    return _prefix(b, values, dim), _prefix(b, counts, dim)


def aten_unique2(b: Builder, x: Expr, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> tuple[Expr, ...]:
    flat = b.reshape(x, (product(shape_of(x)),))
    wide = b.cast(flat, "uint8") if dtype_of(x) == "bool" else flat
    values, inverse, counts = _unique(b, wide)
    return b.cast(values, dtype_of(x)), b.reshape(inverse, shape_of(x)), counts


def aten_unique(b: Builder, x: Expr, sorted: bool = True, return_inverse: bool = False) -> tuple[Expr, ...]:
    return aten_unique2(b, x)[:2]


def aten_unique_consecutive(
    b: Builder, x: Expr, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Expr, ...]:
    if dim is not None and rank_of(x) > 1:
        raise b.unsupported("unique_consecutive along an axis of several")
    flat = b.reshape(x, (product(shape_of(x)),))
    group = _groups(b, flat)
    values, counts = _distinct(b, flat, group)
    return values, b.reshape(group, shape_of(x)), counts


def aten_bincount(b: Builder, x: Expr, weights: Expr | None = None, minlength: int = 0) -> Expr:
    """How often each number comes; the length is that of the greatest, or ``minlength``."""
    index = b.cast(x, "int64")
    greatest = b.emit(ops.add, b.emit(ops.max_, index, axes=(0,)), b.constant(1, "int64"))
    dim = define(b, b.emit(ops.maximum, greatest, b.constant(minlength, "int64")))
    dtype = b.dtype
    values = b.cast(weights, dtype) if weights is not None else b.emit(ops.full, shape=shape_of(x), value=1, dtype=dtype)
    zeros = b.emit(ops.full, shape=(dim,), value=0, dtype=dtype)
    return b.emit(ops.scatter_elements, zeros, index, values, axis=0, reduction="add")


def aten_repeat_interleave_tensor(b: Builder, repeats: Expr, output_size: Dim | None = None) -> Expr:
    """Index i as often as ``repeats[i]`` says."""
    ends = b.emit(ops.cumsum, b.cast(repeats, "int64"), axis=0)
    (count,) = shape_of(repeats)
    total = b.reshape(b.slice(ends, 0, count - 1, count), ())
    size = output_size if output_size is not None else define(b, total)
    place = b.reshape(b.emit(ops.arange, start=0, step=1, count=size, dtype="int64"), (size, 1))
    passed = b.cast(b.emit(ops.greater_equal, place, ends), "int64")
    return b.cast(b.emit(ops.sum_, passed, axes=(1,)), b.dtype)


def aten_repeat_interleave_along(b: Builder, x: Expr, repeats: Expr, dim: int | None = None, output_size: Dim | None = None) -> Expr:
    if dim is None:
        x, dim = b.reshape(x, (product(shape_of(x)),)), 0
    axis = axis_of(dim, rank_of(x))
    repeats = b.broadcast(repeats, (shape_of(x)[axis],))
    rows = _repeated(b, repeats, output_size)
    return b.emit(ops.gather, x, rows, axis=axis)


def _repeated(b: Builder, repeats: Expr, output_size: Dim | None) -> Expr:
    own = Builder(b.symbols, b.origin, torch.empty(0, dtype=torch.int64), unbacked=b.unbacked, definers=b.definers)
    return aten_repeat_interleave_tensor(own, repeats, output_size)


def scalar_value(b: Builder, x: Expr) -> Expr:
    """``item`` of a float or a boolean: a scalar tensor, which recipes take where they take numbers."""
    return b.reshape(x, ())


def size_value(b: Builder, x: Expr) -> Dim:
    """``item`` of an integer: a dim."""
    return define(b, b.cast(b.reshape(x, ()), "int64"))


def without_masks(b: Builder, indices: Sequence[Expr | None]) -> list[Expr | None]:
    """Masks as the indices of what they mark."""
    found: list[Expr | None] = []
    for index in indices:
        if index is not None and dtype_of(index) in ("bool", "uint8"):
            found += columns_of(b, rows_of(b, index))
        else:
            found.append(index)
    return found


RECIPES: dict[Any, Recipe] = {
    aten.nonzero.default: aten_nonzero,
    aten.nonzero_static.default: aten_nonzero_static,
    aten.masked_select.default: aten_masked_select,
    aten.masked_scatter.default: aten_masked_scatter,
    aten._unique2.default: aten_unique2,
    aten._unique.default: aten_unique,
    aten.unique_consecutive.default: aten_unique_consecutive,
    aten.bincount.default: aten_bincount,
    aten.repeat_interleave.Tensor: aten_repeat_interleave_tensor,
    aten.repeat_interleave.self_Tensor: aten_repeat_interleave_along,
}
