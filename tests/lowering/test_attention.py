"""Attention against its numpy reference, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from aotc import ops, targets
from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.lowering.kernel import lower_function
from aotc.ops.attention import TOKENS_FIRST
from aotc.targets import Target
from aotc.targets.schedules import attention as schedule
from tests.lowering.harness import Runner, function_of, var

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", params=["broadcasts", "by element"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """This machine; and as far as code is written, one with short vectors that can be multiplied by one element of another."""
    host = targets.get("host")
    if request.param == "broadcasts":
        yield host
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "by_element", lambda target, dtype: dtype == "float32")
        yield replace(host, vector_bits=128, vector_registers=32)


def agrees(result: np.ndarray, attrs: object, *arrays: np.ndarray) -> None:
    wide = [array if array.dtype == bool else array.astype(np.float64) for array in arrays]
    reference = ops.attention.reference(attrs, *wide)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(reference))
    assert result.shape == reference.shape
    assert np.nanmax(np.abs(result - reference)) <= 1e-5 * max(np.nanmax(np.abs(reference)), 1e-30)


def stored(x: np.ndarray, tokens_first: int) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(TOKENS_FIRST)) if tokens_first else x


@pytest.mark.parametrize(
    ("heads", "rows", "keys", "width", "values", "mask", "tokens_first"),
    [
        (2, 24, 40, 8, 8, None, (1, 1, 1, 1)),
        (3, 29, 13, 20, 12, (1, 1, 1, 13), (1, 0, 1, 0)),
        (2, 7, 33, 16, 40, (2, 2, 7, 33), (0, 1, 0, 1)),
    ],
)
def test_attention(
    target: Target, heads: int, rows: int, keys: int, width: int, values: int, mask: tuple[int, ...] | None, tokens_first: tuple[int, ...]
) -> None:
    q, k, v = (RNG.standard_normal((2, heads, n, w), np.float32) for n, w in ((rows, width), (keys, width), (keys, values)))
    arrays = [stored(x, flag) for x, flag in zip((q, k, v), tokens_first, strict=False)]
    if mask is not None:
        arrays.append(RNG.standard_normal(mask, np.float32))
    params = [var(f"p{i}", "float32", *array.shape) for i, array in enumerate(arrays)]
    call = ops.attention(*params, scale=0.7, tokens_first=tokens_first)
    function = function_of(call, *params)
    (result,) = Runner(function, lower_function(function, target))(*arrays)
    agrees(result, call.attrs, *arrays)


@pytest.fixture(scope="module")
def any_size(target: Target) -> Runner:
    """Any batch and lengths, and a mask of truth values for each row."""
    batch, rows, keys = symbol("b", 1), symbol("s", 1), symbol("t", 1)
    q, k = var("q", "float32", batch, rows, 2, 12), var("k", "float32", batch, keys, 2, 12)
    v, m = var("v", "float32", batch, keys, 2, 20), var("m", "bool", batch, 1, rows, keys)
    call = ops.attention(q, k, v, m, scale=0.3, tokens_first=(1, 1, 1, 1), zero_rows=True)
    function = function_of(call, q, k, v, m)
    return Runner(function, lower_function(function, target))


@pytest.mark.parametrize(("batch", "rows", "keys"), [(1, 1, 1), (2, 3, 50), (3, 12, 8), (1, 16, 16), (2, 37, 31), (5, 100, 9)])
def test_attention_of_any_size(any_size: Runner, batch: int, rows: int, keys: int) -> None:
    q, k, v = (RNG.standard_normal((batch, n, 2, w), np.float32) for n, w in ((rows, 12), (keys, 12), (keys, 20)))
    mask = RNG.random((batch, 1, rows, keys)) < 0.7
    mask[0, 0, 0] = False
    (result,) = any_size(q, k, v, mask, symbols={"b": batch, "s": rows, "t": keys})
    assert not result[0, 0].any()
    agrees(result, any_size.function.body.attrs, q, k, v, mask)


def test_what_is_not_finite(target: Target) -> None:
    """A NaN stays in its rows; minus infinity hides a key; a row that sees nothing is NaN."""
    q, k, v = (RNG.standard_normal((1, 1, 9, 8), np.float32) for _ in range(3))
    q[0, 0, 3, 2] = np.nan
    mask = np.zeros((9, 9), np.float32)
    mask[5] = -np.inf
    mask[:, 4] = -np.inf
    v[0, 0, 4] = 1e30
    params = [var("q", "float32", 1, 1, 9, 8), var("k", "float32", 1, 1, 9, 8), var("v", "float32", 1, 1, 9, 8), var("m", "float32", 9, 9)]
    call = ops.attention(*params)
    function = function_of(call, *params)
    (result,) = Runner(function, lower_function(function, target))(q, k, v, mask)
    agrees(result, call.attrs, q, k, v, mask)
    assert np.isnan(result[0, 0, [3, 5]]).all()


def test_no_tensor_holds_all_scores() -> None:
    """Scratch grows with the keys, not with rows times keys."""
    params = [var(name, "float32", 1, 4, 1000, 8) for name in "qkv"]
    function = function_of(ops.attention(*params), *params)
    lowered = lower_function(function, targets.get("host"))
    assert len(lowered.kernels) == 1
    assert sum(tensor.size for tensor in lowered.scratch) < 4 * 1000 * 1000 / 8  # type: ignore[operator]


def test_shapes_that_do_not_fit() -> None:
    q, k = var("q", "float32", 1, 2, 5, 8), var("k", "float32", 1, 2, 6, 8)
    for wrong in [(q, k, q), (q, var("k", "float32", 1, 3, 5, 8), k), (q, k, k, var("m", "float32", 5, 5))]:
        with pytest.raises(InvalidModel):
            ops.attention(*wrong)
