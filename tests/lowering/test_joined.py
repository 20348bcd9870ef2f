"""Concatenations whose parts are computed in the memory of the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import aotc
from aotc.compiler import primitive_functions
from aotc.frontends import import_model
from aotc.lowering.identity import function_label
from aotc.lowering.joined import choose_joined
from aotc.passes.pipeline import optimise
from tests.agreement import assert_agrees

CASES = {
    # name: (the graph, how many concatenations need no kernel, how many do)
    "two parts": ("(float[3,4] x) => (float[6,4] y) { a = Exp(x) b = Neg(x) c = Concat<axis = 0>(a, b) y = Relu(c) z = Sum(c, c) }", 0, 1),
    "a result": ("(float[3,4] x) => (float[6,4] y) { a = Exp(x) b = Neg(x) y = Concat<axis = 0>(a, b) }", 1, 0),
    "an input and a part": ("(float[3,4] x) => (float[6,4] y) { a = Exp(x) y = Concat<axis = 0>(x, a) }", 1, 0),
    "the same part twice": ("(float[3,4] x) => (float[6,4] y) { a = Exp(x) y = Concat<axis = 0>(a, a) }", 1, 0),
    "a part that is an output": ("(float[3,4] x) => (float[6,4] y, float[3,4] a) { a = Exp(x) b = Neg(a) y = Concat<axis = 0>(b, a) }", 1, 0),
    "a whole in a whole": (
        "(float[1,4] x) => (float[1,12] y) { a = Exp(x) b = Neg(x) c = Concat<axis = 1>(a, b) s = Softmax<axis = 1>(c)"
        " e, d = Split<axis = 1>(s) f = Neg(d) y = Concat<axis = 1>(c, f) }", 2, 0,
    ),
    "parts of two wholes": (
        "(float[1,4] x) => (float[1,8] y, float[1,8] z) { a = Exp(x) b = Neg(x) y = Concat<axis = 1>(a, b) z = Concat<axis = 1>(b, a) }", 1, 1,
    ),
    "a part read after the whole": (
        "(float[1,4] x) => (float[1,8] y, float[1,4] z) { a = Softmax<axis = 1>(x) b = Neg(a) y = Concat<axis = 1>(a, b)"
        " s = ReduceSum<keepdims = 1>(y) t = Mul(a, s) z = Softmax<axis = 1>(t) }", 1, 0,
    ),
    "not one after the other": ("(float[3,4] x) => (float[3,8] y) { a = Exp(x) b = Neg(x) y = Concat<axis = 1>(a, b) }", 0, 1),
    "a known size": ("(float[n,4] x) => (float[?,4] y) { a = Exp(x) b = Neg(x) y = Concat<axis = 0>(a, b) }", 1, 0),
}  # fmt: skip


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 11]>\ng {text}')


@pytest.mark.parametrize("name", CASES)
def test_wholes(name: str, tmp_path: Path) -> None:
    text, free, kernels = CASES[name]
    model = _model(text)
    module = optimise(import_model(model), aotc.targets.get("host"))
    assert len(choose_joined(module).wholes) == free
    assert sum("concat" in function_label(function) for function in primitive_functions(module)) == kernels
    aotc.compile(model, output=tmp_path / "model.so", jobs=0)
    loaded = aotc.load(tmp_path / "model.so", num_threads=1)
    shape = [dim if isinstance(dim, int) else 3 for dim in loaded.inputs[0].shape]
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        expected = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for have, want in zip(loaded.run({"x": x}).values(), expected, strict=True):
            assert_agrees(have, want, 1e-5)
