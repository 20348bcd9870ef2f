"""PP-OCR: all dims dynamic, weights in Constant nodes. One file each, at three sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

import aotc
from tests.agreement import assert_agrees
from tests.e2e.conftest import Build
from tests.e2e.emulate import emulate
from tests.e2e.reference import onnxruntime_outputs
from tests.zoo import ocr


@pytest.mark.parametrize("name", ocr.FILES)
def test_host(build: Build, name: str) -> None:
    model = aotc.load(build(f"ocr-{name}"), num_threads=1)
    for shape in ocr.SIZES[name]:
        feeds = {"x": ocr.example(shape)}
        (reference,) = onnxruntime_outputs(ocr.onnx_path(name), feeds).values()
        (answer,) = model.run(feeds).values()
        assert_agrees(answer, reference, 1e-4, f"{name} {shape}")


@pytest.mark.parametrize("name", ocr.FILES)
def test_arm(build: Build, name: str, tmp_path: Path) -> None:
    file = build(f"ocr-{name}", "jetson")
    for shape in ocr.SIZES[name]:
        feeds = {"x": ocr.example(shape)}
        (reference,) = onnxruntime_outputs(ocr.onnx_path(name), feeds).values()
        (answer,) = emulate(file, list(feeds.values()), tmp_path).values()
        assert_agrees(answer, reference, 1e-4, f"{name} {shape}")
