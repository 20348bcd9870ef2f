"""EfficientNet-Lite0 with its real weights on real photographs, from both frontends, on both processors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
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


def test_jetson_file_classifies_photographs(build: Build, tmp_path: Path) -> None:
    answers = jetson_answers(build("efficientnet-torch", "jetson"), images.paths(), tmp_path)
    assert right(answers) >= 18


def test_jetson_file_from_onnx_agrees(build: Build, tmp_path: Path) -> None:
    """A few photographs: each takes seconds of emulation, and `make demo` classifies all twenty."""
    jetson_answers(build("efficientnet-onnx", "jetson"), images.paths()[:4], tmp_path)


def jetson_answers(file: Path, paths: Sequence[Path], folder: Path) -> list[np.ndarray]:
    """The emulated file's answers, which agree with ONNX Runtime's."""
    answers = [next(iter(emulate(file, [images.prepare(path)], folder).values())) for path in paths]
    for answer, reference, path in zip(answers, expected(), paths, strict=False):
        assert_agrees(answer, reference, 1e-4, path.name)
    return answers
