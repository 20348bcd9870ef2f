"""Operators whose result's size depends on data, compiled: only the rows up to the count have a meaning."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops
from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.expr import TupleGetItem, Var
from aotc.ir.types import tensor, type_of_array
from aotc.ops.base import OpDef
from tests.lowering.harness import Runner, function_of, lower, run


def compiled(operator: OpDef, *arrays: np.ndarray, **attrs: object) -> list[np.ndarray]:
    params = [Var(f"p{i}", type_of_array(array)) for i, array in enumerate(arrays)]
    return run(operator(*params, **attrs), params, *arrays)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 2), (1, 1), (0, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8"])
def test_nonzero(shape: tuple[int, ...], dtype: str) -> None:
    x = (np.random.default_rng(3).integers(0, 3, shape) - (dtype in ("float32", "int64"))).astype(dtype)
    indices, count = compiled(ops.nonzero_padded, x)
    np.testing.assert_array_equal(indices[: int(count)], np.argwhere(x))


def test_nonzero_takes_nan_and_keeps_negative_zero_out() -> None:
    x = np.float32([0.0, -0.0, np.nan, np.inf, 1e-45])
    indices, count = compiled(ops.nonzero_padded, x)
    assert indices[: int(count), 0].tolist() == [2, 3, 4]


def suppressed(boxes: np.ndarray, scores: np.ndarray, most: int, iou: float, least: float) -> list[int]:
    """One class by brute force in float64."""
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if len(kept) == most or scores[i] <= least:
            break
        if all(overlap(boxes[i], boxes[j]) <= iou for j in kept):
            kept.append(int(i))
    return kept


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    low, high = (
        np.maximum(np.minimum(a[:2], a[2:]), np.minimum(b[:2], b[2:])),
        np.minimum(np.maximum(a[:2], a[2:]), np.maximum(b[:2], b[2:])),
    )
    both = np.prod(np.maximum(high - low, 0))
    return float(both / (abs(np.prod(a[2:] - a[:2])) + abs(np.prod(b[2:] - b[:2])) - both))


@pytest.mark.parametrize(("most", "iou", "least"), [(100, 0.3, 0.1), (3, 0.3, -1.0), (0, 0.5, 0.0), (100, 0.0, 0.5), (100, 0.5, 2.0)])
def test_non_max_suppression(most: int, iou: float, least: float) -> None:
    """Two batches, three classes; corners in any order."""
    random = np.random.default_rng(0)
    boxes = random.random((2, 40, 4)).astype("float64").round(3)
    scores = random.permuted(np.tile(np.linspace(0, 1, 40), (2, 3, 1)), axis=2)
    order = np.argsort(-scores, axis=-1, kind="stable")
    scalars = [np.array(most), np.array(iou, "float32"), np.array(least, "float32")]
    rows, count = compiled(ops.non_max_suppression, boxes.astype("float32"), scores.astype("float32"), order, *scalars)
    expected = [(b, c, i) for b in range(2) for c in range(3) for i in suppressed(boxes[b], scores[b, c], most, iou, least)]
    assert [tuple(row) for row in rows[: int(count)].tolist()] == expected


def test_what_does_not_fit_is_refused() -> None:
    boxes, scores = Var("boxes", tensor("float32", 1, 5, 4)), Var("scores", tensor("float32", 1, 2, 6))
    order, most, limit = Var("order", tensor("int64", 1, 2, 6)), Var("most", tensor("int64")), Var("limit", tensor("float32"))
    with pytest.raises(InvalidModel, match=r"boxes \[batch, n, 4\], scores \[batch, classes, n\]"):
        ops.non_max_suppression(boxes, scores, order, most, limit, limit)


def test_all_elements_sorted_where_their_number_is_known_only_at_run() -> None:
    n = symbol("n", 0)
    x = Var("x", tensor("float32", 3, n))
    both = ops.top_k(x, k=n, axis=1, largest=False)
    sort = Runner(function_of(both, x), lower(both, x))
    for size in (0, 1, 2, 7, 100):
        data = np.random.default_rng(size).integers(0, 9, (3, size)).astype("float32")
        values, indices = sort(data, symbols={"n": size})
        np.testing.assert_array_equal(values, np.sort(data, 1))
        np.testing.assert_array_equal(indices, np.argsort(data, 1, kind="stable"))
    assert TupleGetItem(both, 0).type == x.type
