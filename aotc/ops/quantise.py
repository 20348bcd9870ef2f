"""Quantised arithmetic: numbers as integers with a scale and a zero point, and sums of products of small integers in int32.

``scale`` and ``zero_point`` broadcast to x as numpy has it. Rounding is half to even, results saturate, and all steps are single
operations of IEEE 754, so that every machine gives the same integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim
from aotc.ir.expr import Attributes
from aotc.ir.types import FLOATS, INTEGERS, TensorType, Type
from aotc.ops import conv as conv_family
from aotc.ops import linear, reduce
from aotc.ops.base import Fusion, NoAttributes, OpDef, TypeRelation, broadcast_shapes, format_shape
from aotc.ops.conv import ConvAttributes
from aotc.ops.elementwise import accept
from aotc.ops.reduce import ReduceAttributes
from aotc.ops.windows import pads_of

QUANTISED = ("int8", "uint8", "int16", "uint16")
BYTES = ("int8", "uint8")
FACTORS = (*QUANTISED, "int32")


@dataclass(frozen=True, slots=True)
class QuantiseAttributes(Attributes):
    """``dtype`` of the result; ``low`` and ``high``: its limits where they are tighter than the dtype's (0, 0: they are not)."""

    dtype: str
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class IntegerConvAttributes(ConvAttributes):
    """``pad_value``: what the padding holds, which is x's zero point."""

    pad_value: int = 0


def limits(attrs: QuantiseAttributes) -> tuple[int, int]:
    """The least and the greatest value of the result."""
    if attrs.low == attrs.high:
        info = np.iinfo(attrs.dtype)
        return int(info.min), int(info.max)
    return attrs.low, attrs.high


def _broadcast(types: Sequence[TensorType]) -> tuple[Dim, ...]:
    if broadcast_shapes(*(t.shape for t in types)) != types[0].shape:
        shapes = " and ".join(format_shape(t.shape) for t in types[1:])
        raise InvalidModel(f"the scale and zero point {shapes} must broadcast to x {format_shape(types[0].shape)}")
    return types[0].shape


def _quantise_relation(types: Sequence[TensorType], attrs: QuantiseAttributes) -> TensorType:
    x, scale, *zero_point = types
    accept(x, FLOATS)
    if scale.dtype != x.dtype:
        raise InvalidModel(f"takes x and a scale of one dtype, not {x.dtype} and {scale.dtype}")
    return _quantised(types, zero_point, attrs)


def _quantised(types: Sequence[TensorType], zero_point: Sequence[TensorType], attrs: QuantiseAttributes) -> TensorType:
    if attrs.dtype not in QUANTISED or any(each.dtype != attrs.dtype for each in zero_point):
        raise InvalidModel(f"gives {', '.join(QUANTISED)} with a zero point of the same dtype, not {attrs.dtype}")
    low, high = limits(attrs)
    if low >= high:
        raise InvalidModel(f"the limits {low} and {high} are empty")
    return TensorType(_broadcast(types), attrs.dtype, types[0].device)


def _rounded(attrs: QuantiseAttributes, x: np.ndarray, zero_point: Sequence[np.ndarray]) -> np.ndarray:
    """x rounded to integers around the zero point; a NaN gives the least one."""
    low, high = limits(attrs)
    zero = zero_point[0].astype("int32") if zero_point else np.int32(0)
    least, greatest = (np.asarray(low - zero).astype(x.dtype), np.asarray(high - zero).astype(x.dtype))
    held = np.where(x > least, np.minimum(x, greatest), least)
    return np.asarray(np.rint(held).astype("int32") + zero).astype(attrs.dtype)


def _quantise(attrs: QuantiseAttributes, x: np.ndarray, scale: np.ndarray, *zero_point: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        quotient = np.asarray(x / scale)
        return _rounded(attrs, quotient.astype("float32") if x.dtype == np.float16 else quotient, zero_point)


def _requantise_relation(types: Sequence[TensorType], attrs: QuantiseAttributes) -> TensorType:
    x, scale, *zero_point = types
    if x.dtype != "int32" or scale.dtype != "float32":
        raise InvalidModel(f"takes int32 and a scale of float32, not {x.dtype} and {scale.dtype}")
    return _quantised(types, zero_point, attrs)


def _requantise(attrs: QuantiseAttributes, x: np.ndarray, scale: np.ndarray, *zero_point: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return _rounded(attrs, np.asarray(x.astype("float32") * scale), zero_point)


def _dequantise_relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
    x, scale, *zero_point = types
    accept(x, INTEGERS)
    accept(scale, FLOATS)
    if any(each.dtype != x.dtype for each in zero_point):
        raise InvalidModel(f"takes a zero point of x's dtype {x.dtype}, not {zero_point[0].dtype}")
    return TensorType(_broadcast(types), scale.dtype, x.device)


def _dequantise(attrs: Any, x: np.ndarray, scale: np.ndarray, *zero_point: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        wide = x.astype("int32") - zero_point[0].astype("int32") if zero_point else x.astype("int32")
        real = "float64" if scale.dtype == np.float64 else "float32"
        return np.asarray(wide.astype(real) * scale.astype(real)).astype(scale.dtype)


def _sum_relation(operator: OpDef) -> TypeRelation:
    """The relation of ``operator`` over int32."""

    def relation(types: Sequence[TensorType], attrs: Any) -> Type:
        for each in types:
            accept(each, FACTORS)
        return operator.relation([replace(each, dtype="int32") for each in types], attrs)

    return relation


def _exact(depth: int, *factors: np.ndarray) -> list[np.ndarray]:
    """Factors of sums of ``depth`` products, in float64 where these are exact: numpy has no fast product of integers."""
    largest = math.prod(int(np.abs(each.astype("int64")).max(initial=0)) for each in factors)
    wide = "float64" if depth * largest < 2**53 else "int64"
    return [each.astype(wide) for each in factors]


def _matmul(attrs: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.matmul(*_exact(a.shape[-1], a, b))).astype("int64").astype("int32")


def _conv_relation(types: Sequence[TensorType], attrs: IntegerConvAttributes) -> Type:
    least, greatest = (getattr(np.iinfo(types[0].dtype), end) for end in ("min", "max"))
    if not least <= attrs.pad_value <= greatest:
        raise InvalidModel(f"the padding cannot hold {attrs.pad_value} in {types[0]}")
    return _sum_relation(conv_family.conv)(types, attrs)


def _conv(attrs: IntegerConvAttributes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    count = len(attrs.strides)
    spatial = [(0, 0)] * 2 + [pads_of(attrs.padding, axis) for axis in range(count)]
    padded = np.pad(x, [*spatial, *[(0, 0)] * (x.ndim - len(spatial))], constant_values=attrs.pad_value)
    sums = conv_family.conv.reference(replace(attrs, padding=(0,) * 2 * count), *_exact(math.prod(w.shape[1:]), padded, w))
    return np.asarray(sums).astype("int64").astype("int32")


def _integer_sum_relation(types: Sequence[TensorType], attrs: ReduceAttributes) -> Type:
    if not attrs.axes:
        raise InvalidModel("sums along at least one axis")
    return _sum_relation(reduce.sum_)(types, attrs)


def _integer_sum(attrs: ReduceAttributes, x: np.ndarray) -> np.ndarray:
    return np.asarray(x.sum(axis=tuple(attrs.axes), keepdims=attrs.keepdims, dtype="int64")).astype("int32")


def _look_up_relation(types: Sequence[TensorType], attrs: Any) -> TensorType:
    x, table = types
    accept(x, BYTES)
    if table.shape != (256,):
        raise InvalidModel(f"takes a table of 256 elements, not {table}")
    return TensorType(x.shape, table.dtype, x.device)


quantise = OpDef("quantise", _quantise_relation, _quantise, Fusion.BROADCAST, QuantiseAttributes, (2, 3))
"""saturate(round(x / scale) + zero_point). In float16 the quotient is rounded to float16 first."""
dequantise = OpDef("dequantise", _dequantise_relation, _dequantise, Fusion.BROADCAST, NoAttributes, (2, 3))
"""(x - zero_point) * scale in the scale's dtype; the difference in int32."""
requantise = OpDef("requantise", _requantise_relation, _requantise, Fusion.BROADCAST, QuantiseAttributes, (2, 3))
"""saturate(round(float32(x) * scale) + zero_point) of an int32 sum."""
integer_matmul = OpDef("integer_matmul", _sum_relation(linear.matmul), _matmul, Fusion.OUT_FUSABLE, arity=2)
"""``matmul`` of integers, each of its own dtype, summed in int32."""
integer_conv = OpDef("integer_conv", _conv_relation, _conv, Fusion.OUT_FUSABLE, IntegerConvAttributes, 2)
"""``conv`` of integers over plain channels, each of its own dtype, summed in int32. Zero points are no part of it, but for padding."""
integer_sum = OpDef("integer_sum", _integer_sum_relation, _integer_sum, Fusion.REDUCTION, ReduceAttributes)
"""``sum`` of integers in int32."""
look_up = OpDef("look_up", _look_up_relation, lambda attrs, x, table: table[x.view("uint8")], Fusion.ELEMENTWISE, arity=2)
"""For each byte of x the element of table[256] at its place, bytes counted as uint8: -1 is the last."""

__all__ = ["dequantise", "integer_conv", "integer_matmul", "integer_sum", "look_up", "quantise", "requantise"]
