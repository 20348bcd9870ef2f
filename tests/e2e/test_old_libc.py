"""Files for JetPack 4 and 5 run with a C library of that age: glibc 2.31 for Arm, from Debian 11."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.errors import BuildError
from cross import old_sysroot
from tests.agreement import assert_agrees
from tests.e2e.emulate import emulate
from tests.e2e.reference import onnxruntime_outputs
from tests.e2e.small import transcendental


@pytest.fixture(scope="module")
def sysroot() -> Path:
    try:
        return old_sysroot.sysroot()
    except BuildError as error:
        pytest.skip(f"Debian's older libc6 for arm64 cannot be had here: {error}")


@pytest.mark.parametrize("target", ["jetson-nano", "jetson-tx2", "jetson-xavier"])
def test_runs_with_an_older_libc(target: str, sysroot: Path, tmp_path: Path) -> None:
    """Case 1: exp, pow, log and fmod, whose symbols got new versions in glibc 2.29 and 2.38."""
    model = transcendental()
    feeds = {"x": np.random.default_rng(0).uniform(0.05, 0.95, 64).astype(np.float32)}
    output = tmp_path / "model.so"
    aotc.compile(model, target=target, output=output, device="cpu")
    answers = emulate(output, list(feeds.values()), tmp_path, sysroot=sysroot)
    for name, reference in onnxruntime_outputs(model, feeds).items():
        assert np.isfinite(reference).all()
        assert_agrees(answers[name], reference, 1e-5, name)
