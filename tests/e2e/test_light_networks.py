"""Nine whole networks of the onnx package with seeded random weights."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

import aotc
from tests.agreement import assert_agrees
from tests.e2e.conftest import Build
from tests.e2e.emulate import emulate
from tests.e2e.reference import onnxruntime_outputs
from tests.zoo import light


@functools.cache
def case(name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    path = light.onnx_path(name)
    input_name, shape = light.input_of(path)
    feeds = {input_name: np.random.default_rng(5).standard_normal(shape, dtype=np.float32)}
    return feeds, next(iter(onnxruntime_outputs(path, feeds).values()))


@pytest.mark.parametrize("name", light.NAMES)
def test_host(build_large: Build, name: str) -> None:
    feeds, reference = case(name)
    (answer,) = aotc.load(build_large(f"light-{name}"), num_threads=1).run(feeds).values()
    assert_agrees(answer, reference, 1e-4, name)


@pytest.mark.parametrize("name", light.NAMES)
def test_arm(build_large: Build, name: str, tmp_path: Path) -> None:
    feeds, reference = case(name)
    (answer,) = emulate(build_large(f"light-{name}", "jetson"), list(feeds.values()), tmp_path).values()
    assert_agrees(answer, reference, 1e-4, name)
