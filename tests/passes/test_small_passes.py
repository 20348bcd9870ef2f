"""solve_shapes, fold_constants, eliminate_common, eliminate_dead, pack_weights: before and after, as text."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.expr import Constant, Function, If, Let, Module, Var, call
from aotc.ir.types import tensor
from aotc.passes.eliminate_common import eliminate_common
from aotc.passes.eliminate_dead import eliminate_dead
from aotc.passes.fold_constants import fold_constants
from aotc.passes.options import Options
from aotc.passes.pack_weights import pack_weights
from aotc.passes.solve_shapes import solve_shapes
from tests.passes.helpers import check, module, weight

# solve_shapes


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


# fold_constants


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("%0 = add(float32(1.0), float32(2.0))", "float32(3.0)"),
        ("%a = exp(float32(0.0))\n %0 = multiply(%a, float32[2](3.0, 4.0))", "float32[2](3.0, 4.0)"),
        ('%0 = full() {shape=(2,), value=3, dtype="int64"}', "int64[2](3, 3)"),
        ('%0 = arange() {start=1, step=2, count=3, dtype="int32"}', "int32[3](1, 3, 5)"),
        ("%t = top_k(float32[3](1.0, 3.0, 2.0)) {k=1, axis=0}\n %0 = %t[1]", None),
        ("%0 = divide(int64(7), int64(-2))", "int64(-3)"),
    ],
)
def test_constants_fold(text: str, value: str | None) -> None:
    result = fold_constants(module(f"(%x: float32[1]) {{\n {text}\n return %0\n}}"), Options())
    if value is not None:
        check(fold_constants, module(f"(%x: float32[1]) {{\n {text}\n return %0\n}}"), module(f"(%x: float32[1]) {{\n return {value}\n}}"))
    assert fold_constants(result, Options()) is result


def test_weights_fold_into_weights() -> None:
    w = weight(3, 4)
    before = module("(%x: float32[3, 4]) {\n %t = multiply($w, float32(2.0))\n %0 = add(%x, %t)\n return %0\n}", {"w": w})
    check(fold_constants, before, module("(%x: float32[3, 4]) {\n %0 = add(%x, $w~multiply)\n return %0\n}", {"w~multiply": w * 2}))


def test_what_would_grow_too_large_stays() -> None:
    text = "(%x: float32[1000, 100]) {\n %t = broadcast_to($w) {shape=(1000, 100)}\n %0 = add(%x, %t)\n return %0\n}"
    check(fold_constants, module(text, {"w": weight(100)}), None)
    check(fold_constants, module('(%x: float32[1]) {\n %0 = full() {shape=(1000,), value=1.0, dtype="float32"}\n return %0\n}'), None)


def test_an_if_on_a_constant_is_its_branch() -> None:
    x = Var("x", tensor("float32", 2))
    before = Module({"main": Function((x,), If(Constant(np.array(False)), Constant(np.ones(2, "float32")), x), "main")}, {"main": ("y",)})
    assert fold_constants(before, Options()).main.body is x


# eliminate_common


def test_equal_calls_are_one() -> None:
    before = module("(%x: float32[4]) {\n %a = exp(%x)\n %b = exp(%x)\n %c = relu(%a)\n %d = relu(%b)\n %0 = add(%c, %d)\n return %0\n}")
    check(eliminate_common, before, module("(%x: float32[4]) {\n %a = exp(%x)\n %c = relu(%a)\n %0 = add(%c, %c)\n return %0\n}"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sum(%x) {axes=(0,)}", "sum(%x) {axes=(1,)}"),
        ("multiply(%x, float32(0.0))", "multiply(%x, float32(-0.0))"),
        ("add(%x, %y)", "add(%y, %x)"),
        ("power(%x, float32(2.0))", "power(%x, int64(2))"),
    ],
)
def test_calls_that_only_look_equal_stay_two(one: str, other: str) -> None:
    text = f"(%x: float32[4, 4], %y: float32[4, 4]) {{\n %a = {one}\n %b = {other}\n %0 = (%a, %b)\n return %0\n}}"
    check(eliminate_common, module(text), None)


# eliminate_dead


def test_indices_that_nobody_needs() -> None:
    before = module(
        "(%x: float32[1, 2, 6, 6]) {\n %a = max_pool_with_indices(%x) {kernel=(2, 2)}\n %b = %a[0]\n"
        " %c = max_pool_with_indices(%b) {kernel=(3, 3), strides=(2, 2)}\n %0 = %c[0]\n return %0\n}"
    )
    after = module(
        "(%x: float32[1, 2, 6, 6]) {\n %a = max_pool(%x) {kernel=(2, 2)}\n %0 = max_pool(%a) {kernel=(3, 3), strides=(2, 2)}\n return %0\n}"
    )
    check(eliminate_dead, before, after)


def test_indices_that_are_used_stay() -> None:
    text = "(%x: float32[1, 2, 6, 6]) {\n %a = max_pool_with_indices(%x) {kernel=(2, 2)}\n %b = %a[0]\n %i = %a[1]\n %0 = (%b, %i)\n return %0\n}"
    check(eliminate_dead, module(text), None)


def test_unused_inputs_stay_and_unused_lets_go() -> None:
    x, y, v = (Var(name, tensor("float32", 2)) for name in "xyv")
    let = Let(v, y, x)
    after = eliminate_dead(Module({"main": Function((x, y), let, "main")}, {"main": ("o",)}), Options())
    assert after.main.params == (x, y) and after.main.body is x


def test_functions_that_are_called_are_left_alone() -> None:
    p, x = Var("p", tensor("float32", 2)), Var("x", tensor("float32", 2))
    inner = Function((p,), p, "inner")
    before = Module({"main": Function((x,), call(inner, [x]), "main")}, {"main": ("o",)})
    assert eliminate_dead(before, Options()) is before


# pack_weights


def test_dense_weights_are_packed() -> None:
    w = weight(6, 3)
    packed = np.zeros((2, 3, 4), "float32")
    for unit in range(6):
        packed[unit // 4, :, unit % 4] = w[unit]
    before = module("symbol n: 1..\n(%x: float32[n, 3]) {\n %0 = dense(%x, $w)\n return %0\n}", {"w": w})
    after = module(
        "symbol n: 1..\n(%x: float32[n, 3]) {\n %0 = packed_dense(%x, $w~packed4) {units=6}\n return %0\n}", {"w~packed4": packed}
    )
    check(pack_weights, before, after, Options(dense_block=4))


@pytest.mark.parametrize("options", [Options(dense_block=0), Options(dense_block=16)])
def test_no_packing_for_few_outputs_or_without_blocks(options: Options) -> None:
    check(pack_weights, module("(%x: float32[2, 3]) {\n %0 = dense(%x, $w)\n return %0\n}", {"w": weight(6, 3)}), None, options)


def test_weights_that_are_computed_stay() -> None:
    check(
        pack_weights, module("(%x: float32[2, 3], %w: float32[8, 3]) {\n %0 = dense(%x, %w)\n return %0\n}"), None, Options(dense_block=8)
    )
