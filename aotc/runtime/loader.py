"""``aotc.load``: the very loader that goes to the board, with this package's error type as the base of its own."""

from __future__ import annotations

import os

import aotc.errors  # noqa: F401  before aotc_runtime, whose Error then derives from RuntimeFailure
from aotc.runtime.aotc_runtime import Error, FileInfo, MemoryInfo, Model, Session, Signature, StepInfo, TensorInfo, read_file

__all__ = ["Error", "FileInfo", "MemoryInfo", "Model", "Session", "Signature", "StepInfo", "TensorInfo", "load", "read_file"]


def load(path: str | os.PathLike[str], num_threads: int | None = None) -> Model:
    """Open a built file for this machine and run it: ``load(path).run({name: array})``.

    ``num_threads``: threads of a run; 1 is the caller alone, None as many as this process may use processors. Raises
    RuntimeFailure if the file is not whole, not built for this machine, or needs what it lacks.
    """
    return Model(path, num_threads)
