"""The vector functions against float64 over the whole range of float32: every 1021st one, and the special values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tvm import te

from aotc import ops, targets
from aotc.lowering import vector_math
from aotc.lowering.kernel import lower_function
from aotc.lowering.object_file import outside_symbols
from aotc.lowering.scope import DimScope
from aotc.lowering.tir_abi import compile_function
from aotc.targets.schedules import generic
from tests.lowering.harness import Runner, function_of, var

SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 1.17549435e-38, 88.7228, 88.73, -87.4, -103.9, -104.5], np.float32
)


def _erf(x: np.ndarray) -> np.ndarray:
    return torch.erf(torch.from_numpy(x)).numpy()


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1.0) / (1.0 + np.exp(-np.abs(x)))


CASES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1.1),
    "log": (np.log, 1.0),
    "tanh": (np.tanh, 2.3),
    "erf": (_erf, 1.5),
    "sigmoid": (_sigmoid, 2.5),
}


@pytest.fixture(scope="module")
def arguments() -> np.ndarray:
    every = np.arange(0, 2**32, 1021, dtype=np.uint64).astype(np.uint32).view(np.float32)
    size = -(-(every.size + SPECIAL.size) // 1024) * 1024
    return np.concatenate([SPECIAL, every, np.ones(size - every.size - SPECIAL.size, np.float32)]).reshape(-1, 1024)


@pytest.mark.parametrize("name", CASES)
def test_error_in_ulp(name: str, arguments: np.ndarray) -> None:
    exact, allowed = CASES[name]
    x = var("x", "float32", *arguments.shape)
    function = function_of(ops.ALL[name](x), x)
    lowered = lower_function(function, targets.get("host"))
    (result,) = Runner(function, lowered)(arguments)
    with np.errstate(all="ignore"):
        expected = exact(arguments.astype(np.float64))
        rounded = expected.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(rounded))
    np.testing.assert_array_equal(result[np.isinf(rounded)], rounded[np.isinf(rounded)])
    ulp = np.maximum(np.spacing(np.abs(rounded[finite]).astype(np.float32)), np.float32(1e-45)).astype(np.float64)
    error = np.abs(result[finite].astype(np.float64) - expected[finite]) / ulp
    worst = int(error.argmax())
    assert error[worst] <= allowed, f"{error[worst]:.3f} ulp at {arguments[finite][worst]!r}"


def test_exp_of_what_is_not_positive(arguments: np.ndarray) -> None:
    """As exact as exp, but for denormal results, which are zeros."""
    x = te.placeholder(arguments.shape, "float32", "x")
    y = te.compute(arguments.shape, lambda *i: vector_math.exp_of_negative(x(*i)), "y")
    target = targets.get("host")
    compiled = compile_function(generic.write(te.create_prim_func([x, y]), target), 1, DimScope(), target, "f", 0)
    runner = Runner(function_of(ops.exp(var("x", "float32", *arguments.shape))), compiled)
    given = -np.abs(arguments)
    (result,) = runner(given)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(given))
    with np.errstate(invalid="ignore"):
        exact = np.exp(given.astype(np.float64))
    tiny = given < -87.3
    assert not result[tiny].any() and (exact[tiny] < 1.3e-38).all()
    normal = ~tiny & ~np.isnan(given)
    error = np.abs(result[normal] - exact[normal]) / np.spacing(exact[normal].astype(np.float32)).astype(np.float64)
    assert error.max() <= 1.1


def test_gelu(arguments: np.ndarray) -> None:
    """Its error is that of the usual formula in float32; infinities and NaN are as its limits."""
    x = var("x", "float32", *arguments.shape)
    function = function_of(ops.gelu(x), x)
    (result,) = Runner(function, lower_function(function, targets.get("host")))(arguments)
    finite = np.isfinite(arguments)
    np.testing.assert_array_equal(result[~finite], np.where(arguments < 0, 0, arguments)[~finite])
    given = torch.from_numpy(arguments[finite].astype(np.float64))
    exact = (0.5 * given * torch.special.erfc(-given * 0.5**0.5)).numpy()
    error = np.abs(result[finite] - exact) / np.maximum(np.abs(arguments[finite]), 1e-37)
    assert error.max() <= 1.3e-7, f"{error.max()} at {arguments[finite][error.argmax()]!r}"
    assert not result[arguments < -6].any()


def test_silu(arguments: np.ndarray) -> None:
    """Where its result is a normal number, but for the last ones before 0."""
    x = var("x", "float32", *arguments.shape)
    function = function_of(ops.silu(x), x)
    (result,) = Runner(function, lower_function(function, targets.get("host")))(arguments)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(arguments) | (arguments == -np.inf))
    assert (result[arguments == np.inf] == np.inf).all() and not result[(arguments < -88.5) & np.isfinite(arguments)].any()
    given = arguments[(arguments > -88.3) & np.isfinite(arguments)]
    exact = given.astype(np.float64) * _sigmoid(given.astype(np.float64))
    error = np.abs(result[(arguments > -88.3) & np.isfinite(arguments)] - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert error[given >= -20].max() <= 4, f"{error[given >= -20].max()} ulp at {given[given >= -20][error[given >= -20].argmax()]!r}"
    assert error.max() <= 7, f"{error.max()} ulp at {given[error.argmax()]!r}"


@pytest.mark.parametrize("name", [*CASES, "silu", "gelu"])
@pytest.mark.parametrize("target", ["x86-64-v3", "jetson-nano"])
def test_no_call_per_lane(name: str, target: str) -> None:
    x = var("x", "float32", 64)
    lowered = lower_function(function_of(ops.ALL[name](x), x), targets.get(target))
    assert [outside_symbols(kernel.object_code) for kernel in lowered.kernels] == [[]]
