"""Runs built files for Arm here: the board-side runner under user-mode emulation."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  names of types for numpy
import numpy as np
import pytest

from aotc.packaging.reader import read_packaged
from cross import qemu


def emulate(
    file: Path, inputs: Sequence[np.ndarray], folder: Path, cpu: str = "max", options: Sequence[str] = (), sysroot: Path = qemu.SYSROOT
) -> dict[str, np.ndarray]:
    """The outputs of a file built for Arm on ``inputs``, in the order of the model's, on an emulated ``cpu`` with the C library
    in ``sysroot``."""
    if packages := qemu.missing():
        pytest.skip(f"no emulation of Arm: apt-get install {' '.join(packages)}")
    entry = read_packaged(file).manifest.entry_points[0]
    work = folder / f"emulate-{file.stem}"
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)
    arguments = [str(file), "--output-dir", str(work / "out"), *options]
    for number, (info, array) in enumerate(zip(entry.inputs, inputs, strict=True)):
        np.save(work / f"{number}.npy", _codes(array))
        arguments += ["--input", f"{info.name}={work / f'{number}.npy'}"]
    done = subprocess.run(qemu.command(arguments, cpu, sysroot), check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    outputs = {info.name: np.load(work / "out" / f"{info.name.replace('/', '_')}.npy") for info in entry.outputs}
    return {info.name: outputs[info.name].view(info.dtype) for info in entry.outputs}


def _codes(array: np.ndarray) -> np.ndarray:
    """Values of types that .npy files lack as the unsigned numbers that stand for them."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")
