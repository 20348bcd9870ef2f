"""Ranges and errors from histograms, against numpy on the values themselves."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import ops
from aotc.errors import InvalidOption
from aotc.quantisation.observers import Histogram, minmax, observe, percentile, scale_and_zero

RNG = np.random.default_rng(0)
VALUES = {
    "normal": RNG.standard_normal(200_000),
    "rectified": np.maximum(RNG.standard_normal(200_000), 0) * 7,
    "outlier": np.append(RNG.standard_normal(200_000), [100.0]),
    "shifted": RNG.uniform(2, 3, 200_000),
    "laplace": RNG.laplace(size=200_000) * 1e-3,
}


def histogram(values: np.ndarray) -> Histogram:
    x = values.astype("float32").reshape(1, 1, -1)
    counts, ranges, _, _ = ops.observe.reference(None, x)
    return Histogram.of(counts.sum(axis=0, dtype="int64"), float(ranges[:, 0].min()), float(ranges[:, 1].max()))


def rounded(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Quantised to int8 and back, in numpy alone."""
    scale, zero = scale_and_zero((low, high))
    return (np.clip(np.rint(values / scale) + zero, -128, 127) - zero) * scale


@pytest.mark.parametrize("name", VALUES)
def test_the_whole_range_includes_zero(name: str) -> None:
    values = VALUES[name].astype("float32")
    assert minmax(histogram(values)) == (min(values.min(), 0), max(values.max(), 0))


@pytest.mark.parametrize("name", VALUES)
def test_the_estimated_error_is_that_of_the_values(name: str) -> None:
    found = histogram(VALUES[name])
    for part in (1.0, 0.5, 0.2):
        low, high = (end * part for end in minmax(found))
        true = np.square(rounded(VALUES[name], low, high) - VALUES[name]).mean()
        assert found.error((low, high)) == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("which", ["mse", "auto"])
def test_the_least_error_is_no_more_than_others(name: str, which: str) -> None:
    found = histogram(VALUES[name])
    best = np.square(rounded(VALUES[name], *observe(which, found)[1]) - VALUES[name]).mean()
    for other in ("minmax", "percentile", "entropy"):
        assert best <= np.square(rounded(VALUES[name], *observe(other, found)[1]) - VALUES[name]).mean() * 1.02


def test_percentiles() -> None:
    low, high = percentile(histogram(VALUES["normal"]))
    assert (low, high) == pytest.approx(tuple(np.percentile(VALUES["normal"], [0.01, 99.99])), rel=0.05)


def test_entropy_cuts_an_outlier_and_no_more() -> None:
    low, high = observe("entropy", histogram(VALUES["outlier"]))[1]
    assert high < 60 and (low, high) != (0, 0)
    low, high = observe("entropy", histogram(VALUES["normal"]))[1]
    assert low < -2 and high > 2


def test_zero_is_exact() -> None:
    for range_ in ((-1.0, 3.0), (0.0, 6.0), (-0.1, 0.0), (0.0, 0.0)):
        scale, zero = scale_and_zero(range_)
        assert -128 <= zero <= 127 and scale > 0


def test_an_unknown_observer() -> None:
    with pytest.raises(InvalidOption, match="minmax"):
        observe("best", histogram(VALUES["normal"]))
