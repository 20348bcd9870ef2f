"""What this machine can do at most: multiply-adds (``aotc.measure``) and copying, by how many bytes it works on."""

from __future__ import annotations

import ctypes
import functools
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aotc.measure.calibration import peak
from aotc.packaging.toolchain import ZigToolchain

SIZES = tuple(2**power for power in range(15, 28))
"""Bytes read and written together, from 32 KiB to 128 MiB."""


@dataclass(frozen=True)
class Machine:
    """``peak``: float operations a second of one thread, a multiply-add being two; ``bandwidth``: bytes read and written a second
    while copying, for each of SIZES."""

    peak: float
    bandwidth: tuple[float, ...]

    def copy_seconds(self, size: int) -> float:
        """How long it takes to read and write ``size`` bytes together, of memory that was used just before."""
        return size / float(np.interp(np.log2(max(size, 1)), np.log2(SIZES), self.bandwidth))

    def attainable_seconds(self, macs: int, size: int) -> float:
        """No kernel that multiplies so often and touches ``size`` bytes once each can be faster."""
        return max(2 * macs / self.peak, self.copy_seconds(size))


def measure() -> Machine:
    """Measures for about two seconds; wants the machine quiet. Raises BuildError."""
    return Machine(peak(), tuple(_bandwidth(_copy(), size) for size in SIZES))


def _bandwidth(copy: Any, size: int, seconds: float = 0.08) -> float:
    """The best of several trials of copying half as many bytes."""
    source, target = np.zeros(size // 8, np.float32), np.ones(size // 8, np.float32)
    times = max(1, 2**21 // size)
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        begin = time.perf_counter()
        copy(target.ctypes.data, source.ctypes.data, source.size, times)
        best = min(best, time.perf_counter() - begin)
    return size * times / best


@functools.cache
def _copy() -> Any:
    """The function of copy.c."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "copy.so"
        flags = ["-std=c11", "-O3", "-mcpu=native", "-fno-builtin", "-shared", "-fPIC"]
        ZigToolchain(f"{platform.machine()}-linux-gnu", (2, 27)).build_program([Path(__file__).with_name("copy.c")], library, flags)
        function = ctypes.CDLL(str(library)).aotc_copy
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t], None
    return function
