"""Matrix products: types by table, values against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc import ops
from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.expr import Var
from aotc.ir.types import tensor

B, S = symbol("b", 1), symbol("s", 1)


def var(*shape: Any) -> Var:
    return Var("x", tensor("float32", *shape))


@pytest.mark.parametrize(
    "a,b,result",
    [
        ((2, 3), (3, 4), (2, 4)),
        ((3,), (3, 4), (4,)),
        ((2, 3), (3,), (2,)),
        ((3,), (3,), ()),
        ((5, 1, 2, 3), (4, 3, 6), (5, 4, 2, 6)),
        ((3,), (5, 3, 4), (5, 4)),
        ((5, 2, 3), (3,), (5, 2)),
        ((B, S, 8), (8, 4), (B, S, 4)),
        ((B, 2, S, 8), (B, 2, 8, S), (B, 2, S, S)),
        ((2, 0), (0, 3), (2, 3)),
        ((0, 2, 3), (3, 4), (0, 2, 4)),
    ],
)
def test_matmul(a: tuple[Any, ...], b: tuple[Any, ...], result: tuple[Any, ...]) -> None:
    assert ops.matmul(var(*a), var(*b)).type == tensor("float32", *result)
    if all(isinstance(dim, int) for dim in a + b):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=a).astype("float32"), rng.normal(size=b).astype("float32")
        got = ops.matmul.reference(None, x, y)
        assert got.shape == result
        np.testing.assert_allclose(got, np.matmul(x.astype("float64"), y.astype("float64")), rtol=1e-5, atol=1e-6)


def test_dense_and_packed_dense() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 3, 5)).astype("float32"), rng.normal(size=(6, 5)).astype("float32")
    want = np.einsum("abk,nk->abn", x, weight)
    np.testing.assert_allclose(ops.dense.reference(None, x, weight), want, rtol=1e-5)
    packed = np.pad(weight, ((0, 2), (0, 0))).reshape(2, 4, 5).transpose(0, 2, 1)
    call = ops.packed_dense(var(2, 3, 5), var(2, 5, 4), units=6)
    assert call.type == tensor("float32", 2, 3, 6)
    np.testing.assert_allclose(ops.packed_dense.reference(call.attrs, x, packed), want, rtol=1e-5)
    assert ops.dense(var(B, 5), var(6, 5)).type == tensor("float32", B, 6)


def test_float16_sums_in_float32() -> None:
    x = np.full((1, 4096), 1, "float16")
    assert ops.matmul.reference(None, x, x.T)[0, 0] == 4096
    assert ops.dense.reference(None, x, x)[0, 0] == 4096


@pytest.mark.parametrize(
    "build,message",
    [
        (lambda: ops.matmul(var(2, 3), var(4, 5)), r"the inner dims of \[2, 3\] and \[4, 5\] differ: 3 and 4"),
        (lambda: ops.matmul(var(2, B), var(S, 5)), "differ: b and s"),
        (lambda: ops.matmul(var(), var(3)), "rank 1 or more"),
        (lambda: ops.matmul(var(2, 4, 3), var(3, 3, 3)), "do not broadcast"),
        (lambda: ops.dense(var(2, 3), var(4, 5)), r"the last dim of x \[2, 3\] must be 5"),
        (lambda: ops.dense(var(2, 3), var(3)), r"\[units, inputs\], not \[3\]"),
        (lambda: ops.packed_dense(var(2, 3), var(2, 3, 4), units=9), "with 9 units"),
    ],
)
def test_errors(build: Any, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        build()
