"""Matrix products against numpy, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from aotc import ops, targets
from aotc.ir.dims import ceildiv, symbol
from aotc.ir.expr import Call, Var
from aotc.lowering.kernel import lower_function
from aotc.targets import Target
from aotc.targets.schedules import matmul, product_tiles
from tests.lowering.harness import Runner, function_of, var

RNG = np.random.default_rng(0)


def compiled(call: Call, *params: Var) -> Runner:
    function = function_of(call, *params)
    return Runner(function, lower_function(function, targets.get("host")))


def agrees(result: np.ndarray, reference: np.ndarray) -> None:
    assert result.shape == reference.shape
    assert np.abs(result - reference).max() <= 1e-5 * max(np.abs(reference).max(), 1e-30)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def packed(weight: np.ndarray, block: int) -> np.ndarray:
    """[N, K] to [ceil(N / block), K, block]."""
    units, inputs = weight.shape
    full = np.zeros((-(-units // block) * block, inputs), np.float32)
    full[:units] = weight
    return np.ascontiguousarray(full.reshape(-1, block, inputs).transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 7), (7, 9)),
        ((1, 16), (16, 8)),
        ((33, 12), (12, 40)),
        ((130, 8), (8, 17)),
        ((2, 3, 20, 8), (2, 3, 8, 20)),
        ((2, 1, 6, 8), (3, 8, 24)),
        ((6, 8), (4, 8, 24)),
        ((4, 6, 8), (8, 24)),
        ((4, 5, 3), (1, 3, 1)),
        ((8,), (8, 3)),
        ((4, 8), (8,)),
        ((8,), (8,)),
        ((2, 4, 8), (8,)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = random(*a), random(*b)
    x, y = var("a", "float32", *a), var("b", "float32", *b)
    (result,) = compiled(ops.matmul(x, y), x, y)(left, right)
    agrees(result, left.astype(np.float64) @ right.astype(np.float64))


@pytest.fixture(scope="module")
def attention() -> tuple[Runner, Runner]:
    """Scores and their use on values, for any batch and sequence: two kernels for all sizes."""
    batch, sequence = symbol("b", 1), symbol("s", 1)
    q, k = var("q", "float32", batch, 2, sequence, 8), var("k", "float32", batch, 2, 8, sequence)
    p, v = var("p", "float32", batch, 2, sequence, sequence), var("v", "float32", batch, 2, sequence, 8)
    return compiled(ops.matmul(q, k), q, k), compiled(ops.matmul(p, v), p, v)


@pytest.mark.parametrize(("batch", "sequence"), [(1, 1), (2, 3), (1, 8), (3, 16), (2, 31), (1, 100)])
def test_attention_of_any_size(attention: tuple[Runner, Runner], batch: int, sequence: int) -> None:
    symbols = {"b": batch, "s": sequence}
    q, k, v = random(batch, 2, sequence, 8), random(batch, 2, 8, sequence), random(batch, 2, sequence, 8)
    scores, mix = attention
    (result,) = scores(q, k, symbols=symbols)
    agrees(result, q.astype(np.float64) @ k)
    (mixed,) = mix(result, v, symbols=symbols)
    agrees(mixed, result.astype(np.float64) @ v)


@pytest.mark.parametrize(
    ("rows", "inputs", "units", "block"), [(1, 32, 40, 8), (1, 7, 3, 8), (13, 20, 33, 8), (100, 16, 16, 16), (6, 9, 24, 4)]
)
def test_packed_dense(rows: int, inputs: int, units: int, block: int) -> None:
    data, weight, bias = random(rows, inputs), random(units, inputs), random(units)
    x, b = var("x", "float32", rows, inputs), var("b", "float32", units)
    w = var("w", "float32", ceildiv(units, block), inputs, block)
    runner = compiled(ops.relu(ops.add(ops.packed_dense(x, w, units=units), b)), x, w, b)
    assert len(runner.lowered.kernels) == 1
    (result,) = runner(data, packed(weight, block), bias)
    agrees(result, np.maximum(data.astype(np.float64) @ weight.T + bias, 0))


@pytest.mark.parametrize("batch", [1, 3, 5])
@pytest.mark.parametrize("sequence", [1, 6, 41])
def test_dense_of_any_rows(symbolic_dense: Runner, batch: int, sequence: int) -> None:
    data, weight = random(batch, sequence, 12), random(20, 12)
    (result,) = symbolic_dense(data, packed(weight, 8), symbols={"b": batch, "s": sequence})
    agrees(result, data.astype(np.float64) @ weight.T)


@pytest.fixture(scope="module")
def symbolic_dense() -> Runner:
    x, w = var("x", "float32", symbol("b", 1), symbol("s", 1), 12), var("w", "float32", 3, 12, 8)
    return compiled(ops.packed_dense(x, w, units=20), x, w)


@pytest.mark.parametrize(("inputs", "block"), [(1000, 16), (3000, 8)])
def test_a_panel_larger_than_the_cache(inputs: int, block: int) -> None:
    """Steps in parts, whose sums wait in scratch; operands beyond the sums may stand where the result goes."""
    data, weight, other = random(150, inputs), random(40, inputs), random(150, 40)
    x, w = var("x", "float32", 150, inputs), var("w", "float32", ceildiv(40, block), inputs, block)
    y = var("y", "float32", 150, 40)
    target = replace(targets.get("host"), l1_bytes=32 << 10)
    function = function_of(ops.add(ops.packed_dense(x, w, units=40), y), x, w, y)
    lowered = lower_function(function, target)
    assert lowered.scratch
    (result,) = Runner(function, lowered)(data, packed(weight, block), other)
    agrees(result, data.astype(np.float64) @ weight.T + other)


def test_dense_with_a_computed_weight() -> None:
    data, weight = random(2, 9, 12), random(20, 12)
    x, w = var("x", "float32", 2, 9, 12), var("w", "float32", 20, 12)
    (result,) = compiled(ops.dense(x, w), x, w)(data, weight)
    agrees(result, data.astype(np.float64) @ weight.T)


@pytest.fixture(scope="module")
def by_element() -> Iterator[Target]:
    """This machine with short vectors that can be multiplied by one element of another, as far as code is written."""
    patch = pytest.MonkeyPatch()
    for module in (matmul, product_tiles):
        patch.setattr(module, "by_element", lambda target, dtype: dtype == "float32")
    yield replace(targets.get("host"), vector_bits=128, vector_registers=32)
    patch.undo()


@pytest.mark.parametrize(
    ("rows", "inputs", "units"), [(23, 20, 130), (50, 8, 128), (30, 11, 128), (12, 7, 128), (128, 16, 136), (5, 33, 40), (1, 9, 50)]
)
def test_left_elements_from_vectors(by_element: Target, rows: int, inputs: int, units: int) -> None:
    data, weight = random(2, rows, inputs), random(2, inputs, units)
    x, y = var("x", "float32", 2, rows, inputs), var("y", "float32", 2, inputs, units)
    function = function_of(ops.matmul(x, y), x, y)
    (result,) = Runner(function, lower_function(function, by_element))(data, weight)
    agrees(result, data.astype(np.float64) @ weight)


def test_left_elements_from_vectors_of_any_size(by_element: Target) -> None:
    batch, rows, inputs, units = (symbol(name, 1) for name in "bmkn")
    x, y = var("x", "float32", batch, rows, inputs), var("y", "float32", batch, inputs, units)
    function = function_of(ops.matmul(x, y), x, y)
    runner = Runner(function, lower_function(function, by_element))
    for b, m, k, n in [(1, 1, 1, 1), (2, 19, 5, 9), (3, 12, 8, 64), (1, 40, 13, 33)]:
        data, weight = random(b, m, k), random(b, k, n)
        (result,) = runner(data, weight, symbols={"b": b, "m": m, "k": k, "n": n})
        agrees(result, data.astype(np.float64) @ weight)


def test_integers_are_exact() -> None:
    left, right = RNG.integers(-99, 99, (9, 50)).astype(np.int32), RNG.integers(-99, 99, (50, 11)).astype(np.int32)
    x, y = var("a", "int32", 9, 50), var("b", "int32", 50, 11)
    (result,) = compiled(ops.matmul(x, y), x, y)(left, right)
    np.testing.assert_array_equal(result, left @ right)
