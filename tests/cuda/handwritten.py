"""Kernels written for tests of the software driver: ``float *a, float *b, int n`` on 2 blocks of 64 threads."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.cuda import host_code
from tests.cuda.launcher import CudaError, Device

SOURCE = """
#define copy(target, source, bytes) software_cuda_state.engine.copy_async(target, source, bytes, bytes)
#define commit() software_cuda_state.engine.commit_async()
#define await(groups) software_cuda_state.engine.wait_async(groups)
extern "C" __global__ void __launch_bounds__(256) k(float *a, float *b, int n) {
"""


@dataclass(frozen=True)
class Kernel:
    """The inside of a kernel; ``a`` and ``b`` have ``size`` elements."""

    body: str
    blocks: int = 2
    threads: int = 64
    size: int = 128
    shared_bytes: int = 256
    before: str = ""


def run(kernel: Kernel, *, checked: bool = True) -> tuple[np.ndarray | None, str]:
    """``b`` after a run where ``a`` is 0, 1, 2... and ``b`` was 0, and nothing; or ``None`` and what the driver found."""
    source = f"{kernel.before}{SOURCE}{kernel.body}\n}}\n"
    cubin = host_code.empty_cubin(87, source.encode())
    arrays = [np.arange(kernel.size, dtype=np.float32), np.zeros(kernel.size, np.float32)]
    with tempfile.TemporaryDirectory() as folder:
        host_code.build(source, cubin, Path(folder), checked=checked)
        os.environ["AOTC_SOFTWARE_CUDA"] = folder
        try:
            with Device(host_code.driver()) as device:
                grid, block = (kernel.blocks, 1, 1), (kernel.threads, 1, 1)
                return device.run(cubin, "k", grid, block, (*arrays, kernel.size), kernel.shared_bytes)[1], ""
        except CudaError as error:
            return None, error.finding or str(error)
