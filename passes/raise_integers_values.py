"""Float values as integers with a scale and a zero point: what ``raise_integers`` knows of a value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aotc import ops
from aotc.ir.expr import Constant, Expr
from aotc.passes.weights import array_of

BYTES = ("int8", "uint8")
LARGEST_OFFSET = 1 << 30
"""Offsets beyond it could take a sum out of int32."""


@dataclass(eq=False)
class Quantised:
    """The value (integers - zero) * scale, computed in float32. ``scale``, float32 and above 0, and ``zero``, int32, broadcast to
    ``integers``. ``source`` is the value as the module has it, where it is there already."""

    integers: Expr
    scale: np.ndarray
    zero: np.ndarray
    origin: str
    source: Expr | None = None
    settled: Expr | None = field(default=None, init=False)

    @property
    def dtype(self) -> str:
        return self.integers.type.dtype  # type: ignore[union-attr]

    @property
    def rank(self) -> int:
        return self.integers.type.rank  # type: ignore[union-attr]

    @property
    def is_sum(self) -> bool:
        return self.dtype == "int32"

    @property
    def is_byte(self) -> bool:
        return self.dtype in BYTES

    @property
    def is_single_byte(self) -> bool:
        return self.is_byte and self.is_single

    @property
    def is_single(self) -> bool:
        """Whether one scale and one zero point are for all of it."""
        return self.scale.size == 1 and self.zero.size == 1

    @property
    def one_zero(self) -> int:
        return int(self.zero.reshape(()))

    def step_of(self, value: float) -> float:
        """The integer that stands for ``value``, infinite for infinities; NaN where it is between two."""
        step = value / float(self.scale.reshape(())) + self.one_zero
        near = step if math.isinf(step) else round(step)
        return near if math.isinf(step) or abs(step - near) < 1e-4 else math.nan

    def data(self) -> np.ndarray | None:
        """The integers, where they are constant."""
        return array_of(self.integers)

    def number(self) -> np.ndarray | None:
        """The value, where it is constant, in float64."""
        data = self.data()
        return None if data is None else (data.astype("float64") - self.zero) * self.scale.astype("float64")

    def sums(self) -> Expr:
        """Integers whose zero point is 0, in int32: ``integers`` less ``zero``."""
        if self.settled is None:
            wide = self.integers if self.is_sum else ops.cast(self.integers, dtype="int32", origin=self.origin)
            offset = Constant(-self.zero.astype("int32"), self.origin)
            self.settled = ops.add(wide, offset, origin=self.origin) if self.zero.any() else wide
        return self.settled

    def real(self) -> Expr:
        """The value as floats."""
        if self.source is None:
            scale = Constant(compact(self.scale), self.origin)
            if self.is_sum:
                self.source = ops.dequantise(self.sums(), scale, origin=self.origin)
            else:
                zero = Constant(compact(self.zero).astype(self.dtype), self.origin)
                self.source = ops.dequantise(self.integers, scale, *([zero] if self.zero.any() else []), origin=self.origin)
        return self.source

    def alike(self, other: Quantised) -> bool:
        """Whether equal integers of the two are equal values."""
        same = self.dtype == other.dtype and self.is_single and other.is_single
        return same and self.scale.reshape(()) == other.scale.reshape(()) and self.one_zero == other.one_zero


def compact(array: np.ndarray) -> np.ndarray:
    """A number without axes where there is only one."""
    return array.reshape(()) if array.size == 1 else array


def parameters_of(node: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Scale and zero point (int32) of a ``quantise`` or ``dequantise``; ``None`` where they are no usable constants."""
    scale, *zeros = (array_of(each) for each in node.args[1:])
    if scale is None or scale.dtype != np.float32 or any(zero is None for zero in zeros):
        return None
    if not scale.size or not np.isfinite(scale).all() or not (scale > 0).all():
        return None
    return scale, zeros[0].astype("int32") if zeros and zeros[0] is not None else np.zeros((), "int32")


def along_axis(array: np.ndarray, rank: int, axis: int) -> np.ndarray | None:
    """``array``, which broadcasts to ``rank`` axes, as one number or one per index of ``axis``; ``None`` where it differs along
    others."""
    if array.size == 1:
        return array.reshape(())
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    first = full[tuple(slice(None) if i == axis else slice(0, 1) for i in range(rank))]
    return first.reshape(-1) if (full == first).all() else None
