"""Small graphs that compilers of this kind have computed wrongly. (Cases 20, 21, 22, 25, 28.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import aotc
from aotc.ir.expr import Module
from aotc.passes import pipeline
from aotc.passes.options import options_for
from tests.agreement import assert_agrees
from tests.e2e import small
from tests.e2e.reference import onnxruntime_outputs

Node = helper.make_node


def check(model: onnx.ModelProto, feeds: dict[str, np.ndarray], folder: Path, figure: float = 1e-5) -> None:
    """Compiled and run here, the model agrees with ONNX Runtime."""
    answers = small.run(model, feeds, folder)
    expected = onnxruntime_outputs(model, feeds)
    assert list(answers) == list(expected)
    for name, reference in expected.items():
        assert_agrees(answers[name], reference, figure, name)


def test_row_of_shifted_weights_in_half_precision(tmp_path: Path) -> None:
    weights = np.arange(32, dtype=np.float16).reshape(8, 4)
    nodes = [Node("Add", ["w", "one"], ["s"]), Node("Gather", ["s", "i"], ["y"], axis=0)]
    constants = {"w": weights, "one": np.ones((), np.float16)}
    model = small.model(nodes, {"i": ("int64", [1])}, {"y": ("float16", [1, 4])}, constants)
    for row in (0, 5, -1):
        (answer,) = small.run(model, {"i": np.array([row])}, tmp_path).values()
        np.testing.assert_array_equal(answer, weights[[row]] + np.float16(1))


def test_no_live_buffer_is_reused_under_an_alias(tmp_path: Path) -> None:
    nodes = [
        Node("Add", ["x", "quarter"], ["a"]),
        Node("Reshape", ["a", "flat"], ["b"]),
        Node("Add", ["x", "eighth"], ["c"]),
        Node("Reshape", ["c", "flat"], ["d"]),
        Node("Softmax", ["d"], ["e"]),
        Node("Add", ["b", "d"], ["f"]),
        Node("Add", ["f", "e"], ["y"]),
    ]
    constants = {"quarter": np.array(0.25, np.float32), "eighth": np.array(0.125, np.float32), "flat": np.array([-1])}
    model = small.model(nodes, {"x": ("float32", ["n", 6])}, {"y": ("float32", ["m"]), "a": ("float32", ["n", 6])}, constants)
    check(model, {"x": np.random.default_rng(0).standard_normal((5, 6), dtype=np.float32)}, tmp_path)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool_with_ceiling_and_padding(tmp_path: Path, rank: int, include: int) -> None:
    shape = (2, 3, *[17, 17, 9][:rank])
    x = np.random.default_rng(rank).standard_normal(shape, dtype=np.float32)
    attributes = {"kernel_shape": [2] * rank, "strides": [2] * rank, "pads": [1] * (2 * rank), "ceil_mode": 1}
    nodes = [Node("AveragePool", ["x"], ["y"], count_include_pad=include, **attributes)]
    model = small.model(nodes, {"x": ("float32", shape)}, {"y": ("float32", None)})
    pool: Callable[..., torch.Tensor] = getattr(torch.nn.functional, f"avg_pool{rank}d")
    expected = pool(torch.from_numpy(x), 2, 2, 1, ceil_mode=True, count_include_pad=bool(include)).numpy()
    assert_agrees(small.run(model, {"x": x}, tmp_path)["y"], expected, 1e-6)


class Pool(torch.nn.Module):
    def __init__(self, pool: Callable[..., torch.Tensor], options: dict[str, Any]) -> None:
        super().__init__()
        self.pool, self.options = pool, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x, **self.options)


@pytest.mark.parametrize("divisor", [None, 3])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_average_pool_of_torch(tmp_path: Path, rank: int, ceil_mode: bool, divisor: int | None) -> None:
    options = {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": ceil_mode, "divisor_override": divisor}
    module = Pool(getattr(torch.nn.functional, f"avg_pool{rank}d"), options)
    x = torch.from_numpy(np.random.default_rng(rank).standard_normal((1, 2, 8, 9, 7)[: rank + 2], dtype=np.float32))
    aotc.compile(module, args=(x,), output=tmp_path / "pool.so")
    (answer,) = aotc.load(tmp_path / "pool.so").run({"x": x.numpy()}).values()
    assert_agrees(answer, module(x).numpy(), 1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_integer_and_boolean_outputs(tmp_path: Path, dtype: str) -> None:
    x = np.array([[3, 9, 9, 1], [0, 250, 7, 250]]).astype(dtype)
    nodes = [
        Node("ReduceMax", ["x", "axis"], ["maximum"], keepdims=0),
        Node("ReduceMax", ["x"], ["scalar"], keepdims=0),
        Node("ArgMax", ["x"], ["first"], axis=1),
        Node("ArgMax", ["x"], ["last"], axis=1, keepdims=0, select_last_index=1),
        Node("Cast", ["x"], ["bits"], to=int(small.TYPES["bool"])),
        Node("Cast", ["bits"], ["numbers"], to=int(small.TYPES["int64"])),
        Node("Cast", ["x"], ["bytes"], to=int(small.TYPES["uint8"])),
        Node("Not", ["bits"], ["inverse"]),
    ]
    kinds = {"maximum": dtype, "scalar": dtype, "first": "int64", "last": "int64"}
    kinds |= {"bits": "bool", "numbers": "int64", "bytes": "uint8", "inverse": "bool"}
    outputs = {name: (kind, None) for name, kind in kinds.items()}
    model = small.model(nodes, {"x": (dtype, [2, 4])}, outputs, {"axis": np.array([1])})
    if dtype == "uint8":  # ONNX Runtime has no ArgMax of last index on uint8
        answers = small.run(model, {"x": x}, tmp_path)
        np.testing.assert_array_equal(answers["maximum"], x.max(1))
        assert answers["scalar"] == 250 and answers["scalar"].shape == ()
        np.testing.assert_array_equal(answers["last"], [2, 3])
        np.testing.assert_array_equal(answers["first"], [[1], [1]])
        np.testing.assert_array_equal(answers["inverse"], x == 0)
        return
    check(model, {"x": x}, tmp_path)


def test_tensors_without_elements(tmp_path: Path) -> None:
    """Inputs, outputs and what lies between; a sum over nothing is 0, a product 1."""
    nodes = [
        Node("Relu", ["x"], ["empty"]),
        Node("ReduceSum", ["empty"], ["zero"], keepdims=0),
        Node("ReduceProd", ["empty", "first"], ["one"], keepdims=0),
        Node("MatMul", ["w", "x"], ["product"]),
        Node("Concat", ["empty", "z"], ["rows"], axis=0),
        Node("TopK", ["z", "none"], ["values", "indices"]),
        Node("Identity", ["x"], ["same"]),
    ]
    outputs: dict[str, tuple[str, Any]] = dict.fromkeys(("empty", "zero", "one", "product", "rows", "values", "same"), ("float32", None))
    model = small.model(
        nodes,
        {"x": ("float32", [0, 3]), "z": ("float32", [2, 3]), "w": ("float32", [4, 0])},
        {**outputs, "indices": ("int64", None)},
        {"none": np.array([0]), "first": np.array([0])},
    )
    x, w = np.zeros((0, 3), np.float32), np.zeros((4, 0), np.float32)
    z = np.random.default_rng(0).standard_normal((2, 3), dtype=np.float32)
    answers, expected = small.run(model, {"x": x, "z": z, "w": w}, tmp_path), onnxruntime_outputs(model, {"x": x, "z": z, "w": w})
    for name, reference in expected.items():
        assert answers[name].dtype == reference.dtype
        np.testing.assert_array_equal(answers[name], reference, name)
    fixed = small.model([Node("Relu", ["x"], ["y"])], {"x": ("float32", ["n", 3])}, {"y": ("float32", ["n", 3])})
    assert small.run(fixed, {"x": x}, tmp_path, inputs={"x": (0, 3)})["y"].shape == (0, 3)


def test_scalar_inputs_and_outputs(tmp_path: Path) -> None:
    nodes = [Node("Add", ["a", "b"], ["s"]), Node("Greater", ["s", "b"], ["g"])]
    model = small.model(nodes, {"a": ("float32", []), "b": ("float32", [])}, {"s": ("float32", []), "g": ("bool", [])})
    check(model, {"a": np.array(2.5, np.float32), "b": np.array(-4, np.float32)}, tmp_path)


def compiled_with(passes: list[Any], module: Module, feeds: dict[str, np.ndarray], folder: Path, patch: pytest.MonkeyPatch) -> np.ndarray:
    """The answer of the file that these passes alone lead to."""
    patch.setattr(
        "aotc.compiler.optimise", lambda module, target, *_, **__: pipeline.run_passes(module, passes, options_for(target, verify=True))
    )
    return small.run(module, feeds, folder)["y"]


FUSE = [run for run in pipeline.PIPELINE if run.__name__ in pipeline.REQUIRED]


@pytest.mark.parametrize("count", range(len(pipeline.PIPELINE)))
def test_every_prefix_of_the_pipeline_gives_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    source = small.convolutional()
    x = np.random.default_rng(1).standard_normal((2, 3, 16, 16), dtype=np.float32)
    passes = [run for run in pipeline.PIPELINE[:count] if run not in FUSE] + FUSE
    answer = compiled_with(passes, aotc.import_onnx(source), {"x": x}, tmp_path, monkeypatch)
    assert_agrees(answer, onnxruntime_outputs(source, {"x": x})["y"], 1e-5)


@pytest.mark.parametrize("name", sorted(set(pipeline.PASSES) - pipeline.REQUIRED))
def test_each_optional_pass_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    source = small.convolutional()
    x = np.random.default_rng(2).standard_normal((2, 3, 16, 16), dtype=np.float32)
    passes = [run for run in pipeline.PIPELINE if run.__name__ != name]
    answer = compiled_with(passes, aotc.import_onnx(source), {"x": x}, tmp_path, monkeypatch)
    assert_agrees(answer, onnxruntime_outputs(source, {"x": x})["y"], 1e-5)
