"""Which processors see the content of each value, and the steps by which another one gets to see it.

A value is valid where it was made, and where a crossing took it since; of the caller's inputs nothing is known beforehand. What is
the case in a body of control flow ends with the body, since another run may not take it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aotc.ir.dims import Dim, DimExpr, product
from aotc.lowering import plan
from aotc.lowering.plan import StepKind, Storage
from aotc.lowering.recorder import Recorder

HOST, DEVICE = False, True
DEVICE_ALIGNMENT = 16
"""Bytes: CUDA kernels take for granted that all addresses are multiples of it (csrc/internal.h)."""


@dataclass(slots=True)
class Residence:
    """``uses_device``: some step is the device's; without one all values are the host's and nothing is written down."""

    recorder: Recorder
    uses_device: bool
    valid: dict[int, frozenset[bool]] = field(default_factory=dict)
    views: dict[int, int] = field(default_factory=dict)

    def made(self, value: int, where: bool) -> None:
        """``value`` has new content, seen by one processor."""
        self.valid[value] = frozenset([where])

    def same(self, view: int, value: int) -> int:
        """``view``, whose content is that of ``value`` or a part of it."""
        self.views[view] = value
        return view

    def on(self, value: int, where: bool) -> bool:
        """Whether a processor sees the content of ``value``."""
        storage = self.recorder.values[value].storage
        default = {Storage.WEIGHT: [HOST, DEVICE], Storage.INPUT: [] if self.uses_device else [HOST]}.get(storage, [HOST])
        if value in self.views and value not in self.valid:
            return self.on(self.views[value], where)
        return where in self.valid.get(value, default) or (value in self.views and self.on(self.views[value], where))

    def require(self, values: Sequence[int], where: bool, origin: str) -> None:
        """A processor sees the content of ``values`` from here on: one step for those that it does not see yet."""
        missing = list(dict.fromkeys(self._whole(value) for value in values if not self.on(value, where)))
        if not missing:
            return
        kind, label = (StepKind.TO_DEVICE, "to device") if where is DEVICE else (StepKind.TO_HOST, "to host")
        self.recorder.step(plan.Step(kind, tuple(missing), 0, source=origin, label=label))
        for value in missing:
            self.valid[value] = self.valid.get(value, frozenset(w for w in (HOST, DEVICE) if self.on(value, w))) | {where}

    def only_on_device(self, value: int) -> bool:
        return self.on(value, DEVICE) and not self.on(value, HOST)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Within it crossings count that are not known to have happened afterwards."""
        before = dict(self.valid)
        yield
        self.valid = before

    def _whole(self, value: int) -> int:
        """What ``value`` is another shape of."""
        values = self.recorder.values
        while value in self.views and _bytes(values[self.views[value]]) == _bytes(values[value]):
            value = self.views[value]
        return value


def _bytes(value: plan.Value) -> tuple[Dim, str]:
    return product(value.shape), value.dtype


def is_aligned(offset: Dim) -> bool:
    """Whether an offset in bytes is one that CUDA kernels take, whatever its symbols are."""
    if isinstance(offset, DimExpr):
        return all(coefficient % DEVICE_ALIGNMENT == 0 for _, coefficient in offset.terms)
    return offset % DEVICE_ALIGNMENT == 0
