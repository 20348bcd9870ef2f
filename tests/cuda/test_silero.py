"""silero-vad with its state in the session and its LSTM on the GPU, over real speech, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from tests.agreement import assert_agrees
from tests.cuda.real_networks import figure
from tests.cuda.software import count, host_with_gpu, software_gpu
from tests.e2e.reference import onnxruntime_outputs
from tests.zoo import silero

FRAMES = 24


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_state_stays_in_the_session(precision: str, tmp_path: Path) -> None:
    path, rate = silero.onnx_path("both"), np.array(16000, np.int64)
    shapes, states = {"input": (1, "samples"), "state": (2, 1, 128)}, {"state": "stateN"}
    report = aotc.compile(path, host_with_gpu(), tmp_path / "m.so", shapes, device="cuda", precision=precision, states=states)
    on_cpu = [function.name for function, placed in report.placement.items() if not placed.on_device]
    assert not [name for name in on_cpu if "lstm" in name], on_cpu
    state, probabilities, wanted, copied = np.zeros((2, 1, 128), np.float32), [], [], []
    with software_gpu(report.cuda_kernels, tmp_path, checked=False):
        session = aotc.load(report.output).session()
        for frame in silero.frames(16000, FRAMES):
            probabilities += [np.array(value) for value in session.run({"input": frame, "sr": rate}).values()]
            reference = onnxruntime_outputs(path, {"input": frame, "state": state, "sr": rate})
            wanted, state = [*wanted, reference["output"]], reference["stateN"]
            copied.append((count("copies_to_device"), count("copies_to_host")))
    assert_agrees(np.stack(probabilities), np.stack(wanted), figure("silero", precision), "the probabilities of all frames")
    # Both processors see the state: copied are the weights, once, and in each run what it gives to the caller's memory.
    assert copied == [(copied[0][0], copied[0][1] + run) for run in range(FRAMES)]
