"""Specialised versions inside a file: chosen by the inputs' shapes at run, beside the general one, with weights stored once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import aotc
from aotc.cli import app
from aotc.cli.dims import parse_versions
from aotc.errors import InvalidOption
from tests.agreement import assert_agrees

BATCH, SIDE = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("side", min=8, max=64)
VERSIONS = [{"x": (1, 3, 16, 16)}, {"x": (2, 3, 32, 32)}]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    ]
    return nn.Sequential(*layers).eval()


def test_each_shape_runs_its_version(tmp_path: Path) -> None:
    module, example = network(), torch.randn(2, 3, 16, 16)
    exported = torch.export.export(module, (example,), dynamic_shapes=({0: BATCH, 2: SIDE, 3: SIDE},), strict=False)
    name = exported.graph_signature.user_inputs[0]
    versions = [{name: shape} for version in VERSIONS for shape in version.values()]
    report = aotc.compile(exported, output=tmp_path / "model.so", versions=versions, jobs=1)
    general = aotc.compile(exported, output=tmp_path / "general.so", jobs=1)
    assert report.weights_size < 1.5 * general.weights_size
    session = aotc.load(tmp_path / "model.so").session(num_threads=1, profile=True)
    kernels = [step.kernel for step in session.steps() if step.kind == "kernel"]
    assert len(kernels) == 3 * (len(kernels) // 3)
    ran = {}
    for shape in [(1, 3, 16, 16), (2, 3, 32, 32), (3, 3, 17, 17), (1, 3, 32, 32), (1, 3, 16, 16)]:
        x = torch.randn(shape)
        session.set_profiling(False)
        session.set_profiling(True)
        (got,) = session.run({name: x.numpy()}).values()
        with torch.no_grad():
            assert_agrees(got, module(x).numpy(), 1e-4, str(shape))
        ran[shape] = [number for number, step in enumerate(session.steps()) if step.kind == "kernel" and step.runs]
        assert len(ran[shape]) == len(kernels) // 3
    assert not set(ran[1, 3, 16, 16]) & set(ran[2, 3, 32, 32])
    assert ran[3, 3, 17, 17] == ran[1, 3, 32, 32] and not set(ran[3, 3, 17, 17]) & set(ran[1, 3, 16, 16])


def test_from_the_command_line(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("ReduceSum", ["a"], ["y"], keepdims=0)]
    tensors = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]), helper.make_tensor_value_info("y", TensorProto.FLOAT, [])]
    save(helper.make_model(helper.make_graph(nodes, "g", tensors[:1], tensors[1:]), ir_version=10), tmp_path / "m.onnx")
    result = CliRunner().invoke(app, ["build", str(tmp_path / "m.onnx"), "--shapes", "x:3x4,8x4", "-o", str(tmp_path / "m.so")])
    assert result.exit_code == 0, result.output
    model = aotc.load(tmp_path / "m.so", num_threads=1)
    assert model.entry_points == ("main",)
    for rows in (3, 8, 5, 1):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype("float32")
        np.testing.assert_allclose(model.run({"x": x})["y"], np.maximum(x, 0).sum(), rtol=1e-5)


def test_shapes_that_do_not_fit() -> None:
    assert parse_versions(["a:1x2,3x4", "b:5,6"]) == [{"a": (1, 2), "b": (5,)}, {"a": (3, 4), "b": (6,)}]
    with pytest.raises(InvalidOption, match="as many sizes"):
        parse_versions(["a:1x2,3x4", "b:5"])
    with pytest.raises(InvalidOption, match="expected sizes of numbers"):
        parse_versions(["a:bx2"])
    with pytest.raises(InvalidOption, match="no other than the general one"):
        aotc.compile(network(), args=(torch.randn(1, 3, 16, 16),), versions=[{"input": (1, 3, 16, 16)}])
