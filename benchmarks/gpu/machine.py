"""The GPU that this is made for, and what the machine has of all that is wanted."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass, replace
from typing import Any

from aotc import targets
from aotc.errors import BuildError
from aotc.lowering.cuda.nvrtc import check_compilers
from aotc.targets import Gpu
from tests.cuda.launcher import CudaError, Device

SM = 90
GPU = Gpu((SM,), (12, 6), 132, 227 << 10, 64 << 10, 3350.0, 1.75)
TARGET = replace(targets.get("x86-64-v3"), gpu=GPU, glibc=targets.get("host").glibc)
"""H100 and H200 beside an x86-64 processor, with the C library that a gcc here links with (CUDA C++ Programming Guide, compute
capability 9.0; NVIDIA's data sheet of the H100)."""


@dataclass(frozen=True)
class Missing:
    """Something that is not there, and what cannot be done without it."""

    what: str
    without: str


def library() -> str:
    """The CUDA driver: as the runtime finds it."""
    return os.environ.get("AOTC_LIBCUDA") or "libcuda.so.1"


def gpu_missing() -> Missing | None:
    """Why nothing here can run the kernels, if so."""
    try:
        with Device(library()) as device:
            found = 10 * device.attribute(75) + device.attribute(76)
    except (OSError, CudaError) as error:
        return Missing(f"no CUDA driver or GPU: {error}", "nothing can run")
    return None if found == SM else Missing(f"the GPU here is sm_{found}, and the kernels are for sm_{SM} (H100, H200)", "nothing can run")


def all_missing() -> list[Missing]:
    found = [missing] if (missing := gpu_missing()) else []
    if importlib.util.find_spec("tvm") is None:
        found.append(Missing("apache-tvm", "only kernels that `python -m benchmarks.gpu build` left in the folder can run"))
    try:
        check_compilers(GPU)
    except BuildError as error:
        found.append(Missing(str(error), "no network can be built"))
    if importlib.util.find_spec("ziglang") is None and not os.environ.get("AOTC_CC"):
        found.append(Missing("ziglang, or a gcc that AOTC_CC names", "no network can be linked"))
    if not _torch_has_cuda():
        found.append(Missing("PyTorch with CUDA", "no times of PyTorch, and ours with inputs and outputs in host memory alone"))
    if not onnxruntime_has_cuda():
        found.append(Missing("onnxruntime-gpu", "no times of ONNX Runtime's CUDA provider"))
    return found


def _torch_has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def onnxruntime_has_cuda() -> bool:
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def facts() -> dict[str, Any]:
    """Names and versions, for the result."""
    told: dict[str, Any] = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "gcc": shutil.which("gcc")}
    for package in ("torch", "onnxruntime", "onnxruntime-gpu", "apache-tvm", "numpy"):
        try:
            told[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            told[package] = None
    if not gpu_missing():
        with Device(library()) as device:
            told |= {"gpu": device.name(), "driver": device.driver_version(), "multiprocessors": device.attribute(16)}
    return told
