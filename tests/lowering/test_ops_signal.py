"""Compiled Fourier transforms of many lengths, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc import ops
from aotc.ir.dims import symbol
from aotc.ops.signal import rotations
from tests.lowering.batch import Case, check

B, N = symbol("b", 1), symbol("n", 1)
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 30, 49, 64, 97, 128, 400, 512)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def case(x: np.ndarray, length: int, **attrs: Any) -> Case:
    table = rotations(length, "float64" if x.dtype == "float64" else "float32")
    return Case(ops.fourier, [x, table], {"length": length, **attrs}, ulp=8, scale=4 * np.sqrt(length) if not attrs.get("inverse") else 4)


@pytest.mark.parametrize("inverse", [False, True])
def test_lengths(inverse: bool) -> None:
    """Single rows, and more than are transformed side by side."""
    check([case(normal(rows, n, 2), n, inverse=inverse) for i, n in enumerate(LENGTHS) for rows in [(1, 19)[i % 2]]])


def test_forms() -> None:
    """Real data, half spectra, data that is cut or continued, dtypes, two leading axes."""
    check(
        [
            case(normal(3, 9, 16, 1), 16, onesided=True),
            case(normal(11, 15, 1), 15, onesided=True),
            case(normal(11, 9, 2), 16, inverse=True, onesided=True),
            case(normal(11, 8, 2), 15, inverse=True, onesided=True),
            case(normal(2, 6, 2), 16, inverse=True, onesided=True),
            case(normal(2, 9, 2), 14),
            case(normal(2, 9, 1), 20),
            case(normal(9, 48, 2, dtype="float64"), 48),
            case(normal(9, 24, 2, dtype="float16"), 24, inverse=True),
        ]
    )


@pytest.mark.parametrize("length", [1, 13, 60, 96, 256])
def test_lengths_known_only_at_run_time(length: int) -> None:
    x, table = normal(10, length, 2), rotations(length, "float32")
    symbols = {"b": 10, "n": length}
    attrs = {"length": N}
    check(
        [
            Case(ops.fourier, [x, table], attrs, [(B, N, 2), (N, 2)], symbols, ulp=8, scale=4 * np.sqrt(length)),
            Case(
                ops.fourier,
                [x[..., :1], table],
                {**attrs, "onesided": True},
                [(10, N, 1), (N, 2)],
                symbols,
                ulp=8,
                scale=4 * np.sqrt(length),
            ),
        ]
    )
