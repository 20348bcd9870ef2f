"""Files built for a GPU, run through the software CUDA driver in this process."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np

import aotc
from aotc import targets
from aotc.compiler import BuildReport
from aotc.lowering.compiled import CudaKernel
from aotc.targets import Target
from tests.cuda import host_code


def host_with_gpu(board: str = "jetson-orin") -> Target:
    """This machine with the GPU of a board."""
    return dataclasses.replace(targets.get("host"), gpu=targets.get(board).gpu)


@contextlib.contextmanager
def software_gpu(kernels: Sequence[CudaKernel], folder: Path, *, checked: bool = True, **settings: str) -> Iterator[None]:
    """Within it sessions find the software driver with code for ``kernels``. ``settings``: ``device="discrete"``, ``sm="72"``,
    ``order="reverse"``, ``memory="1000000"``."""
    for kernel in kernels:
        for _, code in (*kernel.cubins, *([kernel.ptx] if kernel.ptx else [])):
            host_code.build(kernel.source, code, folder, checked=checked)
    variables = {f"AOTC_SOFTWARE_CUDA_{name.upper()}": value for name, value in settings.items()}
    with mock.patch.dict(os.environ, {"AOTC_LIBCUDA": str(host_code.driver()), "AOTC_SOFTWARE_CUDA": str(folder), **variables}):
        yield


def count(what: str) -> int:
    """What the software driver has counted in this process: ``launches``, ``graph_launches``, ``copies_to_device``, ..."""
    function = ctypes.CDLL(str(host_code.driver())).software_cuda_count
    function.restype = ctypes.c_ulong
    return int(function(what.encode()))


def run(report: BuildReport, inputs: Mapping[str, np.ndarray], folder: Path, times: int = 1, **settings: str) -> list[np.ndarray]:
    """The outputs of the last of ``times`` runs."""
    with software_gpu(report.cuda_kernels, folder, **settings):
        model = aotc.load(report.output)
        for _ in range(times):
            outputs = [np.array(value) for value in model.run(inputs).values()]
    return outputs
