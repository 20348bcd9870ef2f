"""Networks of bytes on the GPU: every bit as ONNX Runtime's or the CPU's, on tensor cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from tests.cuda import software
from tests.cuda.machine_code import instructions
from tests.e2e.test_quantised_networks import images, quantised, session

BATCH = 8
"""Of one picture the CPU computes as much as it pays to cross for."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "types", "per_channel"), [("qoperator", "u8s8", True), ("qdq", "s8s8", False)])
def test_network(kind: str, types: str, per_channel: bool, tmp_path: Path) -> None:
    x, path = images(BATCH, 99), quantised(kind, types, per_channel, tmp_path)
    report = aotc.compile(str(path), software.host_with_gpu(), tmp_path / "gpu.so", inputs={"x": (BATCH, 3, 32, 32)}, device="cuda")
    (on_gpu,) = software.run(report, {"x": x}, tmp_path)
    aotc.compile(str(path), "host", tmp_path / "cpu.so", inputs={"x": (BATCH, 3, 32, 32)}, device="cpu")
    (on_cpu,) = aotc.load(tmp_path / "cpu.so").run({"x": x}).values()
    np.testing.assert_array_equal(on_gpu, on_cpu)
    (want,) = session(path, "DISABLE_ALL").run(None, {"x": x})
    assert np.abs(on_gpu - want).max() <= 2.01 / 256 if kind == "qdq" else np.array_equal(on_gpu, want)
    assert sum(instructions(kernel.cubins[0][1])["IMMA"] > 0 for kernel in report.cuda_kernels) >= 3
