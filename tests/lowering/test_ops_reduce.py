"""Compiled reductions, softmax, argmax, running sums and the k greatest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from aotc import ops
from aotc.ir.dims import symbol
from aotc.ir.types import FLOATS, INTEGERS
from tests.lowering.batch import Case, check

B, S = symbol("b", 1), symbol("s", 1)
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((7,), (0,)), ((5, 33), (1,)), ((5, 33), (0,)), ((5, 33), (0, 1)), ((2, 3, 4, 5), (2, 3)), ((2, 3, 4, 5), (1,)), ((2, 3, 4, 5), (0, 2)),
    ((3, 300), (1,)), ((300, 3), (0,)), ((2, 40, 16), (1,)), ((1, 1), (0, 1)), ((4, 0), (1,)), ((0, 4), (1,)), ((2, 3), ()),
]  # fmt: skip


def normal(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def whole(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    if dtype == "bool":
        return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)
    low = 0 if dtype.startswith("u") else -9
    return np.random.default_rng(seed).integers(low, 10, shape).astype(dtype)


def _length(shape: tuple[int, ...], axes: tuple[int, ...]) -> float:
    return math.prod(shape[axis] for axis in axes)


@pytest.mark.parametrize("op", [ops.sum_, ops.mean, ops.max_, ops.min_, ops.prod], ids=lambda op: op.name)
def test_float_reductions(op: Any) -> None:
    cases = []
    for i, (shape, axes) in enumerate(SHAPES):
        dtype = FLOATS[i % 3]
        x = normal(dtype, *shape)
        if op is ops.prod:
            x = (1 + x / 50).astype(dtype)
        count = _length(shape, axes)
        scale = math.sqrt(count) if op is ops.sum_ else 1 if op is ops.mean else 0
        cases.append(Case(op, [x], {"axes": axes, "keepdims": i % 2 == 0}, ulp=1 + count if op is ops.prod else 2, scale=scale))
    check(cases)


def test_reductions_by_torch() -> None:
    """The same against PyTorch in float64: the reference itself could be wrong."""
    x = normal("float32", 3, 17, 40)
    wide = torch.from_numpy(x).double()
    cases = []
    for axes in [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)]:
        for op, function in ((ops.sum_, torch.sum), (ops.mean, torch.mean), (ops.max_, torch.amax), (ops.min_, torch.amin)):
            want = function(wide, dim=axes, keepdim=True).float().numpy()
            cases.append(Case(op, [x], {"axes": axes, "keepdims": True}, expected=lambda _, want=want: want, ulp=2, scale=40))
    check(cases)


@pytest.mark.parametrize("channels", [4, 16, 37])
def test_reductions_over_space(channels: int) -> None:
    """Vectors run along the channels, which stand last."""
    x = normal("float32", 2, 3, 9, 7, channels)
    wide = torch.from_numpy(x).double()
    cases = []
    for op, function in ((ops.sum_, torch.sum), (ops.mean, torch.mean), (ops.max_, torch.amax), (ops.min_, torch.amin)):
        want = function(wide, dim=(2, 3), keepdim=True).float().numpy()
        cases.append(Case(op, [x], {"axes": (2, 3), "keepdims": True}, expected=lambda _, want=want: want, ulp=2, scale=40))
    check(cases)


def test_special_values() -> None:
    x = normal("float32", 3, 40)
    x[0, 5] = math.nan
    x[1] = -math.inf
    x[2, 3] = math.inf
    names = [ops.max_, ops.min_]
    check([Case(op, [x], {"axes": axes}, ulp=0) for op in names for axes in [(0,), (1,), (0, 1)]])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_reductions(dtype: str) -> None:
    """Sums wrap; the extremes of a dtype are found."""
    x = whole(dtype, 5, 33)
    x[0, :2] = [np.iinfo(dtype).min, np.iinfo(dtype).max]
    names = [ops.sum_, ops.prod, ops.max_, ops.min_]
    cases = [Case(op, [x], {"axes": axes}) for op in names for axes in [(0,), (1,), (0, 1)]]
    cases += [Case(op, [x], {"axis": axis}) for op in (ops.argmax, ops.argmin) for axis in (0, 1)]
    check(cases)


def test_bool_reductions() -> None:
    x = whole("bool", 5, 33) | (np.arange(33) == 7)
    check([Case(op, [v], {"axes": axes}) for op in (ops.all_, ops.any_) for axes in [(0,), (1,), (0, 1)] for v in (x, ~x)])


def test_symbolic_reductions() -> None:
    cases = []
    for b, s in [(1, 1), (3, 5), (2, 200)]:
        x, values = normal("float32", b, s, 24), {"b": b, "s": s}
        for axes in [(0,), (1,), (2,), (1, 2), (0, 1, 2)]:
            cases.append(Case(ops.mean, [x], {"axes": axes}, [(B, S, 24)], values, ulp=2, scale=1))
            cases.append(Case(ops.max_, [x], {"axes": axes, "keepdims": True}, [(B, S, 24)], values, ulp=0))
        cases.append(Case(ops.softmax, [x], {"axis": 1}, [(B, S, 24)], values, ulp=8))
        cases.append(Case(ops.log_softmax, [x], {"axis": 2}, [(B, S, 24)], values, ulp=8, scale=1))
        cases.append(Case(ops.softmax, [x[..., 0]], {"axis": -1}, [(B, S)], values, ulp=8))
        cases.append(Case(ops.argmax, [x], {"axis": 1}, [(B, S, 24)], values))
        cases.append(Case(ops.cumsum, [x], {"axis": 1}, [(B, S, 24)], values, ulp=2, scale=8))
        cases += [Case(op, [x], {"axis": 1}, [(B, S, 24)], values, ulp=0) for op in (ops.cummax, ops.cummin)]
    check(cases)


def test_arg_reductions() -> None:
    x = np.round(normal("float32", 4, 31, 6) * 2)  # with ties
    y = x.copy()
    y[0, 3] = y[1, 7:9] = math.nan
    cases = []
    for op in (ops.argmax, ops.argmin):
        for axis in (0, 1, -1):
            cases += [Case(op, [x], {"axis": axis, "select_last": last, "keepdims": last}) for last in (False, True)]
            cases.append(Case(op, [x.astype("float16")], {"axis": axis}))
        cases += [
            Case(op, [y], {"axis": 1}),
            Case(op, [np.float32(3)], {"axis": 0}),
            Case(op, [np.full((3, 5), -np.inf, "float32")], {"axis": 1}),
        ]
    check(cases)


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(dtype: str) -> None:
    cases = []
    for shape in [(5,), (3, 40), (2, 3, 4), (1, 1000), (2, 17, 5, 3), (3, 0), (0, 3)]:
        x = normal(dtype, *shape) * 8
        for axis in {0, -1, len(shape) // 2}:
            cases.append(Case(ops.softmax, [x], {"axis": axis}, ulp=10))
            cases.append(Case(ops.log_softmax, [x], {"axis": axis}, ulp=10, scale=8))
    masked = normal(dtype, 4, 40)
    masked[:, ::3] = -math.inf
    masked[1, 5] = 80
    large = np.full((2, 40), 60000.0, dtype)
    cases += [
        Case(ops.softmax, [masked], ulp=10),
        Case(ops.softmax, [large], ulp=10),
        Case(ops.softmax, [np.asarray(3, dtype)], {"axis": 0}, ulp=0),
    ]
    cases += [Case(ops.log_softmax, [masked], ulp=10, scale=8), Case(ops.softmax, [np.full((2, 9), -math.inf, dtype)])]
    check(cases)


def test_softmax_by_torch() -> None:
    x = normal("float32", 6, 130) * 5
    want = torch.softmax(torch.from_numpy(x).double(), -1).float().numpy()
    check([Case(ops.softmax, [x], expected=lambda _: want, ulp=16)])


def test_running_extremes() -> None:
    x = normal("float32", 3, 7)
    x[1, 3] = np.nan
    both = x, whole("int32", 3, 7)
    check([Case(op, [data], {"axis": 1, "reverse": back}) for op in (ops.cummax, ops.cummin) for data in both for back in (False, True)])


def test_cumsum() -> None:
    cases = []
    for i, dtype in enumerate(("float16", "float32", "float64", "int32", "int64", "uint8")):
        x = normal(dtype, 4, 9, 5) if dtype in FLOATS else whole(dtype, 4, 9, 5)
        for exclusive in (False, True):
            for reverse in (False, True):
                attrs = {"axis": (i + exclusive + reverse) % 3, "exclusive": exclusive, "reverse": reverse}
                cases.append(Case(ops.cumsum, [x], attrs, ulp=2, scale=4))
    check(
        [
            *cases,
            Case(ops.cumsum, [normal("float32", 3, 0)], {"axis": 1}),
            Case(ops.cumsum, [normal("float32", 70000)], {"axis": 0}, scale=300),
        ]
    )


def test_top_k() -> None:
    """Any k, along any axis; ties go to the lower index; a NaN counts as the greatest."""
    x = np.round(normal("float32", 3, 50, 2) * 2)
    y = x.copy()
    y[0, 4:9] = math.nan
    cases = []
    for k in (0, 1, 7, 50):
        for largest in (True, False):
            cases += [Case(ops.top_k, [v], {"k": k, "axis": 1, "largest": largest}) for v in (x, y, x.astype("int64"), x.astype("float16"))]
    cases.append(Case(ops.top_k, [np.sort(normal("float32", 2, 3000), axis=1)], {"k": 500}))
    cases.append(Case(ops.top_k, [normal("float32", 6, 40)], {"k": 5}, [(B, S)], {"b": 6, "s": 40}))
    check(cases)
