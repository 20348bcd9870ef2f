"""Operators that pick and place elements by tensors of indices. Semantics of the ONNX operators of the same names.

A negative index counts from the end. An index out of range is the caller's error: references raise, kernels may clamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, bounds
from aotc.ir.expr import Attributes
from aotc.ir.types import INTEGERS, TensorType
from aotc.ops.base import Fusion, OpDef, format_shape, normalise_axis, same_dtype
from aotc.ops.elementwise import NUMBERS, accept

REDUCTIONS = ("none", "add", "mul", "min", "max")


@dataclass(frozen=True, slots=True)
class GatherAttributes(Attributes):
    axis: int = 0


@dataclass(frozen=True, slots=True)
class GatherNdAttributes(Attributes):
    """``batch_dims``: how many leading dims of x and of the indices go together."""

    batch_dims: int = 0


@dataclass(frozen=True, slots=True)
class ScatterElementsAttributes(Attributes):
    """``reduction``: what an update does to the element it meets: none (replaces it), add, mul, min or max."""

    axis: int = 0
    reduction: str = "none"


@dataclass(frozen=True, slots=True)
class ScatterNdAttributes(Attributes):
    reduction: str = "none"


@dataclass(frozen=True, slots=True)
class OneHotAttributes(Attributes):
    """``depth``: the length of the new ``axis``, which counts in the result."""

    depth: Dim
    axis: int = -1


def _indices(arg: TensorType) -> None:
    if arg.dtype not in INTEGERS:
        raise InvalidModel(f"indices are {', '.join(INTEGERS)}, not {arg.dtype}")


def _ranked(x: TensorType, axis: int) -> int:
    if not x.rank:
        raise InvalidModel("takes a tensor of rank 1 or more, not a scalar")
    return normalise_axis(axis, x.rank)


def _gather_relation(types: Sequence[TensorType], attrs: GatherAttributes) -> TensorType:
    x, indices = types
    _indices(indices)
    axis = _ranked(x, attrs.axis)
    return TensorType(x.shape[:axis] + indices.shape + x.shape[axis + 1 :], x.dtype, x.device)


def _gather(attrs: GatherAttributes, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.asarray(np.take(x, indices.astype("int64"), axis=attrs.axis), dtype=x.dtype)


def _elements_fit(x: TensorType, indices: TensorType, axis: int) -> None:
    """Indices of gather_elements and scatter_elements: of x's rank, nowhere but along ``axis`` longer than x."""
    _indices(indices)
    longer = [i for i in range(min(x.rank, indices.rank)) if i != axis and _surely_longer(indices.shape[i], x.shape[i])]
    if indices.rank != x.rank or longer:
        shapes = f"{format_shape(indices.shape)} and {format_shape(x.shape)}"
        raise InvalidModel(f"the indices must have the rank of x and be no longer than it but along axis {axis}; the shapes are {shapes}")


def _surely_longer(dim: Dim, limit: Dim) -> bool:
    low, _ = bounds(dim - limit)
    return low is not None and low > 0


def _gather_elements_relation(types: Sequence[TensorType], attrs: GatherAttributes) -> TensorType:
    x, indices = types
    _elements_fit(x, indices, _ranked(x, attrs.axis))
    return TensorType(indices.shape, x.dtype, x.device)


def _elements(axis: int, indices: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """The index of each element of ``indices`` in x."""
    places: list[np.ndarray] = list(np.indices(indices.shape))
    places[axis % x.ndim] = _wrapped(indices, x.shape[axis])
    return tuple(places)


def _wrapped(indices: np.ndarray, dim: int) -> np.ndarray:
    plain = indices.astype("int64")
    return np.where(plain < 0, plain + dim, plain)


def _gather_nd_relation(types: Sequence[TensorType], attrs: GatherNdAttributes) -> TensorType:
    x, indices = types
    _indices(indices)
    batch = attrs.batch_dims
    if not x.rank or not indices.rank or not 0 <= batch < min(x.rank, indices.rank):
        raise InvalidModel(f"batch_dims {batch} must be less than the ranks of {format_shape(x.shape)} and {format_shape(indices.shape)}")
    if x.shape[:batch] != indices.shape[:batch]:
        raise InvalidModel(f"the first {batch} dims of {format_shape(x.shape)} and {format_shape(indices.shape)} must be equal")
    depth = _index_depth(indices, x.rank - batch)
    return TensorType(indices.shape[:-1] + x.shape[batch + depth :], x.dtype, x.device)


def _index_depth(indices: TensorType, limit: int) -> int:
    depth = indices.shape[-1]
    if not isinstance(depth, int) or not 1 <= depth <= limit:
        raise InvalidModel(f"the last dim of the indices {format_shape(indices.shape)} must be from 1 to {limit}")
    return depth


def _gather_nd(attrs: GatherNdAttributes, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    batch, depth = attrs.batch_dims, indices.shape[-1]
    places = [_wrapped(indices[..., i], x.shape[batch + i]) for i in range(depth)]
    grid: list[np.ndarray] = list(np.indices(x.shape[:batch]))
    extra = indices.ndim - 1 - batch
    leading = [np.reshape(axis, axis.shape + (1,) * extra) for axis in grid]
    return np.asarray(x[(*leading, *places)])


def _reduction_fits(reduction: str, x: TensorType) -> None:
    if reduction not in REDUCTIONS:
        raise InvalidModel(f"reduction is {', '.join(REDUCTIONS)}, not {reduction!r}")
    if reduction != "none":
        accept(x, NUMBERS)


def _scatter_elements_relation(types: Sequence[TensorType], attrs: ScatterElementsAttributes) -> TensorType:
    x, indices, updates = types
    same_dtype((x, updates))
    _elements_fit(x, indices, _ranked(x, attrs.axis))
    if updates.shape != indices.shape:
        raise InvalidModel(f"updates {format_shape(updates.shape)} must have the shape of the indices {format_shape(indices.shape)}")
    _reduction_fits(attrs.reduction, x)
    return x


def _put(reduction: str, x: np.ndarray, places: tuple[np.ndarray, ...], updates: np.ndarray) -> np.ndarray:
    result = x.copy()
    ufuncs: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
    with np.errstate(all="ignore"):
        if reduction == "none":
            result[places] = updates
        else:
            ufuncs[reduction].at(result, places, updates)
    return result


def _scatter_elements(attrs: ScatterElementsAttributes, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    return _put(attrs.reduction, x, _elements(attrs.axis, indices, x), updates)


def _scatter_nd_relation(types: Sequence[TensorType], attrs: ScatterNdAttributes) -> TensorType:
    x, indices, updates = types
    same_dtype((x, updates))
    _indices(indices)
    if not x.rank or not indices.rank:
        raise InvalidModel(f"takes x and indices of rank 1 or more, not {format_shape(x.shape)} and {format_shape(indices.shape)}")
    expected = indices.shape[:-1] + x.shape[_index_depth(indices, x.rank) :]
    if updates.shape != expected:
        raise InvalidModel(f"updates must have the shape {format_shape(expected)}, not {format_shape(updates.shape)}")
    _reduction_fits(attrs.reduction, x)
    return x


def _scatter_nd(attrs: ScatterNdAttributes, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    places = tuple(_wrapped(indices[..., i], x.shape[i]) for i in range(indices.shape[-1]))
    return _put(attrs.reduction, x, places, updates)


def _one_hot_relation(types: Sequence[TensorType], attrs: OneHotAttributes) -> TensorType:
    indices, values = types
    _indices(indices)
    if values.shape != (2,):
        raise InvalidModel(f"values must be [off, on], a tensor of shape [2], not {format_shape(values.shape)}")
    axis = normalise_axis(attrs.axis, indices.rank + 1)
    return TensorType((*indices.shape[:axis], attrs.depth, *indices.shape[axis:]), values.dtype, indices.device)


def _one_hot(attrs: OneHotAttributes, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Indices outside [-depth, depth) give a row of "off"."""
    assert isinstance(attrs.depth, int)
    axis = attrs.axis % (indices.ndim + 1)
    place = np.expand_dims(_wrapped(indices, attrs.depth), axis)
    count = np.arange(attrs.depth).reshape((-1,) + (1,) * (indices.ndim - axis))
    return np.asarray(np.where(place == count, values[1], values[0])).astype(values.dtype)


gather = OpDef("gather", _gather_relation, _gather, Fusion.INJECTIVE, GatherAttributes, 2, shape_value=True)
gather_elements = OpDef(
    "gather_elements",
    _gather_elements_relation,
    lambda attrs, x, indices: x[_elements(attrs.axis, indices, x)],
    Fusion.INJECTIVE,
    GatherAttributes,
    2,
)
gather_nd = OpDef("gather_nd", _gather_nd_relation, _gather_nd, Fusion.INJECTIVE, GatherNdAttributes, 2)
scatter_elements = OpDef("scatter_elements", _scatter_elements_relation, _scatter_elements, Fusion.OPAQUE, ScatterElementsAttributes, 3)
scatter_nd = OpDef("scatter_nd", _scatter_nd_relation, _scatter_nd, Fusion.OPAQUE, ScatterNdAttributes, 3)
one_hot = OpDef("one_hot", _one_hot_relation, _one_hot, Fusion.INJECTIVE, OneHotAttributes, 2)

__all__ = ["gather", "gather_elements", "gather_nd", "one_hot", "scatter_elements", "scatter_nd"]
