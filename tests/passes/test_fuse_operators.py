"""Where kernels are cut."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops, targets
from aotc.ir.dims import Dim, symbol
from aotc.ir.expr import Call, Function, Module, Var
from aotc.ir.types import tensor
from aotc.ir.verify import verify_fused
from aotc.ir.visitor import calls_of, post_order
from aotc.passes.fuse_operators import MAX_CALLS, fuse_operators
from aotc.passes.options import Options, options_for
from tests.passes.helpers import agree, fused, module, weight

X = "(%x: float32[2, 8, 4, 4], %y: float32[2, 8, 4, 4]) {\n "
W = {"w": weight(8, 8, 1, 1), "v": weight(8, 8, 1, 1, seed=1), "b": weight(8, 1, 1)}


def cut(text: str, head: str = X) -> list[str]:
    used = {name: array for name, array in W.items() if f"${name}" in text}
    before = module(f"{head}{text}\n return %0\n}}", used)
    after = fuse_operators(before, Options())
    verify_fused(after)
    agree(before, after)
    assert fuse_operators(after, Options()) is after
    return fused(after)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%0 = relu(%x)", ["relu"]),
        ("%a = relu(%x)\n %b = exp(%a)\n %0 = add(%b, %y)", ["relu_exp_add"]),
        # A diamond is one kernel.
        ("%a = relu(%x)\n %b = sigmoid(%a)\n %0 = multiply(%a, %b)", ["relu_sigmoid_multiply"]),
        ("%a = conv(%x, $w)\n %b = add(%a, $b)\n %c = sigmoid(%b)\n %0 = multiply(%b, %c)", ["conv_add_sigmoid_multiply"]),
        # The residual joins the convolution that comes first in the graph; the other one is its input.
        ("%a = conv(%x, $w)\n %b = conv(%y, $v)\n %c = add(%a, %b)\n %0 = relu(%c)", ["conv", "conv_add_relu"]),
        ("%a = conv(%x, $w)\n %b = add(%a, %x)\n %0 = relu(%b)", ["conv_add_relu"]),
        # A side of the epilogue that is elementwise itself comes along.
        ("%s = sigmoid(%y)\n %a = conv(%x, $w)\n %0 = multiply(%a, %s)", ["conv_sigmoid_multiply"]),
        # A result that others use too is stored.
        ("%a = conv(%x, $w)\n %b = relu(%a)\n %0 = (%a, %b)", ["conv", "relu"]),
        ("%a = exp(%x)\n %b = mean(%a) {axes=(2, 3), keepdims=true}\n %0 = multiply(%a, %b)", ["exp", "mean", "multiply"]),
        # Reductions take what comes before, and what follows in their own shape.
        ("%a = exp(%x)\n %b = sum(%a) {axes=(2, 3)}\n %0 = sqrt(%b)", ["exp_sum_sqrt"]),
        ("%b = sum(%x) {axes=(2, 3), keepdims=true}\n %0 = multiply(%y, %b)", ["sum", "multiply"]),
        ("%a = multiply(%x, %y)\n %0 = softmax(%a) {axis=3}", ["multiply_softmax"]),
        ("%a = exp(%x)\n %0 = softmax(%a) {axis=3}", ["exp", "softmax"]),
        # Heavy calls take no prologue.
        ("%a = relu(%x)\n %0 = conv(%a, $w)", ["relu", "conv"]),
        ("%a = relu(%x)\n %0 = max_pool(%a) {kernel=(2, 2)}", ["relu", "max_pool"]),
        # A reshape is a view by itself.
        ("%a = relu(%x)\n %b = reshape(%a) {shape=(2, 128)}\n %0 = exp(%b)", ["relu", "reshape", "exp"]),
        ("%a = relu(%x)\n %b = transpose(%a) {axes=(0, 2, 3, 1)}\n %0 = exp(%b)", ["relu_transpose_exp"]),
        # Nothing is computed behind concat's choices, though what follows it joins.
        ("%a = relu(%x)\n %b = concat(%a, %y) {axis=1}\n %0 = exp(%b)", ["relu", "concat_exp"]),
        ("%b = concat(%x, %y) {axis=1}\n %0 = mean(%b) {axes=(2, 3)}", ["concat", "mean"]),
        # Dear things are not computed again for each element of a larger result.
        ("%m = mean(%x) {axes=(3,), keepdims=true}\n %p = reshape(%m) {shape=(2, 8, 4, 1)}\n %e = exp(%p)\n %0 = add(%y, %e)",
         ["mean", "reshape", "exp", "add"]),
        ("%m = mean(%x) {axes=(3,), keepdims=true}\n %p = reshape(%m) {shape=(2, 8, 4, 1)}\n %e = relu(%p)\n %0 = add(%y, %e)",
         ["mean", "reshape", "relu_add"]),
        ("%t = top_k(%x) {k=2, axis=3}\n %a = %t[0]\n %0 = relu(%a)", ["top_k", "relu"]),
        ("%c = cumsum(%x) {axis=3}\n %0 = relu(%c)", ["cumsum", "relu"]),
    ],
)  # fmt: skip
def test_cuts(text: str, expected: list[str]) -> None:
    assert sorted(cut(text)) == sorted(expected)


@pytest.mark.parametrize(("target", "expected"), [("jetson-orin", ["cast_layout_transform"]), ("host", ["cast", "layout_transform"])])
def test_what_comes_before_a_layout(target: str, expected: list[str]) -> None:
    before = module(f'{X}%a = cast(%x) {{dtype="float16"}}\n %0 = layout_transform(%a) {{block=8, channels=8}}\n return %0\n}}')
    after = fuse_operators(before, options_for(targets.get(target)))
    agree(before, after)
    assert fused(after) == expected


def test_text_of_a_fused_function() -> None:
    text = "%a = conv(%x, $w)  # first\n %b = add(%a, %y)  # second\n %c = multiply(%b, float32(2.0))\n %0 = relu(%c)  # third"
    result = fuse_operators(module(f"{X}{text}\n return %0\n}}", {"w": W["w"]}), Options())
    (call,) = [node for node in post_order(result.main.body) if isinstance(node, Call)]
    function = call.op
    assert isinstance(function, Function) and function.primitive
    assert function.name == "conv_add_multiply_relu"
    assert function.origin == call.origin == "first + second + third"
    assert [param.name for param in function.params] == ["p0", "p1", "p2"]
    assert [param.origin for param in function.params] == ["x", "w", "y"]
    assert [node.op.name for node in calls_of(function.body)] == ["conv", "add", "multiply", "relu"]


def test_without_fusion_each_call_is_a_function() -> None:
    text = "%a = conv(%x, $w)\n %b = add(%a, %y)\n %0 = relu(%b)\n return %0\n}"
    result = fuse_operators(module(X + text, {"w": W["w"]}), Options(fuse=False))
    assert [node.op.name for node in post_order(result.main.body) if isinstance(node, Call)] == ["conv", "add", "relu"]


def test_groups_stay_small() -> None:
    x = Var("x", tensor("float32", 4))
    h = x
    for index in range(200):
        h = ops.relu(h) if index % 2 else ops.add(h, x)  # type: ignore[assignment]
    after = fuse_operators(Module({"main": Function((x,), h, "main")}, {"main": ("y",)}), Options())
    sizes = [
        len(calls_of(node.op.body)) for node in post_order(after.main.body) if isinstance(node, Call) and isinstance(node.op, Function)
    ]
    assert sum(sizes) == 200 and max(sizes) <= MAX_CALLS and len(sizes) <= 8


def test_doubling_does_not_explode() -> None:
    """Each step uses the one before twice: inlined, forty steps would be 2^40 calls."""
    x = Var("x", tensor("float32", 4))
    h = x
    for _ in range(40):
        h = ops.multiply(h, ops.sigmoid(h))  # type: ignore[assignment]
    after = fuse_operators(Module({"main": Function((x,), h, "main")}, {"main": ("y",)}), Options())
    verify_fused(after)
    assert len(fused(after)) >= 8


def test_ten_thousand_nodes() -> None:
    x = Var("x", tensor("float32", 4))
    h = x
    for index in range(10_000):
        h = ops.relu(h) if index % 7 else ops.softmax(h, axis=0)  # type: ignore[assignment]
    after = fuse_operators(Module({"main": Function((x,), h, "main")}, {"main": ("y",)}), Options())
    assert len(fused(after)) > 1000


@pytest.mark.parametrize(("size", "kernels"), [(symbol("n", 1), 3), (7, 1)])
def test_gathers_of_gathers_are_cut_along_dynamic_dims(size: Dim, kernels: int) -> None:
    x, ids = Var("x", tensor("float32", 8, 8)), Var("ids", tensor("int64", size))
    y = ops.gather(ops.gather(x, ids, axis=0), ids, axis=1)
    after = fuse_operators(Module({"main": Function((x, ids), ops.relu(ops.gather(y, ids, axis=0)), "main")}, {"main": ("y",)}), Options())
    verify_fused(after)
    assert len(fused(after)) == kernels


def test_an_input_may_be_the_output() -> None:
    assert cut("%0 = (%x, %y)") == []


def test_bytes_are_stored_rather_than_floats() -> None:
    """Bytes that a sum in another kernel reads as floats are made floats there."""
    before = module(
        "(%x: int8[1, 4, 6, 6]) {\n"
        " %0 = integer_conv(%x, $w)\n"
        ' %1 = requantise(%0, float32(0.01)) {dtype="int8"}\n'
        " %2 = dequantise(%1, float32(0.5))\n"
        " %3 = integer_conv(%x, $w)\n"
        ' %4 = requantise(%3, float32(0.02)) {dtype="int8"}\n'
        " %5 = dequantise(%4, float32(0.25))\n"
        " %6 = add(%2, %5)\n"
        ' %7 = quantise(%6, float32(0.3)) {dtype="int8"}\n'
        " return %7\n}",
        {"w": np.ones((4, 4, 1, 1), "int8")},
    )
    after = fuse_operators(before, Options())
    made = [node.type.dtype for node in post_order(after.main.body) if isinstance(node, Call)]  # type: ignore[union-attr]
    assert made == ["int8", "int8"]
    agree(before, after)
