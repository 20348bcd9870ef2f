"""PTX beside the machine code: only where the board's driver reads it, and only used where there is no machine code."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

import aotc
from aotc import targets
from aotc.cli import app
from aotc.compiler import BuildReport
from aotc.errors import BuildError, InvalidOption
from aotc.lowering.compiled import CudaKernel
from aotc.packaging.board_check import findings
from aotc.packaging.reader import read_packaged
from aotc.targets.boards import board
from tests.agreement import assert_agrees
from tests.cuda.small_networks import NETWORKS
from tests.cuda.software import host_with_gpu, software_gpu

MAKE, TURNS = NETWORKS["dense"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    folder = tmp_path_factory.mktemp("ptx")
    return aotc.compile(MAKE(), targets.with_ptx(host_with_gpu()), folder / "m.so", device="cuda")


def _only(report: BuildReport, *, ptx: bool) -> list[CudaKernel]:
    """The kernels with one of the two kinds of code: a driver that is given the other finds nothing to run."""
    return [dataclasses.replace(kernel, **({"cubins": ()} if ptx else {"ptx": None})) for kernel in report.cuda_kernels]  # type: ignore[arg-type]


@pytest.mark.parametrize(("sm", "ptx"), [("87", False), ("90", True), ("110", True)])
def test_machine_code_before_ptx(report: BuildReport, tmp_path: Path, sm: str, ptx: bool) -> None:
    right = onnxruntime.InferenceSession(MAKE().SerializeToString()).run(None, TURNS[0])
    with software_gpu(_only(report, ptx=ptx), tmp_path, sm=sm):
        for got, wanted in zip(aotc.load(report.output).run(TURNS[0]).values(), right, strict=True):
            assert_agrees(np.array(got), wanted, 1e-4)


def test_ptx_is_for_newer_gpus(report: BuildReport, tmp_path: Path) -> None:
    with software_gpu(report.cuda_kernels, tmp_path, sm="72"), pytest.raises(aotc.RuntimeFailure, match=r"is sm_72 and the model was built for sm_87, sm_87 and newer"):  # fmt: skip
        aotc.load(report.output).session()
    with software_gpu(report.cuda_kernels, tmp_path, sm="90", version="11040"), pytest.raises(aotc.RuntimeFailure, match=r"is sm_90, for which the model has PTX alone, and the CUDA driver here is too old"):  # fmt: skip
        aotc.load(report.output).session()


def test_the_cpu_stands_in_where_the_driver_is_too_old(tmp_path: Path) -> None:
    report = aotc.compile(MAKE(), targets.with_ptx(host_with_gpu()), tmp_path / "m.so", device="auto")
    right = onnxruntime.InferenceSession(MAKE().SerializeToString()).run(None, TURNS[0])
    for version, on_gpu in (("11040", False), ("12060", True)):
        with software_gpu(report.cuda_kernels, tmp_path / "kernels", sm="90", version=version):
            session = aotc.load(report.output).session()
            assert_agrees(np.array(session.run(TURNS[0])["y"]), right[0], 1e-4)
            assert (session.memory().device_weights > 0) == on_gpu


@pytest.mark.parametrize(("target", "written", "read"), [("jetson-xavier", "7.8", "7.4"), ("jetson-nano", "7.8", "6.5")])
def test_what_the_driver_does_not_read_is_refused(target: str, written: str, read: str, tmp_path: Path) -> None:
    """Case 7."""
    with pytest.raises(BuildError, match=rf"writes PTX {written}, and the driver of CUDA \S+ reads PTX up to {read}: build without --ptx"):
        aotc.compile(MAKE(), targets.with_ptx(targets.get(target)), tmp_path / "m.so", device="cuda")
    assert not (tmp_path / "m.so").exists()
    with pytest.raises(InvalidOption, match=r"the target aarch64 has no GPU that PTX could be for"):
        targets.with_ptx(targets.get("aarch64"))


def test_what_the_commands_say(tmp_path: Path) -> None:
    onnx.save(MAKE(), tmp_path / "m.onnx")
    run = CliRunner()
    arguments = ["build", str(tmp_path / "m.onnx"), "--target", "jetson-orin", "--device", "cuda", "-o", str(tmp_path / "m.so")]
    assert "PTX for sm_87 and newer" in run.invoke(app, [*arguments, "--ptx"]).output
    assert "CUDA code for sm_87 and PTX for sm_87 and newer" in run.invoke(app, ["inspect", str(tmp_path / "m.so"), "--kernels"]).output
    packaged = read_packaged(tmp_path / "m.so")
    assert packaged.manifest.sm == (87,)
    found = {finding.what: finding for finding in findings(packaged, board("thor-t5000"), None)}
    assert found["GPU code"].right and "of which the driver makes code for the board's sm_110" in found["GPU code"].text
    assert found["driver"].right and "PTX 8.5; the driver of JetPack 7.0 reads PTX up to 9.0" in found["driver"].text
    assert run.invoke(app, ["check", str(tmp_path / "m.so"), "--target", "jetson-thor"]).exit_code == 0
    assert run.invoke(app, [*arguments[:-4], "--device", "cpu", "--ptx"]).exit_code != 0
