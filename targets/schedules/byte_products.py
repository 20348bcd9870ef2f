"""Vectors of sums of products of bytes, in the instructions of the machine.

x86's vpdpbusd adds four products of a byte without a sign by one with a sign to each lane, Arm's sdot four of signed ones. Without
these, products are taken of bytes made longer: x86's pmaddwd adds pairs of 16 bits; Arm's smull and smlal add two products of bytes
in 16 bits, which these just hold as weights are at least -127, and sadalp adds neighbours of these to the sums. pmaddubsw is never used:
it saturates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.targets.base import Target
from aotc.targets.schedules.emit import const

Expr = Any


def ramp(first: Expr | int, lanes: int) -> Expr:
    """``lanes`` indices from ``first`` on."""
    return tirx.Ramp(const(first) if isinstance(first, int) else first, const(1), lanes)


def zeros(lanes: int) -> Expr:
    return tirx.Broadcast(const(0), lanes)


@dataclass(frozen=True, slots=True)
class Products:
    """``lanes`` sums of 32 bits are a vector. A ``unit`` of bytes of the input multiplies units of weights, and is held in a
    ``word``; ``together`` units are added at a time. ``by_element``: a word is best taken from a vector that was loaded."""

    lanes: int
    unit: int
    word: str
    together: int
    by_element: bool
    factor: str

    def word_at(self, x: tirx.Buffer, at: Sequence[Expr], first: Expr) -> Expr:
        """The unit of ``x`` from the innermost index ``first`` on."""
        return self.as_word(tirx.BufferLoad(x, [*at, ramp(first, self.unit)]))

    def as_word(self, unit: Expr) -> Expr:
        return tirx.reinterpret(self.word, unit)

    def words_at(self, x: tirx.Buffer, at: Sequence[Expr], first: Expr, count: int) -> Expr:
        """A vector of ``count`` neighbouring units."""
        dtype = self.word if count == 1 else f"{self.word}x{count}"
        return tirx.reinterpret(dtype, tirx.BufferLoad(x, [*at, ramp(first, count * self.unit)]))

    def add(self, total: Expr, weights: Sequence[Expr], words: Sequence[Expr]) -> Expr:
        """``total`` and the products of vectors of weights by words, each of which multiplies all lanes of its vector."""
        return self.add_vectors(total, weights[0], tirx.Broadcast(words[0], self.lanes))

    def add_vectors(self, total: Expr, weights: Expr, units: Expr) -> Expr:
        """``total`` and the products of a vector of units by one of weights, lane by lane."""
        raise NotImplementedError


class UnsignedDots(Products):
    """x86's vpdpbusd."""

    def add_vectors(self, total: Expr, weights: Expr, units: Expr) -> Expr:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        return tirx.call_llvm_pure_intrin(f"int32x{self.lanes}", name, total, tirx.reinterpret(f"uint8x{4 * self.lanes}", units), weights)


class SignedDots(Products):
    """Arm's sdot."""

    def add_vectors(self, total: Expr, weights: Expr, units: Expr) -> Expr:
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        return tirx.call_llvm_pure_intrin("int32x4", name, total, weights, tirx.reinterpret("int8x16", units))


class WidePairs(Products):
    """x86's pmaddwd."""

    def as_word(self, unit: Expr) -> Expr:
        return tirx.reinterpret("int32", tirx.Cast("int16x2", unit))

    def add_vectors(self, total: Expr, weights: Expr, units: Expr) -> Expr:
        name = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}[self.lanes]
        wide = f"int16x{2 * self.lanes}"
        pairs = tirx.call_llvm_pure_intrin(f"int32x{self.lanes}", name, tirx.Cast(wide, weights), tirx.reinterpret(wide, units))
        return total + pairs


class NarrowPairs(Products):
    """Arm's smull, smlal and sadalp."""

    def add(self, total: Expr, weights: Sequence[Expr], words: Sequence[Expr]) -> Expr:
        products = [self._product(w, tirx.Broadcast(x, self.lanes)) for w, x in zip(weights, words, strict=True)]
        return self._with_neighbours(total, products[0] + products[1] if len(products) > 1 else products[0])

    def _product(self, weights: Expr, units: Expr) -> Expr:
        return tirx.Cast("int16x8", weights) * tirx.Cast("int16x8", tirx.reinterpret("int8x8", units))

    def _with_neighbours(self, total: Expr, products: Expr) -> Expr:
        return total + tirx.call_llvm_pure_intrin("int32x4", "llvm.aarch64.neon.saddlp.v4i32.v8i16", products)


def products_of(target: Target) -> Products:
    """How ``target`` adds products of bytes."""
    lanes, factor = target.lanes("int32"), target.byte_factor
    if target.has("neon"):
        if target.adds_byte_products:
            return SignedDots(lanes, 4, "int32", 1, True, factor)
        return NarrowPairs(lanes, 2, "int16", 2, False, factor)
    if target.adds_byte_products:
        return UnsignedDots(lanes, 4, "int32", 1, False, factor)
    return WidePairs(lanes, 2, "int32", 1, False, factor)
