"""What an engine is to the benchmark. This module and those of ``engines/`` are imported by every engine's own Python, so they
need nothing beyond NumPy until ``build`` or ``load`` is called."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

Run = Callable[[np.ndarray], np.ndarray]
SITE = Path(sysconfig.get_paths()["purelib"])


@dataclass(frozen=True)
class Job:
    """One model for one engine: ``files`` holds what ``models.prepare`` wrote, ``folder`` what the engine builds."""

    model: str
    threads: int
    files: Path
    folder: Path

    @property
    def onnx(self) -> Path:
        return self.files / "model.onnx"

    @property
    def module(self) -> Path:
        """The pickled torch module; missing where a model has no PyTorch source."""
        return self.files / "module.pt"

    @property
    def exported(self) -> Path:
        """The torch.export program; missing where a model has no PyTorch source."""
        return self.files / "exported.pt2"

    def input(self) -> np.ndarray:
        array: np.ndarray = np.load(self.files / "data.npz")["x"]
        return np.ascontiguousarray(array)


class Engine:
    """An engine computes in float32, with ``job.threads`` threads and otherwise with the settings its makers recommend for latency."""

    name: ClassVar[str]
    title: ClassVar[str]
    venv: ClassVar[str] = "project"
    packages: ClassVar[tuple[str, ...]]
    """Distributions whose versions the page tells."""
    modules: ClassVar[tuple[str, ...]]
    """Imported before loading is timed: a deployment in C or C++ has no such imports."""
    runtime: ClassVar[tuple[str, ...]]
    """Globs under site-packages: what has to be deployed beside the model. Each file counts once."""
    artefacts: ClassVar[tuple[str, ...]]
    """Globs in the build folder, or under the model's files where they start with ``model/``: what is deployed of the model."""
    builds: ClassVar[bool] = True
    """Whether there is a step ahead of time, by ``build``."""
    per_thread: ClassVar[bool] = False
    """Whether the build depends on the number of threads."""
    needs_torch: ClassVar[bool] = False
    """Whether it takes PyTorch programs only."""
    optional: ClassVar[bool] = False
    """Left out without a word where ``missing`` gives a reason."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @classmethod
    def missing(cls) -> str | None:
        """Why this machine or this version of the project cannot run the engine at all."""
        return None

    @classmethod
    def sources(cls) -> tuple[Path, ...]:
        """Further files and folders of sources on which a build depends."""
        return ()

    def build(self) -> dict[str, Any]:
        """Writes into ``job.folder``; returns facts about what it made."""
        return {}

    def load(self) -> Run:
        raise NotImplementedError

    def deployed(self) -> tuple[int, int]:
        """Bytes of the runtime and of the model."""
        files = self.job.files
        model = {path for glob in self.artefacts for path in _find(glob, files if glob.startswith("model/") else self.job.folder)}
        return _size({path for glob in self.runtime for path in _find(glob, SITE)}), _size(model)


def _find(glob: str, root: Path) -> set[Path]:
    found = {path.resolve() for path in root.glob(glob.removeprefix("model/"))}
    return {
        inner
        for path in found
        for inner in (path.rglob("*") if path.is_dir() else [path])
        if inner.is_file() and "__pycache__" not in inner.parts
    }


def _size(paths: set[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
