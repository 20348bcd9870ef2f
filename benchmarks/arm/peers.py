"""Other engines' instructions, counted by a folder of tools that emulates an aarch64 Python with their aarch64 wheels.

The folder holds ``count.sh CPU ENGINE MODEL INPUT.npz NAME [REPEATS]``, which writes out/NAME.counts (a line ``mark N kind=count ...`` after
the warm-up and after each inference), out/NAME.npy (the first result) and out/NAME.log. Engines that need a model of their own form get
it from ``benchmarks.peers``, which builds it once and keeps it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import builds
from benchmarks.peers.builds import Place
from benchmarks.peers.engine import Engine
from benchmarks.peers.engines import ENGINES
from benchmarks.peers.venvs import set_up

CPUS = {"neoverse-n1": "n1", "cortex-a57": "a57"}
"""The tools' names of the processors."""
REPEATS = 3
LIMIT = 840
"""Seconds of one engine with one model."""
_NCNN_FLOAT32 = ":".join(f"use_{what}=0" for what in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"))


@dataclass(frozen=True)
class Tool:
    """How the folder's script is told of an engine: its name there, the file that is its model, variables of the emulated process."""

    name: str
    artefact: str | None = None
    variables: str = ""


TOOLS = {
    "onnxruntime": Tool("ort"),
    "ncnn": Tool("ncnn", "model.param", f"NCNN_OPT={_NCNN_FLOAT32}"),
    "executorch": Tool("executorch", "model.pte"),
    "openvino": Tool("openvino-f32"),
}
"""By the names that ``benchmarks.peers`` has."""


@dataclass(frozen=True)
class PublishedCounts:
    """Counts that were measured elsewhere, in million instructions, by engine."""

    date: str
    note: str
    versions: dict[str, str]
    millions: dict[str, dict[str, dict[str, float]]]

    def of(self, cpu: str, model: str) -> dict[str, float]:
        return self.millions.get(cpu, {}).get(model, {})


def published() -> PublishedCounts:
    return PublishedCounts(**json.loads(Path(__file__).with_name("published.json").read_text()))


def count(folder: Path, engine: str, cpu: str, model: str, files: Path, place: Place) -> dict[str, Any]:
    """``millions`` of instructions of one inference, ``version``, ``difference`` from the reference; or ``error``."""
    tool, name = TOOLS[engine], f"{CPUS[cpu]}.{engine}.{files.name}"
    program = files / "model.onnx"
    if tool.artefact:
        if error := _build(ENGINES[engine], model, files, place):
            return {"error": error}
        program = place.build(ENGINES[engine], model, 1) / tool.artefact
    words = ["bash", str(folder / "count.sh"), CPUS[cpu], tool.name, str(program), str(files / "data.npz"), name, str(REPEATS)]
    environment = os.environ | {"LIMIT": str(LIMIT), "GUEST_ENV": tool.variables}
    subprocess.run(words, check=False, capture_output=True, env=environment)
    out = folder / "out" / name
    log = Path(f"{out}.log").read_text(errors="replace") if Path(f"{out}.log").exists() else ""
    marks = _marks(Path(f"{out}.counts"))
    if 1 not in marks or not Path(f"{out}.npy").exists():
        return {"error": f"it did not finish: {' '.join(log.split()[-30:])}"}
    inferences = [marks[number] - marks[number - 1] for number in marks if number >= 1]
    version = re.search(r"^version (\S+)", log, re.MULTILINE)
    reference = np.load(files / "data.npz")["reference"]
    return {
        "millions": min(inferences) / 1e6,
        "version": version[1].partition("-")[0] if version else published().versions.get(engine, "unknown"),
        "difference": difference(np.load(f"{out}.npy"), reference),
    }


def difference(result: np.ndarray, reference: np.ndarray) -> float:
    """The largest one, of the largest value."""
    if result.size != reference.size:
        return float("inf")
    return float(np.abs(result.ravel() - reference.ravel()).max() / np.abs(reference).max())


def _build(engine: type[Engine], model: str, files: Path, place: Place) -> str | None:
    """Why the engine's own form of a model could not be made."""
    if error := set_up(engine.venv, place.venvs):
        return error
    told = builds.build(engine, model, 1, files, place, LIMIT)
    return str(told["error"]) if "error" in told else None


def _marks(path: Path) -> dict[int, int]:
    """Instructions executed until each mark, by its number."""
    text = path.read_text() if path.exists() else ""
    found = re.findall(r"^mark (-?\d+) total=(\d+)", text, re.MULTILINE)
    return {int(number): int(total) for number, total in found}
