"""Lowered functions through a driver: their kernels one after another, every array in memory of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from aotc.ir.dims import evaluate
from aotc.ir.expr import Function
from aotc.ir.types import TensorType, flatten
from aotc.lowering.compiled import CompiledFunction, CudaKernel
from tests.cuda import host_code
from tests.cuda.launcher import Buffer, Device


def build_lowered(lowered: CompiledFunction, folder: Path, *, checked: bool = True) -> None:
    """Host code for the kernels, where the software driver looks for it."""
    for kernel in _kernels(lowered):
        for _, cubin in kernel.cubins:
            host_code.build(kernel.source, cubin, folder, checked=checked)


def run_lowered(
    device: Device,
    function: Function,
    lowered: CompiledFunction,
    arrays: Sequence[np.ndarray],
    symbols: Mapping[str, int] | None = None,
    sm: int = 87,
) -> list[np.ndarray]:
    """The outputs. What is to be written starts as NaN or 99. Raises CudaError for what the driver finds."""
    values = dict(symbols or {})
    memory = {
        "input": [device.upload(array) for array in arrays],
        "output": [device.upload(_filled(tensor, values)) for tensor in flatten(function.body.type)],
        "scratch": [device.upload(_filled(tensor, values)) for tensor in lowered.scratch],
    }
    for kernel in _kernels(lowered):
        launch(device, kernel, dict(kernel.cubins)[sm], [memory[role][number] for role, number in kernel.operands], values)
    return [device.download(buffer) for buffer in memory["output"]]


def launch(device: Device, kernel: CudaKernel, cubin: bytes, operands: Sequence[Buffer], values: Mapping[str, int]) -> None:
    """One kernel, unless its grid is empty."""
    x, y, z = (evaluate(dim, values) for dim in kernel.grid)
    dims = [evaluate(dim, values) for dim in kernel.dims]
    if x * y * z:
        device.launch(cubin, kernel.symbol, (x, y, z), kernel.block, [*operands, *dims], kernel.shared_bytes)


def _kernels(lowered: CompiledFunction) -> list[CudaKernel]:
    assert all(isinstance(kernel, CudaKernel) for kernel in lowered.kernels)
    return [kernel for kernel in lowered.kernels if isinstance(kernel, CudaKernel)]


def _filled(tensor: TensorType, values: Mapping[str, int]) -> np.ndarray:
    shape = [evaluate(dim, values) for dim in tensor.shape]
    return np.full(shape, np.nan if "float" in tensor.dtype else 99 if tensor.dtype != "bool" else True, tensor.dtype)
