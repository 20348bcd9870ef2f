"""Times of one run."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np


def microseconds(run: Callable[[], object], seconds: float = 1.0, warm: int = 10) -> dict[str, float]:
    """Median and least time of a run that ends when its results are there, over some ``seconds`` after ``warm`` runs."""
    for _ in range(warm):
        run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return {"median": float(np.median(times)) * 1e6, "least": min(times) * 1e6, "runs": len(times)}
