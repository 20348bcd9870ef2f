"""Runs lowered functions on this machine: their objects linked with zig, called through ctypes."""

from __future__ import annotations

import ctypes
import itertools
import mmap
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
    """A lowered function, loaded. Each call runs a kernel's task range, or each round of it, in ``workers`` pieces, the last first,
    so that a kernel which needs an order of its tasks shows."""

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
        """The outputs. All is computed twice, with forbidden memory right before every array and then right behind it: a kernel that
        reads or writes beyond its arrays ends the process."""
        results = [self._once(arrays, symbols or {}, workers, behind) for behind in (False, True)]
        for first, second in zip(*results, strict=True):
            assert first.tobytes() == second.tobytes(), "other memory, another result"
        return results[1]

    def _once(self, arrays: Sequence[np.ndarray], values: dict[str, int], workers: int, behind: bool) -> list[np.ndarray]:
        memory = self.memory(arrays, values, behind)
        for kernel in self.lowered.kernels:
            tasks = evaluate(kernel.tasks, values)
            round_ = kernel.round or max(tasks, 1)
            cuts = [round_ * i // workers for i in range(workers + 1)]
            for first in range(0, tasks, round_):
                for begin, end in reversed(list(itertools.pairwise(cuts))):
                    self.call(kernel, memory, values, first + begin, first + end)
        return memory["output"]

    def memory(self, arrays: Sequence[np.ndarray], values: dict[str, int], behind: bool = True) -> dict[str, list[np.ndarray]]:
        """What kernels work on. What is to be written starts as NaN or 99; nothing that ends at forbidden memory is aligned beyond
        its element type."""
        return {
            "input": [_copied(array, behind) for array in arrays],
            "output": [_filled(tensor, values, behind) for tensor in flatten(self.function.body.type)],
            "scratch": [_filled(tensor, values, behind) for tensor in self.lowered.scratch],
        }

    def call(self, kernel: CompiledKernel, memory: dict[str, list[np.ndarray]], values: dict[str, int], begin: int, end: int) -> None:
        pointers = [ctypes.c_void_p(memory[role][number].ctypes.data) for role, number in kernel.operands]
        numbers = [ctypes.c_int32(evaluate(dim, values)) for dim in kernel.dims]
        assert getattr(self.library, kernel.symbol)(*pointers, *numbers, ctypes.c_int32(begin), ctypes.c_int32(end)) == 0


def _copied(array: np.ndarray, behind: bool) -> np.ndarray:
    copy = _filled(type_of_array(array), {}, behind)
    copy[...] = array
    return copy


def _filled(tensor: TensorType, values: dict[str, int], behind: bool) -> np.ndarray:
    shape = [evaluate(dim, values) for dim in tensor.shape]
    array = _fenced(int(np.prod(shape)) * tensor.itemsize, behind).view(tensor.dtype).reshape(shape)
    array[...] = np.nan if tensor.dtype.startswith("float") else 99
    return array


def _fenced(size: int, behind: bool) -> np.ndarray:
    """``size`` bytes right before a page that nobody may touch, or right behind one."""
    page = mmap.PAGESIZE
    room = -(-size // page) * page
    whole = np.frombuffer(mmap.mmap(-1, room + page), np.uint8)
    fence = whole.ctypes.data + (room if behind else 0)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0) == 0
    first = room - size if behind else page
    return whole[first : first + size]


def run(
    body: Expr, params: Sequence[Var], *arrays: np.ndarray, symbols: dict[str, int] | None = None, target: Target | None = None
) -> list[np.ndarray]:
    """Lowers ``body`` over ``params`` and runs it on ``arrays``: the outputs."""
    function = function_of(body, *params)
    return Runner(function, lower_function(function, target or targets.get("host")))(*arrays, symbols=symbols)


def var(name: str, dtype: str, *shape: Dim) -> Var:
    return Var(name, TensorType(shape, dtype))
