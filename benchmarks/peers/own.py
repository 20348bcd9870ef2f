"""What an aotc file itself needs, from a C program that loads it: memory and the time to the first result."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from aotc.targets import get
from cross import qemu

STARTS = 7


RUNS = 20


def footprint(file: Path, files: Path, threads: int) -> dict[str, Any]:
    """Milliseconds and bytes: the fastest of some starts with the file in the page cache, the memory of that process, and
    ``run_ms``, the fastest of the runs that follow a start."""
    host = get("host")
    program = qemu.runner(host.triple, host.glibc)
    array = file.parent / "x.npy"
    np.save(array, np.load(files / "data.npz")["x"])
    found = []
    for _ in range(STARTS):
        words = [str(program), str(file), "--input", f"x={array}", "--threads", str(threads), "--runs", str(RUNS), "--memory"]
        text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        found.append({name: float(value) for name, value in (line.split() for line in text.splitlines())})
    best = min(found, key=lambda each: each["load_ms"] + each["first_run_ms"])
    return {
        **best,
        "start_ms": best["load_ms"] + best["first_run_ms"],
        "run_ms": min(each["best_run_ms"] for each in found),
        "file_bytes": sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*")),
    }
