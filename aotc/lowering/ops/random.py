"""Tensor expression of the random numbers: Threefry on the element's number, twenty rounds of adds, turns and exclusive ors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, constant, int_constant, let
from aotc.ops.random import scramble

WORD = "uint32"


class _Word:
    """A word with the operators that ``scramble`` uses."""

    def __init__(self, value: Expr) -> None:
        self.value = value

    def __add__(self, other: Any) -> _Word:
        """Wraps: in 64 bits, since TVM tells LLVM that sums of 32-bit words never do."""
        wide = [tirx.Cast("uint64", value) for value in (self.value, _value(other))]
        return _Word(tirx.Cast(WORD, wide[0] + wide[1]))

    def __xor__(self, other: Any) -> _Word:
        return _Word(tirx.bitwise_xor(self.value, _value(other)))


def _value(word: Any) -> Expr:
    return word.value if isinstance(word, _Word) else constant(int(word) & 0xFFFFFFFF, WORD)


def _rotated(x: _Word, by: int) -> _Word:
    left, right = (constant(count, WORD) for count in (by, 32 - by))
    return _Word(tirx.bitwise_or(tirx.shift_left(x.value, left), tirx.shift_right(x.value, right)))


def _kept(word: _Word, then: Callable[[_Word], _Word]) -> _Word:
    return _Word(let(word.value, lambda name: _value(then(_Word(name)))))


def _random_bits(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    shape = common.extents(scope, results[0].shape)

    def body(*i: Expr) -> Expr:
        low, high = _Word(tirx.Cast(WORD, common.row_major(i, shape or (int_constant(1),)))), _Word(constant(attrs.stream, WORD))
        return _value(scramble(low, high, attrs.key, _rotated, _kept))

    if not shape:
        one = common.kept((int_constant(1),), body, "random_bits")
        return [common.compute((), lambda: one(int_constant(0)), "random_bit")]
    return [common.compute(shape, body, "random_bits")]


EXPRESSIONS: dict[str, Expression] = {"random_bits": _random_bits}
