"""Small ONNX models, run by our own means and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from aotc.frontends.onnx import import_onnx
from aotc.ir.expr import Module
from aotc.ops.interpret import interpret
from tests.agreement import assert_agrees

onnxruntime.set_default_logger_severity(4)


def parse(body: str, opset: int = 21) -> onnx.ModelProto:
    """A model from onnx's text form of a graph: ``(float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }``."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {body}')


def run(module: Module, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return interpret(module.main, [feeds[param.name] for param in module.main.params])


def in_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, dict(feeds))


def check(model: onnx.ModelProto | str, *all_feeds: Mapping[str, np.ndarray], opset: int = 21, inputs: Any = None) -> Module:
    """Imports the model once and compares its outputs with ONNX Runtime's for each set of inputs; dtypes and shapes too."""
    proto = parse(model, opset) if isinstance(model, str) else model
    module = import_onnx(proto, inputs)
    for feeds in all_feeds:
        results, expected = run(module, feeds), in_onnxruntime(proto, feeds)
        for name, result, reference in zip(module.output_names["main"], results, expected, strict=True):
            assert_agrees(result, reference, 1e-5, name)
    return module


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
