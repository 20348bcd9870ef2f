"""``python -m benchmarks.gpu``: on a real GPU where there is one (``pytest -m gpu``), and a little of it through the software driver."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aotc.cache_dir import VARIABLE, cache_dir
from aotc.lowering.compiled import CudaKernel
from benchmarks.gpu import networks, shapes
from benchmarks.gpu.groups import GROUPS, Journal, run_apart
from benchmarks.gpu.machine import SM, gpu_missing
from tests.cuda.software import software_gpu

SHAPES = ("matmul 1x4x4x4 float32", "softmax 1x1 float32", "average pool 16x28, 5 s3 p2 float32")
FEW = f"shapes/({'|'.join(SHAPES)})$|networks/detector fp32|pytorch/resnet50 fp32|onnxruntime/silero"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["shapes", "networks"])
def test_all_is_right(name: str, tmp_path: Path) -> None:
    if missing := gpu_missing():
        pytest.skip(f"{missing.what}: needs an H100 or H200 with its driver")
    (group,) = (group for group in GROUPS if group.name == name)
    found = run_apart(group, group.names(), tmp_path, lambda: 300)
    assert not {key: result for key, result in found.items() if "failed" in result}
    assert set(found) == set(group.names())


def _kernels(folder: Path) -> list[CudaKernel]:
    made = [kernel for function in shapes.build(list(SHAPES)) for kernel in function.kernels if isinstance(kernel, CudaKernel)]
    return [*made, *networks.build("detector fp32", folder).cuda_kernels]


def _run(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.gpu", "run", "--folder", str(folder), "--json", str(folder / "gpu.json"), "--only", FEW]
    done = subprocess.run([*command, *options], check=False, capture_output=True, text=True)
    return done, json.loads((folder / "gpu.json").read_text()) if (folder / "gpu.json").exists() else {}


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(cache_dir()))
    kernels = _kernels(tmp_path)
    with software_gpu(kernels, tmp_path / "nothing", sm=str(SM)):
        monkeypatch.setenv("AOTC_SOFTWARE_CUDA", str(tmp_path / "empty"))  # each launch fails, and its process with it
        done, result = _run(tmp_path, "--only", f"shapes/({SHAPES[0]}|{SHAPES[1]})$")
        assert done.returncode == 1, done.stderr
        assert ["CudaError" in each["failed"] for each in result["results"]["shapes"].values()] == [True, True]
    # As on a machine where the folder was carried to: no TVM, and a gcc in the place of ziglang.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['tvm'] = sys.modules['ziglang'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("AOTC_CC", "gcc")
    with software_gpu(kernels, tmp_path / "kernels", sm=str(SM)):
        done, result = _run(tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [list(each) for each in result["results"]["shapes"].values()] == [[], [], []]
        told = result["results"]["networks"]["detector fp32"]
        assert told["error"] <= told["allowed"] and told["host_us"]["median"] > 0
        assert result["results"]["pytorch"]["resnet50 fp32 eager"] == {"missing": "PyTorch with CUDA"}
        assert result["results"]["onnxruntime"]["silero"] == {"missing": "onnxruntime-gpu"}
        assert any("apache-tvm" in each for each in result["missing"])
        assert any("onnxruntime-gpu" in each for each in result["missing"]) and "missing: onnxruntime-gpu" in done.stdout
        before = Journal(tmp_path).path.read_text().count("networks")
        assert _run(tmp_path, "--only", "networks/detector fp32")[0].returncode == 0
        assert Journal(tmp_path).path.read_text().count("networks") == before  # it went on where it was
    monkeypatch.setenv("AOTC_LIBCUDA", "/nowhere/libcuda.so.1")
    done, _ = _run(tmp_path)
    assert done.returncode == 2 and "missing: no CUDA driver or GPU" in done.stdout


@pytest.mark.slow
def test_weights_from_a_seed(tmp_path: Path) -> None:
    """What lies in the folder is small, and gives the same network each time, about as large as the real one's weights."""
    first, again = (networks.source("resnet50", tmp_path).SerializeToString() for _ in range(2))
    assert first == again and len(first) > 90 << 20
    assert (tmp_path / "models" / "resnet50.onnx").stat().st_size < 1 << 20


def test_a_group_that_hangs_is_ended(tmp_path: Path) -> None:
    group = dataclasses.replace(GROUPS[0], seconds=0.3)
    found = run_apart(group, list(SHAPES), tmp_path, lambda: 60)
    assert [found[name]["failed"] for name in SHAPES] == ["no end after 0.3 s"] * 3
    assert not run_apart(group, list(SHAPES), tmp_path / "late", lambda: 0)  # no time is left: nothing begins, nothing is wrong
