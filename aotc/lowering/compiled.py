"""What lowering makes of one primitive function: plain data, kept in the kernel cache and read by the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aotc.ir.dims import Dim
from aotc.ir.types import TensorType

Selection = Mapping[str, str]
"""What a schedule shall take where it has a choice: the text of an option by the name of the choice. Without an entry it takes
its first option."""

TRACE = "trace"
"""The choice of a function that is scheduled by a trace of MetaSchedule instead of by a schedule of ours."""

Operand = tuple[str, int]
"""A kernel's pointer parameter: ``input``, ``scratch`` or ``output`` and its number in the function's parameters, its
scratch tensors or its flattened results."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Machine code of ``int32_t symbol(void *x operands, int32_t x dims, int32_t begin, int32_t end)``.

    The last ``outputs`` operands are written. ``tasks`` is the extent of the outermost loop, which ``begin`` and ``end``
    cut; ``flops`` counts floating-point operations of all tasks. Tasks come in rounds of ``round``, each round after the one
    before it, or in any order where that is 0.
    """

    symbol: str
    object_code: bytes
    operands: tuple[Operand, ...]
    outputs: int
    dims: tuple[Dim, ...] = ()
    tasks: Dim = 1
    flops: Dim = 0
    round: int = 0


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """CUDA code of ``__global__ void symbol(T *x operands, int32_t x dims)``, launched as ``grid`` blocks of ``block`` threads.

    ``source`` is the CUDA C of one translation unit that holds this kernel alone; ``cubins`` are what it became, by compute
    capability (87 for sm_87), and ``ptx`` what a driver makes code from for newer GPUs than its own, also by compute capability; it ends
    with a zero byte. ``shared_bytes`` are dynamic shared memory. The last ``outputs`` operands are written.
    """

    symbol: str
    source: str
    cubins: tuple[tuple[int, bytes], ...]
    operands: tuple[Operand, ...]
    outputs: int
    grid: tuple[Dim, Dim, Dim]
    block: tuple[int, int, int]
    dims: tuple[Dim, ...] = ()
    shared_bytes: int = 0
    flops: Dim = 0
    ptx: tuple[int, bytes] | None = None


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """Kernels to run one after another, all of the CPU or all of the GPU. ``scratch`` tensors carry values from one kernel or stage
    to the next. ``choices`` are what the schedule could choose between: names, each with the texts of its options in the order of
    their estimated time. ``not_on_cuda`` says why the kernels are the CPU's although the GPU's were asked for."""

    kernels: tuple[CompiledKernel, ...] | tuple[CudaKernel, ...]
    scratch: tuple[TensorType, ...] = ()
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    not_on_cuda: str = ""

    @property
    def on_device(self) -> bool:
        """Whether the GPU runs it."""
        return any(isinstance(kernel, CudaKernel) for kernel in self.kernels)
