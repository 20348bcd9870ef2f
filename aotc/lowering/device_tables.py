"""What CUDA kernels add to a plan's tables: the kernels, their code, and weights in an order that gives the device one piece."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from aotc.errors import BuildError, InvalidModel
from aotc.ir.dims import Dim, DimExpr
from aotc.lowering import memory, plan
from aotc.lowering.compiled import CudaKernel
from aotc.lowering.cuda.cubin import architecture
from aotc.lowering.plan import DEVICE_STEPS, Storage


@dataclass(slots=True)
class CudaTables:
    """Kernels by symbol, and their code by content. ``blobs`` lie one after the other, each aligned."""

    kernels: dict[str, plan.CudaKernel] = field(default_factory=dict)
    cubins: dict[tuple[int, bytes, bool], int] = field(default_factory=dict)
    records: list[plan.Cubin] = field(default_factory=list)
    size: int = 0

    def kernel(self, kernel: CudaKernel) -> int:
        """The number of a kernel. Raises BuildError for code that is none for its GPU: a driver would tell it only on the board."""
        if kernel.symbol not in self.kernels:
            for sm, code in kernel.cubins:
                _check(kernel.symbol, sm, code)
            cubins = tuple(self._cubin(sm, code, ptx=False) for sm, code in kernel.cubins)
            if kernel.ptx:
                cubins += (self._cubin(*kernel.ptx, ptx=True),)
            self.kernels[kernel.symbol] = plan.CudaKernel(
                kernel.symbol, len(kernel.operands), len(kernel.dims), kernel.block, kernel.shared_bytes, cubins
            )
        return list(self.kernels).index(kernel.symbol)

    def _cubin(self, sm: int, code: bytes, *, ptx: bool) -> int:
        if (sm, code, ptx) not in self.cubins:
            offset = memory.align(self.size)
            self.cubins[sm, code, ptx] = len(self.records)
            self.records.append(plan.Cubin(sm, offset, len(code), ptx))
            self.size = offset + len(code)
        return self.cubins[sm, code, ptx]

    def blob(self) -> bytes:
        """All cubins at their offsets."""
        data = bytearray(self.size)
        for (_, code, _), number in self.cubins.items():
            offset = self.records[number].offset
            data[offset : offset + len(code)] = code
        return bytes(data)


def _check(symbol: str, sm: int, code: bytes) -> None:
    try:
        found = architecture(code)
    except InvalidModel as error:
        raise BuildError(f"the code of {symbol} for sm_{sm}, {len(code)} bytes, is no cubin: {error}; report this") from error
    if found != sm:
        raise BuildError(f"the code of {symbol} for sm_{sm} is for sm_{found}; report this")


Arrays = Sequence[tuple[int, np.ndarray]]


def device_weights_first(made: plan.ExecutionPlan, arrays: Arrays) -> tuple[plan.ExecutionPlan, tuple[tuple[int, np.ndarray], ...]]:
    """The plan and the weights with those first that the device reads, and the plan says how many bytes these are."""
    offsets = [offset for offset, _ in arrays]
    used = {
        _holder(offsets, entry.values[number].offset)
        for entry in made.entry_points
        for step in entry.steps
        if step.kind in DEVICE_STEPS
        for number in step.arguments
        if entry.values[number].storage is Storage.WEIGHT
    }
    order = sorted(range(len(arrays)), key=lambda number: number not in used)
    moved: list[tuple[int, np.ndarray]] = []
    shift: dict[int, int] = {}
    size = device_bytes = 0
    for number in order:
        offset, array = memory.align(size), arrays[number][1]
        shift[number] = offset - offsets[number]
        moved.append((offset, array))
        size = offset + array.nbytes
        device_bytes = size if number in used else device_bytes

    def value(held: plan.Value) -> plan.Value:
        if held.storage is not Storage.WEIGHT:
            return held
        return replace(held, offset=held.offset + shift[_holder(offsets, held.offset)])

    entries = tuple(replace(entry, values=tuple(map(value, entry.values))) for entry in made.entry_points)
    states = tuple(
        state if state.initial is None else replace(state, initial=state.initial + shift[_holder(offsets, state.initial)])
        for state in made.states
    )
    return replace(made, entry_points=entries, states=states, device_weights=device_bytes), tuple(moved)


def _holder(offsets: Sequence[int], offset: Dim) -> int:
    """The number of the array in which an offset lies: that of a view may have symbols, beside where the array begins."""
    constant = sum(c for monomial, c in offset.terms if not monomial) if isinstance(offset, DimExpr) else offset
    return bisect.bisect_right(offsets, constant) - 1
