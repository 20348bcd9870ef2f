"""Reductions over axes, and what walks along one axis: softmax, running sums, the k greatest.

Sums in float16 are kept in float32 and rounded once. Reducing no elements gives the neutral element: 0 for a sum, 1 for a
product, the lowest value for a maximum; a mean of nothing is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, bounds
from aotc.ir.expr import Attributes
from aotc.ir.types import FLOATS, TensorType, TupleType
from aotc.ops.base import Fusion, OpDef, format_shape, normalise_axis
from aotc.ops.elementwise import BOOL, NUMBERS, accept


@dataclass(frozen=True, slots=True)
class ReduceAttributes(Attributes):
    """``axes`` that are reduced, none meaning that nothing is; ``keepdims`` leaves them as dims of 1."""

    axes: tuple[int, ...]
    keepdims: bool = False


@dataclass(frozen=True, slots=True)
class ArgAttributes(Attributes):
    """``select_last``: the last of equal values, else the first."""

    axis: int
    keepdims: bool = False
    select_last: bool = False


@dataclass(frozen=True, slots=True)
class SoftmaxAttributes(Attributes):
    axis: int = -1


@dataclass(frozen=True, slots=True)
class CumsumAttributes(Attributes):
    """``exclusive``: without the element itself; ``reverse``: from the end."""

    axis: int
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class TopKAttributes(Attributes):
    k: Dim
    axis: int = -1
    largest: bool = True
    sorted: bool = True


def _reduced(x: TensorType, axes: Sequence[int], keepdims: bool, dtype: str) -> TensorType:
    gone = {normalise_axis(axis, x.rank) for axis in axes}
    if len(gone) != len(axes):
        raise InvalidModel(f"axes {tuple(axes)} name one axis of {format_shape(x.shape)} twice")
    shape = [1 if i in gone else dim for i, dim in enumerate(x.shape) if keepdims or i not in gone]
    return TensorType(tuple(shape), dtype, x.device)


def _reduction(name: str, reference: Callable[..., Any], dtypes: Sequence[str], shape_value: bool = False) -> OpDef:
    """A row: ``reference(x, axis=..., keepdims=...)`` in numpy's terms."""

    def relation(types: Sequence[TensorType], attrs: ReduceAttributes) -> TensorType:
        accept(types[0], dtypes)
        return _reduced(types[0], attrs.axes if types[0].rank else (), attrs.keepdims, types[0].dtype)

    def compute(attrs: ReduceAttributes, x: np.ndarray) -> np.ndarray:
        wide = x.astype("float32") if x.dtype == np.float16 else x
        with np.errstate(all="ignore"):
            done = reference(wide, axis=tuple(attrs.axes) if x.ndim else (), keepdims=attrs.keepdims)
        return np.asarray(done).astype(x.dtype)

    return OpDef(name, relation, compute, Fusion.REDUCTION, ReduceAttributes, 1, shape_value)


def _sum(x: np.ndarray, **how: Any) -> Any:
    return np.sum(x, dtype=x.dtype, **how)


def _product(x: np.ndarray, **how: Any) -> Any:
    return np.prod(x, dtype=x.dtype, **how)


def _mean(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
    count = np.prod([x.shape[i] for i in axis], dtype="float64")
    return np.sum(x, axis=axis, keepdims=keepdims) / np.asarray(count, x.dtype)


def _max(x: np.ndarray, **how: Any) -> Any:
    return np.max(x, initial=-np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min, **how)


def _min(x: np.ndarray, **how: Any) -> Any:
    return np.min(x, initial=np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max, **how)


def _arg_relation(types: Sequence[TensorType], attrs: ArgAttributes) -> TensorType:
    x = types[0]
    accept(x, NUMBERS)
    axis = normalise_axis(attrs.axis, x.rank)
    if x.rank and x.shape[axis] == 0:
        raise InvalidModel(f"axis {attrs.axis} of {format_shape(x.shape)} has no elements to choose from")
    return _reduced(x, (axis,) if x.rank else (), attrs.keepdims, "int64")


def _arg(find: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def compute(attrs: ArgAttributes, x: np.ndarray) -> np.ndarray:
        if not x.ndim:
            return np.zeros((), "int64")
        values = np.flip(x, attrs.axis) if attrs.select_last else x
        index = find(values, axis=attrs.axis, keepdims=attrs.keepdims)
        return np.asarray(x.shape[attrs.axis] - 1 - index if attrs.select_last else index).astype("int64")

    return compute


def _along_axis(types: Sequence[TensorType], attrs: Any) -> TensorType:
    accept(types[0], FLOATS)
    normalise_axis(attrs.axis, types[0].rank)
    return types[0]


def _shifted(x: np.ndarray, axis: int) -> np.ndarray:
    """``x`` in at least float32, less its maximum along ``axis``."""
    wide = x.astype("float32") if x.dtype == np.float16 else x
    return np.asarray(wide - np.max(wide, axis=axis, keepdims=True, initial=-np.inf))


def _softmax(attrs: SoftmaxAttributes, x: np.ndarray) -> np.ndarray:
    if not x.ndim:
        return np.where(np.isfinite(x), 1, np.nan).astype(x.dtype)
    with np.errstate(all="ignore"):
        powers = np.exp(_shifted(x, attrs.axis))
        return np.asarray(powers / np.sum(powers, axis=attrs.axis, keepdims=True)).astype(x.dtype)


def _log_softmax(attrs: SoftmaxAttributes, x: np.ndarray) -> np.ndarray:
    if not x.ndim:
        return np.where(np.isfinite(x), 0, np.nan).astype(x.dtype)
    with np.errstate(all="ignore"):
        shifted = _shifted(x, attrs.axis)
        return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=attrs.axis, keepdims=True))).astype(x.dtype)


def _cumsum_relation(types: Sequence[TensorType], attrs: CumsumAttributes) -> TensorType:
    accept(types[0], NUMBERS)
    if not types[0].rank:
        raise InvalidModel("takes a tensor of rank 1 or more, not a scalar")
    normalise_axis(attrs.axis, types[0].rank)
    return types[0]


def _neutral(kind: int | str, dtype: np.dtype) -> Any:
    if not isinstance(kind, str):
        return kind
    if dtype.kind == "f":
        return -np.inf if kind == "least" else np.inf
    return np.iinfo(dtype).min if kind == "least" else np.iinfo(dtype).max


def _running(accumulate: Callable[..., np.ndarray], neutral: int | str) -> Callable[[CumsumAttributes, np.ndarray], np.ndarray]:
    def compute(attrs: CumsumAttributes, x: np.ndarray) -> np.ndarray:
        wide = x.astype("float32") if x.dtype == np.float16 else x
        if attrs.reverse:
            wide = np.flip(wide, attrs.axis)
        with np.errstate(all="ignore"):
            total = accumulate(wide, axis=attrs.axis, dtype=wide.dtype)
        if attrs.exclusive:
            total = np.roll(total, 1, attrs.axis)
            total[(slice(None),) * (attrs.axis % x.ndim) + (slice(0, 1),)] = _neutral(neutral, total.dtype)
        return np.asarray(np.flip(total, attrs.axis) if attrs.reverse else total).astype(x.dtype)

    return compute


def _top_k_relation(types: Sequence[TensorType], attrs: TopKAttributes) -> TupleType:
    x = types[0]
    accept(x, NUMBERS)
    if not x.rank:
        raise InvalidModel("takes a tensor of rank 1 or more, not a scalar")
    axis = normalise_axis(attrs.axis, x.rank)
    dim = x.shape[axis]
    least, excess = bounds(attrs.k)[1], bounds(attrs.k - dim)[0]
    if (least is not None and least < 0) or (excess is not None and excess > 0):
        raise InvalidModel(f"k must be from 0 to {dim}, the length of axis {attrs.axis} of {format_shape(x.shape)}, not {attrs.k}")
    shape = (*x.shape[:axis], attrs.k, *x.shape[axis + 1 :])
    return TupleType((TensorType(shape, x.dtype, x.device), TensorType(shape, "int64", x.device)))


def _top_k(attrs: TopKAttributes, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """NaN counts as the greatest value, as in PyTorch."""
    if attrs.largest:
        order = x.shape[attrs.axis] - 1 - np.argsort(np.flip(x, attrs.axis), axis=attrs.axis, kind="stable")
        order = np.flip(order, attrs.axis)
    else:
        order = np.argsort(x, axis=attrs.axis, kind="stable")
    indices = np.take(order, np.arange(cast(int, attrs.k)), axis=attrs.axis).astype("int64")
    return np.take_along_axis(x, indices, axis=attrs.axis), indices


sum_ = _reduction("sum", _sum, NUMBERS, shape_value=True)
mean = _reduction("mean", _mean, FLOATS)
prod = _reduction("prod", _product, NUMBERS, shape_value=True)
max_ = _reduction("max", _max, NUMBERS)
min_ = _reduction("min", _min, NUMBERS)
all_ = _reduction("all", np.all, BOOL)
any_ = _reduction("any", np.any, BOOL)
argmax = OpDef("argmax", _arg_relation, _arg(np.argmax), Fusion.REDUCTION, ArgAttributes)
argmin = OpDef("argmin", _arg_relation, _arg(np.argmin), Fusion.REDUCTION, ArgAttributes)
softmax = OpDef("softmax", _along_axis, _softmax, Fusion.OUT_FUSABLE, SoftmaxAttributes)
log_softmax = OpDef("log_softmax", _along_axis, _log_softmax, Fusion.OUT_FUSABLE, SoftmaxAttributes)
cumsum = OpDef("cumsum", _cumsum_relation, _running(np.cumsum, 0), Fusion.OPAQUE, CumsumAttributes)
cumprod = OpDef("cumprod", _cumsum_relation, _running(np.cumprod, 1), Fusion.OPAQUE, CumsumAttributes)
cummax = OpDef("cummax", _cumsum_relation, _running(np.maximum.accumulate, "least"), Fusion.OPAQUE, CumsumAttributes)
"""The greatest so far; a NaN is greater than all."""
cummin = OpDef("cummin", _cumsum_relation, _running(np.minimum.accumulate, "greatest"), Fusion.OPAQUE, CumsumAttributes)
top_k = OpDef("top_k", _top_k_relation, _top_k, Fusion.OPAQUE, TopKAttributes)
"""(values, int64 indices) of the k greatest or least, in order; of equal values the lower index comes first."""

__all__ = [
    "all_", "any_", "argmax", "argmin", "cummax", "cummin", "cumprod", "cumsum", "log_softmax", "max_", "mean", "min_", "prod", "softmax", "sum_", "top_k",
]  # fmt: skip
