"""What random graphs and torch's samples found, as the smallest models that show it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.fuzz.builder import Graph
from tests.fuzz.compare import check

NOTHING = np.zeros((2, 0, 17), np.float32)
FOUND: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    # An output that is empty whatever the symbol is had no step that wrote it.
    "empty beside an open size": ("(float[n,0,17] x) => (float[?,?,?] y) { y = Sign(x) }", {"x": NOTHING}),
    "no rows of an open size": (
        "(double[n,1,1] x) => (double[?,?,?] v, int64[?,?,?] i) <int64[1] k = {0}> { v, i = TopK<axis = -2>(x, k) }",
        {"x": np.ones((3, 1, 1))},
    ),
    # TVM divides by a literal 0 where an axis has no elements, or refuses a literal divisor of 0.
    "nonzero of nothing": ("(int32[17,0] x) => (int64[?,?] y) { y = NonZero(x) }", {"x": np.zeros((17, 0), np.int32)}),
    "divided by a constant zero": (
        "(float[4] x) => (float[?] y) <float z = {0}> { s = Neg(x) y = Div(s, z) }", {"x": np.array([-2, 0, 3, np.inf], np.float32)},
    ),
    "the mean of nothing": ("(float[0,5] x) => (float y) { y = ReduceMean<keepdims = 0>(x) }", {"x": np.zeros((0, 5), np.float32)}),
    # A name for the index had another range the second time.
    "indices of windows of one": (
        "(float[3,1,8] x) => (float[?,?,?] y, int64[?,?,?] i) { y, i = MaxPool<kernel_shape = [1]>(x) }",
        {"x": np.arange(24, dtype=np.float32).reshape(3, 1, 8)},
    ),
    # Numbers that follow from sizes are Python's while the model is read.
    "fmod of a size": ("(float[3,3] x) => (int64 y) { n = Size(x) y = Mod<fmod = 1>(n, n) }", {"x": np.zeros((3, 3), np.float32)}),
    "a size divided by zero": (
        "(float[0,3] x, float[4] z) => (int64 y) { n = Size(x) m = Size(z) q = Mod(n, m) y = Add(q, q) }",
        {"x": np.zeros((0, 3), np.float32), "z": np.zeros(4, np.float32)},
    ),
    # TVM made a wrong address of it (see aotc/lowering/flatten.py).
    "a pad that wraps around": (
        "(float[3,3,3] x) => (float[?,?,?] y) <int64[6] p = {0,1,0,1,2,0}> { y = Pad<mode = \"wrap\">(x, p) }",
        {"x": np.arange(27, dtype=np.float32).reshape(3, 3, 3)},
    ),
    "a product over no axes": ("(float x) => (float y) { y = ReduceProd<keepdims = 0>(x) }", {"x": np.array(3, np.float32)}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    text, inputs = FOUND[name]
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\ng {text}')
    outcome = check(Graph(model, inputs, {}))
    assert outcome.kind in ("equal", "explained"), outcome.reason  # ONNX Runtime has 0 for the mean of nothing
