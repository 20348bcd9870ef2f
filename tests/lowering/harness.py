"""Runs lowered functions on this machine: their objects linked with zig, called through ctypes."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aotc import targets
from aotc.ir.dims import Dim, evaluate
from aotc.ir.expr import Expr, Function, Var
from aotc.ir.types import TensorType, flatten, type_of_array
from aotc.lowering.compiled import CompiledFunction, CompiledKernel
from aotc.lowering.kernel import lower_function
from aotc.targets import Target


def function_of(body: Expr, *params: Var) -> Function:
    return Function(params, body, "test", primitive=True)


def lower(body: Expr, *params: Var, target: Target | None = None) -> CompiledFunction:
    return lower_function(function_of(body, *params), target or targets.get("host"))


class Runner:
    """A lowered function, loaded. Each call runs a kernel's task range in ``workers`` pieces, the last first, so that a kernel
    which needs an order of its tasks shows."""

    def __init__(self, function: Function, lowered: CompiledFunction) -> None:
        self.function, self.lowered = function, lowered
        with tempfile.TemporaryDirectory() as folder:
            library, sources = Path(folder) / "kernels.so", []
            for i, kernel in enumerate(lowered.kernels):
                sources.append(Path(folder) / f"{i}.o")
                sources[-1].write_bytes(kernel.object_code)
            subprocess.run([sys.executable, "-m", "ziglang", "cc", "-shared", "-o", library, *sources, "-lm"], check=True)
            self.library = ctypes.CDLL(str(library))

    def __call__(self, *arrays: np.ndarray, symbols: dict[str, int] | None = None, workers: int = 2) -> list[np.ndarray]:
        values = symbols or {}
        memory = self.memory(arrays, values)
        for kernel in self.lowered.kernels:
            tasks = evaluate(kernel.tasks, values)
            cuts = [tasks * i // workers for i in range(workers + 1)]
            for begin, end in reversed(list(itertools.pairwise(cuts))):
                self.call(kernel, memory, values, begin, end)
        return memory["output"]

    def memory(self, arrays: Sequence[np.ndarray], values: dict[str, int]) -> dict[str, list[np.ndarray]]:
        """What kernels work on. What is to be written starts as NaN or 99; nothing is aligned beyond its element type."""
        return {
            "input": [_unaligned(array) for array in arrays],
            "output": [_filled(tensor, values) for tensor in flatten(self.function.body.type)],
            "scratch": [_filled(tensor, values) for tensor in self.lowered.scratch],
        }

    def call(self, kernel: CompiledKernel, memory: dict[str, list[np.ndarray]], values: dict[str, int], begin: int, end: int) -> None:
        pointers = [ctypes.c_void_p(memory[role][number].ctypes.data) for role, number in kernel.operands]
        numbers = [ctypes.c_int32(evaluate(dim, values)) for dim in kernel.dims]
        assert getattr(self.library, kernel.symbol)(*pointers, *numbers, ctypes.c_int32(begin), ctypes.c_int32(end)) == 0


def _unaligned(array: np.ndarray) -> np.ndarray:
    copy = _filled(type_of_array(array), {})
    copy[...] = array
    return copy


def _filled(tensor: TensorType, values: dict[str, int]) -> np.ndarray:
    shape = [evaluate(dim, values) for dim in tensor.shape]
    size = int(np.prod(shape))
    memory = np.empty(size * tensor.itemsize + 64 + tensor.itemsize, np.uint8)
    skip = -memory.ctypes.data % 64 + tensor.itemsize
    array = memory[skip : skip + size * tensor.itemsize].view(tensor.dtype).reshape(shape)
    array[...] = np.nan if tensor.dtype.startswith("float") else 99
    return array


def run(
    body: Expr, params: Sequence[Var], *arrays: np.ndarray, symbols: dict[str, int] | None = None, target: Target | None = None
) -> list[np.ndarray]:
    """Lowers ``body`` over ``params`` and runs it on ``arrays``: the outputs."""
    function = function_of(body, *params)
    return Runner(function, lower_function(function, target or targets.get("host")))(*arrays, symbols=symbols)


def var(name: str, dtype: str, *shape: Dim) -> Var:
    return Var(name, TensorType(shape, dtype))
