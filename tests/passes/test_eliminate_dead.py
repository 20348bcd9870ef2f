"""What nobody needs goes: before and after, as text."""

from __future__ import annotations

from aotc.ir.expr import Function, Let, Module, Var, call
from aotc.ir.types import tensor
from aotc.passes.eliminate_dead import eliminate_dead
from aotc.passes.options import Options
from tests.passes.helpers import check, module


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
