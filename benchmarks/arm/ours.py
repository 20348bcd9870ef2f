"""aotc's own instructions: a model built for a board's processor, emulated, compared with the reference, and its hottest loops."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import aotc
from aotc.frontends import import_model
from aotc.measure import instructions
from aotc.passes.pipeline import optimise
from aotc.targets import get, without_gpu
from benchmarks.arm.blocks import merged, profile
from benchmarks.arm.mca import Mca
from benchmarks.arm.peers import difference
from benchmarks.arm.work import saved_by_winograd

TARGETS = {"neoverse-n1": "jetson-orin", "cortex-a57": "jetson-nano"}
"""What is built for each emulated processor. Orin's Cortex-A78AE has the instruction set of Neoverse N1."""
LOOPS = 3


@dataclass(frozen=True)
class LoopFacts:
    """A loop of a model: its share of all instructions, the instructions and multiply-adds of one turn, and its cycles."""

    share: float
    instructions: int
    fmlas: int
    cycles: float
    of_bound: float


def count(model: str, cpu: str, files: Path, folder: Path, mca: Mca | None, old: dict[str, Any] | None) -> dict[str, Any]:
    """``millions`` of instructions of one inference, ``classes`` of them, ``macs`` of the chosen algorithms, ``difference`` from the reference,
    and ``loops`` where there is ``mca``. ``old`` is returned where it told the same of the same file."""
    target = without_gpu(get(TARGETS[cpu]))
    file = folder / f"{model}-{cpu}.so"
    aotc.compile(str(files / "model.onnx"), target, file)
    key = f"{hashlib.sha256(file.read_bytes()).hexdigest()[:16]} {mca.version if mca else ''}"
    if old is not None and old.get("key") == key:
        return old
    data = np.load(files / "data.npz")
    feeds = {"x": data["x"]}
    classes = dict(instructions.count(file, feeds).classes)
    with tempfile.TemporaryDirectory() as outputs:
        blocks = profile(file, cpu, feeds, Path(outputs))
        (result,) = Path(outputs).glob("*.npy")
        distance = difference(np.load(result), data["reference"])
    macs = json.loads((files / "facts.json").read_text())["multiply_accumulates"]
    total = classes.pop("total")
    facts: dict[str, Any] = {
        "key": key, "version": aotc.__version__, "millions": total / 1e6, "classes": classes, "difference": distance,
        "macs": macs - saved_by_winograd(optimise(import_model(str(files / "model.onnx")), target)),
    }  # fmt: skip
    if mca is not None:
        hottest = [block for block in merged(blocks) if block.fmlas][:LOOPS]
        facts["loops"] = [
            asdict(LoopFacts(loop.block.instructions / total, len(loop.block.words), loop.block.fmlas, loop.cycles, loop.share))
            for loop in mca.loops(hottest)
        ]
    return facts
