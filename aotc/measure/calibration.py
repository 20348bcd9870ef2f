"""What this machine can do at most: a loop of multiply-adds in registers, timed with as many threads as what it is compared with.

The loop is C (``calibration.c``), compiled once by the ziglang wheel and kept in the cache. It gives the measured peak of ``aotc profile``
and the unit of ``aotc bench --save``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from aotc.cache_dir import cache_dir, write_atomically
from aotc.errors import BuildError
from aotc.packaging.toolchain import ZigToolchain

SOURCE = Path(__file__).with_name("calibration.c")
TURNS = 200_000  # of the loop in one call: half a millisecond or so
PEAK_SECONDS, AGAIN_SECONDS = 0.4, 0.06


@dataclass(frozen=True)
class Loop:
    """One function of the C source: ``flag`` is the kernel's name of the feature it needs, ``flops`` what one turn computes."""

    symbol: str
    flag: str
    flops: int


LOOPS = {  # the widest first
    "x86_64": (Loop("multiply_add_avx512", "avx512f", 12 * 16 * 2), Loop("multiply_add_avx2", "fma", 12 * 8 * 2), Loop("multiply_add_sse", "", 12 * 4 * 2)),
    "aarch64": (Loop("multiply_add_neon", "", 24 * 4 * 2),),
}  # fmt: skip


class Calibration:
    """The loop with ``threads`` threads, the caller among them."""

    def __init__(self, threads: int = 1) -> None:
        """Raises BuildError where the loop cannot be compiled, or this is neither x86-64 nor aarch64."""
        self.threads = threads
        self._loop, self._call = _widest()

    def trial(self, turns: int = TURNS) -> float:
        """Operations a second, all threads together, over ``turns`` turns of the loop in each; a multiply-add is two. As in a run of a
        model, all wait for the last."""
        work = turns * self._loop.flops * self.threads
        if self.threads == 1:
            return work / max(self._call(turns), 1) * 1e9
        times = [0] * self.threads
        gate = threading.Barrier(self.threads)

        def one(number: int) -> None:
            gate.wait()
            times[number] = self._call(turns)

        others = [threading.Thread(target=one, args=(number,)) for number in range(1, self.threads)]
        for thread in others:
            thread.start()
        one(0)
        for thread in others:
            thread.join()
        return work / max(times) * 1e9

    def turns(self, seconds: float) -> int:
        """How many turns take about so long when nothing disturbs them."""
        rate = max(self.trial() for _ in range(5))
        return max(1000, int(seconds * rate / self._loop.flops / self.threads))

    def best(self, seconds: float) -> float:
        """The highest rate seen within ``seconds``."""
        turns = TURNS if self.threads == 1 else 10 * TURNS  # long beside the time in which threads start
        found, end = self.trial(turns), time.perf_counter() + seconds
        while time.perf_counter() < end:
            found = max(found, self.trial(turns))
        return found


def peak(threads: int = 1, again: bool = False) -> float:
    """The most operations a second that this machine was seen to do with ``threads`` threads.

    It is kept in the cache by machine, model of CPU and number of threads. Each call measures for a moment and keeps the larger value,
    so a first measurement beside other work mends itself; ``again`` forgets what was kept. Raises BuildError as ``Calibration``.
    """
    place = cache_dir("peaks") / f"{_key(threads)}.json"
    kept = 0.0 if again else _kept(place)
    found = Calibration(threads).best(AGAIN_SECONDS if kept else PEAK_SECONDS)
    if found > kept:
        facts = {"machine": machine(), "threads": threads, "flops_per_second": found}
        write_atomically(place, json.dumps(facts).encode())
    return max(found, kept)


def machine() -> str:
    """This machine's CPU in words: its model and how many processors this process may use."""
    return f"{_cpu_model()}, {len(os.sched_getaffinity(0))} processors"


def _kept(place: Path) -> float:
    try:
        return float(json.loads(place.read_text())["flops_per_second"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0  # none yet, or a file that was damaged: measured anew


def _key(threads: int) -> str:
    parts = (platform.node(), machine(), threads, SOURCE.read_bytes())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _cpu_info() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def _cpu_model() -> str:
    lines = [line.partition(":") for line in _cpu_info().splitlines()]
    found = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    part = f"Arm CPU of implementer {found.get('CPU implementer')}, part {found['CPU part']}" if "CPU part" in found else platform.machine()
    return found.get("model name", part)


@functools.lru_cache(maxsize=1)
def _widest() -> tuple[Loop, ctypes._NamedFuncPointer]:
    architecture = platform.machine()
    if architecture not in LOOPS:
        raise BuildError(f"the calibration loop is written for {' and '.join(LOOPS)}; this machine is {architecture}")
    flags = set(_cpu_info().split())
    loop = next(loop for loop in LOOPS[architecture] if not loop.flag or loop.flag in flags)
    function = getattr(ctypes.CDLL(str(_library(architecture))), loop.symbol)
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64]
    return loop, function


def _library(architecture: str) -> Path:
    tools = ZigToolchain(f"{architecture}-linux-gnu", (2, 27))
    digest = hashlib.sha256(tools.identity.encode() + SOURCE.read_bytes()).hexdigest()[:16]
    folder = cache_dir("calibration")
    library = folder / f"calibration-{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "calibration.so"
            tools.build_program([SOURCE], made, ["-std=c11", "-O2", "-D_GNU_SOURCE", "-shared", "-fPIC", "-s"])
            os.replace(made, library)
    return library
