"""EfficientNet-Lite0 with its real weights on real photographs, from both frontends, on both processors."""

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
from tests.zoo import efficientnet, images

SOURCES = ("efficientnet-torch", "efficientnet-onnx")


@functools.cache
def expected() -> list[np.ndarray]:
    model = efficientnet.onnx_path()
    return [onnxruntime_outputs(model, {"x": images.prepare(path)})["logits"] for path in images.paths()]


def right(answers: list[np.ndarray]) -> int:
    return sum(int(answer.argmax()) == images.label(path) for answer, path in zip(answers, images.paths(), strict=True))


@pytest.mark.parametrize("source", SOURCES)
def test_host_file_classifies_photographs(build: Build, source: str) -> None:
    model = aotc.load(build(source), num_threads=1)
    (name,) = [info.name for info in model.inputs]
    answers = [next(iter(model.run({name: images.prepare(path)}).values())) for path in images.paths()]
    assert right(answers) >= 18
    for answer, reference, path in zip(answers, expected(), images.paths(), strict=True):
        assert_agrees(answer, reference, 1e-4, path.name)


@pytest.mark.parametrize("source", SOURCES)
def test_jetson_file_classifies_photographs(build: Build, source: str, tmp_path: Path) -> None:
    file = build(source, "jetson")
    answers = [next(iter(emulate(file, [images.prepare(path)], tmp_path).values())) for path in images.paths()]
    assert right(answers) >= 18
    for answer, reference, path in zip(answers, expected(), images.paths(), strict=True):
        assert_agrees(answer, reference, 1e-4, path.name)
