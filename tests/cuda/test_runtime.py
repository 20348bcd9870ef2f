"""Files for a GPU run as ONNX Runtime does, through the unchanged runtime and the software driver."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

import aotc
from aotc.cli import app
from aotc.compiler import BuildReport
from aotc.errors import BuildError, InvalidOption
from aotc.lowering.cuda import nvrtc
from aotc.lowering.cuda.cubin import architecture
from aotc.lowering.plan import ExecutionPlan, StepKind
from aotc.packaging.planfile import read_plan
from aotc.packaging.reader import read_packaged
from cross import qemu
from tests.agreement import assert_agrees
from tests.cuda import host_code
from tests.cuda.launcher import Device
from tests.cuda.small_networks import NETWORKS, look_at_sum, running_sum
from tests.cuda.software import count, host_with_gpu, software_gpu
from tests.e2e.emulate import emulate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda")


@cache
def built(name: str, folder: Path) -> BuildReport:
    return aotc.compile(NETWORKS[name][0](), target=host_with_gpu(), output=folder / f"{name}.so", device="cuda")


@cache
def expected(name: str) -> list[list[np.ndarray]]:
    session = onnxruntime.InferenceSession(NETWORKS[name][0]().SerializeToString())
    return [session.run(None, inputs) for inputs in NETWORKS[name][1]]


def plan_of(report: BuildReport) -> ExecutionPlan:
    return read_plan(read_packaged(report.output).plan)


@pytest.mark.parametrize("device", ["integrated", "discrete"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, device: str, folder: Path) -> None:
    report = built(name, folder)
    with software_gpu(report.cuda_kernels, folder / "kernels", device=device):
        model = aotc.load(report.output)
        for turn in range(3):  # the second one is captured, the third one is a graph
            for inputs, wanted in zip(NETWORKS[name][1], expected(name), strict=True):
                for got, right in zip(model.run(inputs).values(), wanted, strict=True):
                    assert_agrees(got, right, 1e-4, f"{name}, turn {turn}")


def test_sizes_that_a_run_tells_are_the_hosts(folder: Path) -> None:
    report = built("found_while_running", folder)
    assert any("sizes depend on the data" in placed.reason for placed in report.placement.values())
    assert any("its sizes depend on the data" in note for note in report.notes)
    assert [placed.on_device for placed in report.placement.values()].count(True) >= 3
    kinds = [step.kind for step in plan_of(report).entry_points[0].steps]
    launches = [number for number, kind in enumerate(kinds) if kind is StepKind.LAUNCH]
    assert launches == list(range(launches[0], launches[0] + len(launches)))  # one stretch, also of what the host does not wait for


@pytest.mark.parametrize("device", ["integrated", "discrete"])
def test_states(device: str, tmp_path: Path) -> None:
    report = aotc.compile(running_sum(), target=host_with_gpu(), output=tmp_path / "sum.so", device="cuda", states={"total": "next_total"})
    session = onnxruntime.InferenceSession(running_sum().SerializeToString())
    x, total = np.random.default_rng(3).standard_normal((4, 32)).astype(np.float32), np.zeros((4, 16), np.float32)
    with software_gpu(report.cuda_kernels, tmp_path / "kernels", device=device):
        ours = aotc.load(report.output).session()
        for _ in range(4):
            y, total = session.run(None, {"x": x, "total": total})
            (got,) = ours.run({"x": x}).values()
            assert_agrees(got, y, 1e-4)
            assert_agrees(ours.state("total"), total, 1e-4)


def test_one_graph_launch_a_run(tmp_path: Path) -> None:
    report = aotc.compile(running_sum(), target=host_with_gpu(), output=tmp_path / "sum.so", device="cuda")
    rng = np.random.default_rng(5)
    with software_gpu(report.cuda_kernels, tmp_path / "kernels"):
        session = aotc.load(report.output).session()
        figures = []
        for _ in range(4):
            session.run({"x": rng.standard_normal((4, 32)).astype(np.float32), "total": np.zeros((4, 16), np.float32)})
            figures.append((count("launches"), count("graph_launches"), count("copies_to_device")))
    changes = np.diff(figures, axis=0).tolist()
    assert [graphs for _, graphs, _ in changes] == [1, 1, 1]  # the first run is launch by launch
    assert [copies for _, _, copies in changes] == [2, 2, 2]


@pytest.mark.parametrize("device", ["integrated", "discrete"])
def test_entry_points_share_states(device: str, tmp_path: Path) -> None:
    models = {"add": running_sum(), "look": look_at_sum()}
    report = aotc.compile(models, target=host_with_gpu(), output=tmp_path / "m.so", device="cuda", states={"total": "next_total"})
    x = np.random.default_rng(4).standard_normal((4, 32)).astype(np.float32)
    reference, total = onnxruntime.InferenceSession(models["add"].SerializeToString()), np.zeros((4, 16), np.float32)
    with software_gpu(report.cuda_kernels, tmp_path / "kernels", device=device):
        ours = aotc.load(report.output).session()
        for turn in range(6):
            if turn == 3:
                ours.reset()
                total = np.zeros((4, 16), np.float32)
            _, total = reference.run(None, {"x": x, "total": total})
            ours.run({"x": x}, entry_point="add")
            assert_agrees(ours.run({}, entry_point="look")["y"], 1 / (1 + np.exp(-total)), 1e-4)


class OnGpu:
    """An array of the software GPU's, as PyTorch and CuPy show theirs."""

    def __init__(self, device: Device, value: np.ndarray) -> None:
        self.device, self.value, self.address = device, value, ctypes.c_uint64()
        device.call("cuMemAlloc_v2", ctypes.byref(self.address), value.nbytes)
        device.call("cuMemcpyHtoDAsync_v2", self.address, value.ctypes.data_as(ctypes.c_void_p), value.nbytes, None)
        device.call("cuStreamSynchronize", None)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"shape": self.value.shape, "typestr": self.value.dtype.str, "data": (self.address.value, False), "version": 3}

    def read(self) -> np.ndarray:
        self.device.call("cuMemcpyDtoHAsync_v2", self.value.ctypes.data_as(ctypes.c_void_p), self.address, self.value.nbytes, None)
        return self.value


def test_arrays_on_the_gpu(folder: Path) -> None:
    report, x = built("dense", folder), NETWORKS["dense"][1][0]["x"]
    with software_gpu(report.cuda_kernels, folder / "kernels", device="discrete"), Device(host_code.driver()) as device:
        session, given, result = aotc.load(report.output).session(), OnGpu(device, x), OnGpu(device, np.zeros((4, 16), np.float32))
        before = count("copies_to_device"), count("copies_to_host")
        for _ in range(3):
            assert session.run({"x": given}, out={"y": result})["y"] is result
        assert (count("copies_to_device"), count("copies_to_host")) == before
        assert_agrees(result.read(), expected("dense")[0][0], 1e-4)
        with pytest.raises(aotc.RuntimeFailure, match=r"input 'x': expected float32 \[4, 32\], got float64 \[4, 32\]"):
            session.run({"x": OnGpu(device, x.astype(np.float64))})
    with pytest.raises(aotc.RuntimeFailure, match=r"should be in host memory and is in CUDA memory"):
        aotc.compile(NETWORKS["dense"][0](), output=folder / "cpu.so")
        aotc.load(folder / "cpu.so").run({"x": given})


def test_versions(tmp_path: Path) -> None:
    make, turns = NETWORKS["any_rows"]
    report = aotc.compile(make(), target=host_with_gpu(), output=tmp_path / "m.so", device="cuda", versions=[{"x": (9, 32)}])
    with software_gpu(report.cuda_kernels, tmp_path / "kernels"):
        model = aotc.load(report.output)
        for inputs, wanted in zip(turns, expected("any_rows"), strict=True):
            for got, right in zip(model.run(inputs).values(), wanted, strict=True):
                assert_agrees(got, right, 1e-4)


def test_models_in_threads(folder: Path) -> None:
    report, inputs, wanted = built("convolutions", folder), NETWORKS["convolutions"][1][0], expected("convolutions")[0][0]
    results: list[np.ndarray] = []

    def work() -> None:
        model = aotc.load(report.output)
        results.extend(np.array(next(iter(model.run(inputs).values()))) for _ in range(3))

    with software_gpu(report.cuda_kernels, folder / "kernels"):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 9
    for result in results:
        assert_agrees(result, wanted, 1e-4)


def test_one_copy_of_the_weights_and_only_those_of_the_gpu(folder: Path) -> None:
    report = built("convolutions", folder)
    with software_gpu(report.cuda_kernels, folder / "kernels"):
        session = aotc.load(report.output).session()
        session.run(NETWORKS["convolutions"][1][0])
        memory = session.memory()
    assert 0 < memory.device_weights <= report.weights_size and memory.device > 0 and memory.arena <= 64


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def with_fallback(folder: Path, request: pytest.FixtureRequest) -> tuple[BuildReport, float]:
    """A file for both processors, and the figure of its precision."""
    output, precision = folder / f"both-{request.param}.so", request.param
    report = aotc.compile(NETWORKS["convolutions"][0](), target=host_with_gpu(), output=output, precision=precision)
    return report, 1e-4 if precision == "fp32" else 5e-3


@pytest.mark.parametrize("sm", ["87", "72", "none"])
def test_the_cpu_stands_in(with_fallback: tuple[BuildReport, float], folder: Path, monkeypatch: pytest.MonkeyPatch, sm: str) -> None:
    report, figure = with_fallback
    with software_gpu(report.cuda_kernels, folder / "kernels", sm=sm if sm != "none" else "87"):
        if sm == "none":
            monkeypatch.setenv("AOTC_LIBCUDA", "/nowhere/libcuda.so.1")
        session = aotc.load(report.output).session()
        for inputs, wanted in zip(NETWORKS["convolutions"][1], expected("convolutions"), strict=True):
            (got,) = session.run(inputs).values()
            assert_agrees(got, wanted[0], figure)
        assert (session.memory().device > 0) == (sm == "87")
    plan = plan_of(report)
    assert [entry.fallback for entry in plan.entry_points] == [1, None] and len(plan.visible_entry_points) == 1
    assert all(step.kind is not StepKind.LAUNCH for step in plan.entry_points[1].steps)


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", "libcuda.so.1.1"])
def test_names_of_the_driver(name: str, folder: Path, tmp_path: Path) -> None:
    report = built("dense", folder)
    (tmp_path / name).symlink_to(host_code.driver())
    np.save(tmp_path / "x.npy", NETWORKS["dense"][1][0]["x"])
    code = f"import aotc_runtime as a, numpy as n; n.save('y.npy', a.load({str(report.output)!r}).run({{'x': n.load('x.npy')}})['y'])"
    with software_gpu(report.cuda_kernels, folder / "kernels"):
        found = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(Path(aotc.__file__).parent / "runtime"), "AOTC_LIBCUDA": ""}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, **found}, check=False, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert_agrees(np.load(tmp_path / "y.npy"), expected("dense")[0][0], 1e-4)


def test_wrong_gpu(folder: Path) -> None:
    report = built("dense", folder)
    with software_gpu(report.cuda_kernels, folder / "kernels", sm="72"), pytest.raises(aotc.RuntimeFailure, match=r"is sm_72 and the model was built for sm_87"):  # fmt: skip
        aotc.load(report.output).run(NETWORKS["dense"][1][0])


def test_too_little_memory(folder: Path) -> None:
    report = built("convolutions", folder)
    with software_gpu(report.cuda_kernels, folder / "kernels", memory="100"), pytest.raises(aotc.RuntimeFailure, match=r"the GPU is out of memory"):  # fmt: skip
        aotc.load(report.output).run(NETWORKS["convolutions"][1][0])


def test_target_without_gpu(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"the target aarch64 has no GPU that aotc knows"):
        aotc.compile(NETWORKS["dense"][0](), target="aarch64", output=tmp_path / "m.so", device="cuda")


@pytest.fixture(scope="module")
def for_orin(folder: Path) -> BuildReport:
    return aotc.compile(NETWORKS["dense"][0](), target="jetson-orin", output=folder / "orin.so", device="cuda", metadata={"owner": "me"})


def test_file_for_a_board_without_its_driver(for_orin: BuildReport, folder: Path) -> None:
    """Its metadata can be read anywhere; a session says what is missing."""
    packaged = read_packaged(for_orin.output)
    assert packaged.manifest.sm == (87,) and packaged.manifest.metadata["owner"] == "me" and packaged.sizes.cubins > 0
    assert not [name for name in packaged.elf.needed if "cuda" in name]
    if packages := qemu.missing():
        pytest.skip(f"no emulation of Arm: apt-get install {' '.join(packages)}")
    done = subprocess.run(
        qemu.command([str(for_orin.output), "--manifest"], "max", qemu.SYSROOT), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0 and '"owner":"me"' in done.stdout, done.stderr
    with pytest.raises(AssertionError, match=r"no CUDA driver \(libcuda.so.1\) can be loaded here"):
        emulate(for_orin.output, [NETWORKS["dense"][1][0]["x"]], folder)


def test_file_for_a_board_that_the_cpu_runs(folder: Path) -> None:
    report = aotc.compile(NETWORKS["dense"][0](), target="jetson-orin", output=folder / "auto.so")
    outputs = emulate(report.output, [NETWORKS["dense"][1][0]["x"]], folder)
    assert_agrees(outputs["y"], expected("dense")[0][0], 1e-4)


def test_both_processors_read_the_same_weights(folder: Path, with_fallback: tuple[BuildReport, float]) -> None:
    report, _ = with_fallback
    precision = read_packaged(report.output).manifest.precision
    alone = aotc.compile(NETWORKS["convolutions"][0](), host_with_gpu(), folder / "one.so", device="cuda", precision=precision)
    assert alone.weights_size == report.weights_size > 0


def test_a_missing_compiler_is_told_before_anything_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        BuildError, match=r"pip install 'nvidia-cuda-nvrtc-cu12==12\.6\.85' \(or aotc\[jetson\]\), or build with --device cpu"
    ):
        aotc.compile("no such model.onnx", "jetson", tmp_path / "m.so")


def test_tuning_is_the_cpus(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"t\.jsonl has choices for kernels of the CPU: build with --device cpu"):
        aotc.compile("no such model.onnx", "jetson", tmp_path / "m.so", tuning="t.jsonl")


def test_several_gpus_and_what_the_commands_say(tmp_path: Path) -> None:
    onnx.save(NETWORKS["dense"][0](), tmp_path / "m.onnx")
    run = CliRunner()
    arguments = [
        "build",
        str(tmp_path / "m.onnx"),
        "--target",
        "jetson-orin",
        "--device",
        "cuda",
        "--sm",
        "72,87",
        "-o",
        str(tmp_path / "m.so"),
    ]
    built = run.invoke(app, [*arguments, "--json"])
    assert built.exit_code == 0, built.output
    facts = json.loads(built.stdout)
    assert facts["sm"] == [72, 87] and facts["functions_on_gpu"] == 2 and facts["functions_on_cpu"] == []
    assert facts["gpu"]["launches"] == 2 and facts["gpu"]["device_arena"] > 0 and not facts["gpu"]["runs_without_gpu"]
    packaged = read_packaged(tmp_path / "m.so")
    plan = read_plan(packaged.plan)
    assert packaged.manifest.sm == (72, 87)
    assert [architecture(code) for code in packaged.cubins(plan)] == [cubin.sm for cubin in plan.cubins] == [72, 87, 72, 87]
    assert b"__global__" not in Path(tmp_path / "m.so").read_bytes()
    told = json.loads(run.invoke(app, ["inspect", str(tmp_path / "m.so"), "--json"]).stdout)
    assert [step["device"] for step in told["entry_points"][0]["steps"]] == ["cpu > cuda", "cuda", "cuda", "cuda > cpu"]
    assert told["entry_points"][0]["launches"] == 2 and len(told["cuda_kernels"]) == 4
    shown = run.invoke(app, ["inspect", str(tmp_path / "m.so"), "--steps", "--kernels"])
    assert shown.exit_code == 0 and "sm_72, sm_87" in shown.output and "2 launches" in shown.output
    assert "2 launches, 1 crossings" in run.invoke(app, arguments).output
    refused = run.invoke(app, [*arguments[:-4], "--sm", "orin"])
    assert refused.exit_code != 0 and "expected compute capabilities as numbers" in refused.output
