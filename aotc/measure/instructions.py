"""Instructions that one run of a built file executes, counted exactly, for any target: no other process and no other machine changes them.

The file runs in ``aotc_run`` with one thread: under qemu-user with the plugin ``cross/plugin/aotc_count.c``, or, for x86-64 where there is no
qemu, under valgrind. The second run is counted, so neither opening the file nor planning its memory is in the figure.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aotc.cache_dir import cache_dir
from aotc.cross import qemu
from aotc.errors import BuildError, InvalidOption, RuntimeFailure
from aotc.ir.types import bits_of
from aotc.packaging.reader import PackagedModel, read_packaged
from aotc.packaging.toolchain import ZigToolchain

PLUGIN = Path(qemu.__file__).resolve().parent / "plugin" / "aotc_count.c"
HOST = f"{platform.machine()}-linux-gnu"  # where qemu runs
CPUS = {  # what qemu emulates and which of LLVM's features it has, the smallest first; "max" has all that qemu knows
    "aarch64": (
        ("cortex-a57", frozenset({"neon", "aes", "sha2", "crc"})),
        ("neoverse-n1", frozenset({"neon", "aes", "sha2", "crc", "lse", "rdm", "fullfp16", "rcpc", "dotprod"})),
    ),
    "x86_64": (),
}
BEYOND = {"x86_64": ("avx512", "amx")}
"""Features, by the beginning of their names, that neither qemu nor valgrind has."""


@dataclass(frozen=True)
class Counts:
    """``counter``: the program that counted; ``cpu``: what it emulates. ``classes``: instructions of one run by class, among them
    ``total``. For aarch64 they are fma (vectors of floats), dot (vectors of small integers and bfloat16), vector_load, vector_store,
    vector (the others of Advanced SIMD and floating point), load, store, integer, branch and other; for x86-64 fma and other, or the total alone."""

    counter: str
    cpu: str
    classes: Mapping[str, int]


def count(file: str | os.PathLike[str], feeds: Mapping[str, np.ndarray]) -> Counts:
    """Count one run of the file's first entry point on ``feeds``, arrays by input name. It takes some fifty times as long as two runs.

    Raises BuildError where a program that is needed is not installed, InvalidOption for a file whose instructions no emulator has,
    RuntimeFailure where the file does not run.
    """
    model = read_packaged(os.fspath(file))
    architecture = model.manifest.target.triple.partition("-")[0]
    beyond = [name for name in model.manifest.target.features if name.startswith(BEYOND.get(architecture, ("-",)))]
    if beyond:
        raise InvalidOption(f"{file} uses {beyond[0]}, which no emulator here has; to count instructions build it with --target x86-64-v3")
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(Path(file).resolve()), *_write_inputs(feeds, Path(folder))]
        if shutil.which(f"qemu-{architecture}"):
            return _under_qemu(model, architecture, arguments, Path(folder))
        if architecture == "x86_64" and shutil.which("valgrind"):
            return _under_valgrind(arguments, Path(folder))
    either = "qemu-user or valgrind" if architecture == "x86_64" else " and ".join(qemu.missing())
    raise BuildError(
        f"counting the instructions of {model.info.machine} needs {either}: apt-get install {either.split(' or ')[0].replace(' and ', ' ')}"
    )


def emulated_cpu(architecture: str, features: Sequence[str]) -> str:
    """The smallest CPU of qemu that has all ``features`` (LLVM's names)."""
    return next((name for name, has in CPUS[architecture] if has.issuperset(features)), "max")


def _write_inputs(feeds: Mapping[str, np.ndarray], folder: Path) -> list[str]:
    words: list[str] = []
    for number, (name, array) in enumerate(feeds.items()):
        np.save(folder / f"{number}.npy", bits_of(array))
        words += ["--input", f"{name}={folder / f'{number}.npy'}"]
    return words


def _under_qemu(model: PackagedModel, architecture: str, arguments: Sequence[str], folder: Path) -> Counts:
    cpu = emulated_cpu(architecture, model.manifest.target.features)
    words = [*arguments, "--marks", "--runs", "2"]
    if architecture == "aarch64":
        program, *rest = qemu.command(words, cpu)
    else:
        program, *rest = ["qemu-x86_64", "-cpu", cpu, str(qemu.runner("x86_64-linux-gnu")), *words]
    log = folder / "counts"
    _run([program, "-plugin", str(plugin()), "-d", "plugin", "-D", str(log), *rest])
    found = marks(log.read_text())
    if len(found) != 3:
        raise RuntimeFailure(
            f"{program} counted nothing: its plugins need qemu-user 6.1 to 8.2 that is linked dynamically, as Debian 12 has it; {_version(program)} is installed"
        )
    _, before, after = found
    classes = {name: after[name] - before[name] for name in after}
    return Counts(program, cpu, {name: number for name, number in classes.items() if number or name == "total"})


def marks(text: str) -> list[dict[str, int]]:
    """What the plugin wrote: instructions by class up to each mark."""
    lines = [line for line in text.splitlines() if line.startswith("mark ")]
    return [{name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)} for line in lines]


def _under_valgrind(arguments: Sequence[str], folder: Path) -> Counts:
    totals = []
    for runs in (1, 2):
        words = [str(qemu.runner("x86_64-linux-gnu")), *arguments, "--runs", str(runs)]
        said = _run(["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={folder / 'out'}", *words])
        found = re.search(r"I\s+refs:\s+([\d,]+)", said)
        if found is None:
            raise RuntimeFailure(f"valgrind did not say how many instructions ran:\n{said}")
        totals.append(int(found.group(1).replace(",", "")))
    return Counts("valgrind", "", {"total": totals[1] - totals[0]})


def _run(command: Sequence[str]) -> str:
    """What the command wrote to standard error. Raises RuntimeFailure."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise RuntimeFailure(f"the file did not run under {command[0]} (exit status {done.returncode}):\n{done.stderr.strip()[-1000:]}")
    return done.stderr


def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], check=False, capture_output=True, text=True)
    return done.stdout.partition("\n")[0]


def plugin() -> Path:
    """The plugin for this machine's qemu, compiled once. Raises BuildError."""
    tools = ZigToolchain(HOST, (2, 27))
    digest = hashlib.sha256(tools.identity.encode() + PLUGIN.read_bytes()).hexdigest()[:16]
    folder = cache_dir("plugins")
    library = folder / f"aotc_count-{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "plugin.so"
            tools.build_program([PLUGIN], made, ["-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-s", "-Wl,-z,undefs"])
            os.replace(made, library)
    return library
