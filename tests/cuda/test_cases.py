"""What goes wrong for people who put networks on GPUs (cases 4 to 7, 20, 26, 27 and 29): loading, and wrong numbers.

The numbers of cases 20, 26, 27 and 29 are tests of built files for the CPU too; these very tests run here through the software GPU. Case 7
is in test_ptx.py and, for what is no machine code, in tests/lowering/test_device_tables.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import aotc
from aotc import targets
from aotc.errors import InvalidOption
from aotc.lowering.cuda import nvrtc
from aotc.packaging.reader import read_packaged
from tests.agreement import assert_agrees
from tests.cuda.small_networks import NETWORKS
from tests.cuda.software import host_with_gpu, software_gpu
from tests.e2e import small, test_layer_cases, test_number_cases
from tests.e2e.test_layer_cases import (
    noise,
    test_constants_beyond_half_precision,  # noqa: F401
    test_fused_and_unfused_half_precision_agree,  # noqa: F401
    test_masks_beyond_half_precision,  # noqa: F401
    test_mean_of_mean,  # noqa: F401
    test_norms_of_large_half_precision_values,  # noqa: F401
    test_one_channel_and_few_elements,  # noqa: F401
)
from tests.e2e.test_number_cases import test_row_of_shifted_weights_in_half_precision  # noqa: F401

Node = helper.make_node


def run(source: Any, feeds: Mapping[str, np.ndarray], folder: Path, **options: Any) -> dict[str, np.ndarray]:
    """As ``small.run``, on the software GPU."""
    report = aotc.compile(source, host_with_gpu(), folder / "small.so", device="cuda", **options)
    assert report.cuda_kernels, report.notes
    with software_gpu(report.cuda_kernels, folder / "kernels"):
        return {name: np.array(value) for name, value in aotc.load(report.output).run(feeds).items()}


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "run", run)
    for module in (test_layer_cases, test_number_cases):
        monkeypatch.setattr(module, "run", partial(run, jobs=0), raising=False)


# Cases 26 and 27 in networks of float32 that the build makes halves of -------------------------------------------------


@pytest.mark.parametrize("mask", [-1e9, -np.inf])
def test_masks_become_halves(mask: float, tmp_path: Path) -> None:
    """A row that is masked as a whole gives no NaN; others give what they did."""
    nodes = [Node("MatMul", ["x", "w"], ["p"]), Node("Add", ["p", "mask"], ["s"]), Node("Softmax", ["s"], ["y"], axis=-1)]
    masks = np.zeros((9, 16), np.float32)
    masks[0, 4:], masks[1] = mask, mask
    x, w = noise(9, 32), noise(32, 16, seed=1)
    model = small.model(nodes, {"x": ("float32", [9, 32])}, {"y": ("float32", [9, 16])}, {"w": w / 6, "mask": masks})
    got = run(model, {"x": x}, tmp_path, precision="fp16")["y"]
    scores = (x.astype(np.float64) @ (w / 6) + masks)[[0, *range(2, 9)]]
    right = np.exp(scores - scores.max(-1, keepdims=True))
    assert np.isfinite(got).all() and (got[0, 4:] == 0).all()
    assert_agrees(got[[0, *range(2, 9)]], (right / right.sum(-1, keepdims=True)).astype(np.float32), 5e-3)


def test_norms_of_large_values_in_halves(tmp_path: Path) -> None:
    """Values of 300 to 5000, whose squares are no halves, that a product gives; its weights are beyond 65504 in one place."""
    nodes = [Node("MatMul", ["x", "w"], ["p"]), Node("LayerNormalization", ["p", "scale"], ["y"], axis=-1, epsilon=1e-5)]
    constants = {"w": np.eye(64, dtype=np.float32), "scale": np.ones(64, np.float32)}
    model = small.model(nodes, {"x": ("float32", [7, 64])}, {"y": ("float32", [7, 64])}, constants, opset=17)
    x = np.random.default_rng(0).uniform(300, 5000, (7, 64)).astype(np.float32)
    wide = x.astype(np.float64)
    right = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    assert_agrees(run(model, {"x": x}, tmp_path, precision="fp16")["y"], right.astype(np.float32), 5e-3)


def test_constants_become_halves(tmp_path: Path) -> None:
    """1e6 is no half: what it limits is what it was."""
    nodes = [Node("MatMul", ["x", "w"], ["p"]), Node("Min", ["p", "large"], ["m"]), Node("Max", ["m", "low"], ["y"])]
    constants = {"w": noise(32, 16, seed=1) / 6, "large": np.array(1e6, np.float32), "low": np.array(-3e38, np.float32)}
    model = small.model(nodes, {"x": ("float32", [9, 32])}, {"y": ("float32", [9, 16])}, constants)
    x = noise(9, 32)
    assert_agrees(run(model, {"x": x}, tmp_path, precision="fp16")["y"], x @ constants["w"], 5e-3)


# Cases 4 to 6 -----------------------------------------------------------------------------------------------------------


def test_without_any_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 4: its facts can be read, a file for the CPU runs, and a session of the GPU's says what is missing."""
    make, (inputs,) = NETWORKS["dense"]
    for device in ("cuda", "cpu"):
        aotc.compile(make(), host_with_gpu(), tmp_path / f"{device}.so", device=device, metadata={"owner": "me"})
    monkeypatch.setenv("AOTC_LIBCUDA", "/nowhere/libcuda.so.1")  # as if this machine had none, whatever it has
    model = aotc.load(tmp_path / "cuda.so")
    assert read_packaged(tmp_path / "cuda.so").manifest.metadata["owner"] == "me" and [spec.name for spec in model.inputs] == ["x"]
    with pytest.raises(aotc.RuntimeFailure, match=r"needs a GPU and no CUDA driver \(libcuda.so.1\) can be loaded here; install"):
        model.session()
    assert aotc.load(tmp_path / "cpu.so").run(inputs)["y"].shape == (4, 16)


def test_another_gpu_of_the_family(tmp_path: Path) -> None:
    """Case 5: code for sm_86 does not run on sm_87, which is said when the session is made."""
    report = aotc.compile(NETWORKS["dense"][0](), targets.with_sm(host_with_gpu(), (86,)), tmp_path / "m.so", device="cuda")
    with software_gpu(report.cuda_kernels, tmp_path / "kernels", sm="87"), pytest.raises(aotc.RuntimeFailure, match=r"is sm_87 and the model was built for sm_86"):  # fmt: skip
        aotc.load(report.output).session()


def test_names_of_thors_gpu() -> None:
    """Case 6: what CUDA 12.9 calls sm_101 is sm_110 from CUDA 13 on."""
    with pytest.raises(
        InvalidOption, match=r"sm_101 is what CUDA 12\.8 and 12\.9 call Thor's GPU, which is sm_110 since CUDA 13: ask for 110"
    ):
        targets.with_sm(targets.get("jetson-thor"), (101,))
    assert nvrtc.release_for(110, (12, 9)).version == "13.0"
