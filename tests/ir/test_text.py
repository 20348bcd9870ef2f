"""The text form: printing and parsing back, errors with their place, deep graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc import ops
from aotc.errors import InvalidModel
from aotc.ir import text
from aotc.ir.dims import symbol
from aotc.ir.equal import first_difference
from aotc.ir.expr import Constant, Expr, Function, If, Let, Loop, Module, Parameter, Tuple, TupleGetItem, Var, call
from aotc.ir.parser import parse_module
from aotc.ir.printer import module_text
from aotc.ir.types import DTYPES, TensorType, TupleType, tensor
from aotc.ir.verify import verify


def round_trip(module: Module) -> str:
    printed, arrays = module_text(module)
    back = parse_module(printed, ops.ALL, arrays)
    assert first_difference(module, back) is None
    assert module_text(back)[0] == printed
    return printed


def everything() -> Module:
    """A module with every kind of node."""
    b = symbol("batch", 1, 32)
    odd = symbol("odd name `x`")
    x = Var("x", tensor("float32", b, 4), origin="the input")
    y = Var("0 strange", tensor("float32", odd, 2 * odd + 1))
    weight = Parameter("layer/0:weight", np.arange(40, dtype="float32").reshape(10, 4), origin="layer")
    small = Parameter("small", np.array([1.5, -0.0, np.inf, np.nan], "float32"))
    h = ops.dense(x, weight, origin="layer one # two")
    h = ops.clip(h, minimum=0.0, maximum=6.0)
    p = Var("p0", h.type)
    fused = Function((p,), ops.add(ops.relu(p), Constant(np.array(1.5, "float32"))), "add_relu", primitive=True, origin="a + b")
    called = call(fused, [h], origin="fused\nhere")
    again = call(Function((p,), ops.relu(p), "add_relu", primitive=True), [called])
    v = Var("v", again.type)
    bound = Let(v, again, ops.multiply(v, v), origin="let")
    condition = Constant(np.array(True))
    first, other = (Var("a", bound.type), Var("b", h.type)), (Var("a", bound.type), Var("b", h.type))
    chosen = If(condition, Function(first, first[0], "then"), Function(other, other[1], "else"), (bound, h), h.type, "if")
    pair = Tuple((chosen, ops.add(x, small)))
    reshaped = ops.reshape(TupleGetItem(pair, 0), shape=(b * 10,), origin="reshape")
    top = ops.top_k(x, k=2, axis=1, largest=True, sorted=True)
    constant = Constant(np.arange(100, dtype="int64"), origin="table")
    size = symbol("u0", 0, 7)
    known = ops.define_dims(Constant(np.array([3])), dims=(size,), origin="size")
    checked = ops.check_dims(x, pairs=((b, 4), (size, 3)))
    i, s, r, c = Var("i", tensor("int64")), Var("s", x.type), Var("r", tensor("float32", 4)), Var("c", tensor("float32", 4))
    step = Function((i, s, r, c), Tuple((condition, ops.add(s, ops.add(r, c)), ops.negative(r))), "step")
    loop = Loop(step, symbol("u1", 0), condition, (x,), (x,), (Constant(np.zeros(4, "float32")),), limit=b, iteration=symbol("i0", 0))
    looped = ops.anchor(TupleGetItem(loop, 1), known, checked)
    body = Tuple((reshaped, pair, Tuple((top,)), Tuple(()), constant, ops.add(y, y), looped))
    outputs = ("r", "c", "s", "values", "indices", "table", "y", "stacked")
    return Module(
        {"main": Function((x, y), body, "main"), "second": Function((x,), ops.dense(x, weight), "2")},
        {"main": outputs, "second": ("o",)},
        {"labels": 'a "b"\nc'},
        {"cache": Constant(np.zeros((2, 50), "float32"), "past")},
    )


def test_every_kind_of_node_comes_back() -> None:
    module = everything()
    verify(module)
    printed = round_trip(module)
    assert "symbol batch: 1..32" in printed
    assert "# layer one # two" in printed


def test_layout_of_the_text() -> None:
    x = Var("x", tensor("float32", 1, 3, 8, 8))
    weight = Parameter("conv1.weight", np.zeros((4, 3, 3, 3), "float32"))
    conv = ops.conv(x, weight, strides=(2, 2), padding=(1, 1, 1, 1), dilation=(1, 1), groups=1, origin="conv1")
    module = Module({"main": Function((x,), ops.relu(conv, origin="act"), "main")}, {"main": ("y",)})
    printed = round_trip(module)
    assert 'entry @main(%x: float32[1, 3, 8, 8]) outputs("y") {' in printed
    assert "  %0 = conv(%x, $conv1.weight) {strides=(2, 2), padding=(1, 1, 1, 1)" in printed
    assert ": float32[1, 4, 4, 4]  # conv1\n  %1 = relu(%0) : float32[1, 4, 4, 4]  # act\n  return %1\n}" in printed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3, 2), (5, 7)])
def test_constants_of_every_dtype(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = np.asarray(rng.standard_normal(shape) * 100).astype(dtype)
    body = Tuple((Constant(data), Constant(data, origin="named"), Parameter("p", data)))
    module = Module({"main": Function((), body, "main")}, {"main": ("a", "b", "c")})
    round_trip(module)
    text.write(module, tmp_path / "m.aotc")
    assert first_difference(module, text.read(tmp_path / "m.aotc", ops.ALL)) is None


@pytest.mark.parametrize("value", [0.1, 1e-45, 3.4e38, -0.0, float("inf"), float("-inf"), float("nan"), 1e20])
def test_scalars_keep_their_bits(value: float) -> None:
    module = Module({"main": Function((), Constant(np.array(value, "float32")), "main")}, {"main": ("a",)})
    printed, arrays = module_text(module)
    back = parse_module(printed, ops.ALL, arrays).main.body
    assert isinstance(back, Constant) and back.data.tobytes() == np.array(value, "float32").tobytes()


def test_files(tmp_path: Path) -> None:
    module = everything()
    text.write(module, tmp_path / "m.aotc")
    assert first_difference(module, text.read(tmp_path / "m.aotc", ops.ALL)) is None
    (tmp_path / "m.npz").unlink()
    with pytest.raises(InvalidModel, match=r"m\.aotc:\d+:\d+: no data for this array"):
        text.read(tmp_path / "m.aotc", ops.ALL)


HEAD = 'aotc 1\nsymbol b: 0..\nentry @main(%x: float32[b, 4]) outputs("y") {\n'


@pytest.mark.parametrize(
    ("body", "place", "message"),
    [
        ("  %0 = rellu(%x)\n  return %0\n}", "4:8", "expected an operator, found 'rellu'"),
        ("  %0 = relu(%z)\n  return %0\n}", "4:13", "%z is not defined above"),
        ("  %0 = relu(%x) : float32[b, 5]\n  return %0\n}", "4:8", r"the type is float32\[b, 4\], not float32\[b, 5\]"),
        ("  %0 = clip(%x) {maxi=1}\n  return %0\n}", "4:18", "clip has no attribute 'maxi'; it has: minimum, maximum"),
        ("  %0 = relu(%x, %x)\n  return %0\n}", "4:8", "relu: takes 1 arguments, not 2"),
        ("  %0 = relu(%x) extra\n  return %0\n}", "4:17", "expected the end of the line, found 'extra'"),
        ("  %0 = relu(%x)\n  %0 = relu(%x)\n  return %0\n}", "5:3", "%0 is defined twice"),
        ("  %0 = reshape(%x) {shape=(c, 4)}\n  return %0\n}", "4:28", "the symbol c is not declared"),
        ("  %0 = relu(%x)\n  return %0\n", "6:1", "expected '}', found the end"),
        ("  %0 = relu(%x) ! 3\n", "4:17", "cannot read '!'"),
        ("  %0 = @f(%x)\n", "4:8", "the function @f is not defined above"),
    ],
)
def test_errors_name_the_place(body: str, place: str, message: str) -> None:
    with pytest.raises(InvalidModel, match=f"<text>:{place}: {message}"):
        parse_module(HEAD + body, ops.ALL)


def deep_chain(length: int, leaf: Expr) -> Expr:
    for index in range(length):
        leaf = ops.relu(leaf, origin=f"node{index}") if index % 3 else Tuple((leaf,)) if index % 2 else ops.add(leaf, leaf)
        if isinstance(leaf, Tuple):
            leaf = TupleGetItem(leaf, 0)
    return leaf


def test_graphs_ten_thousand_nodes_deep() -> None:
    x = Var("x", tensor("float32", 4))
    body = deep_chain(10_000, x)
    for index in range(10_000):
        v = Var(f"v{index}", TensorType((4,), "float32"))
        body = Let(v, x, body)
    module = Module({"main": Function((x,), body, "main")}, {"main": ("y",)})
    verify(module)
    round_trip(module)


def test_types_of_tuples_print() -> None:
    x = Var("x", TupleType((tensor("float32", 2), TupleType((tensor("int64"),)))))
    body = TupleGetItem(TupleGetItem(x, 1), 0)
    assert "%x: (float32[2], (int64[]))" in round_trip(Module({"main": Function((x,), body, "main")}, {"main": ("y",)}))
