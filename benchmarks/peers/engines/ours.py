"""aotc itself, as it comes and tuned for this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.engine import Engine, Run

ROOT = Path(__file__).resolve().parents[3]


class Aotc(Engine):
    name, title, packages = "aotc", "aotc", ("aotc",)
    modules = ("aotc",)
    runtime = ()  # all is in the file
    artefacts = ("model.so*",)

    @classmethod
    def sources(cls) -> tuple[Path, ...]:
        return tuple(ROOT / folder for folder in ("aotc", "passes", "targets"))

    def build(self) -> dict[str, Any]:
        """With a kernel cache that is empty but for the linker's files, which depend on no model."""
        return self.compiled(None)

    def compiled(self, tuning: Path | None) -> dict[str, Any]:
        import aotc
        from aotc.packaging.toolchain import ZigToolchain
        from aotc.targets import get
        from tests.zoo.cache import empty_build_cache

        host = get("host")
        ZigToolchain(host.triple, host.glibc).stubs()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["AOTC_CACHE_DIR"] = str(empty_build_cache(Path(folder)))
            report = aotc.compile(str(self.job.onnx), output=self.job.folder / "model.so", tuning=tuning)
        return {"compile_seconds": sum(report.seconds.values())}

    def load(self) -> Run:
        import aotc

        session = aotc.load(self.job.folder / "model.so").session(num_threads=self.job.threads)

        def run(x: np.ndarray) -> np.ndarray:
            (result,) = session.run({"x": x}, copy=False).values()
            array: np.ndarray = result
            return array

        return run


EFFORT = ("--trials", "12", "--seconds", "1")
TUNE_LIMIT = 400.0
"""Seconds after which a model is built with what was found by then."""


class AotcTuned(Aotc):
    """Tuned for a few minutes. The tuning file stays beside the build folder: layers that it knows are not measured again."""

    name, title, optional = "aotc-tuned", "aotc, tuned", True

    @classmethod
    def missing(cls) -> str | None:
        return None if importlib.util.find_spec("aotc.tuning") else "this version of aotc has no `aotc tune`"

    def build(self) -> dict[str, Any]:
        tuning = self.job.folder.with_suffix(".jsonl")
        begin = time.perf_counter()
        words = [sys.executable, "-m", "aotc", "tune", str(self.job.onnx), "--output", str(tuning), *EFFORT]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(words, check=True, timeout=TUNE_LIMIT)
        return {"tune_seconds": time.perf_counter() - begin, **self.compiled(tuning)}
