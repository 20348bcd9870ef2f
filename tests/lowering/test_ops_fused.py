"""Fused functions through the schedule that always applies: any graph of operators must come out right, whatever fusion does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from aotc import ops, targets
from aotc.ir.dims import Dim, symbol
from aotc.ir.expr import Constant, Expr, Function, Tuple, TupleGetItem, Var
from aotc.ir.types import TensorType
from aotc.lowering.kernel import lower_function
from aotc.ops.interpret import interpret
from tests.lowering.harness import Runner

B, S = symbol("b", 1), symbol("s", 1)


def scalar(value: float) -> Constant:
    return Constant(np.asarray(value, "float32"))


def gelu_by_hand(x: Expr) -> Expr:
    """As exporters write it: x is used twice, and again, and again."""
    return ops.multiply(ops.multiply(x, scalar(0.5)), ops.add(ops.erf(ops.multiply(x, scalar(0.7071))), scalar(1.0)))


def attention_scores(q: Expr, k: Expr, mask: Expr) -> Expr:
    return ops.softmax(ops.add(ops.multiply(ops.matmul(q, k), scalar(0.25)), mask))


def residual_norm(x: Expr, y: Expr, gamma: Expr, beta: Expr) -> Expr:
    return ops.layer_norm(ops.add(x, y), gamma, beta)


def two_outputs(x: Expr, y: Expr) -> Expr:
    total = ops.add(x, y)
    return Tuple((ops.relu(total), ops.mean(ops.exp(total), axes=(1,)), total))


def many_activations(x: Expr) -> Expr:
    for function in (ops.mish, ops.silu, ops.gelu, ops.softplus, ops.tanh, ops.mish):
        x = function(x)
    return x


def moved(x: Expr) -> Expr:
    y = ops.transpose(ops.reshape(ops.relu(x), shape=(4, 3, 40)), axes=(1, 0, 2))
    return ops.sum_(ops.multiply(y, y), axes=(1,))


def sorted_and_more(x: Expr) -> Expr:
    top = ops.top_k(ops.abs_(x), k=3)
    return Tuple((ops.negative(TupleGetItem(top, 0)), TupleGetItem(top, 1)))


def concat_of_many(x: Expr, y: Expr) -> Expr:
    joined = ops.concat(ops.relu(x), ops.multiply(y, scalar(2.0)), ops.slice_(x, begins=(0, 0), ends=(12, 5), steps=(1, 1)), axis=1)
    return ops.add(joined, scalar(1.0))


def reduced_twice(x: Expr) -> Expr:
    """Mean of mean; and a reduction of a reduction's broadcast."""
    mean = ops.mean(x, axes=(1,), keepdims=True)
    centred = ops.subtract(x, mean)
    return ops.mean(ops.max_(ops.multiply(centred, centred), axes=(1,)), axes=(0,))


def cast_then_argmax(x: Expr) -> Expr:
    whole = ops.cast(ops.multiply(x, scalar(9.0)), dtype="int64")
    return ops.argmax(ops.cast(whole, dtype="int32"), axis=1)


GRAPHS: list[tuple[str, Callable[..., Expr], Sequence[tuple[Dim, ...]]]] = [
    ("gelu", gelu_by_hand, [(7, 33)]),
    ("scores", attention_scores, [(2, 5, 16), (2, 16, 9), (2, 1, 9)]),
    ("residual_norm", residual_norm, [(3, 5, 48), (3, 5, 48), (48,), (48,)]),
    ("two_outputs", two_outputs, [(6, 40), (40,)]),
    ("many_activations", many_activations, [(4, 37)]),
    ("moved", moved, [(12, 40)]),
    ("sorted", sorted_and_more, [(5, 20)]),
    ("concat", concat_of_many, [(12, 9), (12, 700)]),
    ("reduced_twice", reduced_twice, [(6, 6)]),
    ("cast_then_argmax", cast_then_argmax, [(6, 40)]),
    ("symbolic gelu", gelu_by_hand, [(B, S)]),
    ("symbolic scores", attention_scores, [(B, S, 16), (B, 16, S), (B, 1, S)]),
    ("symbolic residual_norm", residual_norm, [(B, S, 48), (B, S, 48), (48,), (48,)]),
    ("symbolic two_outputs", two_outputs, [(B, S), (S,)]),
]


@pytest.mark.parametrize("name,graph,shapes", GRAPHS, ids=[row[0] for row in GRAPHS])
def test_graph(name: str, graph: Callable[..., Expr], shapes: Sequence[tuple[Any, ...]]) -> None:
    params = tuple(Var(f"x{i}", TensorType(shape, "float32")) for i, shape in enumerate(shapes))
    function = Function(params, graph(*params), name, primitive=True)
    began = time.process_time()
    runner = Runner(function, lower_function(function, targets.get("host")))
    assert time.process_time() - began < 15  # named values once made this grow exponentially
    for known in [{"b": 1, "s": 1}, {"b": 3, "s": 17}] if "symbolic" in name else [{}]:
        rng = np.random.default_rng(0)
        sizes = [[dim if isinstance(dim, int) else known[str(dim)] for dim in shape] for shape in shapes]
        arrays = [rng.normal(size=size).astype("float32") for size in sizes]
        want = interpret(function, arrays)
        for workers in (1, 3):
            for have, expected in zip(runner(*arrays, symbols=known, workers=workers), want, strict=True):
                np.testing.assert_allclose(have, expected, rtol=2e-5, atol=2e-6)
