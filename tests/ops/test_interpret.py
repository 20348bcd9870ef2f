"""The reference interpreter and the specialisation of dims."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops
from aotc.errors import InvalidModel, InvalidOption
from aotc.ir.dims import symbol
from aotc.ir.expr import Constant, Function, If, Let, Loop, Module, Parameter, Tuple, TupleGetItem, Var, call
from aotc.ir.types import tensor
from aotc.ops.bind import bind_dims, bind_inputs
from aotc.ops.interpret import interpret

B, S = symbol("b", 1, 8), symbol("s", 1)
X = Var("x", tensor("float32", B, 2 * S))
ONES = np.ones((3, 4), "float32")


def test_symbols_are_solved_from_shapes() -> None:
    body = ops.add(ops.reshape(X, shape=(2 * B * S,)), ops.full(shape=(B * S * 2,), value=1, dtype="float32"))
    (got,) = interpret(Function((X,), body), [ONES])
    assert got.tolist() == [2.0] * 12
    counts = Function((X,), Tuple((ops.dims(values=(B, S)), ops.shape_of(X))))
    assert [each.tolist() for each in interpret(counts, [ONES])] == [[3, 2], [3, 4]]


@pytest.mark.parametrize(
    "shape,message",
    [
        ((3, 5), r"axis 1 must be 2\*s, which is 5 for no s"),
        ((9, 4), "axis 0 must be from 1 to 8, not 9"),
        ((3,), "not of shape"),
        ((0, 4), "from 1 to 8, not 0"),
    ],
)
def test_shapes_that_do_not_fit(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        interpret(Function((X,), ops.relu(X)), [np.ones(shape, "float32")])


def test_dtypes_and_counts_that_do_not_fit() -> None:
    with pytest.raises(InvalidModel, match="input 'x' is float32, not float64"):
        interpret(Function((X,), ops.relu(X)), [np.ones((3, 4))])
    with pytest.raises(InvalidModel, match="takes 1 arrays, not 0"):
        interpret(Function((X,), ops.relu(X)), [])


def test_every_kind_of_expression() -> None:
    x, flag, y = Var("x", tensor("float32", 2)), Var("flag", tensor("bool")), Var("y", tensor("float32", 2))
    double = Function((y,), ops.add(y, y), "double", primitive=True)
    a, b = Var("a", x.type), Var("b", x.type)
    then, otherwise = Function((a,), call(double, [a])), Function((b,), Let(y, ops.negative(b), ops.multiply(y, y)))
    branch = If(flag, then, otherwise, (x,), x.type)
    pair = Tuple((branch, Parameter("w", np.float32([5]))))
    body = Tuple((TupleGetItem(pair, 0), TupleGetItem(pair, 1), Constant(np.int64(7))))
    function = Function((x, flag), body)
    given = np.float32([1, 3])
    assert [each.tolist() for each in interpret(function, [given, np.array(True)])] == [[2, 6], [5], 7]
    assert [each.tolist() for each in interpret(function, [given, np.array(False)])] == [[1, 9], [5], 7]


def test_only_the_chosen_branch_is_computed() -> None:
    x, flag = Var("x", tensor("int64", 1)), Var("flag", tensor("bool"))
    a, b = Var("a", x.type), Var("b", x.type)
    out_of_range = Function((a,), ops.gather(Constant(np.float32([1])), a))
    zero = Function((b,), ops.full(shape=(1,), value=0, dtype="float32"))
    function = Function((x, flag), If(flag, out_of_range, zero, (x,), tensor("float32", 1)))
    assert interpret(function, [np.array([9]), np.array(False)])[0].tolist() == [0]


def test_deep_graphs() -> None:
    x = Var("x", tensor("float32", 1))
    body = x
    for _ in range(10_000):
        body = ops.negative(body)
    assert interpret(Function((x,), body), [np.float32([2])])[0].tolist() == [2]


def module() -> Module:
    inner = Var("p", tensor("float32", B, 2 * S))
    doubled = call(Function((inner,), ops.broadcast_to(inner, shape=(3, B, 2 * S)), "fused", primitive=True), [X])
    return Module({"main": Function((X,), ops.reshape(doubled, shape=(3, 2 * B * S)))}, {"main": ("y",)})


def test_bind_dims_reaches_types_attributes_and_inner_functions() -> None:
    bound = bind_dims(module(), {"b": 4})
    assert str(bound.main.params[0].type) == "float32[4, 2*s]" and str(bound.main.body.type) == "float32[3, 8*s]"
    assert bind_dims(bound, {"s": 5}).main.body.type == tensor("float32", 3, 40)
    assert module().main.body.type != bound.main.body.type and bind_dims(bound, {}) is bound
    (got,) = interpret(bound.main, [np.ones((4, 6), "float32")])
    assert got.shape == (3, 24)


def test_bind_inputs() -> None:
    assert bind_inputs(module(), {"x": (None, 6)}).main.body.type == tensor("float32", 3, 6 * B)
    renamed = bind_inputs(module(), {"x": ("batch", None)})
    assert str(renamed.main.params[0].type) == "float32[batch, 2*s]" and renamed.symbols["batch"].upper == 8
    for shapes, message in (
        ({"y": (1, 2)}, "no input 'y'; its inputs are 'x'"),
        ({"x": (1,)}, "one entry for each of its 2 axes"),
        ({"x": (9, None)}, "out of the range from 1 to 8"),
        ({"x": (None, 5)}, r"is 2\*s in the model and cannot be 5"),
    ):
        with pytest.raises(InvalidOption, match=message):
            bind_inputs(module(), shapes)  # type: ignore[arg-type]


def test_sizes_found_while_running() -> None:
    """The first n of x, where n is an input: n becomes a dim."""
    x, n = Var("x", tensor("float32", 5)), Var("n", tensor("int64"))
    size = symbol("u0", 0, 5)
    count = ops.define_dims(n, dims=(size,), origin="count")
    prefix = ops.slice_(x, begins=(0,), ends=(size,), steps=(1,))
    function = Function((x, n), ops.anchor(ops.add(prefix, prefix), count))
    given = np.arange(5, dtype="float32")
    assert [interpret(function, [given, np.array(k)])[0].tolist() for k in (3, 0)] == [[0, 2, 4], []]
    with pytest.raises(InvalidModel, match="count: u0 must be from 0 to 5, not 6"):
        interpret(function, [given, np.array(6)])
    check = ops.check_dims(x, pairs=((size, 2),))
    with pytest.raises(InvalidModel, match="must be equal"):
        interpret(Function((x, n), ops.anchor(check, count)), [given, np.array(3)])


def test_loops() -> None:
    """Running sums of rows, stacked, until one exceeds a bound; a carried vector grows by one element each time."""
    rows, bound = Var("rows", tensor("float32", 4, 2)), Var("bound", tensor("float32"))
    trips, length = symbol("u0", 0, 4), symbol("u1", 1)
    i, total, grown = Var("i", tensor("int64")), Var("total", tensor("float32", 2)), Var("grown", tensor("float32", length))
    row, limit = Var("row", tensor("float32", 2)), Var("limit", tensor("float32"))
    new = ops.add(total, row)
    going = ops.less(ops.max_(new, axes=(0,), keepdims=False), limit)
    longer = ops.concat(grown, ops.reshape(ops.cast(i, dtype="float32"), shape=(1,)), axis=0)
    body = Function((i, total, grown, row, limit), Tuple((going, new, longer, ops.negative(new))), "body")
    start = (Constant(np.zeros(2, "float32")), Constant(np.float32([9])))
    loop = Loop(body, trips, Constant(np.array(True)), start, (rows,), (bound,), limit=4)
    function = Function((rows, bound), loop)
    given = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])
    total_, grown_, stacked = interpret(function, [given, np.float32(5)])
    assert (total_.tolist(), grown_.tolist(), stacked.tolist()) == ([4, 6], [9, 0, 1], [[-1, -2], [-4, -6]])
    assert interpret(function, [given, np.float32(99)])[2].shape == (4, 2)
