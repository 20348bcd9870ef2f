"""Builds ahead of time, kept by content: what was built from the same model by the same engine on such a processor is not built again."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.engine import Engine
from benchmarks.peers.machine import processor
from benchmarks.peers.venvs import VENVS, last_line, python

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Place:
    """Where everything lies: environments, models' files, builds."""

    root: Path

    @property
    def venvs(self) -> Path:
        return self.root / "venvs"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def tools(self) -> Path:
        return self.root / "tools"

    def build(self, engine: type[Engine], model: str, threads: int) -> Path:
        return self.root / "builds" / engine.name / (f"{model}-{threads}" if engine.per_thread else model)

    def log(self, *words: str) -> Path:
        path = self.root / "logs" / f"{'-'.join(words)}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def environment(threads: int) -> dict[str, str]:
    """Variables for a worker: the number of threads in the forms that engines read, and no settings of the caller's that change kernels."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS_", "OMP_", "MKL_", "ONEDNN_", "AOTC_"))}
    counts = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")}
    return {**kept, **counts, "TQDM_DISABLE": "1", "DO_NOT_TRACK": "1"}


def command(mode: str, engine: type[Engine], model: str, threads: int, files: Path, place: Place) -> list[str]:
    program = [str(python(engine.venv, place.venvs)), "-m", "benchmarks.peers.worker"]
    return [*program, mode, engine.name, model, str(threads), str(files), str(place.build(engine, model, threads))]


def key(engine: type[Engine], files: Path, threads: int) -> str:
    """A digest of all that a build depends on."""
    digest = hashlib.sha256()
    own = [Path(inspect.getfile(engine)), Path(__file__).parent / "engine.py"]
    for source in [*own, *(path for folder in engine.sources() for path in _files(folder))]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    facts = (engine.name, processor(), str(VENVS.get(engine.venv)), files.name, str(threads if engine.per_thread else 0))
    digest.update("\n".join(facts).encode())
    return digest.hexdigest()


def build(engine: type[Engine], model: str, threads: int, files: Path, place: Place, limit: float) -> dict[str, Any]:
    """What the build told: its seconds and more, or ``error`` with the reason. A build that failed is tried again only when
    something on which it depends has changed."""
    folder, wanted = place.build(engine, model, threads), key(engine, files, threads)
    stamp = folder / "build.json"
    if stamp.exists():
        told: dict[str, Any] = json.loads(stamp.read_text())
        if told["key"] == wanted:
            return told
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    told = {"key": wanted} | _built(engine, model, threads, files, place, limit)
    stamp.write_text(json.dumps(told))
    return told


def _built(engine: type[Engine], model: str, threads: int, files: Path, place: Place, limit: float) -> dict[str, Any]:
    if engine.needs_torch and not (files / "module.pt").exists():
        return {"error": "takes PyTorch programs only, and this model comes as ONNX"}
    if not engine.builds:
        return {"seconds": 0.0}
    log = place.log("build", engine.name, model, str(threads))
    words = command("build", engine, model, threads, files, place)
    with log.open("w") as errors:
        try:
            done = subprocess.run(
                words,
                cwd=ROOT,
                env=environment(os.cpu_count() or 1),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"the build did not end within {limit:.0f} s"}
    if done.returncode == 0 and done.stdout:
        made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return made
    return {"error": f"the build failed: {last_line(log.read_text(errors='replace'))}"}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in (".py", ".c", ".h"))
