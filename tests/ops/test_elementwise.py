"""Elementwise operators: types by table, values against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from aotc import ops
from aotc.errors import InvalidModel
from aotc.ir.dims import symbol
from aotc.ir.expr import Var
from aotc.ir.types import DTYPES, FLOATS, tensor
from aotc.ops.base import OpDef

B = symbol("b", 1)
X = np.array(
    [-np.inf, -1e30, -65504, -20, -3.5, -2.5, -1.5, -1, -0.5, -0.3, -0.0, 0, 0.3, 0.5, 1, 1.5, 2.5, 3.5, 20, 65504, np.inf, np.nan]
)


def var(dtype: str, *shape: Any) -> Var:
    return Var("x", tensor(dtype, *shape))


UNARY: list[tuple[OpDef, Any, dict[str, Any]]] = [
    (ops.negative, torch.neg, {}), (ops.abs_, torch.abs, {}), (ops.exp, torch.exp, {}),
    (ops.log, torch.log, {}), (ops.log1p, torch.log1p, {}), (ops.expm1, torch.expm1, {}), (ops.sqrt, torch.sqrt, {}),
    (ops.rsqrt, torch.rsqrt, {}), (ops.reciprocal, torch.reciprocal, {}), (ops.sin, torch.sin, {}), (ops.cos, torch.cos, {}),
    (ops.tan, torch.tan, {}), (ops.asin, torch.asin, {}), (ops.acos, torch.acos, {}), (ops.atan, torch.atan, {}),
    (ops.sinh, torch.sinh, {}), (ops.cosh, torch.cosh, {}), (ops.tanh, torch.tanh, {}), (ops.asinh, torch.asinh, {}),
    (ops.acosh, torch.acosh, {}), (ops.atanh, torch.atanh, {}), (ops.erf, torch.erf, {}), (ops.sigmoid, torch.sigmoid, {}),
    (ops.floor, torch.floor, {}), (ops.ceil, torch.ceil, {}), (ops.round_, torch.round, {}), (ops.trunc, torch.trunc, {}),
    (ops.relu, torch.relu, {}), (ops.softplus, F.softplus, {}), (ops.softsign, F.softsign, {}), (ops.silu, F.silu, {}),
    (ops.hard_swish, F.hardswish, {}), (ops.mish, F.mish, {}), (ops.elu, lambda x: F.elu(x, 0.7), {"alpha": 0.7}),
    (ops.selu, F.selu, {}), (ops.celu, lambda x: F.celu(x, 0.7), {"alpha": 0.7}),
    (ops.leaky_relu, lambda x: F.leaky_relu(x, 0.2), {"alpha": 0.2}), (ops.gelu, F.gelu, {}),
    (ops.gelu, lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    (ops.hard_sigmoid, F.hardsigmoid, {"alpha": 1 / 6}), (ops.thresholded_relu, lambda x: F.threshold(x, 0.4, 0), {"alpha": 0.4}),
    (ops.clip, lambda x: torch.clamp(x, -1, 2.5), {"minimum": -1, "maximum": 2.5}), (ops.isnan, torch.isnan, {}), (ops.isinf, torch.isinf, {}),
]  # fmt: skip


@pytest.mark.parametrize("operator,expected,attrs", UNARY, ids=[f"{i}-{row[0].name}" for i, row in enumerate(UNARY)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_unary(operator: OpDef, expected: Any, attrs: dict[str, Any], dtype: str) -> None:
    with np.errstate(over="ignore"):
        x = X.astype(dtype)
    if operator.name in ("mish", "gelu", "silu", "hard_swish", "softsign"):
        x = x[np.isfinite(x)]  # -inf * 0: whether NaN comes out is a matter of how the formula is written
    if operator.name == "thresholded_relu":
        x = x[~np.isnan(x)]  # ONNX gives 0 for NaN, PyTorch NaN
    call = operator(var(dtype, *x.shape), **attrs)
    got = operator.reference(call.attrs, x)
    assert call.type == tensor(str(got.dtype), *got.shape)
    with np.errstate(over="ignore"):
        want = expected(torch.from_numpy(x).double()).numpy().astype(got.dtype)
    tolerance = {"float16": 2e-3, "float32": 3e-6, "float64": 1e-12}[dtype]
    if operator.name in ("sin", "cos", "tan"):
        keep = ~(np.abs(x.astype("float64")) > 1e4)
        got, want = got[keep], want[keep]
    np.testing.assert_allclose(got.astype("float64"), want.astype("float64"), rtol=tolerance, atol=tolerance * 0.1)
    assert operator.reference(call.attrs, x[:0].reshape(2, 0, 3)).shape == (2, 0, 3)


def test_round_goes_to_even_and_sign_keeps_dtype() -> None:
    assert list(ops.round_.reference(None, np.float32([0.5, 1.5, 2.5, -0.5, -1.5]))) == [0, 2, 2, 0, -2]
    assert list(ops.sign.reference(None, np.int8([-3, 0, 5]))) == [-1, 0, 1]
    assert ops.sign(var("int8", 3)).type == tensor("int8", 3)


BINARY: list[tuple[OpDef, Any]] = [
    (ops.add, torch.add), (ops.subtract, torch.sub), (ops.multiply, torch.mul), (ops.maximum, torch.maximum), (ops.minimum, torch.minimum),
    (ops.divide, lambda a, b: torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")),
    (ops.floor_divide, torch.floor_divide), (ops.modulo, torch.remainder), (ops.equal, torch.eq), (ops.not_equal, torch.ne),
    (ops.less, torch.lt), (ops.less_equal, torch.le), (ops.greater, torch.gt), (ops.greater_equal, torch.ge),
]  # fmt: skip


@pytest.mark.parametrize("operator,expected", BINARY, ids=[row[0].name for row in BINARY])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "int64", "uint8"])
def test_binary(operator: OpDef, expected: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-20 if dtype[0] != "u" else 0, 20, (3, 1, 5)).astype(dtype)
    b = rng.integers(1, 7, (4, 5)).astype(dtype) * (np.array(-1, dtype) if dtype[0] != "u" else np.array(1, dtype))
    call = operator(var(dtype, 3, 1, 5), var(dtype, 4, 5))
    got = operator.reference(call.attrs, a, b)
    want = expected(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    assert call.type == tensor(str(want.dtype), 3, 4, 5)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_integer_division_truncates_and_survives_zero() -> None:
    got = ops.divide.reference(None, np.int32([-7, 7, -7, 7, 5]), np.int32([2, -2, -2, 2, 0]))
    assert list(got[:4]) == [-3, -3, 3, 3]


def test_modulo_of_both_kinds() -> None:
    a, b = np.int32([-7, 7, -7]), np.int32([3, -3, -3])
    assert list(ops.modulo.reference(ops.modulo.attributes(), a, b)) == [2, -2, -1]
    assert list(ops.modulo.reference(ops.modulo.attributes(fmod=True), a, b)) == [-1, 1, -1]


def test_power_keeps_the_dtype_of_the_base() -> None:
    assert ops.power(var("int32", 2), var("float32", 2)).type == tensor("int32", 2)
    assert list(ops.power.reference(None, np.int64([2, -1, 3]), np.int64([-1, -3, 4]))) == [0, -1, 81]
    assert list(ops.power.reference(None, np.int32([2, 3]), np.float32([3.0, 2.0]))) == [8, 9]
    np.testing.assert_allclose(ops.power.reference(None, np.float16([2]), np.int32([-2])), [0.25])


def test_bits_and_logic() -> None:
    a, b = np.uint8([0b1100, 255]), np.uint8([0b1010, 1])
    assert list(ops.bitwise_and.reference(None, a, b)) == [0b1000, 1]
    assert list(ops.bitwise_xor.reference(None, a, b)) == [0b0110, 254]
    assert list(ops.bitwise_not.reference(None, a)) == [0xF3, 0]
    assert list(ops.right_shift.reference(None, a, b)) == [0b1100 >> 10, 127]
    assert list(ops.logical_xor.reference(None, np.array([True, False]), np.array([True, True]))) == [False, True]


def test_prelu_where_clip_cast() -> None:
    x = np.float32([[-1, 2], [np.nan, -4]])
    np.testing.assert_array_equal(ops.prelu.reference(None, x, np.float32([0.5, 0.25])), np.float32([[-0.5, 2], [np.nan, -1]]))
    np.testing.assert_array_equal(ops.where.reference(None, x > 0, x, np.float32(7)), np.float32([[7, 2], [7, 7]]))
    clip = ops.clip.attributes(minimum=-1e9, maximum=1000)
    assert list(ops.clip.reference(clip, np.int8([-128, 5, 127]))) == [-128, 5, 127]
    assert list(ops.cast.reference(ops.cast.attributes("int32"), np.float32([-1.9, 1.9]))) == [-1, 1]
    assert list(ops.cast.reference(ops.cast.attributes("bool"), np.float32([0, -0.1, np.nan]))) == [False, True, True]


def test_isinf_of_one_sign() -> None:
    x = np.float32([-np.inf, np.inf, 0])
    assert list(ops.isinf.reference(ops.isinf.attributes(negative=False), x)) == [False, True, False]
    assert list(ops.isinf.reference(ops.isinf.attributes(positive=False), x)) == [True, False, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_cast_to_every_dtype(dtype: str) -> None:
    assert ops.cast(var("float32", B, 3), dtype=dtype).type == tensor(dtype, B, 3)
    assert str(ops.cast.reference(ops.cast.attributes(dtype), np.ones(2, "float32")).dtype) == dtype


def test_symbolic_broadcast() -> None:
    assert ops.add(var("float32", B, 1, 4), var("float32", 3, 1)).type == tensor("float32", B, 3, 4)
    assert ops.add(var("float32", B + 1), var("float32", B + 1)).type == tensor("float32", B + 1)
    assert ops.where(var("bool", B, 1), var("float32"), var("float32", 1, 5)).type == tensor("float32", B, 5)


ERRORS: list[tuple[Any, str]] = [
    (lambda: ops.add(var("float32", 2), var("float32", 3)), r"add: shapes \[2\] and \[3\] do not broadcast at axis -1"),
    (lambda: ops.add(var("float32", B), var("float32", symbol("c"))), r"shapes \[b\] and \[c\] do not broadcast"),
    (lambda: ops.add(var("float32", 2), var("int32", 2)), "takes arguments of one dtype, not float32, int32"),
    (lambda: ops.exp(var("int32", 2), origin="layer1"), "exp at 'layer1': takes float16, float32, float64, not int32"),
    (lambda: ops.add(var("bool", 2), var("bool", 2)), "not bool"),
    (lambda: ops.logical_and(var("int32", 2), var("int32", 2)), "takes bool, not int32"),
    (lambda: ops.where(var("float32", 2), var("float32", 2), var("float32", 2)), "takes bool, not float32"),
    (lambda: ops.prelu(var("float32", 2), var("float32", 3, 2)), r"the slope \[3, 2\] must broadcast to x \[2\]"),
    (lambda: ops.cast(var("float32", 2), dtype="complex64"), "not to 'complex64'"),
    (lambda: ops.gelu(var("float32", 2), approximate="fast"), "approximate is 'none' or 'tanh', not 'fast'"),
    (lambda: ops.add(var("float32", 2)), "takes 2 arguments, not 1"),
]


@pytest.mark.parametrize("build,message", ERRORS, ids=[message[:30] for _, message in ERRORS])
def test_errors(build: Any, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        build()


def test_float_operators_take_every_float() -> None:
    for dtype in FLOATS:
        assert ops.sigmoid(var(dtype)).type == tensor(dtype)
