"""Ratios of times that were measured in alternation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ratio:
    """Ours over theirs (below 1: ours is faster): the median over rounds, and the 95 % bootstrap interval of that median."""

    median: float
    low: float
    high: float


def ratio(ours: Mapping[str, float], theirs: Mapping[str, float], samples: int = 2000) -> Ratio:
    """From one time of each round, by the round's name; rounds that only one of them has do not count. Raises ValueError if they
    share none."""
    rounds = np.array([ours[number] / theirs[number] for number in sorted(set(ours) & set(theirs), key=int)])
    if not rounds.size:
        raise ValueError("no round has times of both")
    drawn = np.median(np.random.default_rng(0).choice(rounds, (samples, rounds.size)), axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Ratio(float(np.median(rounds)), float(low), float(high))


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))
