"""Computed shapes become dims: before and after, as text."""

from __future__ import annotations

from aotc.passes.solve_shapes import solve_shapes
from tests.passes.helpers import check, module


def test_a_computed_shape_becomes_dims() -> None:
    """Case 34: Shape -> Gather -> Mul -> Cast -> Concat."""
    before = module(
        "symbol n: 1..8\n(%x: float32[n, 4, 6]) {\n %s = shape_of(%x)\n %b = gather(%s, int64(0)) {axis=0}\n %r = multiply(%b, int64(4))\n"
        ' %i = cast(%r) {dtype="int32"}\n %v = reshape(%r) {shape=(1,)}\n %c = concat(%v, int64[1](6)) {axis=0}\n %0 = (%i, %c)\n return %0\n}'
    )
    after = module(
        "symbol n: 1..8\n(%x: float32[n, 4, 6]) {\n %d = dims() {values=(4*n,), scalar=true}\n "
        '%i = cast(%d) {dtype="int32"}\n %c = dims() {values=(4*n, 6)}\n %0 = (%i, %c)\n return %0\n}'
    )
    check(solve_shapes, before, after)


def test_a_shape_without_symbols_becomes_a_constant() -> None:
    before = module("(%x: float32[3, 4]) {\n %s = shape_of(%x)\n %0 = slice(%s) {begins=(1,), ends=(2,), steps=(1,)}\n return %0\n}")
    check(solve_shapes, before, module("(%x: float32[3, 4]) {\n return int64[1](4)\n}"))


def test_integers_that_depend_on_data_stay() -> None:
    check(solve_shapes, module("(%x: int64[2]) {\n %0 = multiply(%x, int64(4))\n return %0\n}"), None)
