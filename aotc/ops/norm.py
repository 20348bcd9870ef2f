"""Normalisations. Statistics and the arithmetic around them are float32 for float16 data, and the data's type otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim
from aotc.ir.expr import Attributes
from aotc.ir.types import FLOATS, TensorType
from aotc.ops.base import Fusion, OpDef, format_shape, normalise_axis, same_dtype
from aotc.ops.windows import accumulation_dtype


@dataclass(frozen=True, slots=True)
class EpsilonAttributes(Attributes):
    """``epsilon`` is added to the variance."""

    epsilon: float = 1e-5


@dataclass(frozen=True, slots=True)
class AxisNormAttributes(Attributes):
    """The axes from ``axis`` (negative ones count from the end) to the last are normalised together."""

    axis: int = -1
    epsilon: float = 1e-5


@dataclass(frozen=True, slots=True)
class GroupNormAttributes(Attributes):
    """The channels are normalised in ``groups`` of equal size, together with all spatial axes."""

    groups: int
    epsilon: float = 1e-5


@dataclass(frozen=True, slots=True)
class LrnAttributes(Attributes):
    """y = x / (bias + alpha / size * s) ** beta, where s sums squares over ``size`` channels around each one."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0


def _floats(types: Sequence[TensorType], least_rank: int) -> TensorType:
    x = types[0]
    if same_dtype(types) not in FLOATS or x.rank < least_rank:
        raise InvalidModel(f"takes floats of rank {least_rank} or more, not {x}")
    return x


def _check_vectors(x: TensorType, names: Sequence[str], types: Sequence[TensorType], shape: tuple[Dim, ...]) -> None:
    for name, type_ in zip(names, types, strict=True):
        if type_.shape != shape:
            raise InvalidModel(f"{name} must have shape {format_shape(shape)} for data {x}, not {format_shape(type_.shape)}")


def _batch_relation(types: Sequence[TensorType], attrs: EpsilonAttributes) -> TensorType:
    x = _floats(types, 2)
    _check_vectors(x, ("gamma", "beta", "mean", "var"), types[1:], (x.shape[1],))
    return x


def _axis_relation(types: Sequence[TensorType], attrs: AxisNormAttributes) -> TensorType:
    x = _floats(types, 1)
    shape = x.shape[normalise_axis(attrs.axis, x.rank) :]
    _check_vectors(x, ("gamma", "beta")[: len(types) - 1], types[1:], shape)
    return x


def _group_relation(types: Sequence[TensorType], attrs: GroupNormAttributes) -> TensorType:
    x = _floats(types, 2)
    _check_vectors(x, ("gamma", "beta"), types[1:], (x.shape[1],))
    if attrs.groups < 1 or (isinstance(x.shape[1], int) and x.shape[1] % attrs.groups):
        raise InvalidModel(f"the {x.shape[1]} channels of {x} do not divide into {attrs.groups} groups")
    return x


def _instance_relation(types: Sequence[TensorType], attrs: EpsilonAttributes) -> TensorType:
    x = _floats(types, 3)
    _check_vectors(x, ("gamma", "beta"), types[1:], (x.shape[1],))
    return x


def _lrn_relation(types: Sequence[TensorType], attrs: LrnAttributes) -> TensorType:
    x = _floats(types, 2)
    if attrs.size < 1:
        raise InvalidModel(f"size must be at least 1, not {attrs.size}")
    return x


def _over_channels(vector: np.ndarray, rank: int) -> np.ndarray:
    return vector.reshape(-1, *[1] * (rank - 2))


def _widen(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(accumulation_dtype(array.dtype)) for array in arrays]


def _standardise(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    return centred / np.sqrt(variance + x.dtype.type(epsilon))


def _batch_reference(attrs: EpsilonAttributes, x: np.ndarray, *vectors: np.ndarray) -> np.ndarray:
    wide, gamma, beta, mean, var = _widen(x, *vectors)
    scale = gamma / np.sqrt(var + var.dtype.type(attrs.epsilon))
    return ((wide - _over_channels(mean, x.ndim)) * _over_channels(scale, x.ndim) + _over_channels(beta, x.ndim)).astype(x.dtype)


def _layer_reference(attrs: AxisNormAttributes, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    wide, gamma, beta = _widen(x, gamma, beta)
    axes = tuple(range(normalise_axis(attrs.axis, x.ndim), x.ndim))
    return (_standardise(wide, axes, attrs.epsilon) * gamma + beta).astype(x.dtype)


def _rms_reference(attrs: AxisNormAttributes, x: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    wide, gamma = _widen(x, gamma)
    axes = tuple(range(normalise_axis(attrs.axis, x.ndim), x.ndim))
    mean = np.square(wide).mean(axis=axes, keepdims=True)
    return (wide / np.sqrt(mean + wide.dtype.type(attrs.epsilon)) * gamma).astype(x.dtype)


def _group_reference(attrs: GroupNormAttributes, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    wide, gamma, beta = _widen(x, gamma, beta)
    grouped = wide.reshape(x.shape[0], attrs.groups, x.shape[1] // attrs.groups, *x.shape[2:])
    normal = _standardise(grouped, tuple(range(2, grouped.ndim)), attrs.epsilon).reshape(x.shape)
    return (normal * _over_channels(gamma, x.ndim) + _over_channels(beta, x.ndim)).astype(x.dtype)


def _instance_reference(attrs: EpsilonAttributes, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    return _group_reference(GroupNormAttributes(x.shape[1], attrs.epsilon), x, gamma, beta)


def _lrn_reference(attrs: LrnAttributes, x: np.ndarray) -> np.ndarray:
    """The channels around channel c reach from c - floor((size - 1) / 2) to c + ceil((size - 1) / 2)."""
    (wide,) = _widen(x)
    before, after = (attrs.size - 1) // 2, attrs.size // 2
    squares = np.pad(np.square(wide), [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
    total = sum(squares[:, i : i + x.shape[1]] for i in range(attrs.size))
    kind = wide.dtype.type
    return (wide / (kind(attrs.bias) + kind(attrs.alpha / attrs.size) * total) ** kind(attrs.beta)).astype(x.dtype)


batch_norm = OpDef("batch_norm", _batch_relation, _batch_reference, Fusion.BROADCAST, EpsilonAttributes, arity=5)
layer_norm = OpDef("layer_norm", _axis_relation, _layer_reference, Fusion.OUT_FUSABLE, AxisNormAttributes, arity=3)
rms_norm = OpDef("rms_norm", _axis_relation, _rms_reference, Fusion.OUT_FUSABLE, AxisNormAttributes, arity=2)
group_norm = OpDef("group_norm", _group_relation, _group_reference, Fusion.OUT_FUSABLE, GroupNormAttributes, arity=3)
instance_norm = OpDef("instance_norm", _instance_relation, _instance_reference, Fusion.OUT_FUSABLE, EpsilonAttributes, arity=3)
lrn = OpDef("lrn", _lrn_relation, _lrn_reference, Fusion.OUT_FUSABLE, LrnAttributes)

OPERATORS: tuple[OpDef, ...] = (batch_norm, layer_norm, rms_norm, group_norm, instance_norm, lrn)
