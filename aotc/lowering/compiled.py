"""What lowering makes of one primitive function: plain data, kept in the kernel cache and read by the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aotc.ir.dims import Dim
from aotc.ir.types import TensorType

Selection = Mapping[str, str]
"""What a schedule shall take where it has a choice: the text of an option by the name of the choice. Without an entry it takes
its first option."""

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
    """Kernels to run one after another. ``scratch`` tensors carry values from one kernel or stage to the next. ``choices`` are
    what the schedule could choose between: names, each with the texts of its options in the order of their estimated time."""

    kernels: tuple[CompiledKernel, ...]
    scratch: tuple[TensorType, ...] = ()
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
