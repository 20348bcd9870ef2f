"""Built files that several tests share: made once a run, whichever worker asks first."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aotc
from tests.e2e.sources import SOURCES

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def build(shared_folder: Path) -> Build:
    """``build("minilm-onnx", "jetson")``: the built file, for the CPU, of a source of ``tests.e2e.sources``."""

    def build_once(source: str, target: str = "host", **options: Any) -> Path:
        key = hashlib.sha256(repr((source, target, sorted(options.items()))).encode()).hexdigest()[:8]
        output = shared_folder / f"{source}-{target}-{key}.so"
        with open(output.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not output.exists():
                aotc.compile(target=target, output=output, device="cpu", **SOURCES[source](), **options)
        return output

    return build_once


@pytest.fixture
def build_large(build: Build) -> Iterator[Build]:
    """As ``build``, for files that one test uses and that are too large to keep."""
    made: list[Path] = []

    def build_and_note(source: str, target: str = "host", **options: Any) -> Path:
        made.append(build(source, target, **options))
        return made[-1]

    yield build_and_note
    for path in made:
        path.unlink(missing_ok=True)
