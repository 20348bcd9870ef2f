"""silero-vad on real speech, frame by frame, each side carrying its own state. (Case 30.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import aotc
from tests.agreement import assert_agrees
from tests.e2e.conftest import Build
from tests.e2e.emulate import emulate
from tests.e2e.reference import exact_outputs
from tests.zoo import silero

pytestmark = pytest.mark.skipif(not silero.RECORDINGS.is_dir(), reason="no speech: apt-get install pocketsphinx-testdata")

FRAMES = 500
EMULATED = 4
Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def reference(name: str) -> tuple[Run, list[str]]:
    """ONNX Runtime, and the names of the model's inputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(silero.onnx_path(name), options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(outputs, session.run(outputs, feeds), strict=True)), [each.name for each in session.get_inputs()]


def listened(run: Run, names: list[str], rate: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The probability of speech in each frame, and the state after each."""
    state = np.zeros((2, 1, 128), np.float32)
    speech, states = [], []
    for frame in silero.frames(rate, count):
        feeds = {"input": frame, "state": state, "sr": np.array(rate, np.int64)}
        results = run({name: feeds[name] for name in names})
        state = results["stateN"]
        speech.append(results["output"])
        states.append(state)
    return np.concatenate(speech), np.stack(states)


def check(run: Run, name: str, rate: int, count: int) -> np.ndarray:
    """Compares both sides over ``count`` frames; gives the probabilities as they should be."""
    expected, names = reference(name)
    want = listened(expected, names, rate, count)
    for ours, theirs, what in zip(listened(run, names, rate, count), want, ("speech", "states"), strict=True):
        assert_agrees(ours, theirs, 1e-5, f"{what} of {name} at {rate} Hz")
    return want[0]


STEPWISE = [(name, rate) for name in silero.FILES if name != "16k-sequence" for rate in silero.RATES[name]]


@pytest.mark.parametrize("name,rate", STEPWISE)
def test_host(build: Build, name: str, rate: int) -> None:
    model = aotc.load(build(f"silero-{name}"), num_threads=1)
    probabilities = check(model.run, name, rate, FRAMES)
    assert probabilities.min() < 0.1 and probabilities.max() > 0.9  # words and pauses


def test_several_speakers_at_once(build: Build) -> None:
    """A batch of three, from three places of the speech, is as each by itself."""
    model = aotc.load(build("silero-both"), num_threads=2)
    frames = np.concatenate(list(silero.frames(16000, 60)))
    rate, state = np.array(16000, np.int64), np.zeros((2, 3, 128), np.float32)
    alone = np.zeros((3, 2, 1, 128), np.float32)
    for step in range(20):
        rows = frames[[step, step + 20, step + 40]]
        together = model.run({"input": rows, "state": state, "sr": rate})
        state = together["stateN"]
        for row in range(3):
            single = model.run({"input": rows[row : row + 1], "state": alone[row], "sr": rate})
            alone[row] = single["stateN"]
            assert_agrees(together["output"][row : row + 1], single["output"], 1e-5, f"step {step}, row {row}")


def test_a_frame_of_the_wrong_length_is_refused(build: Build) -> None:
    """What the branch of a rate takes for granted of the frame's length is checked when it runs, and only there."""
    model = aotc.load(build("silero-both"), num_threads=1)
    state = np.zeros((2, 1, 128), np.float32)
    for rate, length in ((8000, 576), (16000, 900)):
        with pytest.raises(aotc.AotcError, match=f"If_0.*{length}.*built for"):
            model.run({"input": np.zeros((1, length), np.float32), "state": state, "sr": np.array(rate, np.int64)})


def sequence_feeds(count: int) -> dict[str, np.ndarray]:
    zeros = np.zeros((1, 1, 128), np.float32)
    return {"input": np.concatenate(list(silero.frames(16000, count))), "h": zeros, "c": zeros}


def test_sequence_on_host(build: Build) -> None:
    """All frames in one run: the number of steps is dynamic. Both sides' probabilities, near zero, are about 3e-6 of themselves from
    what double precision gives."""
    model = aotc.load(build("silero-16k-sequence"), num_threads=1)
    for count in (1, 7, FRAMES):
        feeds = sequence_feeds(count)
        got, want = model.run(feeds), exact_outputs(silero.onnx_path("16k-sequence"), feeds)
        for name, value in want.items():
            assert_agrees(got[name], value, 1e-5, f"{name} of {count} frames")


@pytest.mark.parametrize("rate", [16000, 8000])
def test_arm(build: Build, rate: int, tmp_path: Path) -> None:
    file, (_, names) = build("silero-both", "jetson"), reference("both")
    check(lambda feeds: emulate(file, [feeds[name] for name in names], tmp_path), "both", rate, EMULATED)


def test_sequence_on_arm(build: Build, tmp_path: Path) -> None:
    feeds = sequence_feeds(EMULATED)
    got = emulate(build("silero-16k-sequence", "jetson"), list(feeds.values()), tmp_path)
    expected, _ = reference("16k-sequence")
    for name, value in expected(feeds).items():
        assert_agrees(got[name], value, 1e-5, name)
