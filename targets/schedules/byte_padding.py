"""A copy of an input of bytes with its padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from aotc.targets.schedules.byte_products import ramp
from aotc.targets.schedules.conv_places import Axis
from aotc.targets.schedules.emit import const, known, parallel, product, sequence, serial, task_indices

Expr = Any


class Padding:
    """``buffer`` is x[N, blocks, *S, block] with its padding around the spatial axes; x itself where there is none."""

    def __init__(self, x: tirx.Buffer, axes: Sequence[Axis], value: int) -> None:
        self.x, self.axes, self.value = x, list(axes), tirx.const(value, str(x.dtype))
        self.lanes = int(known(x.shape[-1]) or 1)
        if not any(axis.before or axis.after for axis in axes):
            self.buffer = x
        else:
            spatial = [axis.size + (axis.before + axis.after) for axis in axes]
            self.buffer = tirx.decl_buffer([*x.shape[:2], *spatial, x.shape[-1]], str(x.dtype), "padded")

    @property
    def scratch(self) -> list[tirx.Buffer]:
        return [] if self.buffer is self.x else [self.buffer]

    def nests(self) -> list[tirx.Stmt]:
        """The copy, a task for each row; nothing where none is needed."""
        if self.buffer is self.x:
            return []
        *outer, row = self.axes
        extents = self.buffer.shape[:-2]

        def task(index: Expr) -> tirx.Stmt:
            n, block, *rows = task_indices(index, extents)
            empty = self._fill(n, block, rows, const(0), row.size + (row.before + row.after))
            source = [position - axis.before for position, axis in zip(rows, outer, strict=True)]
            whole = sequence(
                self._fill(n, block, rows, const(0), const(row.before)),
                serial(row.size, lambda i: self._store(n, block, rows, i + row.before, self._load(n, block, source, i)), "x"),
                self._fill(n, block, rows, row.size + row.before, const(row.after)),
            )
            inside = [check for at, axis in zip(source, outer, strict=True) for check in (at >= 0, at < axis.size)]
            return tirx.IfThenElse(tirx.all(*inside), whole, empty) if inside else whole

        return [parallel(product(extents), task)]

    def _fill(self, n: Expr, block: Expr, rows: list[Expr], first: Expr, count: Expr) -> tirx.Stmt:
        value = tirx.Broadcast(self.value, self.lanes) if self.lanes > 1 else self.value
        return serial(count, lambda i: self._store(n, block, rows, first + i, value), "x")

    def _load(self, n: Expr, block: Expr, rows: list[Expr], column: Expr) -> Expr:
        return tirx.BufferLoad(self.x, [n, block, *rows, column, self._lanes()])

    def _store(self, n: Expr, block: Expr, rows: list[Expr], column: Expr, value: Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.buffer, value, [n, block, *rows, column, self._lanes()])

    def _lanes(self) -> Expr:
        return ramp(0, self.lanes) if self.lanes > 1 else const(0)
