"""silero-vad on real speech, frame by frame, the state carried from each to the next: branches on data and a recurrent layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import aotc
from tests.agreement import assert_agrees
from tests.e2e.emulate import emulate
from tests.zoo import silero

CASES = [*((name, 16000) for name in silero.FILES), ("silero_vad.onnx", 8000)]

pytestmark = pytest.mark.skipif(not silero.SPEECH.is_dir(), reason="no recorded speech: apt-get install pocketsphinx-testdata")


def reference(name: str) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(silero.onnx_path(name)), options)
    return lambda feeds: session.run(None, feeds)


def probabilities(run: Callable[[dict[str, np.ndarray]], list[np.ndarray]], name: str, frames: np.ndarray, rate: int) -> np.ndarray:
    """The voice probability of each frame, each run's state going into the next."""
    feeds, found = silero.first_feeds(name, frames[0], rate), []
    for frame in frames:
        results = run({**feeds, "input": frame[None]})
        feeds = silero.carried(feeds, results)
        found.append(float(results[0].reshape(-1)[0]))
    return np.array(found, np.float32)


@pytest.mark.parametrize(("name", "rate"), CASES)
def test_500_frames(name: str, rate: int, tmp_path: Path) -> None:
    aotc.compile(str(silero.onnx_path(name)), output=tmp_path / "model.so", jobs=1)
    model = aotc.load(tmp_path / "model.so", num_threads=1)
    frames = silero.frames(500, rate)
    expected = probabilities(reference(name), name, frames, rate)
    assert expected.std() > 0.2  # speech and pauses, so that a wrong answer would show
    assert_agrees(probabilities(lambda feeds: list(model.run(feeds).values()), name, frames, rate), expected, 1e-5, f"{name} at {rate} Hz")


def test_some_frames_on_arm(tmp_path: Path) -> None:
    name = "silero_vad_16k_op15.onnx"
    aotc.compile(str(silero.onnx_path(name)), target="jetson", output=tmp_path / "model.so", jobs=1, device="cpu")
    order = [each.name for each in onnxruntime.InferenceSession(str(silero.onnx_path(name))).get_inputs()]
    frames = silero.frames(3)
    expected = probabilities(reference(name), name, frames, 16000)

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return list(emulate(tmp_path / "model.so", [feeds[each] for each in order], tmp_path).values())

    assert_agrees(probabilities(run, name, frames, 16000), expected, 1e-5, name)
