"""tf32 and bfloat16: what is multiplied on tensor cores, how far results may be off, and where they cannot be had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc import ops, targets
from aotc.errors import InvalidOption
from aotc.ir.expr import Function, Var
from aotc.ir.types import TensorType
from aotc.lowering.compiled import CompiledFunction, CudaKernel
from aotc.lowering.cuda.kernel import lower_function
from aotc.packaging.reader import read_packaged
from tests.cuda import host_code, software
from tests.cuda.launcher import Device
from tests.cuda.lowered import build_lowered, run_lowered
from tests.cuda.machine_code import instructions
from tests.cuda.shapes import normal
from tests.cuda.small_networks import NETWORKS
from tests.lowering.harness import function_of

ROUNDED = 2.0**-10
"""Of the sum of the products' magnitudes: two factors, each rounded to 11 bits by at most 2^-11 of itself."""


def _lowered(board: str, a: np.ndarray, b: np.ndarray, *, conv: bool) -> tuple[CompiledFunction, Function]:
    x, w = (Var(name, TensorType(array.shape, "float32")) for name, array in (("x", a), ("w", b)))
    body = ops.conv(x, w, strides=(1, 1), padding=(1,) * 4, dilation=(1, 1)) if conv else ops.matmul(x, w)
    function = function_of(body, x, w)
    made = lower_function(function, targets.with_rounded_factors(targets.get(board)))
    assert isinstance(made, CompiledFunction)
    return made, function


@pytest.mark.parametrize("shape", [(64, 64, 64), (33, 70, 20), (5, 2048, 40), (16, 16, 16)])
def test_products(shape: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, depth, columns = shape
    _compare(normal(rows, depth), normal(depth, columns, seed=1), np.matmul, tmp_path, monkeypatch, conv=False)


def test_convolutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def right(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return F.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1).numpy()

    _compare(normal(1, 20, 9, 11), normal(36, 20, 3, 3, seed=1), right, tmp_path, monkeypatch, conv=True)


def _compare(a: np.ndarray, b: np.ndarray, right: object, folder: Path, monkeypatch: pytest.MonkeyPatch, *, conv: bool) -> None:
    made, function = _lowered("jetson-orin", a, b, conv=conv)
    build_lowered(made, folder)
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA", str(folder))
    with Device(host_code.driver()) as device:
        (found,) = run_lowered(device, function, made, [a, b])
    wide = [each.astype(np.float64) for each in (a, b)]
    distance = np.abs(found - right(*wide))  # type: ignore[operator]
    assert (distance <= ROUNDED * right(*map(np.abs, wide))).all()  # type: ignore[operator]
    assert distance.max() > 1e-5  # it is tf32


@pytest.mark.parametrize("board", ["jetson-orin", "jetson-thor"])
def test_instructions(board: str) -> None:
    for conv, a, b in ((False, normal(64, 128), normal(128, 96)), (True, normal(1, 32, 14, 14), normal(64, 32, 3, 3))):
        made, _ = _lowered(board, a, b, conv=conv)
        for kernel in made.kernels[:1]:
            assert isinstance(kernel, CudaKernel)
            assert instructions(kernel.cubins[0][1])["HMMA"] > 0 and instructions(kernel.cubins[0][1])["LDGSTS"] > 0


def test_a_whole_file(tmp_path: Path) -> None:
    """Within the bound of a few layers of float32, and not the same."""
    make, feeds = NETWORKS["dense"]
    results = {}
    for precision in ("fp32", "tf32"):
        report = aotc.compile(make(), software.host_with_gpu(), tmp_path / f"{precision}.so", device="cuda", precision=precision)
        assert read_packaged(report.output).manifest.precision == precision
        results[precision] = software.run(report, feeds[0], tmp_path)[0]
    distance = np.abs(results["tf32"] - results["fp32"]).max() / np.abs(results["fp32"]).max()
    assert 0 < distance < 1e-2


def test_where_there_is_none(tmp_path: Path) -> None:
    model = NETWORKS["dense"][0]()
    with pytest.raises(InvalidOption, match=r"jetson-xavier has no tensor cores that multiply tf32, which are GPUs' from sm_80 on"):
        aotc.compile(model, "jetson-xavier", tmp_path / "m.so", device="cuda", precision="tf32")
    with pytest.raises(InvalidOption, match=r"CPUs compute in float32; tf32 is for the GPU of a Jetson"):
        aotc.compile(model, "host", tmp_path / "m.so", precision="tf32")


def _bfloat_network() -> onnx.ModelProto:
    """Two layers by weights, a convolution in between, and a product of two results: all in bfloat16."""
    rng, bfloat = np.random.default_rng(3), TensorProto.BFLOAT16
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Reshape", ["r", "shape"], ["p"]),
        helper.make_node("Conv", ["p", "k"], ["c"], pads=[1] * 4), helper.make_node("Reshape", ["c", "flat"], ["f"]),
        helper.make_node("Transpose", ["f"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["f", "t"], ["y"]),
    ]  # fmt: skip
    shapes = {"w": (128, 256), "k": (24, 16, 3, 3)}
    weights = [numpy_helper.from_array((rng.normal(size=shape) * 0.1).astype("bfloat16"), name) for name, shape in shapes.items()]
    weights += [numpy_helper.from_array(np.array(shape), name) for name, shape in (("shape", (1, 16, 32, 32)), ("flat", (24, 1024)))]
    values = [helper.make_tensor_value_info(name, bfloat, shape) for name, shape in (("x", (64, 128)), ("y", (24, 24)))]
    graph = helper.make_graph(nodes, "bfloats", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_networks_of_bfloats(on_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their products read bfloat16s, on tensor cores where there is a GPU; each result is rounded once."""
    x = np.random.default_rng(4).normal(size=(64, 128)).astype("bfloat16")
    model = _bfloat_network()
    report = aotc.compile(model, software.host_with_gpu(), tmp_path / "m.so", device="cuda" if on_gpu else "auto")
    if on_gpu:
        (found,) = software.run(report, {"x": x}, tmp_path)
        assert sum(instructions(kernel.cubins[0][1])["HMMA"] > 0 for kernel in report.cuda_kernels) == 3
    else:
        monkeypatch.setenv("AOTC_LIBCUDA", "/no/such/library")
        (found,) = aotc.load(report.output).run({"x": x}).values()
    w, k = (torch.from_numpy(numpy_helper.to_array(each).astype(np.float32)) for each in model.graph.initializer[:2])

    def rounded(value: torch.Tensor) -> torch.Tensor:
        return value.to(torch.bfloat16).float()

    first = rounded(torch.relu(torch.from_numpy(x.astype(np.float32)) @ w))
    flat = rounded(F.conv2d(first.reshape(1, 16, 32, 32), k, padding=1)).reshape(24, 1024)
    right = (flat @ flat.T).numpy()
    distance = np.abs(found.astype(np.float32) - right).max() / np.abs(right).max()
    assert distance < 2**-8, f"{distance:.1e}"
