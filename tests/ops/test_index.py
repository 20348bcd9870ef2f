"""Gather and scatter: types by table, values against PyTorch and ONNX's reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper
import onnx.reference
import pytest
import torch

from aotc import ops
from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.expr import Var
from aotc.ir.types import tensor

B, S = symbol("b", 1), symbol("s", 1)


def var(*shape: Any, dtype: str = "float32") -> Var:
    return Var("x", tensor(dtype, *shape))


def ids(*shape: Any) -> Var:
    return var(*shape, dtype="int64")


def by_onnx(op: str, arrays: list[np.ndarray], **attrs: Any) -> np.ndarray:
    names = [f"i{i}" for i in range(len(arrays))]
    node = onnx.helper.make_node(op, names, ["y"], **attrs)
    graph = onnx.helper.make_graph(
        [node], "g", [onnx.helper.make_empty_tensor_value_info(n) for n in names], [onnx.helper.make_empty_tensor_value_info("y")]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    return np.asarray(onnx.reference.ReferenceEvaluator(model).run(None, dict(zip(names, arrays)))[0])


RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 5)).astype("float32")


def test_gather() -> None:
    assert ops.gather(var(B, 4, 5), ids(S, 2), axis=1).type == tensor("float32", B, S, 2, 5)
    assert ops.gather(var(4), ids(), axis=0).type == tensor("float32")
    indices = np.int32([[0, -1], [-3, 2]])
    np.testing.assert_array_equal(ops.gather.reference(ops.gather.attributes(axis=1), X, indices), X[:, [[0, 3], [1, 2]]])
    assert ops.gather.reference(ops.gather.attributes(axis=0), X, np.zeros((0,), "int64")).shape == (0, 4, 5)


def test_gather_elements() -> None:
    assert ops.gather_elements(var(B, 4), ids(B, S), axis=1).type == tensor("float32", B, S)
    indices = RNG.integers(0, 4, (2, 6, 5))
    want = torch.gather(torch.from_numpy(X), 1, torch.from_numpy(indices)).numpy()
    np.testing.assert_array_equal(ops.gather_elements.reference(ops.gather_elements.attributes(axis=1), X, indices), want)
    np.testing.assert_array_equal(ops.gather_elements.reference(ops.gather_elements.attributes(axis=1), X, indices - 4), want)


@pytest.mark.parametrize("batch,indices", [(0, [[0, -1], [2, 1]]), (0, [[2]]), (1, [[1], [0], [3]]), (1, [[[1, 2]], [[0, 0]], [[3, -1]]])])
def test_gather_nd(batch: int, indices: Any) -> None:
    places = np.int64(indices)
    want = by_onnx("GatherND", [X, places], batch_dims=batch)
    call = ops.gather_nd(var(3, 4, 5), ids(*places.shape), batch_dims=batch)
    got = ops.gather_nd.reference(call.attrs, X, places)
    np.testing.assert_array_equal(got, want)
    assert call.type == tensor("float32", *want.shape)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter(reduction: str) -> None:
    indices = np.int64([[[0, 1, 2, 3, -1]], [[3, 2, 1, 0, 0]]])
    updates = RNG.normal(size=indices.shape).astype("float32")
    want = by_onnx("ScatterElements", [X, indices, updates], axis=1, reduction=reduction)
    attrs = ops.scatter_elements.attributes(axis=1, reduction=reduction)
    np.testing.assert_allclose(ops.scatter_elements.reference(attrs, X, indices, updates), want, rtol=1e-6)
    places = np.int64([[0, 1], [2, -1], [0, 0]] if reduction == "none" else [[0, 1], [2, -1], [0, 1]])
    rows = RNG.normal(size=(3, 5)).astype("float32")
    want = by_onnx("ScatterND", [X, places, rows], reduction=reduction)
    got = ops.scatter_nd.reference(ops.scatter_nd.attributes(reduction=reduction), X, places, rows)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert ops.scatter_nd(var(3, 4, 5), ids(3, 2), var(3, 5), reduction=reduction).type == tensor("float32", 3, 4, 5)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis: int) -> None:
    indices, values = np.int64([[0, 3], [-1, 9]]), np.float32([2, 5])
    rows = np.float32([[[5, 2, 2, 2], [2, 2, 2, 5]], [[2, 2, 2, 5], [2, 2, 2, 2]]])  # 9 is out of range: all off
    want = np.moveaxis(rows, -1, axis)
    call = ops.one_hot(ids(2, 2), var(2), depth=4, axis=axis)
    assert call.type == tensor("float32", *want.shape)
    np.testing.assert_array_equal(ops.one_hot.reference(call.attrs, indices, values), want)


@pytest.mark.parametrize(
    "build,message",
    [
        (lambda: ops.gather(var(3), var(2)), "indices are int8"),
        (lambda: ops.gather(var(), ids(2)), "not a scalar"),
        (lambda: ops.gather(var(3), ids(2), axis=1), "axis 1 is not in a tensor of rank 1"),
        (lambda: ops.gather_elements(var(3, 4), ids(3), axis=0), "must have the rank of x"),
        (lambda: ops.gather_elements(var(3, 4), ids(3, 5), axis=0), "no longer than it but along axis 0"),
        (lambda: ops.gather_nd(var(3, 4), ids(2, 3)), r"the last dim of the indices \[2, 3\] must be from 1 to 2"),
        (lambda: ops.scatter_nd(var(3, 4), ids(2, 1), var(2, 3)), r"updates must have the shape \[2, 4\], not \[2, 3\]"),
        (lambda: ops.scatter_elements(var(3), ids(2), var(3), axis=0), r"updates \[3\] must have the shape of the indices \[2\]"),
        (lambda: ops.scatter_elements(var(3), ids(2), var(2), reduction="sub"), "not 'sub'"),
        (lambda: ops.one_hot(ids(2), var(3), depth=4), r"a tensor of shape \[2\], not \[3\]"),
    ],
)
def test_errors(build: Any, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        build()


def test_every_operator_has_one_name() -> None:
    assert all(name == operator.name for name, operator in ops.ALL.items())
    for family in (ops.elementwise, ops.linear, ops.reduce, ops.shape, ops.index):
        exported = {id(getattr(ops, name)) for name in family.__all__}
        assert exported == {id(value) for value in vars(family).values() if isinstance(value, ops.OpDef)}
