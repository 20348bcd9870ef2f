"""Where a tile of a blocked convolution stands: axes with their windows, a tile's place in its row, what it asks for ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.targets import Target
from aotc.targets.schedules.emit import const, known, product

Expr = Any

TYPE_BYTES = {"float16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis. ``size`` and ``out`` are its extents before and after."""

    size: Expr
    out: Expr
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def is_pointwise(self) -> bool:
        return self.kernel == 1 and self.stride == 1 and not self.before and not self.after

    @property
    def meets_input(self) -> bool:
        """Whether every window has a tap that is no padding. LLVM is told so, as a maximum that TVM cannot take away: else sums
        are prepared twice, for a loop without a step too."""
        return self.dilation == 1 and max(self.before, self.after) < self.kernel

    def taps(self, position: Expr) -> tuple[Expr, Expr]:
        """The range of taps that fall inside for an output position."""
        low: Expr = const(0)
        if self.before:
            low = tirx.max(const(0), tirx.floordiv(const(self.before + self.dilation - 1) - position * self.stride, const(self.dilation)))
        high: Expr = const(self.kernel)
        if self.after:
            room = self.size + const(self.before + self.dilation - 1) - position * self.stride
            high = tirx.min(high, tirx.floordiv(room, const(self.dilation)))
        return low, high

    def reads(self, p: int, k: int) -> int:
        """Where pixel ``p`` of a tile reads for tap ``k``, counted from where its first pixel would without padding."""
        return p * self.stride + k * self.dilation - self.before

    def is_inner(self, start: int, width: int, size: int) -> bool:
        first = start * self.stride - self.before
        return first >= 0 and first + (width - 1) * self.stride + (self.kernel - 1) * self.dilation < size


@dataclass(frozen=True, slots=True)
class Place:
    """A tile's place in its row. One that is ``inside`` reads no padding and reaches not beyond the row; of another the
    start may be ``known``, else every access is checked."""

    start: Expr
    width: int
    inside: bool
    known: int | None = None


@dataclass(frozen=True, slots=True)
class Ahead:
    """While the ``tiles`` of one group of output blocks are computed, they ask for the weights of group ``after``, each for its
    share; ``number`` is which of them a tile is."""

    after: Expr
    number: Expr
    tiles: int


def is_far(target: Target, extents: Sequence[Expr], dtype: str, times: int = 1) -> bool:
    """Whether ``times`` an array of these extents takes more bytes than an instruction can have as an offset."""
    size = known(product(extents))
    return size is None or times * size * TYPE_BYTES.get(dtype, 4) > target.offset_bytes
