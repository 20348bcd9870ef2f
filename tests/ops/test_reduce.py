"""Reductions and row operators: types by table, values against numpy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aotc import ops
from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.expr import Var
from aotc.ir.types import TupleType, tensor
from aotc.ops.base import OpDef

B, S = symbol("b", 1), symbol("s", 1)


def var(dtype: str, *shape: Any) -> Var:
    return Var("x", tensor(dtype, *shape))


REDUCTIONS: list[tuple[OpDef, Any, str]] = [
    (ops.sum_, np.sum, "float32"), (ops.sum_, np.sum, "int32"), (ops.mean, np.mean, "float32"), (ops.prod, np.prod, "float64"),
    (ops.max_, np.max, "float32"), (ops.max_, np.max, "uint8"), (ops.max_, np.max, "int64"), (ops.min_, np.min, "int8"),
    (ops.all_, np.all, "bool"), (ops.any_, np.any, "bool"),
]  # fmt: skip


@pytest.mark.parametrize("operator,expected,dtype", REDUCTIONS, ids=[f"{row[0].name}-{row[2]}" for row in REDUCTIONS])
@pytest.mark.parametrize("axes", [(), (0,), (1, 2), (-1,), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(operator: OpDef, expected: Any, dtype: str, axes: tuple[int, ...], keepdims: bool) -> None:
    x = np.random.default_rng(0).integers(0, 3, (2, 3, 4)).astype(dtype)
    call = operator(var(dtype, 2, 3, 4), axes=axes, keepdims=keepdims)
    want = expected(x, axis=axes, keepdims=keepdims)
    got = operator.reference(call.attrs, x)
    assert call.type == tensor(dtype, *want.shape) and str(got.dtype) == dtype
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_nothing_reduced_gives_the_neutral_element() -> None:
    x = np.zeros((2, 0, 3), "float32")
    reduce = {op.name: op.reference(op.attributes(axes=(1,)), x) for op in (ops.sum_, ops.prod, ops.mean, ops.max_, ops.min_)}
    assert all(value.shape == (2, 3) for value in reduce.values())
    assert (reduce["sum"] == 0).all() and (reduce["prod"] == 1).all() and np.isnan(reduce["mean"]).all()
    assert (reduce["max"] == -np.inf).all() and (reduce["min"] == np.inf).all()
    assert (ops.max_.reference(ops.max_.attributes(axes=(0,)), np.zeros((0, 2), "int8")) == -128).all()


def test_float16_sums_in_float32_and_nan_spreads() -> None:
    assert ops.sum_.reference(ops.sum_.attributes(axes=(0,)), np.ones(4096, "float16")) == 4096
    assert ops.mean.reference(ops.mean.attributes(axes=(0,)), np.full(70000, 2, "float16")) == 2
    assert np.isnan(ops.max_.reference(ops.max_.attributes(axes=(0,)), np.float32([1, np.nan, 3])))


@pytest.mark.parametrize("select_last,first", [(False, 1), (True, 3)])
def test_arg_reductions_choose_among_equals(select_last: bool, first: int) -> None:
    x = np.float32([[1, 5, 2, 5], [1, 5, 2, 5]])
    call = ops.argmax(var("float32", 2, 4), axis=1, keepdims=True, select_last=select_last)
    assert call.type == tensor("int64", 2, 1)
    assert ops.argmax.reference(call.attrs, x).tolist() == [[first], [first]]
    assert ops.argmin.reference(ops.argmin.attributes(axis=-1, select_last=select_last), -x).tolist() == [first, first]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_softmax(axis: int, dtype: str) -> None:
    x = (np.random.default_rng(0).normal(size=(3, 4, 5)) * 30).astype(dtype)
    x[0, 0, :2] = -np.inf
    assert ops.softmax(var(dtype, 3, 4, 5), axis=axis).type == tensor(dtype, 3, 4, 5)
    tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
    for operator, expected in ((ops.softmax, torch.softmax), (ops.log_softmax, torch.log_softmax)):
        got = operator.reference(operator.attributes(axis=axis), x)
        want = expected(torch.from_numpy(x).double(), axis).numpy()
        np.testing.assert_allclose(got.astype("float64"), want, rtol=tolerance, atol=tolerance)
        assert got.dtype == x.dtype


def test_softmax_of_masked_and_empty_rows() -> None:
    assert np.isnan(ops.softmax.reference(ops.softmax.attributes(), np.full((1, 3), -np.inf, "float32"))).all()
    assert ops.softmax.reference(ops.softmax.attributes(), np.zeros((2, 0), "float32")).shape == (2, 0)


def test_cumsum() -> None:
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    rows = {
        (False, False): [[1, 3, 6], [4, 9, 15]],
        (True, False): [[0, 1, 3], [0, 4, 9]],
        (False, True): [[6, 5, 3], [15, 11, 6]],
        (True, True): [[5, 3, 0], [11, 6, 0]],
    }
    for (exclusive, reverse), want in rows.items():
        attrs = ops.cumsum.attributes(axis=1, exclusive=exclusive, reverse=reverse)
        assert ops.cumsum.reference(attrs, x).tolist() == want
        assert ops.cumsum.reference(attrs, x.astype("int64")).tolist() == want
    assert ops.cumsum(var("int32", B, 3), axis=0).type == tensor("int32", B, 3)
    assert ops.cumsum.reference(ops.cumsum.attributes(axis=0, exclusive=True), np.zeros((0, 2), "float32")).shape == (0, 2)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_top_k(largest: bool, dtype: str) -> None:
    x = np.random.default_rng(0).permutation(60).reshape(3, 20).astype(dtype)
    call = ops.top_k(var(dtype, 3, 20), k=4, axis=1, largest=largest)
    assert call.type == TupleType((tensor(dtype, 3, 4), tensor("int64", 3, 4)))
    values, indices = ops.top_k.reference(call.attrs, x)
    want = torch.topk(torch.from_numpy(x), 4, 1, largest)
    assert values.tolist() == want.values.tolist() and indices.tolist() == want.indices.tolist()


def test_top_k_of_equal_values_and_nan() -> None:
    _, indices = ops.top_k.reference(ops.top_k.attributes(k=3), np.float32([2, 7, 7, 1, 7]))
    assert indices.tolist() == [1, 2, 4]
    _, indices = ops.top_k.reference(ops.top_k.attributes(k=2, largest=False), np.float32([2, 1, 1, np.nan]))
    assert indices.tolist() == [1, 2]
    values, _ = ops.top_k.reference(ops.top_k.attributes(k=1), np.float32([2, np.nan, 1]))
    assert np.isnan(values[0])


def test_symbolic_types_and_scalars() -> None:
    assert ops.mean(var("float32", B, S, 4), axes=(1,)).type == tensor("float32", B, 4)
    assert ops.softmax(var("float32", B, S)).type == tensor("float32", B, S)
    assert ops.sum_(var("float32"), axes=(0,)).type == tensor("float32")
    assert ops.sum_.reference(ops.sum_.attributes(axes=(0,)), np.array(3, "float32")) == 3


@pytest.mark.parametrize(
    "build,message",
    [
        (lambda: ops.sum_(var("float32", 2, 3), axes=(2,)), "axis 2 is not in a tensor of rank 2"),
        (lambda: ops.sum_(var("float32", 2, 3), axes=(0, -2)), r"axes \(0, -2\) name one axis of \[2, 3\] twice"),
        (lambda: ops.sum_(var("bool", 2), axes=(0,)), "not bool"),
        (lambda: ops.mean(var("int32", 2), axes=(0,)), "not int32"),
        (lambda: ops.argmax(var("float32", 2, 0), axis=1), "has no elements to choose from"),
        (lambda: ops.top_k(var("float32", 3), k=4), r"k must be from 0 to 3, the length of axis -1 of \[3\], not 4"),
        (lambda: ops.cumsum(var("float32"), axis=0), "not a scalar"),
    ],
)
def test_errors(build: Any, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        build()
