"""What is known at build is computed at build: before and after, as text."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.expr import Constant, Function, If, Module, Var
from aotc.ir.types import tensor
from aotc.passes.fold_constants import fold_constants
from aotc.passes.options import Options
from tests.passes.helpers import check, module, weight


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


def test_weights_that_are_stored_narrow_become_wide() -> None:
    """However much larger they grow: kernels read wide ones."""
    q, scale = np.arange(200 * 300).reshape(200, 300).astype("int8"), np.linspace(0.1, 1, 200, dtype="float32").reshape(200, 1)
    text = "(%x: float32[200, 300]) {\n %t = dequantise($q, $s)\n %0 = add(%x, %t)\n return %0\n}"
    after = "(%x: float32[200, 300]) {\n %0 = add(%x, $q~dequantise)\n return %0\n}"
    check(fold_constants, module(text, {"q": q, "s": scale}), module(after, {"q~dequantise": q * scale}))
    half = weight(200, 300).astype("bfloat16")
    text = '(%x: float32[200, 300]) {\n %t = cast($w) {dtype="float32"}\n %0 = add(%x, %t)\n return %0\n}'
    after = "(%x: float32[200, 300]) {\n %0 = add(%x, $w~cast)\n return %0\n}"
    check(fold_constants, module(text, {"w": half}), module(after, {"w~cast": half.astype("float32")}))


def test_what_would_grow_too_large_stays() -> None:
    text = "(%x: float32[1000, 100]) {\n %t = broadcast_to($w) {shape=(1000, 100)}\n %0 = add(%x, %t)\n return %0\n}"
    check(fold_constants, module(text, {"w": weight(100)}), None)
    check(fold_constants, module('(%x: float32[1]) {\n %0 = full() {shape=(1000,), value=1.0, dtype="float32"}\n return %0\n}'), None)


def test_an_if_on_a_constant_is_its_branch() -> None:
    x = Var("x", tensor("float32", 2))
    a, b = Var("a", x.type), Var("b", x.type)
    one, same = Function((a,), Constant(np.ones(2, "float32"))), Function((b,), b)
    before = Module({"main": Function((x,), If(Constant(np.array(False)), one, same, (x,), x.type), "main")}, {"main": ("y",)})
    assert fold_constants(before, Options()).main.body is x
