"""``python -m benchmarks.gpu``: on a real GPU where there is one (``pytest -m gpu``), and a little of it through the software driver."""

from __future__ import annotations

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

FEW = r"shapes/(0|162|277) |networks/detector fp32|pytorch/resnet50 fp32|onnxruntime/silero"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["shapes", "networks"])
def test_all_is_right(name: str, tmp_path: Path) -> None:
    if missing := gpu_missing():
        pytest.skip(f"{missing.what}: needs an H100 or H200 with its driver")
    (group,) = (group for group in GROUPS if group.name == name)
    found = dict(run_apart(group, group.names(), tmp_path, lambda: 300))
    assert not {key: result for key, result in found.items() if "failed" in result}
    assert set(found) == set(group.names())


def _kernels(folder: Path) -> list[CudaKernel]:
    few = [name for name in shapes.names() if name.split()[0] in ("0", "162", "277")]
    assert len(few) == 3
    made = [kernel for function in shapes.build(few) for kernel in function.kernels if isinstance(kernel, CudaKernel)]
    return [*made, *networks.build("detector fp32", folder).cuda_kernels]


def _run(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.gpu", "run", "--folder", str(folder), "--json", str(folder / "gpu.json"), "--only", FEW]
    done = subprocess.run([*command, *options], check=False, capture_output=True, text=True)
    return done, json.loads((folder / "gpu.json").read_text()) if (folder / "gpu.json").exists() else {}


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(cache_dir()))
    kernels = _kernels(tmp_path)
    with software_gpu(kernels, tmp_path / "nothing", sm=str(SM)):
        monkeypatch.setenv("AOTC_SOFTWARE_CUDA", str(tmp_path / "empty"))  # each launch fails, and its process with it
        done, result = _run(tmp_path, "--only", "shapes/(0|162) ")
        assert done.returncode == 1, done.stderr
        assert ["CudaError" in each["failed"] for each in result["results"]["shapes"].values()] == [True, True]
    with software_gpu(kernels, tmp_path / "kernels", sm=str(SM)):
        done, result = _run(tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [list(each) for each in result["results"]["shapes"].values()] == [[], [], []]
        told = result["results"]["networks"]["detector fp32"]
        assert told["error"] <= told["allowed"] and told["host_us"]["median"] > 0
        assert result["results"]["pytorch"]["resnet50 fp32 eager"] == {"missing": "PyTorch with CUDA"}
        assert result["results"]["onnxruntime"]["silero"] == {"missing": "onnxruntime-gpu"}
        assert any("onnxruntime-gpu" in each for each in result["missing"]) and "missing: onnxruntime-gpu" in done.stdout
        before = Journal(tmp_path).path.read_text().count("networks")
        assert _run(tmp_path)[0].returncode == 0
        assert Journal(tmp_path).path.read_text().count("networks") == before  # it went on where it was
    monkeypatch.setenv("AOTC_LIBCUDA", "/nowhere/libcuda.so.1")
    done, _ = _run(tmp_path)
    assert done.returncode == 2 and "missing: no CUDA driver or GPU" in done.stdout


def test_weights_from_a_seed(tmp_path: Path) -> None:
    """What lies in the folder is small, and gives the same network each time, about as large as the real one's weights."""
    first, again = (networks.source("resnet50", tmp_path).SerializeToString() for _ in range(2))
    assert first == again and len(first) > 90 << 20
    assert (tmp_path / "models" / "resnet50.onnx").stat().st_size < 1 << 20
