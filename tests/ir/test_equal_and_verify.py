"""Equality names the first difference; the verifier names the user's node."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops
from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.equal import equal, first_difference
from aotc.ir.expr import Call, Constant, Expr, Function, If, Let, Module, Parameter, Tuple, TupleGetItem, Var, call
from aotc.ir.types import TensorType, tensor
from aotc.ir.verify import verify, verify_fused


def one(body: Expr, *params: Var, names: tuple[str, ...] = ("y",)) -> Module:
    return Module({"main": Function(params, body, "main")}, {"main": names})


def build(alpha: float = 0.5, value: float = 1.0, origin: str = "act", share: bool = True, name: str = "w") -> Module:
    x = Var("x", tensor("float32", 2, 3))
    w = Parameter(name, np.array([1, 2, value], "float32"))
    a = ops.leaky_relu(ops.multiply(x, w), alpha=alpha, origin=origin)
    b = a if share else ops.leaky_relu(a.args[0], alpha=alpha, origin=origin)
    return one(ops.add(a, b), x)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (build(alpha=0.25), r"main: node %1 \(act\): attributes  \{alpha=0.5\} in the first,  \{alpha=0.25\} in the second"),
        (build(value=3.0), r"main: node \$w: data differs first at element 2: 1.0 in the first, 3.0 in the second"),
        (build(origin="other"), r"main: node %1 \(act\): origin act in the first, other in the second"),
        (build(share=False), r"main: node %1 / %2 \(act\): shared with other uses in one, a node of its own in the other"),
        (build(name="v"), r"main: node \$w / \$v: name w in the first, v in the second"),
    ],
)
def test_first_differences(other: Module, message: str) -> None:
    import re

    found = first_difference(build(), other)
    assert found is not None and re.search(message, found), found
    assert not equal(build(), other)


def test_equal_modules() -> None:
    assert equal(build(), build())
    assert equal(build(origin="a"), build(origin="b"), origins=False)


def test_differences_of_modules() -> None:
    x = Var("x", tensor("float32", 2))
    base = one(ops.relu(x), x)
    assert first_difference(base, one(ops.exp(x), x)) == "main: node %0: operator relu in the first, exp in the second"
    assert "output names" in str(first_difference(base, one(ops.relu(x), x, names=("z",))))
    assert "metadata" in str(first_difference(base, Module(base.functions, base.output_names, {"a": "b"})))
    n, m = (Var("x", tensor("float32", symbol("n", low))) for low in (0, 1))
    assert "bounds of symbols" in str(first_difference(one(ops.relu(n), n), one(ops.relu(m), m)))
    constant = [one(Constant(np.array(v, "float32"))) for v in (0.0, -0.0)]
    assert "bits of a NaN or zero" in str(first_difference(*constant))


def test_differences_inside_called_functions() -> None:
    def module(op: object) -> Module:
        p, x = Var("p0", tensor("float32", 2)), Var("x", tensor("float32", 2))
        return one(call(Function((p,), op(p), "f", primitive=True), [x]), x)  # type: ignore[operator]

    assert first_difference(module(ops.relu), module(ops.relu)) is None
    assert first_difference(module(ops.relu), module(ops.exp)) == "f: node %0: operator relu in the first, exp in the second"


X = Var("x", tensor("float32", 2, 3))
N = symbol("n")


def broken_type() -> Module:
    return one(Call(ops.relu, (X,), ops.relu.attributes(), TensorType((2, 4), "float32"), "layer1"), X)


def free_variable() -> Module:
    return one(ops.add(X, Var("z", X.type, "stray")), X)


def twice_bound() -> Module:
    v = Var("x", X.type)
    return one(Let(v, X, ops.relu(v)), X)


def missing_output_name() -> Module:
    return one(Tuple((X, X)), X)


def two_parameters() -> Module:
    a, b = (Parameter("w", np.full(3, value, "float32")) for value in (1, 2))
    return one(ops.add(ops.add(X, a), b), X)


def undefined_dim() -> Module:
    return one(ops.full(shape=(N,), value=0.0, dtype="float32", origin="made"), X)


def two_bounds() -> Module:
    a, b = Var("a", tensor("float32", symbol("n", 1, 4))), Var("b", tensor("float32", symbol("n", 1, 8)))
    return one(ops.add(a, b), a, b)


def nested_primitive() -> Module:
    p, q = Var("p", X.type), Var("q", X.type)
    inner = Function((p,), ops.relu(p), "inner", primitive=True)
    return one(call(Function((q,), call(inner, [q], origin="deep"), "outer", primitive=True), [X]), X)


def weight_inside_primitive() -> Module:
    p = Var("p", X.type)
    return one(call(Function((p,), ops.add(p, Parameter("w", np.ones(3, "float32"), "fc")), "f", primitive=True), [X]), X)


def empty_primitive() -> Module:
    p = Var("p", X.type)
    return one(call(Function((p,), p, "f", primitive=True), [X]), X)


def captured() -> Module:
    p = Var("p", X.type)
    return one(call(Function((p,), ops.add(p, X), "f"), [X]), X)


def wrong_let() -> Module:
    v = Var("v", tensor("float32", 9))
    return one(Let(v, X, X, origin="here"), X)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (broken_type, r"main: relu \(from 'layer1'\) has the type float32\[2, 4\], while its operands give float32\[2, 3\]"),
        (free_variable, r"main: the variable 'z' \(from 'stray'\) is used and bound nowhere"),
        (twice_bound, "main: the variable 'x' is bound twice"),
        (missing_output_name, r"main: has 2 outputs and the names \('y',\)"),
        (two_parameters, "main: two different parameters are named 'w'"),
        (undefined_dim, r"main: full \(from 'made'\) needs the dim n, which no dim of an input determines"),
        (two_bounds, "main: the dim n has other bounds in the input 'b' than before"),
        (nested_primitive, r"outer: a primitive function holds operator calls, variables and scalars, not Call \(from 'deep'\)"),
        (weight_inside_primitive, r"f: a primitive function holds .*, not Parameter \(from 'fc'\)"),
        (empty_primitive, "f: a primitive function must compute something"),
        (captured, "f: the variable 'x' is used and bound nowhere"),
        (wrong_let, r"main: let 'v' \(from 'here'\) binds float32\[2, 3\] to a variable of type float32\[9\]"),
    ],
)
def test_broken_modules(build: object, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        verify(build())  # type: ignore[operator]


def test_sound_modules() -> None:
    verify(one(ops.relu(X), X))
    m = Var("m", tensor("float32", 32 * N + 1))
    verify(one(ops.full(shape=(N,), value=0.0, dtype="float32"), m))
    a, b = Var("a", X.type), Var("b", X.type)
    verify(one(If(Constant(np.array(True)), Function((a,), a), Function((b,), ops.relu(b)), (X,), X.type), X))
    verify(one(TupleGetItem(ops.top_k(X, k=1, axis=1, largest=True, sorted=True), 1), X))


def test_fused_modules_hold_primitive_calls_only() -> None:
    with pytest.raises(InvalidModel, match=r"main: relu \(from 'a'\) was not fused into a primitive function"):
        verify_fused(one(ops.relu(X, origin="a"), X))
