"""From how often values occur to the range that int8 shall cover. Nothing here has seen a value: all stand on histograms.

Errors are mean squares as Sung et al. (2015) have them: a value inside the range errs by a uniform rounding error, or by itself where it
rounds to zero; a value outside by its distance from the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aotc.errors import InvalidOption
from aotc.ops.calibration import LEAST, bin_edges

LEVELS = 256
LOW, HIGH = -128, 127
PERCENTILE = 99.99
SHRINKS = np.linspace(1.0, 0.05, 96)
"""What of the whole range the searches try."""

Range = tuple[float, float]


@dataclass(frozen=True)
class Histogram:
    """Centres of the bins from the least to the greatest value, float64; ``half`` half their width; ``count`` how many values are in each;
    ``low`` and ``high`` the range of all. Only bins with values."""

    centre: np.ndarray
    half: np.ndarray
    count: np.ndarray
    low: float
    high: float

    @staticmethod
    def of(counts: np.ndarray, low: float, high: float) -> Histogram:
        """From the bins of ``aotc.ops.observe``, int64[bins], and the range."""
        begins, ends = bin_edges()
        half = len(begins)
        low_edges = np.concatenate([-ends[::-1], begins])
        high_edges = np.concatenate([-begins[::-1], ends])
        ordered = np.concatenate([counts[half:][::-1], counts[:half]])
        used = ordered > 0
        left, right = np.clip(low_edges[used], low, high), np.clip(high_edges[used], low, high)
        return Histogram((left + right) / 2, (right - left) / 2, ordered[used].astype("float64"), low, high)

    def error(self, range_: Range) -> float:
        """The mean square by which values differ after quantising to ``LEVELS`` over ``range_``, which includes 0."""
        low, high = range_
        scale = max((high - low) / (LEVELS - 1), float(np.finfo("float32").tiny))
        outside = np.maximum(np.maximum(low - self.centre, self.centre - high), 0)
        rounding = np.where(np.abs(self.centre) < scale / 2, self.centre**2, scale**2 / 12)
        each = np.where(outside > 0, outside**2, rounding)
        return float((each * self.count).sum() / self.count.sum())

    @property
    def power(self) -> float:
        """The mean square of the values."""
        return float((self.centre**2 * self.count).sum() / self.count.sum())


def minmax(histogram: Histogram) -> Range:
    """All that was seen."""
    return min(histogram.low, 0.0), max(histogram.high, 0.0)


def percentile(histogram: Histogram, part: float = PERCENTILE) -> Range:
    """All but the outermost values of each side."""
    low, high = minmax(histogram)
    share = np.cumsum(histogram.count) / histogram.count.sum()
    inner = histogram.centre[(share >= 1 - part / 100) & (share <= part / 100)]
    return (low, high) if not len(inner) else (min(float(inner.min()), 0.0), max(float(inner.max()), 0.0))


def mean_square(histogram: Histogram) -> Range:
    """The range of least mean square error."""
    return _searched(minmax(histogram), histogram.error)


def entropy(histogram: Histogram) -> Range:
    """The range whose quantised distribution diverges least from the true one (Kullback and Leibler; Migacz, 2017)."""
    low, high = minmax(histogram)
    counts = _in_equal_bins(histogram, low, high)
    width = max(high - low, 1e-30) / LINEAR_BINS
    return _searched((low, high), lambda range_: _divergence(counts, round((range_[0] - low) / width), round((range_[1] - low) / width)))


def _searched(whole: Range, cost: Callable[[Range], float]) -> Range:
    """The part of a range that costs least: both ends drawn in together, then each alone, from the better start."""
    low, high = whole
    best = min(((low * s, high * s) for s in SHRINKS), key=cost)
    best = min([best, *((low, high * s) for s in SHRINKS), *((low * s, high) for s in SHRINKS)], key=cost)
    best = min([best, *((best[0] * s, best[1]) for s in SHRINKS)], key=cost)
    return min([best, *((best[0], best[1] * s) for s in SHRINKS)], key=cost)


LINEAR_BINS = 2048


def _in_equal_bins(histogram: Histogram, low: float, high: float) -> np.ndarray:
    """The numbers of values in bins of one width; exact zeros, which every range holds exactly, left out."""
    exact = np.abs(histogram.centre) < 2.0**LEAST
    count = np.where(exact, 0, histogram.count)
    edges = np.append(histogram.centre - histogram.half, histogram.high)
    return np.diff(np.interp(np.linspace(low, high, LINEAR_BINS + 1), edges, np.append(0, np.cumsum(count))))


def _divergence(counts: np.ndarray, begin: int, end: int) -> float:
    """Of the distribution that is clipped to these bins from the one that has equal numbers in all bins of a level that have any; a
    range of less than a bin for each level cannot be told."""
    if end - begin < LEVELS:
        return float(np.inf)
    inside = counts[begin:end]
    clipped = inside.copy()
    clipped[0] += counts[:begin].sum()
    clipped[-1] += counts[end:].sum()
    level = np.arange(end - begin) * LEVELS // (end - begin)
    used = inside > 0
    sums, bins = np.bincount(level, inside, LEVELS), np.bincount(level, used, LEVELS)
    spread = np.where(used, sums[level] / np.maximum(bins[level], 1), 0)
    if not spread.any():
        return float(np.inf)
    # A little everywhere, so that what is clipped into an empty bin costs much and not infinitely much.
    p, q = clipped / clipped.sum(), (spread + 1e-6 * spread.sum() / len(spread)) / spread.sum() / (1 + 1e-6)
    held = p > 0
    return float((p[held] * np.log(p[held] / q[held])).sum())


OBSERVERS: dict[str, Callable[[Histogram], Range]] = {
    "minmax": minmax,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mean_square,
}
AUTO = "auto"
"""Of all observers' ranges that with the least mean square error."""


def observe(name: str, histogram: Histogram) -> tuple[str, Range]:
    """The observer that was used and its range. Raises InvalidOption for a name that is none of ``OBSERVERS``, nor ``AUTO``."""
    check_observer(name)
    found = [(each, choose(histogram)) for each, choose in OBSERVERS.items() if name in (each, AUTO)]
    return min(found, key=lambda pair: histogram.error(pair[1]))


def check_observer(name: str) -> None:
    if name not in OBSERVERS and name != AUTO:
        raise InvalidOption(f"the observer {name!r} is not one of {AUTO}, {', '.join(OBSERVERS)}")


def scale_and_zero(range_: Range) -> tuple[float, int]:
    """The float32 scale and the int8 zero point that cover ``range_``, which includes 0; 0 itself is exact."""
    low, high = range_
    scale = np.float32(max((high - low) / (LEVELS - 1), 1e-30) if high > low else 1)  # what was always 0 may yet be something else
    return float(scale), int(np.clip(np.rint(LOW - low / float(scale)), LOW, HIGH))
