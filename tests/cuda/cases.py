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
    """One launch of ``symbol``. Its parameters are ``inputs``, then arrays like ``outputs``, then ``dims``.

    ``reference`` gives the right outputs from the inputs; results may be ``tolerance`` times the largest right value away.
    """

    name: str
    source: str
    symbol: str
    grid: Dims
    block: Dims
    inputs: Callable[[], Arrays]
    outputs: Arrays
    reference: Callable[..., Arrays]
    dims: tuple[int, ...] = ()
    shared_bytes: int = 0
    tolerance: float = 1e-5
    sm: int = 87

    @cached_property
    def right(self) -> tuple[Arrays, Arrays]:
        """Inputs and the right outputs."""
        inputs = self.inputs()
        return inputs, self.reference(*inputs)

    def run(self, device: Device, folder: Path, source: str | None = None, *, checked: bool = True) -> Arrays:
        """The outputs of the kernel, or of ``source`` in its place. ``folder`` is where the device looks for host code.

        Raises CudaError for what the driver finds, RuntimeError where the code does not compile.
        """
        text = source or self.source
        cubin = host_code.empty_cubin(self.sm, text.encode())
        host_code.build(text, cubin, folder, checked=checked)
        inputs, _ = self.right
        # filled with a value that no kernel here computes, so that an element that is not written shows
        outputs = [np.full_like(array, -77) for array in self.outputs]
        ran = device.run(cubin, self.symbol, self.grid, self.block, [*inputs, *outputs, *self.dims], self.shared_bytes)
        return ran[len(inputs) :]

    def wrong(self, results: Arrays) -> str:
        """How far the results are from the right ones, empty if near enough."""
        for result, right in zip(results, self.right[1], strict=True):
            a, b = result.astype(np.float64), right.astype(np.float64)
            error, bound = np.abs(a - b).max(initial=0), self.tolerance * max(np.abs(b).max(initial=0), 1e-30)
            if not error <= bound:
                return f"{self.name}: off by {error:.3g}, allowed {bound:.3g}"
        return ""
