"""A kernel with what it takes to run it once and to judge the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tests.cuda import host_code
from tests.cuda.launcher import Device, Dims

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Case:
    """One launch of ``symbol``. Its parameters are those of ``inputs`` and of arrays like ``outputs`` that ``order`` names.

    ``reference`` gives the right outputs from the inputs; results may be ``tolerance`` times the largest right value away.
    """

    source: str
    symbol: str
    grid: Dims
    block: Dims
    inputs: Callable[[], Arrays]
    outputs: Arrays
    reference: Callable[..., Arrays]
    order: tuple[int, ...]
    shared_bytes: int
    tolerance: float

    @cached_property
    def right(self) -> tuple[Arrays, Arrays]:
        """Inputs and the right outputs."""
        inputs = self.inputs()
        return inputs, self.reference(*inputs)

    def run(self, device: Device, folder: Path) -> Arrays:
        """The outputs. ``folder`` is where the device looks for host code. Raises CudaError for what the driver finds."""
        cubin = host_code.empty_cubin(87, self.source.encode())
        host_code.build(self.source, cubin, folder)
        inputs, _ = self.right
        # filled with a value that no kernel here computes, so that an element that is not written shows
        outputs = [np.full_like(array, -77) for array in self.outputs]
        arrays = [*inputs, *outputs]
        ran = device.run(cubin, self.symbol, self.grid, self.block, [arrays[i] for i in self.order], self.shared_bytes)
        return [ran[self.order.index(i)] for i in range(len(inputs), len(arrays))]

    def wrong(self, results: Arrays) -> str:
        """How far the results are from the right ones, empty if near enough."""
        for result, right in zip(results, self.right[1], strict=True):
            a, b = result.astype(np.float64), right.astype(np.float64)
            error, bound = np.abs(a - b).max(initial=0), self.tolerance * max(np.abs(b).max(initial=0), 1e-30)
            if not error <= bound:
                return f"{self.symbol}: off by {error:.3g}, allowed {bound:.3g}"
        return ""
