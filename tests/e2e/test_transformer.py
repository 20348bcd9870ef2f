"""MiniLM-L6 with its real weights: one file for every batch and sequence length."""

from __future__ import annotations

from pathlib import Path

import pytest

import aotc
from aotc.errors import RuntimeFailure
from tests.agreement import assert_agrees
from tests.e2e.conftest import Build
from tests.e2e.emulate import emulate
from tests.e2e.reference import onnxruntime_outputs
from tests.zoo import minilm

SOURCES = ("minilm-torch", "minilm-onnx")


@pytest.mark.parametrize("source", SOURCES)
def test_host_file_takes_any_size(build: Build, source: str) -> None:
    model = aotc.load(build(source), num_threads=1)
    for batch, sequence in ((2, 16), (1, 1), (1, 7), (3, 33), (5, 64), (1, 128), (2, 16)):
        feeds = minilm.example(batch, sequence)
        answers = list(model.run(feeds).values())
        for answer, (name, reference) in zip(answers, onnxruntime_outputs(minilm.onnx_path(), feeds).items(), strict=True):
            assert_agrees(answer, reference, 1e-4, f"{name} for {batch} x {sequence}")


@pytest.mark.parametrize("source", SOURCES)
def test_arm_file_takes_any_size(build: Build, source: str, tmp_path: Path) -> None:
    file = build(source, "jetson")
    for batch, sequence in ((1, 7), (2, 16), (1, 33)):
        feeds = minilm.example(batch, sequence)
        answers = list(emulate(file, list(feeds.values()), tmp_path).values())
        for answer, (name, reference) in zip(answers, onnxruntime_outputs(minilm.onnx_path(), feeds).items(), strict=True):
            assert_agrees(answer, reference, 1e-4, f"{name} for {batch} x {sequence}")


def test_sizes_out_of_bounds_are_refused(build: Build) -> None:
    model = aotc.load(build("minilm-torch"), num_threads=1)
    with pytest.raises(RuntimeFailure, match=r"33"):
        model.run(minilm.example(33, 4))
    feeds = minilm.example(2, 8)
    with pytest.raises(RuntimeFailure):
        model.run({"input_ids": feeds["input_ids"], "attention_mask": feeds["attention_mask"][:, :7]})
