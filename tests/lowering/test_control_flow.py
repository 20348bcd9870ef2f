"""Branches, loops, sizes found while running and states, from built files; right values from numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import ops
from aotc.errors import AotcError
from aotc.ir.dims import Dim, symbol
from aotc.ir.expr import Constant, Expr, Function, If, Loop, Module, Tuple, TupleGetItem, Var
from aotc.ir.types import flatten, tensor
from aotc.runtime.loader import load

F = "float32"
ITERATION = Var("i", tensor("int64"))


def scalar(value: float, dtype: str = F) -> Constant:
    return Constant(np.array(value, dtype))


def built(
    tmp_path: Path, params: list[Var], *results: Expr, states: dict[str, Constant] | None = None, names: tuple[str, ...] = ()
) -> object:
    """The results of a module, compiled and loaded: called with arrays, it returns arrays."""
    body = results[0] if len(results) == 1 else Tuple(results)
    names = names or tuple(f"y{i}" for i in range(len(flatten(body.type))))
    module = Module({"main": Function(tuple(params), body, "main")}, {"main": names}, {}, states or {})
    aotc.compile(module, output=tmp_path / "model.so", jobs=0)
    model = load(tmp_path / "model.so", num_threads=1)
    inputs = [param.name for param in params if param.name not in (states or {})]
    return lambda *arrays: list(model.run(dict(zip(inputs, arrays, strict=True))).values())


def test_a_size_found_while_running(tmp_path: Path) -> None:
    """The first n rows, where n is an input."""
    x, n, size = Var("x", tensor(F, 5, 2)), Var("n", tensor("int64")), symbol("u0", 0, 5)
    count = ops.define_dims(n, dims=(size,), origin="count")
    rows = ops.slice_(x, begins=(0, 0), ends=(size, 2), steps=(1, 1))
    total = ops.sum_(ops.exp(rows), axes=(0,), keepdims=False)
    run = built(tmp_path, [x, n], ops.anchor(ops.add(rows, rows), count), total, ops.shape_of(rows))
    given = np.arange(10, dtype=F).reshape(5, 2)
    for k in (3, 5, 0, 1):
        doubled, summed, shape = run(given, np.array(k))
        np.testing.assert_array_equal(doubled, 2 * given[:k])
        np.testing.assert_allclose(summed, np.exp(given[:k]).sum(0), rtol=1e-6)
        assert shape.tolist() == [k, 2]
    with pytest.raises(AotcError, match=r"count.*u0.*0.*5"):
        run(given, np.array(6))


def test_checked_dims(tmp_path: Path) -> None:
    x, n, size = Var("x", tensor(F, 6)), Var("n", tensor("int64", 2)), (symbol("u0", 1, 6), symbol("u1", 1, 6))
    wanted = ops.define_dims(n, dims=size)
    checked = ops.check_dims(x, pairs=((size[0] * size[1], 6),), origin="reshape")
    run = built(tmp_path, [x, n], ops.anchor(ops.negative(ops.reshape(checked, shape=size)), wanted))
    given = np.arange(6, dtype=F)
    for shape in ((2, 3), (6, 1)):
        np.testing.assert_array_equal(run(given, np.array(shape))[0], -given.reshape(shape))
    with pytest.raises(AotcError, match="reshape"):
        run(given, np.array((2, 2)))


def branches(then: object, otherwise: object, args: tuple[Expr, ...]) -> tuple[Function, Function]:
    made = []
    for name, build in (("then", then), ("else", otherwise)):
        params = tuple(Var(f"{name}{i}", arg.type) for i, arg in enumerate(args))
        made.append(Function(params, build(*params), name))
    return made[0], made[1]


def test_branches(tmp_path: Path) -> None:
    """Chosen by data; nested; a result that is an argument; results of two branches in one place."""
    x, flag, inner = Var("x", tensor(F, symbol("b", 1), 3)), Var("flag", tensor("bool")), Var("inner", tensor("bool"))
    pair = branches(lambda f, v: ops.exp(v), lambda f, v: v, (inner, x))
    nested = lambda f, v: If(f, *branches(lambda g, w: ops.add(w, w), lambda g, w: ops.negative(w), (f, v)), (f, v), v.type)  # noqa: E731
    outer = branches(nested, lambda f, v: v, (inner, x))
    first = If(flag, *pair, (inner, x), x.type)
    second = If(flag, *outer, (inner, first), x.type)
    run = built(tmp_path, [x, flag, inner], second, ops.add(first, second))
    given = np.random.default_rng(0).standard_normal((4, 3)).astype(F)
    for a in (True, False):
        for b in (True, False):
            one = np.exp(given) if a else given
            two = (2 * one if b else -one) if a else one
            got = run(given, np.array(a), np.array(b))
            np.testing.assert_allclose(got[0], two, rtol=2e-6)
            np.testing.assert_allclose(got[1], one + two, rtol=2e-6)


def test_branches_of_different_size(tmp_path: Path) -> None:
    x, flag, size = Var("x", tensor(F, symbol("n", 2), 2)), Var("flag", tensor("bool")), symbol("u0", 0)
    pair = branches(
        lambda v: ops.concat(v, v, axis=0), lambda v: ops.slice_(v, begins=(0, 0), ends=(1, 2), steps=(1, 1)), (x,)
    )  # fmt: skip
    chosen = If(flag, *pair, (x,), tensor(F, size, 2))
    run = built(tmp_path, [x, flag], chosen, ops.sum_(chosen, axes=(0,), keepdims=False))
    for rows in (2, 5, 3):
        given = np.arange(rows * 2, dtype=F).reshape(rows, 2)
        for choice, right in ((True, np.concatenate([given, given])), (False, given[:1])):
            got = run(given, np.array(choice))
            np.testing.assert_array_equal(got[0], right)
            np.testing.assert_array_equal(got[1], right.sum(0))


def test_a_counted_loop_scans_and_stacks(tmp_path: Path) -> None:
    """Running sums along a dim of any size; the body reads its number."""
    length = symbol("t", 0)
    xs, bias = Var("xs", tensor(F, length, 3)), Var("bias", tensor(F, 3))
    total, row, b = Var("total", tensor(F, 3)), Var("row", tensor(F, 3)), Var("b", tensor(F, 3))
    new = ops.add(ops.add(total, row), b)
    body = Function((ITERATION, total, row, b), Tuple((new, ops.multiply(new, ops.cast(ITERATION, dtype=F)))), "body")
    loop = Loop(body, length, None, (Constant(np.zeros(3, F)),), (xs,), (bias,), limit=length)
    run = built(tmp_path, [xs, bias], loop)
    for steps in (4, 1, 0, 7):
        given, shift = np.random.default_rng(steps).standard_normal((steps, 3)).astype(F), np.float32([1, 2, 3])
        sums = np.cumsum(given + shift, axis=0, dtype=F)
        got = run(given, shift)
        np.testing.assert_allclose(got[0], sums[-1] if steps else np.zeros(3), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got[1], sums * np.arange(steps)[:, None], rtol=1e-5, atol=1e-5)


def test_carried_values_change_places(tmp_path: Path) -> None:
    """Fibonacci: (a, b) becomes (b, a + b)."""
    n, count = Var("n", tensor("int64")), symbol("u0", 0)
    a, b = Var("a", tensor("int64")), Var("b", tensor("int64"))
    body = Function((ITERATION, a, b), Tuple((b, ops.add(a, b), a)), "body")
    loop = Loop(body, count, None, (scalar(0, "int64"), scalar(1, "int64")), limit=count)
    known = ops.define_dims(n, dims=(count,))
    run = built(tmp_path, [n], ops.anchor(TupleGetItem(loop, 0), known), TupleGetItem(loop, 1), TupleGetItem(loop, 2))
    assert [each.tolist() for each in run(np.array(7))] == [13, 21, [0, 1, 1, 2, 3, 5, 8]]
    assert [each.tolist() for each in run(np.array(0))] == [0, 1, []]


def test_a_loop_ends_by_its_condition_and_carries_what_grows(tmp_path: Path) -> None:
    start, bound, trips, length = Var("x", tensor(F)), Var("bound", tensor(F)), symbol("u0", 0), symbol("u1", 1)
    x, grown, limit = Var("v", tensor(F)), Var("grown", tensor(F, length)), Var("limit", tensor(F))
    doubled = ops.multiply(x, scalar(2))
    longer = ops.concat(grown, ops.reshape(doubled, shape=(1,)), axis=0)
    body = Function((ITERATION, x, grown, limit), Tuple((ops.less(doubled, limit), doubled, longer, ops.negative(doubled))), "body")
    loop = Loop(body, trips, ops.less(start, bound), (start, ops.reshape(start, shape=(1,))), (), (bound,), limit=100)
    run = built(tmp_path, [start, bound], loop, ops.sum_(TupleGetItem(loop, 1), axes=(0,), keepdims=False))
    for first, last in ((1, 30), (1, 1000), (5, 5), (3, 4)):
        right = [np.float32(first)]
        while right[-1] < last:
            right.append(2 * right[-1])
        got = run(np.float32(first), np.float32(last))
        assert got[0] == right[-1]
        assert got[1].tolist() == right
        assert got[2].tolist() == [-each for each in right[1:]]
        assert got[3] == sum(right)


def test_loops_in_loops(tmp_path: Path) -> None:
    """A matrix of sums over pairs, and a branch inside the inner loop."""
    xs, ys = Var("xs", tensor(F, 4)), Var("ys", tensor(F, 3))
    x, y, x2, total = Var("x", tensor(F)), Var("y", tensor(F)), Var("x2", tensor(F)), Var("total", tensor(F))
    chosen = If(ops.less(x2, y), *branches(ops.add, ops.subtract, (x2, y)), (x2, y), x2.type)
    inner = Function((Var("j", ITERATION.type), total, y, x2), Tuple((ops.add(total, chosen), chosen)), "inner")
    all_ys = Var("all_ys", ys.type)
    row = Loop(inner, 3, None, (scalar(0),), (all_ys,), (x,), limit=3)
    outer = Function((ITERATION, x, all_ys), Tuple((TupleGetItem(row, 1), TupleGetItem(row, 0))), "outer")
    run = built(tmp_path, [xs, ys], Loop(outer, 4, None, (), (xs,), (ys,), limit=4))
    a, b = np.float32([1, 5, 2, 8]), np.float32([3, 1, 6])
    right = np.where(a[:, None] < b, a[:, None] + b, a[:, None] - b)
    got = run(a, b)
    np.testing.assert_array_equal(got[0], right)
    np.testing.assert_array_equal(got[1], right.sum(1))


def test_states_stay_from_run_to_run(tmp_path: Path) -> None:
    x, total, cache = Var("x", tensor(F, 2)), Var("total", tensor(F, 2)), Var("cache", tensor(F, 4, 2))
    at = Var("at", tensor("int64", 1))
    new_cache = ops.scatter_elements(
        cache, ops.broadcast_to(ops.reshape(at, shape=(1, 1)), shape=(1, 2)), ops.reshape(x, shape=(1, 2)), axis=0
    )
    states = {"total": Constant(np.float32([1, 1])), "cache": Constant(np.zeros((4, 2), F))}
    sums = ops.add(total, x)
    run = built(
        tmp_path, [x, at, total, cache], sums, new_cache, ops.sum_(new_cache, axes=(0,), keepdims=False), ops.multiply(total, x),
        states=states, names=("total", "cache", "rows", "product"),
    )  # fmt: skip
    right, rows = np.float32([1, 1]), np.zeros((4, 2), F)
    for step in range(5):
        given: Dim | np.ndarray = np.float32([step, step + 1])
        rows[step % 4] = given
        got = run(given, np.array([step % 4]))
        np.testing.assert_array_equal(got[0], rows.sum(0))
        np.testing.assert_array_equal(got[1], right * given)
        right = right + given
