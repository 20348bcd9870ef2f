"""Compiled elementwise operators: every operator, every dtype it takes, special values, broadcasting, symbolic sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from aotc import ops
from aotc.ir.dims import symbol
from aotc.ir.types import FLOATS, INTEGERS
from tests.lowering.batch import Case, check

B, S = symbol("b", 1), symbol("s", 0)
SPECIAL = [
    -math.inf,
    -1e30,
    -65504,
    -100,
    -20,
    -3.5,
    -2.5,
    -1.5,
    -1,
    -0.5,
    -0.3,
    -1e-4,
    -0.0,
    0,
    1e-4,
    0.3,
    0.5,
    1,
    1.5,
    2.5,
    3.5,
    20,
    80,
    100,
]
SPECIAL += [65504, 1e30, math.inf, math.nan, 1e-30, -1e-30]


def floats(dtype: str, *shape: int, seed: int = 0, special: bool = True) -> np.ndarray:
    size = int(np.prod(shape))
    values = np.random.default_rng(seed).normal(size=size) * 3
    if special and size:
        count = min(len(SPECIAL), size)
        values[:count] = SPECIAL[:count]
    with np.errstate(over="ignore"):
        return values.astype(dtype).reshape(shape)


def integers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    if dtype == "bool":
        return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    values = np.random.default_rng(seed).integers(max(info.min, -50), 50, int(np.prod(shape)))
    values[: min(4, values.size)] = [0, 1, max(info.min, -1), 2][: values.size]
    result = values.astype(dtype)
    if result.size > 5:
        result[4:6] = [info.min, info.max]
    return result.reshape(shape)


# ulp: libm and numpy differ by about one; composed functions by the errors of their parts.
UNARY: list[tuple[Any, Any, dict[str, Any], float]] = [
    (ops.negative, torch.neg, {}, 0), (ops.abs_, torch.abs, {}, 0), (ops.sign, None, {}, 0), (ops.exp, torch.exp, {}, 2),
    (ops.log, torch.log, {}, 2), (ops.log1p, torch.log1p, {}, 4), (ops.expm1, torch.expm1, {}, 4), (ops.sqrt, torch.sqrt, {}, 1),
    (ops.rsqrt, torch.rsqrt, {}, 2), (ops.reciprocal, torch.reciprocal, {}, 1), (ops.tan, torch.tan, {}, 4), (ops.sin, torch.sin, {}, 2),
    (ops.cos, torch.cos, {}, 2), (ops.asin, torch.asin, {}, 2), (ops.acos, torch.acos, {}, 2), (ops.atan, torch.atan, {}, 2),
    (ops.sinh, torch.sinh, {}, 2), (ops.cosh, torch.cosh, {}, 2), (ops.tanh, torch.tanh, {}, 2), (ops.asinh, torch.asinh, {}, 2),
    (ops.acosh, torch.acosh, {}, 2), (ops.atanh, torch.atanh, {}, 2), (ops.erf, torch.erf, {}, 2), (ops.sigmoid, torch.sigmoid, {}, 4),
    (ops.floor, torch.floor, {}, 0), (ops.ceil, torch.ceil, {}, 0), (ops.round_, torch.round, {}, 0), (ops.trunc, torch.trunc, {}, 0),
    (ops.relu, torch.relu, {}, 0), (ops.softplus, F.softplus, {}, 4), (ops.softsign, F.softsign, {}, 2), (ops.silu, F.silu, {}, 4),
    (ops.hard_swish, F.hardswish, {}, 4), (ops.mish, F.mish, {}, 8), (ops.elu, lambda x: F.elu(x, 0.7), {"alpha": 0.7}, 4),
    (ops.selu, F.selu, {}, 4), (ops.celu, lambda x: F.celu(x, 0.7), {"alpha": 0.7}, 4),
    (ops.leaky_relu, lambda x: F.leaky_relu(x, 0.2), {"alpha": 0.2}, 1), (ops.gelu, F.gelu, {}, 8),
    (ops.gelu, lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}, 8),
    (ops.hard_sigmoid, F.hardsigmoid, {"alpha": 1 / 6}, 4), (ops.thresholded_relu, None, {"alpha": 0.4}, 0),
    (ops.clip, lambda x: torch.clamp(x, -1, 2.5), {"minimum": -1, "maximum": 2.5}, 0), (ops.clip, None, {"maximum": 0.25}, 0),
    (ops.isnan, torch.isnan, {}, 0), (ops.isinf, torch.isinf, {}, 0), (ops.isinf, None, {"negative": False}, 0),
]  # fmt: skip


def _by_torch(function: Any, dtype: str) -> Any:
    """PyTorch in float64, rounded once."""

    def run(x: np.ndarray) -> np.ndarray:
        result = function(torch.from_numpy(x).double()).numpy()
        with np.errstate(over="ignore"):
            return result if result.dtype == bool else result.astype(dtype)

    return run


@pytest.mark.parametrize("dtype", FLOATS)
def test_unary(dtype: str) -> None:
    x = floats(dtype, 7, 23)
    cases = []
    for op, function, attrs, ulp in UNARY:
        values = x
        if op.name in ("mish", "gelu", "silu", "hard_swish", "softsign"):
            values = np.where(np.isinf(x), 1, x).astype(dtype)  # inf * 0: NaN or 0 is a matter of how the formula is written
        if op.name in ("sin", "cos", "tan"):
            values = np.where(np.abs(x) > 1e4, 1, x).astype(dtype)
        scale = 1e-3 if op.name in ("gelu", "silu", "mish", "softplus", "hard_sigmoid", "hard_swish") else 0
        scale = 1 if op.name in ("gelu", "hard_sigmoid", "hard_swish", "mish") else scale
        expected = _by_torch(function, dtype) if function is not None else None
        cases.append(Case(op, [values], attrs, expected=expected, ulp=ulp + (1 if dtype == "float16" else 0), scale=scale))
    check(cases)


def test_unary_shapes() -> None:
    """Scalars, ones, nothing at all, and sizes known only at run time."""
    cases = []
    for shape in [(), (1,), (1, 1, 1), (0,), (3, 0, 2), (5,), (16,), (17,), (1, 37), (2, 3, 5, 7), (40000,), (3, 20001)]:
        cases.append(Case(ops.exp, [floats("float32", *shape, special=False)], ulp=2))
        cases.append(Case(ops.relu, [floats("float32", *shape)], ulp=0))
    for b, s in [(1, 1), (3, 0), (2, 17), (5, 8000)]:
        x = floats("float32", b, s, 3)
        cases.append(Case(ops.relu, [x], {}, [(B, S, 3)], {"b": b, "s": s}, ulp=0))
        cases.append(Case(ops.isnan, [x], {}, [(B, S, 3)], {"b": b, "s": s}, ulp=0))
    check(cases)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_unary(dtype: str) -> None:
    x = integers(dtype, 5, 13)
    names = [ops.negative, ops.abs_, ops.sign, ops.relu, ops.bitwise_not]
    clips = [{"minimum": 3}, {"minimum": -1000, "maximum": 20}, {"minimum": 1.5, "maximum": math.inf}]
    check([*(Case(op, [x]) for op in names), *(Case(ops.clip, [x], clip) for clip in clips)])


def test_bool_unary() -> None:
    x = integers("bool", 5, 13)
    check([Case(ops.logical_not, [x]), Case(ops.bitwise_not, [x])])


@pytest.mark.parametrize("source", (*FLOATS, *INTEGERS, "bool"))
def test_cast(source: str) -> None:
    plain = np.array([0, 1, 2, 100, 127] * 9).astype(source) if source != "bool" else integers("bool", 45)
    cases = []
    for target in (*FLOATS, *INTEGERS, "bool"):
        x = plain
        if source in FLOATS:
            x = (
                np.array([0.0, 0.5, -0.0, 1.75, 100.9, 127.0])
                if target.startswith("u")
                else np.array([0.0, 0.5, -0.75, 1.75, -100.9, 127.0])
            ).astype(source)
            x = np.tile(x, 9)
        elif source.startswith("int") and not target.startswith("u"):
            x = np.concatenate([plain, -plain])
        cases.append(Case(ops.cast, [x], {"dtype": target}, ulp=0))
    check(cases)


BROADCASTS = [
    ((5, 33), (5, 33)),
    ((5, 33), (33,)),
    ((5, 1), (33,)),
    ((), (7,)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((1,), (2, 0, 3)),
    ((4, 1, 6), (1, 5, 1)),
]
FLOAT_BINARY = [
    ops.add,
    ops.subtract,
    ops.multiply,
    ops.divide,
    ops.maximum,
    ops.minimum,
    ops.equal,
    ops.not_equal,
    ops.less,
    ops.less_equal,
]
FLOAT_BINARY += [ops.greater, ops.greater_equal]


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_binary(dtype: str) -> None:
    cases = [
        Case(op, [floats(dtype, *BROADCASTS[i % 3][0]), floats(dtype, *BROADCASTS[i % 3][1], seed=1)[..., ::-1].copy()], ulp=1)
        for i, op in enumerate(FLOAT_BINARY)
    ]
    a, b = floats(dtype, 5, 33, special=False), floats(dtype, 33, seed=1, special=False)
    wide = np.where(np.abs(b) < 0.1, 1, b).astype(dtype)
    with np.errstate(all="ignore"):
        cases += [Case(ops.power, [np.abs(a), b], ulp=4), Case(ops.power, [a, np.arange(33).astype("int32") % 4], ulp=4)]
        cases += [Case(ops.atan2, [a, b], ulp=2), Case(ops.floor_divide, [a, wide], ulp=1), Case(ops.modulo, [a, wide], ulp=1, scale=3)]
        cases += [Case(ops.modulo, [a, wide], {"fmod": True}, ulp=1, scale=3)]
    slope = np.abs(floats(dtype, 5, 1, special=False))
    cases += [Case(ops.prelu, [a, slope], ulp=1), Case(ops.where, [a > 0, a, b], ulp=0), Case(ops.where, [b > 0, slope, b], ulp=0)]
    check(cases)


def test_broadcasts() -> None:
    check(
        [Case(ops.add, [floats("float32", *a, special=False), floats("float32", *b, seed=1, special=False)], ulp=1) for a, b in BROADCASTS]
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_binary(dtype: str) -> None:
    """Divisors of zero and the most negative value over -1 included: neither may trap."""
    a, b = integers(dtype, 5, 33), integers(dtype, 33, seed=1)
    common = [ops.add, ops.subtract, ops.multiply, ops.divide, ops.floor_divide, ops.maximum, ops.minimum, ops.equal, ops.not_equal]
    common += [ops.less, ops.less_equal, ops.greater, ops.greater_equal, ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor]
    cases = [Case(op, [a, b]) for op in common]
    cases += [Case(ops.modulo, [a, b], {"fmod": fmod}) for fmod in (False, True)]
    counts = (np.arange(33) % (np.iinfo(dtype).bits + 3)).astype(dtype)
    cases += [Case(ops.left_shift, [a, counts]), Case(ops.right_shift, [a, counts])]
    exponents = (np.arange(33) % 7).astype(dtype)
    cases += [Case(ops.power, [a, exponents]), Case(ops.power, [np.abs(a) % 5, (exponents % 4).astype("float32")])]
    check(cases)


def test_bool_binary() -> None:
    a, b = integers("bool", 5, 33), integers("bool", 33, seed=1)
    names = [ops.logical_and, ops.logical_or, ops.logical_xor, ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor, ops.equal, ops.not_equal]
    check([*(Case(op, [a, b]) for op in names), Case(ops.where, [a, a, b])])


def test_binary_with_symbolic_sizes() -> None:
    cases = []
    for b, s in [(1, 1), (3, 0), (2, 17), (4, 5000)]:
        x, y, bias = floats("float32", b, s, 8), floats("float32", b, s, 1, seed=1), floats("float32", s, 8, seed=2)
        values = {"b": b, "s": s}
        cases += [
            Case(ops.add, [x, y], {}, [(B, S, 8), (B, S, 1)], values, ulp=1),
            Case(ops.multiply, [x, bias], {}, [(B, S, 8), (S, 8)], values, ulp=1),
            Case(ops.less, [y, bias], {}, [(B, S, 1), (S, 8)], values),
        ]
    check(cases)
