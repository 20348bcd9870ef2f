"""Pattern rules, and modules with extra outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Function, If, Let, Module, Parameter, Tuple, TupleGetItem, Var
from aotc.ir.patterns import any_of, rule
from aotc.ir.tap import last_of_each_origin, tap
from aotc.ir.types import tensor
from aotc.ir.verify import verify
from aotc.ir.visitor import rewrite
from aotc.ops.interpret import interpret

X = Var("x", tensor("float32", 4))
Y = Var("y", tensor("float32", 4))


def number(value: float, dtype: str = "float32") -> Constant:
    return Constant(np.array(value, dtype))


SILU = rule(lambda op, x: op.multiply(x, op.sigmoid(x)), lambda root, x: ops.silu(x, origin=root.origin))


def test_both_orders_of_a_commutative_operator() -> None:
    for made in (ops.multiply(X, ops.sigmoid(X), origin="o"), ops.multiply(ops.sigmoid(X), X, origin="o")):
        result = SILU(made)
        assert isinstance(result, Call) and result.op is ops.silu and result.args == (X,) and result.origin == "o"


def test_one_variable_is_one_expression() -> None:
    assert SILU(ops.multiply(X, ops.sigmoid(Y))) is None
    assert SILU(ops.relu(X)) is None


def test_orders_are_tried_inside_too() -> None:
    """The first order of the outer product binds x wrongly; only the second one fits."""
    found = rule(lambda op, x, y: op.multiply(op.add(x, y), op.exp(x)), lambda x, y: Tuple((x, y)))
    result = found(ops.multiply(ops.add(X, Y), ops.exp(Y)))
    assert isinstance(result, Tuple) and result.fields == (Y, X)


def test_numbers_and_attributes() -> None:
    found = rule(lambda op, x: op.sum(op.multiply(x, 0.5), keepdims=True), lambda x: x)
    kept = {"axes": (0,), "keepdims": True}
    assert found(ops.sum_(ops.multiply(X, number(0.5)), **kept)) is X
    assert found(ops.sum_(ops.multiply(X, Parameter("h", np.array([0.5], "float32"))), **kept)) is X
    assert found(ops.sum_(ops.multiply(X, number(0.6)), **kept)) is None
    assert found(ops.sum_(ops.multiply(X, number(0.5)), axes=(0,))) is None


def test_named_operations_and_declining() -> None:
    def decline(root: Expr, x: Expr, inner: Call) -> Expr | None:
        return x if inner.attrs.alpha == 2.0 else None  # type: ignore[attr-defined]

    found = rule(lambda op, x: op.relu(op.elu(x).named("inner")), decline)
    assert found(ops.relu(ops.elu(X, alpha=2.0))) is X
    assert found(ops.relu(ops.elu(X, alpha=1.0))) is None


def test_a_rewrite_may_only_ask_for_what_the_pattern_names() -> None:
    with pytest.raises(TypeError, match=r"takes \['z'\], which"):
        rule(lambda op, x: op.relu(x), lambda x, z: x)


def test_rules_on_a_graph() -> None:
    double = rule(lambda op, x: op.add(x, x), lambda root, x: ops.multiply(x, number(2)))
    body: Any = ops.relu(ops.add(ops.multiply(X, ops.sigmoid(X)), ops.multiply(X, ops.sigmoid(X))))
    result = rewrite(body, any_of([SILU, double]))
    names = [node.op.name for node in (result, *result.args, *result.args[0].args) if isinstance(node, Call)]  # type: ignore[union-attr]
    assert names == ["relu", "add", "silu", "silu"]
    assert rewrite(X, any_of([SILU])) is X


# tap


def run(module: Module, *arrays: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(module.output_names["main"], interpret(module.main, arrays), strict=True))


def test_intermediates_become_outputs() -> None:
    a = ops.relu(X, origin="a")
    b = ops.exp(a, origin="b")
    module = Module({"main": Function((X,), ops.add(a, b, origin="sum"), "main")}, {"main": ("y",)})
    tapped = tap(module)
    verify(tapped.module)
    assert tapped.names == ("a", "b", "sum") and tapped.taps == (a, b, module.main.body)
    x = np.array([-1, 0, 1, 2], "float32")
    found = run(tapped.module, x)
    assert list(found) == ["y", "a", "b", "sum"]
    np.testing.assert_array_equal(found["a"], np.maximum(x, 0))
    np.testing.assert_allclose(found["b"], np.exp(np.maximum(x, 0)))
    np.testing.assert_array_equal(found["y"], found["sum"])


def test_choice_names_and_tuples() -> None:
    top = ops.top_k(X, k=2, axis=0, largest=True, sorted=True, origin="y")
    module = Module({"main": Function((X,), TupleGetItem(top, 0), "main")}, {"main": ("y",)})
    tapped = tap(module, lambda node: node is top)
    verify(tapped.module)
    assert tapped.names == ("y.0", "y.1")
    assert tap(module, lambda node: False).module is module


def test_what_cannot_be_seen_from_outside_is_left_out() -> None:
    v = Var("v", X.type)
    inside = ops.relu(v, origin="inside")
    a, b = Var("a", X.type), Var("b", X.type)
    branch, other = Function((a,), ops.exp(a, origin="branch")), Function((b,), b)
    always = ops.negative(X, origin="always")
    condition = ops.all_(ops.greater(X, number(0)), axes=(0,), keepdims=False, origin="condition")
    body = ops.add(Let(v, X, inside), If(condition, branch, other, (always,), X.type), origin="end")
    module = Module({"main": Function((X,), ops.add(body, always), "main")}, {"main": ("y",)})
    tapped = tap(module)
    verify(tapped.module)
    assert set(tapped.names) == {"greater", "condition", "always", "end", "add"}


def test_last_of_each_origin() -> None:
    a = ops.relu(X, origin="layer")
    b = ops.exp(a, origin="layer")
    assert last_of_each_origin(Function((X,), ops.add(b, a), "main")) == {"layer": b}
