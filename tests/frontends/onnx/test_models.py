"""Whole networks through the importer and the reference interpreter, against ONNX Runtime."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from aotc.frontends.onnx import import_onnx
from aotc.ir.dims import symbol
from aotc.ir.types import tensor
from aotc.ir.verify import verify
from aotc.ops.interpret import interpret
from tests.agreement import assert_agrees
from tests.zoo import light, ocr


def agree(path: Path, module, feeds: list[dict[str, np.ndarray]]) -> None:  # type: ignore[no-untyped-def]
    session = onnxruntime.InferenceSession(str(path))
    for each in feeds:
        results = interpret(module.main, [each[param.name] for param in module.main.params])
        for result, expected in zip(results, session.run(None, each), strict=True):
            assert_agrees(result, expected, 1e-4)


@pytest.mark.parametrize("name", light.NAMES)
def test_light_networks(name: str) -> None:
    path = light.onnx_path(name)
    module = import_onnx(path)
    verify(module)
    if name in ("squeezenet", "shufflenet", "resnet50", "inception_v2"):
        input_name, shape = light.input_of(path)
        agree(path, module, [{input_name: np.random.default_rng(1).standard_normal(shape, dtype=np.float32)}])


def test_text_detection_finds_that_sizes_are_multiples_of_32() -> None:
    path = ocr.onnx_path("detection")
    module = import_onnx(path)
    verify(module)
    height, width = (32 * symbol(f"p2o_DynamicDimension_{i}") for i in (1, 2))
    assert module.main.params[0].type == tensor("float32", symbol("p2o_DynamicDimension_0"), 3, height, width)
    agree(path, module, [{"x": ocr.example(ocr.SIZES["detection"][0])}])


def test_text_recognition_finds_the_range_of_its_height() -> None:
    path = ocr.onnx_path("recognition")
    module = import_onnx(path)
    verify(module)
    assert (module.symbols["x_2"].lower, module.symbols["x_2"].upper) == (33, 80)
    agree(path, module, [{"x": ocr.example(ocr.SIZES["recognition"][0])}])
    fixed = import_onnx(path, {"x": (1, 3, 48, 64)})
    assert not fixed.symbols


def test_text_direction() -> None:
    path = ocr.onnx_path("direction")
    agree(path, import_onnx(path), [{"x": ocr.example(shape)} for shape in ocr.SIZES["direction"][:2]])


def test_ten_thousand_nodes_in_a_row() -> None:
    count = 10_000
    nodes = [onnx.helper.make_node("Relu" if i % 2 else "Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    graph = onnx.helper.make_graph(
        nodes,
        "deep",
        [onnx.helper.make_tensor_value_info("v0", onnx.TensorProto.FLOAT, ["n"])],
        [onnx.helper.make_tensor_value_info(f"v{count}", onnx.TensorProto.FLOAT, None)],
    )
    started = time.monotonic()
    module = import_onnx(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)]))
    assert time.monotonic() - started < 20
    (result,) = interpret(module.main, [np.array([1, -2], np.float32)])
    assert result.tolist() == [0, 0]
