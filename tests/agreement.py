"""When two results agree: the project's one measure for comparing numbers with a reference."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Distance(NamedTuple):
    """How far a result is from a reference, both relative to the reference's own size."""

    largest: float  # largest |a - b| over largest |b|
    l2: float  # L2 norm of a - b over that of b


def distance(result: np.ndarray, reference: np.ndarray) -> Distance:
    """Raises AssertionError where dtype or shape differ, or where non-finite values stand at different places."""
    assert result.dtype == reference.dtype, f"dtype {result.dtype}, expected {reference.dtype}"
    assert result.shape == reference.shape, f"shape {result.shape}, expected {reference.shape}"
    a, b = result.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(b)
    assert np.array_equal(a[~finite], b[~finite], equal_nan=True), "non-finite values differ"
    assert np.isfinite(a[finite]).all(), "non-finite values where the reference has none"
    a, b = a[finite], b[finite]
    if a.size == 0:
        return Distance(0.0, 0.0)
    tiny = np.finfo(np.float64).tiny
    return Distance(
        float(np.abs(a - b).max() / max(np.abs(b).max(), tiny)),
        float(np.linalg.norm(a - b) / max(np.linalg.norm(b), tiny)),
    )


def assert_agrees(result: np.ndarray, reference: np.ndarray, figure: float, what: str = "result") -> None:
    """Largest difference at most ``figure`` of the largest value, relative L2 distance at most a third of it.

    Integers and booleans must be equal.
    """
    if reference.dtype.kind not in "fc":
        assert result.dtype == reference.dtype, f"{what}: dtype {result.dtype}, expected {reference.dtype}"
        np.testing.assert_array_equal(result, reference, err_msg=what)
        return
    found = distance(result, reference)
    assert found.largest <= figure and found.l2 <= figure / 3, (
        f"{what}: largest difference {found.largest:.2e}, L2 {found.l2:.2e}; allowed {figure:.0e} and {figure / 3:.1e}"
    )
