"""Types of 16, 8, 6, 4 and 2 bits: how numbers become their bits and back, and bit casts.

``cast`` of the elementwise family takes and gives these types; kernels hold their bits alone, so lowering replaces such a cast by
``decode`` and ``encode``. The rules are those of ONNX's Cast: round half to even, and beyond the range ``saturate`` (for float8)
decides between the largest value and infinity or NaN. All numbers go through float32 (integers through int32), as in PyTorch,
ONNX Runtime and ml_dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.expr import Attributes
from aotc.ir.types import DTYPES, SMALL, SMALL_FLOATS, TensorType, bits_of, storage_dtype
from aotc.ops.base import Fusion, OpDef

ROUND_MODES = ("up", "down", "nearest")


@dataclass(frozen=True, slots=True)
class Format:
    """A float of a sign, ``exponent`` and ``mantissa`` bits. ``specials``: ``ieee`` has infinities and NaNs, ``fn`` one NaN of
    each sign (all bits one), ``fnuz`` one NaN in the place of -0, ``none`` neither; ``nan`` and ``largest`` are codes without
    the sign."""

    exponent: int
    mantissa: int
    bias: int
    specials: str
    largest: int
    nan: int = 0

    @property
    def sign(self) -> int:
        """The sign's bit."""
        return 1 << (self.exponent + self.mantissa)


FORMATS = {
    "bfloat16": Format(8, 7, 127, "ieee", 0x7F7F, 0x7FC0),
    "float8_e4m3fn": Format(4, 3, 7, "fn", 0x7E, 0x7F),
    "float8_e4m3fnuz": Format(4, 3, 8, "fnuz", 0x7F),
    "float8_e5m2": Format(5, 2, 15, "ieee", 0x7B, 0x7E),
    "float8_e5m2fnuz": Format(5, 2, 16, "fnuz", 0x7F),
    "float6_e2m3fn": Format(2, 3, 1, "none", 0x1F),
    "float6_e3m2fn": Format(3, 2, 3, "none", 0x1F),
    "float4_e2m1fn": Format(2, 1, 1, "none", 0x7),
}
"""The signed floats: OCP's OFP8 and MX, and those of Noune et al., 8-bit numerical formats for deep neural networks, 2022."""

BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}
"""Width of the types whose elements do not fill their byte."""


@dataclass(frozen=True, slots=True)
class SmallAttributes(Attributes):
    """``dtype``: the small type."""

    dtype: str


@dataclass(frozen=True, slots=True)
class EncodeAttributes(Attributes):
    """As those of ``cast``."""

    dtype: str
    saturate: bool = True
    round_mode: str = "up"


@dataclass(frozen=True, slots=True)
class BitcastAttributes(Attributes):
    dtype: str


def wide_dtype(dtype: str) -> str:
    """What a small type is computed in: float32 or int32; every value of it is exact there."""
    return "float32" if dtype in SMALL_FLOATS else "int32"


def to_small(x: np.ndarray, dtype: str, saturate: bool, round_mode: str) -> np.ndarray:
    """``x``, float32 or int32, in a small type."""
    with np.errstate(all="ignore"):
        if dtype == "float8_e8m0fnu":
            return _to_e8m0(x, saturate, round_mode).view(dtype)
        result = x.astype(dtype)
        if saturate and dtype.startswith("float8"):
            largest = np.asarray(ml_dtypes.finfo(dtype).max, x.dtype)
            result = np.where(np.isnan(x), result, np.clip(x, -largest, largest).astype(dtype))
        return result


def _to_e8m0(x: np.ndarray, saturate: bool, round_mode: str) -> np.ndarray:
    """Powers of two from 2**-127 (code 0) to 2**127; code 255 is NaN. The sign is not looked at."""
    bits = x.astype("float32").view("uint32") & 0x7FFFFFFF
    exponent, fraction = bits >> 23, bits & 0x7FFFFF
    if round_mode == "down":
        code = exponent
    elif round_mode == "up":
        code = exponent + (fraction > np.where(exponent == 0, 0x400000, 0))
    else:
        code = exponent + (fraction >= np.where(exponent == 0, 0x600000, 0x400000))
    code = np.where(code > 254, 254 if saturate else 255, code)
    unfit = (bits > 0x7F800000) | ((bits < 0x400000) & (not saturate))
    return np.where(unfit, 255, code).astype("uint8")


def _encode(attrs: EncodeAttributes, x: np.ndarray) -> np.ndarray:
    return bits_of(to_small(x, attrs.dtype, attrs.saturate, attrs.round_mode))


def _encode_relation(types: Sequence[TensorType], attrs: EncodeAttributes) -> TensorType:
    _check_small(attrs.dtype)
    if types[0].dtype != wide_dtype(attrs.dtype):
        raise InvalidModel(f"takes {wide_dtype(attrs.dtype)} for {attrs.dtype}, not {types[0].dtype}")
    check_round_mode(attrs.round_mode)
    return TensorType(types[0].shape, storage_dtype(attrs.dtype), types[0].device)


def check_round_mode(round_mode: str) -> None:
    if round_mode not in ROUND_MODES:
        raise InvalidModel(f"round_mode is {', '.join(ROUND_MODES)}, not {round_mode!r}")


def _check_small(dtype: str) -> None:
    if dtype not in SMALL:
        raise InvalidModel(f"dtype is {', '.join(SMALL)}, not {dtype!r}")


def _decode(attrs: SmallAttributes, x: np.ndarray) -> np.ndarray:
    return x.view(attrs.dtype).astype(wide_dtype(attrs.dtype))


def _decode_relation(types: Sequence[TensorType], attrs: SmallAttributes) -> TensorType:
    _check_small(attrs.dtype)
    if types[0].dtype != storage_dtype(attrs.dtype):
        raise InvalidModel(f"takes {storage_dtype(attrs.dtype)} for {attrs.dtype}, not {types[0].dtype}")
    return TensorType(types[0].shape, wide_dtype(attrs.dtype), types[0].device)


def bit_width(dtype: str) -> int:
    return BITS.get(dtype) or int(np.dtype(dtype).itemsize) * 8


def _bitcast_relation(types: Sequence[TensorType], attrs: BitcastAttributes) -> TensorType:
    source = types[0].dtype
    if attrs.dtype not in DTYPES or bit_width(attrs.dtype) != bit_width(source):
        raise InvalidModel(f"reinterprets {source} as a type of {bit_width(source)} bits, not as {attrs.dtype}")
    return TensorType(types[0].shape, attrs.dtype, types[0].device)


encode = OpDef("encode", _encode_relation, _encode, Fusion.ELEMENTWISE, EncodeAttributes)
"""Numbers as the bits of a small type."""
decode = OpDef("decode", _decode_relation, _decode, Fusion.ELEMENTWISE, SmallAttributes)
"""The numbers that the bits of a small type stand for."""
bitcast = OpDef("bitcast", _bitcast_relation, lambda attrs, x: x.view(attrs.dtype), Fusion.ELEMENTWISE, BitcastAttributes)
"""The same bits as another type of the same width."""

__all__ = ["bitcast", "decode", "encode"]
