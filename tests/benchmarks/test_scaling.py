"""Scaling: what is computed of times, and that each measurement works; never a time itself."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import aotc
from benchmarks import scaling
from benchmarks.peers.networks import Bert
from benchmarks.statistics import Ratio


def test_exponent_of_the_growth() -> None:
    work = (1_000, 10_000, 20_000, 40_000, 80_000)
    linear = scaling.Growth("linear", (1, 10, 20, 40, 80), tuple(macs / 1e3 for macs in work), work)
    assert linear.slope() == pytest.approx(1)
    squares = scaling.Growth("squares", (1, 10, 20, 40, 80), tuple(macs**2 / 1e3 for macs in work), work)
    assert squares.slope() == pytest.approx(2)


def test_work_of_the_encoder_is_what_torch_counts() -> None:
    encoder = Bert(layers=2, hidden=24, heads=3, feed_forward=40, tokens=16).eval()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        encoder(torch.zeros(1, 11, dtype=torch.int64))
    assert 2 * scaling.encoder_work(11, layers=2, hidden=24, feed_forward=40) == counter.get_total_flops()


def test_measurements_of_a_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "OUTPUT", tmp_path)
    scaling.sessions_program.cache_clear()
    file = tmp_path / "model.so"
    aotc.compile(torch.nn.Linear(8, 4), args=(torch.zeros(3, 8),), output=file, jobs=0)
    (info,) = aotc.load(file).inputs
    two = scaling.threads(file, {info.name: np.zeros((3, 8), np.float32)}, rounds=2, seconds=0.001)
    pool = scaling.shared_pool(file, rounds=2, seconds=0.02)
    scaling.sessions_program.cache_clear()
    grown = scaling.growth("rows", file, lambda size: np.zeros((3, 8), np.float32), (1, 2), (10, 20), 0.001)
    assert isinstance(two, Ratio) and isinstance(pool, Ratio)
    assert min(two.low, pool.low, *grown.milliseconds) > 0
    text = "\n".join(scaling.section({"threads": asdict(two), "pool": asdict(pool), "growth": [asdict(grown)]}))
    assert "| rows | 2 |" in text
    assert "<svg" in scaling.chart([grown]).svg()
