"""Operators that move elements or make them from nothing; nothing is computed but shapes and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, bounds, ceildiv, product
from aotc.ir.dims import maximum as dim_maximum
from aotc.ir.expr import Attributes
from aotc.ir.types import DTYPES, TensorType
from aotc.ops.base import Fusion, NoAttributes, OpDef, format_shape, normalise_axis, same_dtype

PAD_MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True, slots=True)
class ShapeAttributes(Attributes):
    """``shape`` of the result, every dim explicit."""

    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TransposeAttributes(Attributes):
    """Axis i of the result is axis ``axes[i]`` of x."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TileAttributes(Attributes):
    """``repeats`` per axis."""

    repeats: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class SliceAttributes(Attributes):
    """One ``begin``, ``end`` and ``step`` per axis, normalised: 0 <= begin, end <= dim. With a negative step, ``end`` is
    exclusive too and may be -1: past the front."""

    begins: tuple[Dim, ...]
    ends: tuple[Dim, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConcatAttributes(Attributes):
    axis: int


@dataclass(frozen=True, slots=True)
class PadAttributes(Attributes):
    """Elements added ``before`` and ``after`` each axis; ``value`` is for mode constant."""

    before: tuple[Dim, ...]
    after: tuple[Dim, ...]
    mode: str = "constant"
    value: float | int = 0.0


@dataclass(frozen=True, slots=True)
class LayoutTransformAttributes(Attributes):
    """``channels``: the true number, without the padding of the last block."""

    block: int
    channels: int
    axis: int = 1
    inverse: bool = False


@dataclass(frozen=True, slots=True)
class FullAttributes(Attributes):
    shape: tuple[Dim, ...]
    value: float | int | bool
    dtype: str


@dataclass(frozen=True, slots=True)
class ArangeAttributes(Attributes):
    """``start + i * step`` for i in 0 .. count - 1."""

    start: float | Dim
    step: float | Dim
    count: Dim
    dtype: str


@dataclass(frozen=True, slots=True)
class DimsAttributes(Attributes):
    """``values`` as int64[n], or the only one as int64[] where ``scalar``."""

    values: tuple[Dim, ...]
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class DefineDimsAttributes(Attributes):
    """What each value is: a symbol, which this defines, or a dim that it must be equal to."""

    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class CheckDimsAttributes(Attributes):
    """Pairs of dims that must be equal."""

    pairs: tuple[tuple[Dim, Dim], ...]


@dataclass(frozen=True, slots=True)
class TriluAttributes(Attributes):
    """Keeps the upper or lower triangle of the last two axes, from diagonal ``k``; the rest is zero."""

    upper: bool = True
    k: int = 0


def _like(x: TensorType, shape: Sequence[Dim]) -> TensorType:
    return TensorType(tuple(shape), x.dtype, x.device)


def _per_axis(name: str, values: Sequence[Any], x: TensorType) -> None:
    if len(values) != x.rank:
        raise InvalidModel(f"{name} must have one entry per axis of {format_shape(x.shape)}, not {len(values)}")


def _not_negative(name: str, shape: Sequence[Dim]) -> None:
    for dim in shape:
        _, high = bounds(dim)
        if high is not None and high < 0:
            raise InvalidModel(f"{name} {format_shape(shape)} must not be negative")


def _surely_differ(left: Dim, right: Dim) -> bool:
    low, high = bounds(left - right)
    return (low is not None and low > 0) or (high is not None and high < 0)


def _reshape_relation(types: Sequence[TensorType], attrs: ShapeAttributes) -> TensorType:
    """Dims that cannot be compared at compile time are accepted: so a reshape also states that two dims are equal."""
    x = types[0]
    _not_negative("the shape", attrs.shape)
    if _surely_differ(x.size, product(attrs.shape)):
        given, wanted = format_shape(x.shape), format_shape(attrs.shape)
        raise InvalidModel(f"{given} has {x.size} elements and cannot become {wanted}, which has {product(attrs.shape)}")
    return _like(x, attrs.shape)


def _transpose_relation(types: Sequence[TensorType], attrs: TransposeAttributes) -> TensorType:
    x = types[0]
    if sorted(attrs.axes) != list(range(x.rank)):
        raise InvalidModel(f"axes {attrs.axes} must name each axis of {format_shape(x.shape)} once, from 0 to {x.rank - 1}")
    return _like(x, [x.shape[axis] for axis in attrs.axes])


def _broadcast_relation(types: Sequence[TensorType], attrs: ShapeAttributes) -> TensorType:
    x = types[0]
    tail = attrs.shape[len(attrs.shape) - x.rank :]
    if len(attrs.shape) < x.rank or any(dim not in (1, wanted) for dim, wanted in zip(x.shape, tail, strict=True)):
        raise InvalidModel(f"{format_shape(x.shape)} does not broadcast to {format_shape(attrs.shape)}")
    return _like(x, attrs.shape)


def _tile_relation(types: Sequence[TensorType], attrs: TileAttributes) -> TensorType:
    x = types[0]
    _per_axis("repeats", attrs.repeats, x)
    _not_negative("repeats", attrs.repeats)
    return _like(x, [dim * count for dim, count in zip(x.shape, attrs.repeats, strict=True)])


def _slice_relation(types: Sequence[TensorType], attrs: SliceAttributes) -> TensorType:
    x = types[0]
    shape: list[Dim] = []
    for name, values in (("begins", attrs.begins), ("ends", attrs.ends), ("steps", attrs.steps)):
        _per_axis(name, values, x)
    for dim, begin, end, step in zip(x.shape, attrs.begins, attrs.ends, attrs.steps, strict=True):
        outside = bounds(begin - dim)[0], bounds(end - dim)[0]
        if step == 0 or any(excess is not None and excess > 0 for excess in outside):
            raise InvalidModel(f"begins and ends must lie within {format_shape(x.shape)} and steps not be 0: {attrs}")
        count = ceildiv(end - begin, step) if step > 0 else ceildiv(begin - end, -step)
        shape.append(dim_maximum(count, 0))
    return _like(x, shape)


def _slice(attrs: SliceAttributes, x: np.ndarray) -> np.ndarray:
    ends = [None if end == -1 and step < 0 else end for end, step in zip(attrs.ends, attrs.steps, strict=True)]
    return x[tuple(slice(*part) for part in zip(attrs.begins, ends, attrs.steps, strict=True))]


def _concat_relation(types: Sequence[TensorType], attrs: ConcatAttributes) -> TensorType:
    first = types[0]
    same_dtype(types)
    if not first.rank:
        raise InvalidModel("takes tensors of rank 1 or more, not scalars")
    axis = normalise_axis(attrs.axis, first.rank)
    length: Dim = 0
    for each in types:
        rest = [shape[:axis] + shape[axis + 1 :] for shape in (first.shape, each.shape)]
        if each.rank != first.rank or rest[0] != rest[1]:
            shapes = " and ".join(format_shape(t.shape) for t in (first, each))
            raise InvalidModel(f"the shapes may differ along axis {attrs.axis} only: {shapes}")
        length = length + each.shape[axis]
    return _like(first, (*first.shape[:axis], length, *first.shape[axis + 1 :]))


def _pad_relation(types: Sequence[TensorType], attrs: PadAttributes) -> TensorType:
    x = types[0]
    if attrs.mode not in PAD_MODES:
        raise InvalidModel(f"mode is {', '.join(PAD_MODES)}, not {attrs.mode!r}")
    for name, values in (("before", attrs.before), ("after", attrs.after)):
        _per_axis(name, values, x)
        _not_negative(name, values)
        for dim, count in zip(x.shape, values, strict=True):
            if attrs.mode == "reflect" and isinstance(dim, int) and isinstance(count, int) and count and count >= dim:
                raise InvalidModel(f"reflect adds less than the dims of {format_shape(x.shape)}, not {format_shape(values)}")
            if attrs.mode != "constant" and dim == 0 and count != 0:
                raise InvalidModel(f"{attrs.mode} has nothing to repeat along a dim of 0 of {format_shape(x.shape)}")
    return _like(x, [b + dim + a for b, dim, a in zip(attrs.before, x.shape, attrs.after, strict=True)])


def _pad(attrs: PadAttributes, x: np.ndarray) -> np.ndarray:
    widths: Any = list(zip(attrs.before, attrs.after, strict=True))
    if attrs.mode == "constant":
        return np.pad(x, widths, constant_values=np.asarray(attrs.value).astype(x.dtype))
    modes: dict[str, Any] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    return np.pad(x, widths, mode=modes[attrs.mode])


def _layout_relation(types: Sequence[TensorType], attrs: LayoutTransformAttributes) -> TensorType:
    x, blocks, axis = types[0], ceildiv(attrs.channels, attrs.block), attrs.axis
    if attrs.inverse:
        if not 0 <= axis < x.rank - 1 or x.shape[axis] != blocks or x.shape[-1] != attrs.block:
            expected = f"{blocks} at axis {axis} and {attrs.block} at the end"
            raise InvalidModel(f"expected {expected}, not {format_shape(x.shape)}")
        return _like(x, (*x.shape[:axis], attrs.channels, *x.shape[axis + 1 : -1]))
    if not 0 <= axis < x.rank or x.shape[axis] != attrs.channels:
        raise InvalidModel(f"expected {attrs.channels} channels at axis {axis}, not {format_shape(x.shape)}")
    return _like(x, (*x.shape[:axis], blocks, *x.shape[axis + 1 :], attrs.block))


def _layout(attrs: LayoutTransformAttributes, x: np.ndarray) -> np.ndarray:
    axis, blocks = attrs.axis, -(-attrs.channels // attrs.block)
    if attrs.inverse:
        plain = np.moveaxis(x, -1, axis + 1)
        plain = plain.reshape(*x.shape[:axis], blocks * attrs.block, *x.shape[axis + 1 : -1])
        return np.take(plain, range(attrs.channels), axis=axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, blocks * attrs.block - attrs.channels)
    padded = np.pad(x, widths).reshape(*x.shape[:axis], blocks, attrs.block, *x.shape[axis + 1 :])
    return np.moveaxis(padded, axis + 1, -1)


def _full_relation(types: Sequence[TensorType], attrs: FullAttributes | ArangeAttributes) -> TensorType:
    shape = attrs.shape if isinstance(attrs, FullAttributes) else (attrs.count,)
    if attrs.dtype not in DTYPES:
        raise InvalidModel(f"dtype is one of {', '.join(DTYPES)}, not {attrs.dtype!r}")
    _not_negative("the shape", shape)
    return TensorType(shape, attrs.dtype)


def _full(attrs: FullAttributes) -> np.ndarray:
    shape: Any = attrs.shape
    return np.full(shape, np.asarray(attrs.value).astype(attrs.dtype))


def _arange(attrs: ArangeAttributes) -> np.ndarray:
    """Floats as start + i * step in float64, rounded once; PyTorch and numpy compute so."""
    assert isinstance(attrs.count, int)
    return np.asarray(np.arange(attrs.count) * np.asarray(attrs.step) + np.asarray(attrs.start)).astype(attrs.dtype)


def _dims_relation(types: Sequence[TensorType], attrs: DimsAttributes) -> TensorType:
    if attrs.scalar and len(attrs.values) != 1:
        raise InvalidModel(f"a scalar is one value, not {len(attrs.values)}")
    return TensorType(() if attrs.scalar else (len(attrs.values),), "int64")


def _dims(attrs: DimsAttributes) -> np.ndarray:
    dtype = "int64" if all(isinstance(value, int) for value in attrs.values) else object
    values = np.array(attrs.values, dtype)
    return values.reshape(()) if attrs.scalar else values


def _define_dims_relation(types: Sequence[TensorType], attrs: DefineDimsAttributes) -> TensorType:
    values = types[0]
    if values.dtype != "int64" or values.shape not in ((len(attrs.dims),), ()) or (not values.rank and len(attrs.dims) != 1):
        raise InvalidModel(f"takes int64[{len(attrs.dims)}], or int64[] for one dim, not {values}")
    return values


def _define_dims(attrs: DefineDimsAttributes, values: np.ndarray) -> np.ndarray:
    """The values, which the dims must be; the interpreter has put in numbers for the symbols."""
    if list(attrs.dims) != np.ravel(values).tolist():
        raise InvalidModel(f"the dims must be {list(attrs.dims)}, not {np.ravel(values).tolist()}")
    return values


def _check_dims(attrs: CheckDimsAttributes, x: np.ndarray) -> np.ndarray:
    for left, right in attrs.pairs:
        if left != right:
            raise InvalidModel(f"the dims {left} and {right} must be equal")
    return x


def _same_as_first(types: Sequence[TensorType], attrs: Any) -> TensorType:
    return types[0]


def _trilu_relation(types: Sequence[TensorType], attrs: TriluAttributes) -> TensorType:
    if types[0].rank < 2:
        raise InvalidModel(f"takes a tensor of rank 2 or more, not {format_shape(types[0].shape)}")
    return types[0]


def _trilu(attrs: TriluAttributes, x: np.ndarray) -> np.ndarray:
    return np.triu(x, attrs.k) if attrs.upper else np.tril(x, attrs.k)


def _concat(attrs: ConcatAttributes, *arrays: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays, attrs.axis)


def _int64_of_rank(types: Sequence[TensorType], attrs: Any) -> TensorType:
    return TensorType((types[0].rank,), "int64")


reshape = OpDef("reshape", _reshape_relation, lambda attrs, x: x.reshape(attrs.shape), Fusion.INJECTIVE, ShapeAttributes, 1, True)
transpose = OpDef(
    "transpose", _transpose_relation, lambda attrs, x: x.transpose(attrs.axes), Fusion.INJECTIVE, TransposeAttributes, 1, True
)
broadcast_to = OpDef(
    "broadcast_to", _broadcast_relation, lambda attrs, x: np.broadcast_to(x, attrs.shape), Fusion.BROADCAST, ShapeAttributes, 1, True
)
tile = OpDef("tile", _tile_relation, lambda attrs, x: np.tile(x, attrs.repeats), Fusion.INJECTIVE, TileAttributes, 1, True)
slice_ = OpDef("slice", _slice_relation, _slice, Fusion.INJECTIVE, SliceAttributes, 1, True)
concat = OpDef("concat", _concat_relation, _concat, Fusion.INJECTIVE, ConcatAttributes, None, True)
pad = OpDef("pad", _pad_relation, _pad, Fusion.INJECTIVE, PadAttributes)
layout_transform = OpDef("layout_transform", _layout_relation, _layout, Fusion.INJECTIVE, LayoutTransformAttributes)
full = OpDef("full", _full_relation, _full, Fusion.ELEMENTWISE, FullAttributes, 0, True)
arange = OpDef("arange", _full_relation, _arange, Fusion.INJECTIVE, ArangeAttributes, 0)
shape_of = OpDef("shape_of", _int64_of_rank, lambda attrs, x: np.array(x.shape, "int64"), Fusion.OPAQUE, NoAttributes, 1, True)
dims = OpDef("dims", _dims_relation, _dims, Fusion.ELEMENTWISE, DimsAttributes, 0, True)
trilu = OpDef("trilu", _trilu_relation, _trilu, Fusion.INJECTIVE, TriluAttributes)
define_dims = OpDef("define_dims", _define_dims_relation, _define_dims, Fusion.OPAQUE, DefineDimsAttributes)
"""Its argument, whose elements are from here on known as the dims of its attribute: symbols that stand for a size found while
the model runs. Bounds of the symbols are checked then."""
check_dims = OpDef("check_dims", _same_as_first, _check_dims, Fusion.OPAQUE, CheckDimsAttributes)
"""Its argument, after a check that dims which only a run tells are equal."""
anchor = OpDef("anchor", _same_as_first, lambda attrs, x, *definers: x, Fusion.OPAQUE, NoAttributes, None)
"""Its first argument. The others are what must run although no result needs them: definitions and checks of dims."""

__all__ = [
    "anchor", "arange", "broadcast_to", "check_dims", "concat", "define_dims", "dims", "full", "layout_transform", "pad", "reshape", "shape_of", "slice_", "tile",
    "transpose", "trilu",
]  # fmt: skip
