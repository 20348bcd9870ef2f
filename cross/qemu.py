"""Runs built files for 64-bit Arm on this machine: the board-side runner aotc_run under qemu-user.

    python cross/qemu.py [--cpu cortex-a57] model.so --input image=image.npy --output-dir out      # as aotc_run's own arguments

Needs Debian's qemu-user and libc6-arm64-cross; the runner is compiled by the ziglang wheel for the oldest board's C library and kept in
aotc's cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aotc
from aotc.cache_dir import cache_dir
from aotc.errors import BuildError
from aotc.packaging.toolchain import ZigToolchain

RUNNER = Path(__file__).resolve().parent / "runner"
CSRC = Path(aotc.__file__).resolve().parent / "runtime" / "csrc"
SOURCES = (RUNNER / "aotc_run.c", RUNNER / "aotc_npy.c", CSRC / "aotc_loader.c")
SYSROOT = Path("/usr/aarch64-linux-gnu")


def missing() -> tuple[str, ...]:
    """The Debian packages that emulation needs and this machine lacks."""
    found = {"qemu-user": shutil.which("qemu-aarch64"), "libc6-arm64-cross": (SYSROOT / "lib").is_dir()}
    return tuple(package for package, present in found.items() if not present)


def runner(triple: str = "aarch64-linux-gnu", glibc: tuple[int, int] = (2, 27)) -> Path:
    """The program aotc_run for ``triple``, compiled once. Raises BuildError."""
    tools = ZigToolchain(triple, glibc)
    digest = hashlib.sha256(tools.identity.encode())
    for path in (*SOURCES, CSRC / "aotc.h", RUNNER / "aotc_npy.h"):
        digest.update(path.read_bytes())
    folder = cache_dir("runner")
    program = folder / f"aotc_run-{digest.hexdigest()[:16]}"
    if not program.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "aotc_run"
            options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-s", f"-I{CSRC}", f"-I{RUNNER}"]
            tools.build_program(SOURCES, made, options)
            os.replace(made, program)
    return program


def command(arguments: Sequence[str], cpu: str = "max", sysroot: Path = SYSROOT) -> list[str]:
    """The command that runs aotc_run with ``arguments`` on an emulated ``cpu``, with the C library in ``sysroot``. Raises
    BuildError if a package is missing."""
    if packages := missing():
        raise BuildError(f"emulating Arm needs Debian packages that are missing: apt-get install {' '.join(packages)}")
    return ["qemu-aarch64", "-cpu", cpu, "-L", str(sysroot), str(runner()), *arguments]


def main(arguments: list[str]) -> int:
    cpu = "max"
    if arguments[:1] == ["--cpu"]:
        cpu, arguments = arguments[1], arguments[2:]
    return subprocess.run(command(arguments, cpu), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
