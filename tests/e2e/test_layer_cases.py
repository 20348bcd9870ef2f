"""Layers and weights that compilers of this kind get wrong, from built files. (Cases 23, 24, 26, 27, 29, 37.)

Where the cases of "Wrong numbers" and "Import" are tests; all of these build and run a file unless they say otherwise:

| case | where |
|---|---|
| 20, 21, 22, 25, 28 | tests/e2e/test_number_cases.py |
| 23 transposed convolutions, 24 Resize | here; every version and option through the interpreter in tests/frontends/onnx/test_versions.py |
| 26 constants and masks of float16, 27 norms of float16 | here; from PyTorch in tests/frontends/torch/test_import.py |
| 29 one channel, few elements | here |
| 30 recurrent layers | tests/e2e/test_recurrent.py, test_silero.py |
| 31 Loop, Scan, If | tests/e2e/test_onnx_control_flow.py; PyTorch's in tests/frontends/torch/test_control.py |
| 32 quantised operators | tests/e2e/test_quantised_networks.py, test_contributed_operators.py |
| 33 NonMaxSuppression, 35 zero-sized dims, 36 Pad | tests/e2e/test_onnx_run_time_sizes.py; 35 in test_number_cases.py too |
| 34, 38, 39, 40 | tests/e2e/test_import_cases.py; refusals (no file is built) in tests/frontends/onnx/test_refusals.py |
| 37 external data | here; refusals in tests/frontends/onnx/test_refusals.py |
"""

from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import aotc
from aotc.errors import InvalidModel
from aotc.ir.tap import tap
from tests.agreement import assert_agrees
from tests.e2e import small
from tests.e2e.reference import onnxruntime_outputs

Node = helper.make_node
run = partial(small.run, jobs=0)  # one import of TVM for all of them


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def outputs_of(nodes: list[onnx.NodeProto]) -> dict[str, tuple[str, Any]]:
    return {node.output[0]: ("float32", None) for node in nodes if node.output[0].startswith("y")}


# Case 23 ------------------------------------------------------------------------------------------------------------

TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "output_padding": ((1, 2, 7, 9), (2, 3, 3, 2), {"strides": [2, 3], "output_padding": [1, 2], "pads": [1, 0, 0, 1]}),
    "dilation": ((2, 2, 5, 6), (2, 3, 3, 2), {"dilations": [2, 3], "strides": [2, 1]}),
    "groups of one channel": ((1, 4, 6, 1), (4, 1, 32, 1), {"group": 4, "strides": [16, 1], "pads": [8, 0, 8, 0]}),
    "groups": ((1, 6, 5, 5), (6, 2, 3, 3), {"group": 3, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "SAME_UPPER": ((1, 2, 7, 9), (2, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "SAME_LOWER": ((1, 2, 7, 9), (2, 3, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "output_shape": ((1, 2, 7, 9), (2, 3, 3, 3), {"output_shape": [15, 20], "strides": [2, 2]}),
}


def test_transposed_convolutions(tmp_path: Path) -> None:
    nodes, inputs, weights, feeds = [], {}, {}, {}
    for number, (x, w, attributes) in enumerate(TRANSPOSED.values()):
        nodes.append(Node("ConvTranspose", [f"x{number}", f"w{number}"], [f"y{number}"], **attributes))
        inputs[f"x{number}"], weights[f"w{number}"] = ("float32", x), noise(*w, seed=number)
        feeds[f"x{number}"] = noise(*x, seed=100 + number)
    model = small.model(nodes, inputs, outputs_of(nodes), weights)
    answers, expected = run(model, feeds, tmp_path), onnxruntime_outputs(model, feeds)
    for number, what in enumerate(TRANSPOSED):
        assert_agrees(answers[f"y{number}"], expected[f"y{number}"], 1e-5, what)


# Case 24 ------------------------------------------------------------------------------------------------------------

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
MODES = [("nearest", each) for each in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")] + [("linear", ""), ("cubic", "")]
LARGER, SMALLER, SHAPE = (9, 12), (3, 4), (1, 2, 4, 8)  # whose ratios are exact


def test_resize_in_all_modes(tmp_path: Path) -> None:
    """Every mode under every coordinate transformation, larger and smaller by turns, by sizes and by scales by turns."""
    nodes, weights = [], {"roi": np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 1.1], np.float32)}
    for row, coordinate in enumerate(COORDINATES):
        for column, (mode, nearest) in enumerate(MODES):
            size, name = (LARGER, SMALLER)[(row + column) % 2], f"{coordinate}_{mode}_{nearest}"
            by_sizes = (row + column // 2) % 2 == 0
            weights[f"s_{name}"] = np.array([*SHAPE[:2], *size]) if by_sizes else np.array([1, 1, *np.divide(size, SHAPE[2:])], np.float32)
            operands = ["x", "roi", "", f"s_{name}"] if by_sizes else ["x", "roi", f"s_{name}"]
            more: dict[str, Any] = {"nearest_mode": nearest} if nearest else {}
            nodes.append(
                Node(
                    "Resize", operands, [f"y_{name}"], mode=mode, coordinate_transformation_mode=coordinate, extrapolation_value=0.5, **more
                )
            )
    model = small.model(nodes, {"x": ("float32", SHAPE)}, outputs_of(nodes), weights, opset=19)
    x = noise(*SHAPE)
    answers = run(model, {"x": x}, tmp_path)
    expected = dict(zip([node.output[0] for node in nodes], ReferenceEvaluator(model).run(None, {"x": x}), strict=True))
    for name, reference in expected.items():
        assert_agrees(answers[name], reference.astype("float32"), 1e-5, name)


@pytest.mark.parametrize("opset", [10, 11, 13, 18])
def test_resize_at_each_opset(tmp_path: Path, opset: int) -> None:
    weights = {"scales": np.array([1, 1, 2, 1.5], np.float32), "roi": np.zeros(0, np.float32)}
    operands = ["x", "scales"] if opset == 10 else ["x", "roi", "scales"]
    nodes = [Node("Resize", operands, ["y_nearest"], mode="nearest"), Node("Resize", operands, ["y_linear"], mode="linear")]
    model = small.model(nodes, {"x": ("float32", SHAPE)}, outputs_of(nodes), weights, opset=opset)
    x = noise(*SHAPE)
    answers, expected = run(model, {"x": x}, tmp_path), onnxruntime_outputs(model, {"x": x})
    for name, reference in expected.items():
        assert_agrees(answers[name], reference, 1e-5, name)


# Cases 26 and 27 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1e9, -np.inf, -1e38])
def test_masks_beyond_half_precision(tmp_path: Path, value: float) -> None:
    """A mask made in float32 and cast, as exporters write it: infinite in float16, and no NaN comes of it."""
    nodes = [
        Node("Cast", ["value"], ["low"], to=TensorProto.FLOAT16),
        Node("Where", ["keep", "zero", "low"], ["mask"]),
        Node("Add", ["x", "mask"], ["scores"]),
        Node("Softmax", ["scores"], ["p"], axis=-1),
        Node("MatMul", ["p", "v"], ["y"]),
    ]
    constants = {"value": np.array(value, np.float32), "zero": np.zeros((), np.float16)}
    inputs = {"x": ("float16", [2, 6, 6]), "keep": ("bool", [6, 6]), "v": ("float16", [2, 6, 4])}
    model = small.model(nodes, inputs, {"y": ("float16", None)}, constants)
    keep, x, v = np.tril(np.ones((6, 6), bool)), noise(2, 6, 6).astype("float16"), noise(2, 6, 4, seed=1).astype("float16")
    answer = run(model, {"x": x, "keep": keep, "v": v}, tmp_path)["y"]
    scores = torch.from_numpy(x).double().masked_fill(torch.from_numpy(~keep), -torch.inf)
    assert_agrees(answer, (scores.softmax(-1) @ torch.from_numpy(v).double()).numpy().astype("float16"), 2e-3)


def test_constants_beyond_half_precision(tmp_path: Path) -> None:
    """In float32 arithmetic around float16 tensors they stay what they are."""
    nodes = [
        Node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        Node("Mul", ["wide", "large"], ["product"]),
        Node("Div", ["product", "larger"], ["quotient"]),
        Node("Cast", ["quotient"], ["y"], to=TensorProto.FLOAT16),
    ]
    constants = {"large": np.array(1e6, np.float32), "larger": np.array(3e6, np.float32)}
    model = small.model(nodes, {"x": ("float16", [33])}, {"y": ("float16", [33])}, constants)
    x = noise(33).astype("float16")
    assert_agrees(run(model, {"x": x}, tmp_path)["y"], (x.astype("float64") / 3).astype("float16"), 1e-3)


def half_block(opset: int = 17) -> onnx.ModelProto:
    """Dense, bias, tanh-Gelu, residual, LayerNormalization, dense, in float16."""
    weights = {name: (noise(*shape, seed=i) / 4).astype("float16") for i, (name, shape) in enumerate(
        {"w": (32, 32), "b": (32,), "scale": (32,), "shift": (32,), "v": (32, 8)}.items()
    )}  # fmt: skip
    nodes = [
        Node("MatMul", ["x", "w"], ["m"], name="dense"),
        Node("Add", ["m", "b"], ["a"], name="bias"),
        Node("Tanh", ["a"], ["t"], name="tanh"),
        Node("Mul", ["a", "t"], ["g"], name="gate"),
        Node("Add", ["g", "x"], ["r"], name="residual"),
        Node("LayerNormalization", ["r", "scale", "shift"], ["n"], name="norm", axis=-1),
        Node("MatMul", ["n", "v"], ["y"], name="out"),
    ]
    return small.model(nodes, {"x": ("float16", [5, 32])}, {"y": ("float16", [5, 8])}, weights, opset)


def test_fused_and_unfused_half_precision_agree(tmp_path: Path) -> None:
    module, x = aotc.import_onnx(half_block()), noise(5, 32).astype("float16")
    tapped = tap(module, lambda node: bool(getattr(node, "origin", ""))).module
    fused, unfused = run(module, {"x": x}, tmp_path)["y"], small.run(tapped, {"x": x}, tmp_path)["y"]
    assert_agrees(fused, unfused, 3e-3)
    assert_agrees(fused, onnxruntime_outputs(half_block(), {"x": x})["y"], 5e-3)


@pytest.mark.parametrize("decomposed", [False, True])
def test_norms_of_large_half_precision_values(tmp_path: Path, decomposed: bool) -> None:
    """Their squares are no float16: the norm, or the one that is written out between casts to float32, stays finite."""
    if decomposed:
        nodes = [
            Node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
            Node("ReduceMean", ["f"], ["m"], axes=[-1]),
            Node("Sub", ["f", "m"], ["d"]),
            Node("Mul", ["d", "d"], ["q"]),
            Node("ReduceMean", ["q"], ["v"], axes=[-1]),
            Node("Add", ["v", "eps"], ["e"]),
            Node("Sqrt", ["e"], ["s"]),
            Node("Div", ["d", "s"], ["n"]),
            Node("Cast", ["n"], ["y"], to=TensorProto.FLOAT16),
        ]
    else:
        nodes = [Node("LayerNormalization", ["x", "one"], ["y"], axis=-1, epsilon=1e-5)]
    constants = {"eps": np.array(1e-5, np.float32)} if decomposed else {"one": np.ones(64, np.float16)}
    model = small.model(nodes, {"x": ("float16", [7, 64])}, {"y": ("float16", [7, 64])}, constants, opset=17)
    x = np.random.default_rng(0).uniform(300, 5000, (7, 64)).astype("float16")
    wide = x.astype("float64")
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    answer = run(model, {"x": x}, tmp_path)["y"]
    assert np.isfinite(answer).all()
    assert_agrees(answer, expected.astype("float16"), 1.5e-3)


# Case 29 ------------------------------------------------------------------------------------------------------------

FEW: dict[str, tuple[torch.nn.Module, tuple[int, ...]]] = {
    "a tall kernel": (torch.nn.Conv2d(1, 1, (3, 1)), (2, 1, 4, 20)),
    "a wide kernel": (torch.nn.Conv2d(1, 1, (1, 2)), (1, 1, 3, 10)),
    "one channel to five": (torch.nn.Conv2d(1, 5, 3, padding=1), (1, 1, 3, 10)),
    "five channels to one": (torch.nn.Conv2d(5, 1, (3, 1)), (2, 5, 4, 3)),
    "batch norm of one element": (torch.nn.BatchNorm1d(2), (1, 2, 1)),
}


@pytest.mark.parametrize("kind", FEW)
def test_one_channel_and_few_elements(tmp_path: Path, kind: str) -> None:
    module, shape = FEW[kind]
    x = torch.from_numpy(noise(*shape))
    with torch.no_grad():
        expected = module.eval()(x).numpy()
    (answer,) = run(module, {"input": x.numpy()}, tmp_path, args=(x,)).values()
    assert_agrees(answer, expected, 1e-5)


class MeanOfMean(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1).mean()


def test_mean_of_mean(tmp_path: Path) -> None:
    x = torch.from_numpy(noise(6, 6))
    (answer,) = run(MeanOfMean(), {"x": x.numpy()}, tmp_path, args=(x,)).values()
    assert_agrees(answer, x.mean().numpy(), 1e-5)


# Case 37 ------------------------------------------------------------------------------------------------------------


def external_model(folder: Path, location: str, width: int = 64, layers: int = 3, before: int = 96) -> Path:
    """Dense layers whose weights lie in ``location``, each behind ``before`` bytes of something else."""
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    nodes, tensors, value = [], [], "x"
    with (folder / location).open("wb") as file:
        for layer in range(layers):
            tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[width, width], data_location=TensorProto.EXTERNAL)
            file.write(bytes([255] * before))
            for key, entry in (("location", location), ("offset", file.tell()), ("length", width * width * 4)):
                tensor.external_data.add(key=key, value=str(entry))
            file.write((noise(width, width, seed=layer) / np.float32(np.sqrt(width))).tobytes())
            tensors.append(tensor)
            nodes += [Node("MatMul", [value, f"w{layer}"], [f"m{layer}"], name=f"dense{layer}"), Node("Relu", [f"m{layer}"], [f"r{layer}"])]
            value = f"r{layer}"
    nodes[-1].output[0] = "y"
    model = small.model(nodes, {"x": ("float32", [2, width])}, {"y": ("float32", [2, width])})
    model.graph.initializer.extend(tensors)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def dense_answer(x: np.ndarray, width: int = 64, layers: int = 3) -> np.ndarray:
    for layer in range(layers):
        x = np.maximum(x @ (noise(width, width, seed=layer) / np.float32(np.sqrt(width))), 0)
    return x


@pytest.mark.parametrize("location", ["weights.bin", "parts/weights.bin"])
@pytest.mark.parametrize("beside", [False, True])
def test_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, beside: bool) -> None:
    """In the model's folder or in one below it, at offsets; into the built file or, above a limit, beside it."""
    if beside:
        monkeypatch.setattr("aotc.packaging.manifest.WEIGHTS_INSIDE", 1 << 15)
    path, output, x = external_model(tmp_path, location), tmp_path / "built.so", noise(2, 64, seed=9)
    report = aotc.compile(path, output=output, jobs=0)
    assert (report.weights_file is not None) == beside == (tmp_path / "built.so.weights").exists()
    assert_agrees(aotc.load(output).run({"x": x})["y"], dense_answer(x), 1e-5)


def test_external_data_missing_or_cut_short(tmp_path: Path) -> None:
    path = external_model(tmp_path, "weights.bin")
    data = (tmp_path / "weights.bin").read_bytes()
    for content, message in ((data[:-1], "cut short"), (None, "put that file beside the model")):
        (tmp_path / "weights.bin").unlink()
        if content is not None:
            (tmp_path / "weights.bin").write_bytes(content)
        with pytest.raises(InvalidModel, match=message) as caught:
            aotc.compile(path, output=tmp_path / "built.so")
        assert "'w" in str(caught.value) and not (tmp_path / "built.so").exists()


def test_a_build_holds_little_of_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 MB of external data that are transposed and packed, a fraction is in memory at a time. (Python's and NumPy's own
    memory; ``python -m benchmarks.large_model`` measures whole processes with gigabytes.)"""
    monkeypatch.setattr("aotc.passes.weights.IN_MEMORY", 1 << 20)
    monkeypatch.setattr("aotc.packaging.manifest.WEIGHTS_INSIDE", 1 << 20)
    path, output, x = external_model(tmp_path, "weights.bin", 1024, 16), tmp_path / "built.so", noise(2, 1024, seed=9)
    tracemalloc.start()
    report = aotc.compile(path, output=output, jobs=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.weights_size >= 64 << 20
    assert peak < 24 << 20
    assert_agrees(aotc.load(output).run({"x": x})["y"], dense_answer(x, 1024, 16), 1e-5)
