"""Models in ONNX's text form, built and run beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime

import aotc
from aotc.runtime.loader import Model, load
from tests.agreement import assert_agrees
from tests.frontends.onnx.helpers import in_onnxruntime, parse

Feeds = Mapping[str, np.ndarray]

onnxruntime.set_default_logger_severity(4)


def built(folder: Path, body: str, opset: int = 18) -> Model:
    """``(float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }`` as a file that is opened."""
    aotc.compile(parse(body, opset), output=folder / "model.so", jobs=0)
    return load(folder / "model.so", num_threads=1)


def check_built(folder: Path, body: str, *all_feeds: Feeds, opset: int = 18) -> Model:
    """One file for all inputs: outputs as ONNX Runtime's in shape, type and value."""
    model, proto = built(folder, body, opset), parse(body, opset)
    for feeds in all_feeds:
        outputs = model.run(dict(feeds))
        for (name, have), want in zip(outputs.items(), in_onnxruntime(proto, feeds), strict=True):
            assert (have.shape, have.dtype) == (want.shape, want.dtype), (
                f"{name}: {have.dtype}{have.shape}, expected {want.dtype}{want.shape}"
            )
            if want.size:
                assert_agrees(have, want, 1e-5, name)
    return model


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)
