"""Results written over an argument: only where the argument's memory is free and every element is written once."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops, targets
from aotc.ir.dims import evaluate, symbol
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Tuple, Var, call
from aotc.ir.types import TensorType, tensor
from aotc.lowering.in_place import choose_in_place, is_aligned
from aotc.lowering.kernel import lower_function
from tests.lowering.harness import Runner


def fused(*args: Expr, build: ops.OpDef, **attrs: object) -> Call:
    params = tuple(Var(f"p{i}", arg.type) for i, arg in enumerate(args))
    return call(Function(params, build(*params, **attrs), build.name, primitive=True), args)


def chosen(x: Var, body: Expr) -> dict[str, int]:
    names = tuple(f"y{i}" for i in range(len(body.fields) if isinstance(body, Tuple) else 1))
    module = Module({"main": Function((x,), body)}, {"main": names})
    return {function.name: index for function, index in choose_in_place(module).items()}


X = Var("x", tensor("float32", 4, 6))


def test_the_last_reader_overwrites() -> None:
    a = fused(X, build=ops.exp)
    b = fused(a, build=ops.sqrt)
    assert chosen(X, fused(b, build=ops.relu)) == {"sqrt": 0}


def test_inputs_weights_and_results_are_not_overwritten() -> None:
    a = fused(X, build=ops.exp)
    b = fused(a, build=ops.sqrt)
    c = fused(b, Constant(np.ones((4, 6), np.float32)), build=ops.add)
    assert chosen(X, Tuple((a, c, fused(X, build=ops.relu)))) == {}


def test_memory_that_is_read_later_through_a_view_is_kept() -> None:
    a = fused(X, build=ops.exp)
    view = fused(a, build=ops.reshape, shape=(24,))
    b = fused(fused(a, build=ops.sqrt), build=ops.reshape, shape=(24,))
    assert chosen(X, fused(fused(b, view, build=ops.add), build=ops.relu)) == {"add": 0}


def test_an_argument_that_comes_twice_is_kept() -> None:
    a = fused(X, build=ops.exp)
    assert chosen(X, fused(fused(a, a, build=ops.add), build=ops.relu)) == {}


@pytest.mark.parametrize(
    "body", [lambda p: ops.softmax(p, axis=1), lambda p: ops.transpose(p, axes=(1, 0)), lambda p: ops.add(p, ops.sum_(p, axes=(0, 1)))]
)
def test_only_elementwise_work_is_aligned(body: object) -> None:
    p = Var("p", tensor("float32", 4, 4))
    assert not is_aligned(Function((p,), body(p), primitive=True), 0)  # type: ignore[operator]


def test_a_broadcast_argument_is_not_aligned() -> None:
    p, q = Var("p", tensor("float32", 4, 4)), Var("q", tensor("float32", 4))
    function = Function((p, q), ops.add(p, q), primitive=True)
    assert is_aligned(function, 0) and not is_aligned(function, 1)


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_the_kernel_writes_over_its_argument(rows: int) -> None:
    """The same numbers as numpy, with one pointer for argument and result, in pieces and for odd sizes."""
    shape = (symbol("n", 1), 13)
    p, q = Var("p", TensorType(shape, "float32")), Var("q", TensorType(shape, "float32"))
    function = Function((p, q), ops.relu(ops.subtract(ops.multiply(p, q), ops.exp(q))), primitive=True)
    lowered = lower_function(function, targets.get("host"), in_place=1)
    (kernel,) = lowered.kernels
    assert kernel.operands == (("input", 0), ("output", 0))
    rng = np.random.default_rng(rows)
    a, b = (rng.standard_normal((rows, 13)).astype(np.float32) for _ in range(2))
    runner, values = Runner(function, lowered), {"n": rows}
    memory = runner.memory([a, b], values)
    memory["output"] = [memory["input"][1]]
    runner.call(kernel, memory, values, 0, evaluate(kernel.tasks, values))
    np.testing.assert_allclose(memory["output"][0], np.maximum(a * b - np.exp(b), 0), rtol=1e-6, atol=1e-6)
