"""What lowering makes of one primitive function: plain data, kept in the kernel cache and read by the planner."""

from __future__ import annotations

from dataclasses import dataclass

from aotc.ir.dims import Dim
from aotc.ir.types import TensorType

Operand = tuple[str, int]
"""A kernel's pointer parameter: ``input``, ``scratch`` or ``output`` and its number in the function's parameters, its
scratch tensors or its flattened results."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Machine code of ``int32_t symbol(void *x operands, int32_t x dims, int32_t begin, int32_t end)``.

    The last ``outputs`` operands are written. ``tasks`` is the extent of the outermost loop, which ``begin`` and ``end``
    cut; ``flops`` counts floating-point operations of all tasks.
    """

    symbol: str
    object_code: bytes
    operands: tuple[Operand, ...]
    outputs: int
    dims: tuple[Dim, ...] = ()
    tasks: Dim = 1
    flops: Dim = 0


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """Kernels to run one after another. ``scratch`` tensors carry values from one kernel or stage to the next."""

    kernels: tuple[CompiledKernel, ...]
    scratch: tuple[TensorType, ...] = ()
