"""Ratios of times that were measured in alternation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ratio:
    """How many times as long the other engine takes (above 1: aotc is faster), with a 95 % bootstrap interval over rounds.

    ``median`` is the median over rounds of the ratio of the round's medians; ``minimum`` the ratio of the smallest times.
    """

    median: float
    low: float
    high: float
    minimum: float


def ratio(ours: list[list[float]], theirs: list[list[float]], samples: int = 2000) -> Ratio:
    """From the times of each round, ``ours[i]`` and ``theirs[i]`` having been measured one after the other."""
    rounds = np.array([np.median(b) / np.median(a) for a, b in zip(ours, theirs, strict=True)])
    random = np.random.default_rng(0)
    drawn = np.median(random.choice(rounds, (samples, len(rounds))), axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Ratio(float(np.median(rounds)), float(low), float(high), min(map(min, theirs)) / min(map(min, ours)))
