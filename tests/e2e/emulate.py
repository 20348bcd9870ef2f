"""Runs built files for Arm here: the board-side runner under user-mode emulation."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from aotc.packaging.reader import read_packaged

ROOT = Path(__file__).resolve().parents[2]
SYSROOT = Path("/usr/aarch64-linux-gnu")
SOURCES = (*sorted((ROOT / "cross" / "runner").glob("*.c")), ROOT / "aotc" / "runtime" / "csrc" / "aotc_loader.c")


def runner(triple: str = "aarch64-linux-gnu.2.27") -> Path:
    """The program aotc_run for ``triple``, compiled once."""
    headers = sorted([*(ROOT / "cross" / "runner").glob("*.h"), *(ROOT / "aotc" / "runtime" / "csrc").glob("aotc*.h")])
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in [*SOURCES, *headers])).hexdigest()[:12]
    program = ROOT / "build" / "runner" / digest / f"aotc_run-{triple}"
    program.parent.mkdir(parents=True, exist_ok=True)
    with open(program.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            options = ["-std=c11", "-O2", "-Wall", f"-I{ROOT / 'aotc' / 'runtime' / 'csrc'}", "-target", triple]
            command = [sys.executable, "-m", "ziglang", "cc", *options, *map(str, SOURCES), "-o", f"{program}.part", "-ldl", "-lpthread"]
            subprocess.run(command, check=True, capture_output=True, text=True)
            Path(f"{program}.part").rename(program)
    return program


def emulate(file: Path, inputs: Sequence[np.ndarray], folder: Path, cpu: str = "max", options: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The outputs of a file built for Arm on ``inputs``, in the order of the model's, on an emulated ``cpu``."""
    program, missing = shutil.which("qemu-aarch64"), []
    if program is None:
        missing.append("qemu-user")
    if not SYSROOT.is_dir():
        missing.append("libc6-arm64-cross")
    if program is None or missing:
        pytest.skip(f"no emulation of Arm: apt-get install {' '.join(missing)}")
    entry = read_packaged(file).manifest.entry_points[0]
    work = folder / f"emulate-{file.stem}"
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)
    arguments = [str(file), "--output-dir", str(work / "out"), *options]
    for number, (info, array) in enumerate(zip(entry.inputs, inputs, strict=True)):
        np.save(work / f"{number}.npy", array)
        arguments += ["--input", f"{info.name}={work / f'{number}.npy'}"]
    command = [program, "-cpu", cpu, "-L", str(SYSROOT), str(runner()), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return {info.name: np.load(work / "out" / f"{info.name.replace('/', '_')}.npy") for info in entry.outputs}
