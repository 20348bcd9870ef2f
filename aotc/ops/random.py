"""Random numbers, the same in every run: a counter that is scrambled by Threefry-2x32 with 20 rounds.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011; JAX uses it too.
Element i of a stream depends on i, the stream and the key alone, so elements are computed in any order. From 32 bits,
a float32 in [0, 1) takes the upper 24, a float64 all, which leaves its last 21 bits zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim
from aotc.ir.expr import Attributes, Constant, Expr
from aotc.ir.types import TensorType
from aotc.ops import elementwise
from aotc.ops.base import Fusion, OpDef

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
ROUNDS = 20


@dataclass(frozen=True, slots=True)
class RandomBitsAttributes(Attributes):
    """``key`` holds two numbers below 2^32; ``stream``, also below 2^32, is the upper half of the counter."""

    shape: tuple[Dim, ...]
    key: tuple[int, int]
    stream: int = 0


def scramble(low: Any, high: Any, key: tuple[int, int], rotated: Any, keep: Any) -> Any:
    """The first word of Threefry-2x32-20 of the counter (``low``, ``high``), for any type with +, ^: numpy's arrays and kernels'
    expressions. ``rotated(x, r)`` turns a word; ``keep(x, then)`` is ``then`` of a name for x."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ PARITY)

    def rounds(number: int, x: Any, y: Any) -> Any:
        if number == ROUNDS:
            return x
        turn = ROTATIONS[number // 4 % 2][number % 4]

        def mixed(a: Any) -> Any:
            return keep(rotated(y, turn) ^ a, lambda b: injected(a, b))

        def injected(a: Any, b: Any) -> Any:
            if (number + 1) % 4:
                return rounds(number + 1, a, b)
            step = (number + 1) // 4
            return keep(
                a + keys[step % 3], lambda c: keep(b + (keys[(step + 1) % 3] + step) % (1 << 32), lambda d: rounds(number + 1, c, d))
            )

        return keep(x + y, mixed)

    return keep(low + keys[0], lambda x: keep(high + keys[1], lambda y: rounds(0, x, y)))


def _relation(types: Sequence[TensorType], attrs: RandomBitsAttributes) -> TensorType:
    if len(attrs.key) != 2 or any(not 0 <= word < 1 << 32 for word in (*attrs.key, attrs.stream)):
        raise InvalidModel(f"the key must be two numbers below 2^32 and the stream one, not {attrs.key} and {attrs.stream}")
    return TensorType(attrs.shape, "uint32")


def _reference(attrs: RandomBitsAttributes) -> np.ndarray:
    size = int(np.prod(cast("tuple[int, ...]", attrs.shape), dtype=np.int64))
    word = np.uint32
    with np.errstate(over="ignore"):
        bits = scramble(
            np.arange(size, dtype=word), np.full(size, attrs.stream, word), attrs.key,
            lambda x, r: (x << word(r)) | (x >> word(32 - r)), lambda x, then: then(x),
        )  # fmt: skip
    return np.asarray(bits, word).reshape(attrs.shape)  # type: ignore[arg-type]


def uniform(shape: tuple[Dim, ...], key: tuple[int, int], dtype: str = "float32", stream: int = 0, origin: str = "") -> Expr:
    """Numbers in [0, 1) of a float dtype; float16 are rounded, and may be 1."""
    bits: Expr = random_bits(shape=shape, key=key, stream=stream, origin=origin)
    wide = "float64" if dtype == "float64" else "float32"
    if wide == "float32":
        bits = elementwise.right_shift(bits, Constant(np.asarray(8, np.uint32), origin), origin=origin)
    unit = Constant(np.asarray(2.0 ** (-32 if wide == "float64" else -24), wide), origin)
    result = elementwise.multiply(elementwise.cast(bits, dtype=wide, origin=origin), unit, origin=origin)
    return result if dtype == wide else elementwise.cast(result, dtype=dtype, origin=origin)


def normal(shape: tuple[Dim, ...], key: tuple[int, int], dtype: str = "float32", origin: str = "") -> Expr:
    """Numbers of mean 0 and deviation 1, by Box and Muller: sqrt(-2 log u) * cos(2 pi v) of two streams, u in (0, 1]."""
    wide = "float64" if dtype == "float64" else "float32"

    def number(value: float) -> Expr:
        return Constant(np.asarray(value, wide), origin)

    u = elementwise.subtract(number(1), uniform(shape, key, wide, 0, origin), origin=origin)
    angle = elementwise.multiply(uniform(shape, key, wide, 1, origin), number(2 * np.pi), origin=origin)
    squares = elementwise.multiply(elementwise.log(u, origin=origin), number(-2), origin=origin)
    result = elementwise.multiply(elementwise.sqrt(squares, origin=origin), elementwise.cos(angle, origin=origin), origin=origin)
    return result if dtype == wide else elementwise.cast(result, dtype=dtype, origin=origin)


random_bits = OpDef("random_bits", _relation, _reference, Fusion.INJECTIVE, RandomBitsAttributes, 0)
"""-> uint32[shape], element i in row-major order from counter (i, stream)."""

__all__ = ["random_bits"]
