"""Types of 16 bits and fewer, compiled: every code of every type to numbers, numbers to bits, and what moves elements."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx.reference.ops.op_cast import cast_to

from aotc import ops
from aotc.frontends.onnx.tensors import DTYPES as ELEMENT_TYPES
from aotc.ir.types import FLOATS, SMALL, SMALL_FLOATS, SMALL_INTEGERS, bits_of, storage_dtype
from aotc.ops.small import BITS
from tests.lowering.batch import Case, check

E8M0 = "float8_e8m0fnu"
FLOAT8 = [dtype for dtype in SMALL_FLOATS if dtype.startswith("float8") and dtype != E8M0]


def codes(dtype: str) -> np.ndarray:
    """Every element that the type has."""
    count = 2**16 if dtype == "bfloat16" else 2 ** BITS.get(dtype, 8)
    return np.arange(count).astype(storage_dtype(dtype)).view(dtype)


def numbers(dtype: str, seed: int = 0) -> np.ndarray:
    """float32: around every value of the type, half-way between neighbours, and special ones."""
    with np.errstate(all="ignore"):
        values = codes(dtype).astype("float32")
        finite = np.sort(values[np.isfinite(values)])
        if dtype == "bfloat16":
            finite = finite[::97]
        middle = (finite[1:].astype("float64") + finite[:-1]).astype("float32") / np.float32(2)
        near = [np.nextafter(middle, np.float32(to)) for to in (-np.inf, np.inf)]
        special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 1e30, -3e38, 3.4e38], "float32")
        scale = float(finite[-1]) or 1.0
        random = np.random.default_rng(seed).normal(size=200).astype("float32") * np.float32(min(scale, 1e30))
        beyond = np.float32(min(scale, 1e38)) * np.array([1.01, 1.05, 1.0625, 1.07, 1.1, 1.125, 1.2, 1.5, 2], "float32")
        return np.concatenate([values[:4096], middle, *near, special, random, beyond, -beyond])


def onnx_cast(dtype: str, saturate: bool = True, round_mode: str = "up") -> Any:
    """ONNX's reference implementation of Cast."""
    element = next(number for number, name in ELEMENT_TYPES.items() if name == dtype)

    def compute(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(cast_to(x, element, saturate, round_mode))

    return compute


def test_every_code_becomes_its_number() -> None:
    cases = [Case(ops.cast, [codes(dtype)], {"dtype": wide}, expected=onnx_cast(wide), ulp=0) for dtype in SMALL for wide in ("float32",)]
    cases += [Case(ops.cast, [codes("int4")], {"dtype": wide}, expected=onnx_cast(wide)) for wide in ("int8", "uint8", "int64", "bool")]
    cases += [Case(ops.cast, [codes(dtype)], {"dtype": "float64"}, expected=onnx_cast("float64"), ulp=0) for dtype in SMALL_FLOATS]
    cases += [Case(ops.cast, [codes(dtype)], {"dtype": "float16"}, expected=onnx_cast("float16"), ulp=0) for dtype in (*FLOAT8, "bfloat16")]
    cases += [Case(ops.cast, [codes("uint2")], {"dtype": "int32"}, expected=onnx_cast("int32"))]
    cases += [Case(ops.cast, [codes("bfloat16")], {"dtype": "bool"}, expected=onnx_cast("bool"))]
    check(cases)


def test_numbers_become_the_nearest_code() -> None:
    cases = [Case(ops.cast, [numbers(dtype)], {"dtype": dtype}, expected=onnx_cast(dtype)) for dtype in SMALL_FLOATS if dtype != E8M0]
    cases += [
        Case(ops.cast, [numbers(dtype)], {"dtype": dtype, "saturate": False}, expected=onnx_cast(dtype, saturate=False)) for dtype in FLOAT8
    ]
    every = np.arange(2**16).astype("uint16").view("float16")
    cases += [Case(ops.cast, [every], {"dtype": dtype}, expected=onnx_cast(dtype)) for dtype in (*FLOAT8, "bfloat16", "float4_e2m1fn")]
    cases += [Case(ops.cast, [numbers("bfloat16").astype("float64")], {"dtype": "bfloat16"}, expected=onnx_cast("bfloat16"))]
    whole = np.random.default_rng(1).integers(-(2**31), 2**31, 999)
    cases += [
        Case(ops.cast, [whole.astype(source)], {"dtype": "bfloat16"}, expected=onnx_cast("bfloat16")) for source in ("int64", "int32")
    ]
    cases += [
        Case(ops.cast, [codes("float8_e5m2")], {"dtype": dtype}, expected=onnx_cast(dtype)) for dtype in ("bfloat16", "float8_e4m3fn")
    ]
    check(cases)


def test_powers_of_two() -> None:
    """ONNX's reference looks at the exponent alone; its text says what becomes of infinity and of what is too small."""
    x = np.abs(numbers(E8M0))
    x = x[np.isfinite(x) & (x >= 2.0**-126)]
    modes = ("up", "down", "nearest")
    cases = [Case(ops.cast, [x], {"dtype": E8M0, "round_mode": mode}, expected=onnx_cast(E8M0, True, mode)) for mode in modes]
    special = np.array([np.inf, 3.4e38, np.nan, 1e-40, 2.0**-127], "float32")
    for saturate, want in ((True, [254, 254, 255, 0, 0]), (False, [255, 255, 255, 255, 0])):
        expected = np.array(want, "uint8").view(E8M0)
        cases.append(Case(ops.cast, [special], {"dtype": E8M0, "saturate": saturate}, expected=lambda x, expected=expected: expected))
    check(cases)


def test_integers_keep_their_low_bits() -> None:
    x = np.arange(-40, 40)
    cases = [
        Case(ops.cast, [x.astype(source)], {"dtype": dtype}, expected=lambda x, dtype=dtype: x.astype("int32").astype(dtype))
        for dtype in SMALL_INTEGERS
        for source in ("int64", "int8", "float32")
    ]
    cases += [
        Case(ops.cast, [codes(source)], {"dtype": dtype}, expected=lambda x, dtype=dtype: x.astype("int32").astype(dtype))
        for source, dtype in itertools.permutations(SMALL_INTEGERS, 2)
    ]
    cases += [Case(ops.cast, [np.array([True, False])], {"dtype": dtype}, expected=onnx_cast(dtype)) for dtype in SMALL if dtype != E8M0]
    check(cases)


def test_bits_move_and_are_reinterpreted() -> None:
    x = codes("float8_e4m3fn").reshape(4, 8, 8)
    b = codes("bfloat16")[:96].reshape(4, 24)
    i = codes("int4").reshape(2, 8)
    at = np.array([1, 0, 3], "int64")
    cases = [
        Case(ops.transpose, [x], {"axes": (2, 0, 1)}),
        Case(ops.slice_, [b], {"begins": (1, 2), "ends": (4, 20), "steps": (1, 3)}),
        Case(ops.concat, [b, b], {"axis": 1}),
        Case(ops.gather, [b, at], {"axis": 0}),
        Case(ops.pad, [i], {"before": (0, 1), "after": (1, 0), "value": -3}),
        Case(ops.pad, [b], {"before": (0, 1), "after": (1, 0), "value": -2.5}),
        Case(ops.tile, [i], {"repeats": (2, 3)}),
        Case(ops.where, [np.arange(24) % 3 == 0, b, b[:1]]),
        Case(ops.bitcast, [x], {"dtype": "uint8"}),
        Case(ops.bitcast, [i], {"dtype": "uint4"}),
        Case(ops.bitcast, [b], {"dtype": "float16"}, ulp=0),
        Case(ops.bitcast, [np.arange(-4, 4).astype("int32")], {"dtype": "float32"}, ulp=0),
        Case(ops.bitcast, [np.linspace(-4, 4, 9)], {"dtype": "int64"}),
        Case(ops.bitcast, [np.array([True, False])], {"dtype": "uint8"}),
        Case(ops.full, [], {"shape": (3, 2), "value": 1.5, "dtype": "float8_e5m2"}),
    ]
    check(cases)


@pytest.mark.parametrize("dtype", SMALL)
def test_bits_of_elements_are_low_bits(dtype: str) -> None:
    assert np.asarray(bits_of(np.array([1]).astype(dtype))).item() < 2 ** BITS.get(dtype, 16)
    assert (dtype in ml_dtypes.__dict__) and set(FLOATS).isdisjoint(SMALL)
