"""silero-vad 6.2.3, voice activity, as published, and real speech to feed it: recordings that come with PocketSphinx's tests."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.zoo.cache import package_folder

FILES = {
    "both": "silero_vad.onnx",
    "both-without-if": "silero_vad_op18_ifless.onnx",
    "16k": "silero_vad_16k_op15.onnx",
    "16k-openvino": "silero_vad_openvino_16k.onnx",
    "16k-sequence": "silero_vad_16k_sequence.onnx",
}
"""All but silero_vad_half.onnx, which differs by up to 0.84 from the others."""
RATES = {name: (16000, 8000) if name.startswith("both") else (16000,) for name in FILES}
FRAME = {16000: 512, 8000: 256}
CONTEXT = {16000: 64, 8000: 32}
"""Samples from before each frame that are fed with it."""
RECORDINGS = Path("/usr/share/pocketsphinx/test/data/librivox")


def onnx_path(name: str) -> Path:
    return package_folder("silero_vad") / "data" / FILES[name]


def speech(rate: int) -> np.ndarray:
    """Some 25 seconds of reading, in -1 to 1; at half the rate the mean of each two samples. Raises FileNotFoundError."""
    files = sorted(RECORDINGS.glob("*.wav"))
    if not files:
        raise FileNotFoundError(f"{RECORDINGS}: no recordings; apt-get install pocketsphinx-testdata")
    parts = []
    for path in files:
        with wave.open(str(path)) as file:
            assert (file.getframerate(), file.getsampwidth(), file.getnchannels()) == (16000, 2, 1)
            parts.append(np.frombuffer(file.readframes(file.getnframes()), "<i2"))
    samples = np.concatenate(parts).astype(np.float32) / 32768
    return samples if rate == 16000 else samples[: len(samples) // 2 * 2].reshape(-1, 2).mean(1)


def frames(rate: int, count: int) -> Iterator[np.ndarray]:
    """The first frames of the speech, [1, context + frame] each."""
    size, context = FRAME[rate], CONTEXT[rate]
    samples = np.concatenate([np.zeros(context, np.float32), speech(rate)])
    for number in range(count):
        yield samples[None, number * size : number * size + context + size]
