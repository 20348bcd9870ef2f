"""What paired times say. Distribution-free: a machine's noise is not normal, and mostly on one side.

In each round every candidate runs once, so what disturbs a round disturbs all of its ratios alike. The median of the ratios
gets an interval from order statistics: the k-th smallest of n ratios lies below the median unless fewer than k of n fair coins
fall heads (Conover, Practical Nonparametric Statistics, 1999, section 3.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.99
WORTHWHILE = 0.99
"""A candidate must be surely faster than this times the untuned choice: less is not worth a difference from it."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios, and the bounds within which the true one lies with ``CONFIDENCE``."""

    median: float
    lower: float
    upper: float

    @property
    def is_faster(self) -> bool:
        return self.upper < WORTHWHILE

    @property
    def is_slower(self) -> bool:
        return self.lower > 1.0


def paired_ratio(times: np.ndarray, base: np.ndarray) -> Ratio:
    """``times`` relative to ``base``, round by round. With fewer than eight rounds the bounds are 0 and infinity: nothing is sure."""
    ratios = np.sort(np.asarray(times, float) / np.maximum(np.asarray(base, float), 1.0))
    skipped = _skipped(len(ratios))
    bounds = (0.0, math.inf) if skipped is None else (float(ratios[skipped]), float(ratios[len(ratios) - 1 - skipped]))
    return Ratio(float(np.median(ratios)), *bounds)


def _skipped(count: int) -> int | None:
    """How many of ``count`` sorted values may be left off at each end."""
    tail, skipped = 0.0, None
    for k in range(count // 2):
        tail += math.comb(count, k) * 0.5**count
        if 2 * tail > 1 - CONFIDENCE:
            break
        skipped = k
    return skipped
