"""``python -m tests.measure``: a hundred thousand profiled runs of a small network, and what the process holds in memory before and after."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import aotc
from aotc.measure.profile import profile
from tests.e2e import small
from tests.measure.test_profile import GROWTH, resident

RUNS = 100_000


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "conv.so"
        aotc.compile(small.convolutional(), output=file, jobs=0)
        feeds = {"x": np.ones((1, 3, 16, 16), np.float32)}
        profile(file, feeds, runs=2000, measure_peak=False)
        before = resident()
        found = profile(file, feeds, runs=RUNS, measure_peak=False)
        grown = resident() - before
    print(f"{found.runs} profiled runs of {len(found.steps)} steps: {before / 1e6:.2f} MB resident before, {grown / 1e6:+.2f} MB after")
    return int(grown > GROWTH)


if __name__ == "__main__":
    raise SystemExit(main())
