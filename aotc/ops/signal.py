"""The discrete Fourier transform. Complex numbers are a last axis of two: real and imaginary part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, floordiv
from aotc.ir.expr import Attributes, Constant, Expr
from aotc.ir.types import FLOATS, TensorType
from aotc.ops import elementwise, shape
from aotc.ops.base import Fusion, OpDef
from aotc.ops.elementwise import accept


@dataclass(frozen=True, slots=True)
class FourierAttributes(Attributes):
    """``length``: of the transform; the data is cut, or continued with zeros, to it. ``inverse`` divides by it.

    ``onesided``: forward, the first half of the result and its middle, which say all about the spectrum of real data;
    inverse, the data is such a half and the result real.
    """

    length: Dim
    inverse: bool = False
    onesided: bool = False


SHORT = 64
"""Elements up to which a transform is computed in float64: that costs little, and sums that cancel give clean zeros."""


def _wide(dtype: str, length: Dim) -> str:
    return "float64" if dtype == "float64" or (isinstance(length, int) and length <= SHORT) else "float32"


def half(length: Dim) -> Dim:
    """The elements of a onesided spectrum."""
    return floordiv(length, 2) + 1


def _relation(types: Sequence[TensorType], attrs: FourierAttributes) -> TensorType:
    x, table = types
    accept(x, FLOATS)
    if x.rank < 2 or x.shape[-1] not in (1, 2) or (attrs.inverse and attrs.onesided and x.shape[-1] != 2):
        raise InvalidModel(f"takes data [..., elements, 2], or 1 where it is real, not {x}")
    if attrs.length == 0:
        raise InvalidModel("the transform must have one element or more")
    if table.shape != (attrs.length, 2) or table.dtype not in (("float64",) if x.dtype == "float64" else ("float32", "float64")):
        raise InvalidModel(f"the table must be {_wide(x.dtype, attrs.length)}[{attrs.length}, 2], not {table}")
    real = attrs.inverse and attrs.onesided
    count = half(attrs.length) if attrs.onesided and not attrs.inverse else attrs.length
    return TensorType((*x.shape[:-2], count, 1 if real else 2), x.dtype, x.device)


def _reference(attrs: FourierAttributes, x: np.ndarray, table: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    data = wide[..., 0] + (1j * wide[..., 1] if x.shape[-1] == 2 else 0)
    length = cast(int, attrs.length)
    if attrs.inverse and attrs.onesided:
        return np.asarray(np.fft.irfft(data, length)[..., np.newaxis]).astype(x.dtype)
    result = (np.fft.ifft if attrs.inverse else np.fft.fft)(data, length)
    if attrs.onesided:
        result = result[..., : length // 2 + 1]
    return np.stack([result.real, result.imag], -1).astype(x.dtype)


def rotations(length: int, dtype: str) -> np.ndarray:
    """The table of a transform: cosine and sine of -2 pi k / length."""
    angle = 2 * np.pi * np.arange(length) / length
    return np.stack([np.cos(angle), -np.sin(angle)], 1).astype(dtype)


def rotations_for(x: TensorType, length: Dim, origin: str = "") -> Expr:
    """``rotations`` as the second argument of a ``fourier`` of ``x``: a constant, or computed from a length known only at
    run time."""
    dtype = _wide(x.dtype, length)
    if isinstance(length, int):
        return Constant(rotations(length, dtype), origin)
    count = shape.arange(start=0, step=1, count=length, dtype="float64", origin=origin)
    size = elementwise.cast(shape.dims(values=(length,), scalar=True, origin=origin), dtype="float64", origin=origin)
    turn = elementwise.divide(Constant(np.asarray(-2 * np.pi), origin), size, origin=origin)
    angle = elementwise.multiply(shape.reshape(count, shape=(length, 1), origin=origin), turn, origin=origin)
    both = [function(angle, origin=origin) for function in (elementwise.cos, elementwise.sin)]
    return elementwise.cast(shape.concat(*both, axis=1, origin=origin), dtype=dtype, origin=origin)


fourier = OpDef("fourier", _relation, _reference, Fusion.OPAQUE, FourierAttributes, 2)
"""x[..., elements, 1 or 2], ``rotations`` of the length [length, 2] -> [..., length, 2], over the axis before the last.
The table's dtype is the one that is computed in."""

__all__ = ["fourier"]
