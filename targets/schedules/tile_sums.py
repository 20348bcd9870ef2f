"""Sums of products that stay in registers: some rows of a left operand by some vectors of a right one, over a depth.

Where vectors can be multiplied by one element of another (Arm's fmla by element), left elements come as vectors, several at a
time: from a buffer in which the rows of a tile lie together for each step (``PackedRows``), or of several steps of one row
(``RowRuns``). Elsewhere each is loaded and broadcast on its own (``Broadcasts``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import tirx

from aotc.targets.base import Target
from aotc.targets.schedules.emit import const, known, registers, sequence, serial, unrolled, vectorized

Expr = Any
Element = Callable[[Expr, Expr], Expr]
"""The left element of a row of the tile at a step."""

UNROLLED_SUMS = {True: 400, False: 104}
"""Multiply-adds (vectors) that the innermost body holds at most, where left elements come as vectors and where each takes a load of
its own: more do not fit the CPUs' caches of decoded instructions."""
MOST_STEPS = 16
QUAD = 4


class Left(Protocol):
    """Left elements of ``rows`` rows."""

    @property
    def unit(self) -> int:
        """How many steps are loaded together."""

    def load(self, k: Expr) -> tuple[list[tirx.Stmt], Element]:
        """Loads steps [k, k + unit); the element of a row at a step of these, counted from 0."""

    def single(self, row: Expr, k: Expr) -> Expr:
        """One element, for steps that fill no unit."""


@dataclass(frozen=True)
class Broadcasts:
    """Each element loaded on its own."""

    single: Element
    unit: int = 1

    def load(self, k: Expr) -> tuple[list[tirx.Stmt], Element]:
        return [], lambda row, step: self.single(row, k + step)


@dataclass(frozen=True)
class RowRuns:
    """Vectors along each row, whose elements lie side by side."""

    rows: int
    dtype: str
    single: Element
    unit: int = QUAD

    def load(self, k: Expr) -> tuple[list[tirx.Stmt], Element]:
        run = tirx.decl_buffer((self.rows, self.unit), self.dtype, "run")

        def row(p: Expr) -> tirx.Stmt:
            return vectorized(self.unit, lambda v: tirx.BufferStore(run, self.single(p, k + v), [p, v]))

        return [registers(run), unrolled(self.rows, row, "p")], lambda p, step: tirx.BufferLoad(run, [p, step])


@dataclass(frozen=True)
class PackedRows:
    """Vectors of a ``packed`` buffer, in which the tile begins at ``base`` and its rows lie together for each step."""

    rows: int
    packed: tirx.Buffer
    base: Expr

    @property
    def unit(self) -> int:
        return next(steps for steps in (1, 2, 4) if steps * self.rows % QUAD == 0)

    def load(self, k: Expr) -> tuple[list[tirx.Stmt], Element]:
        size = self.unit * self.rows
        run = tirx.decl_buffer((size,), str(self.packed.dtype), "run")

        def quad(i: Expr) -> tirx.Stmt:
            first = self.base + k * self.rows + i * QUAD
            return vectorized(QUAD, lambda v: tirx.BufferStore(run, tirx.BufferLoad(self.packed, [first + v]), [i * QUAD + v]))

        return [registers(run), unrolled(size // QUAD, quad, "q")], lambda p, step: tirx.BufferLoad(run, [step * self.rows + p])

    def single(self, row: Expr, k: Expr) -> Expr:
        return tirx.BufferLoad(self.packed, [self.base + k * self.rows + row])


def by_element(target: Target, dtype: str) -> bool:
    """Whether the target multiplies vectors of four ``dtype`` by one element of another register."""
    return target.architecture == "aarch64" and target.lanes(dtype) == QUAD and dtype in ("float32", "int32")


@dataclass(frozen=True)
class TileSums:
    """Sums [blocks, rows, block] over ``depth`` steps. ``right(block, k, lane)`` is an element of a panel."""

    dtype: str
    blocks: int
    rows: int
    block: int
    lanes: int
    depth: Expr
    left: Left
    right: Callable[[Expr, Expr, Expr], Expr]

    def buffer(self) -> tirx.Buffer:
        return tirx.decl_buffer((self.blocks, self.rows, self.block), self.dtype, "sums")

    def each(self, body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        """``body(block, row)`` for the vectors of sums."""
        return unrolled(self.blocks, lambda o: unrolled(self.rows, lambda p: body(o, p), "p"), "o")

    def write(self, sums: tirx.Buffer, end: tirx.Stmt, begin: Callable[[Expr, Expr, Expr], Expr] | None = None) -> tirx.Stmt:
        """The sums into ``sums``, then ``end``. They start as ``begin(block, row, lane)``, or as zeros."""
        zero = tirx.const(0, self.dtype)

        def first(o: Expr, p: Expr) -> tirx.Stmt:
            return vectorized(self.block, lambda v: tirx.BufferStore(sums, zero if begin is None else begin(o, p, v), [o, p, v]))

        return sequence(registers(sums), self.each(first), *self._over_depth(sums), end)

    def _over_depth(self, sums: tirx.Buffer) -> list[tirx.Stmt]:
        unit, depth = self.left.unit, known(self.depth)
        if depth is None:
            steps = min(self._unrolled_steps(), 4)
            whole = tirx.floordiv(self.depth, const(steps))
            parts = [serial(whole, lambda k: self._steps(sums, k * steps, steps // unit), "k")]
            if steps > 1:
                parts.append(serial(self.depth - whole * steps, lambda k: self._single(sums, whole * steps + k), "k"))
            return parts
        steps = self._unrolled_steps()
        whole, rest = depth // steps, depth % steps
        parts = [serial(whole, lambda k: self._steps(sums, k * steps, steps // unit), "k")] if whole else []
        if rest >= unit:
            parts.append(self._steps(sums, const(whole * steps), rest // unit))
        first = whole * steps + rest // unit * unit
        return [*parts, *(self._single(sums, const(k)) for k in range(first, depth))]

    def _unrolled_steps(self) -> int:
        vectors = self.blocks * self.rows * max(1, self.block // self.lanes)
        steps = MOST_STEPS
        while steps > self.left.unit and steps * vectors > UNROLLED_SUMS[not isinstance(self.left, Broadcasts)]:
            steps //= 2
        return max(steps, self.left.unit)

    def _single(self, sums: tirx.Buffer, k: Expr) -> tirx.Stmt:
        return self._step(sums, lambda row, _: self.left.single(row, k), k, const(0))

    def _steps(self, sums: tirx.Buffer, k: Expr, units: int) -> tirx.Stmt:
        def some(u: Expr) -> tirx.Stmt:
            first = k + u * self.left.unit
            loads, element = self.left.load(first)
            return sequence(*loads, unrolled(self.left.unit, lambda s: self._step(sums, element, first + s, s), "s"))

        return unrolled(units, some, "u")

    def _step(self, sums: tirx.Buffer, element: Element, k: Expr, step: Expr) -> tirx.Stmt:
        """Adds the products of step ``k``, which is number ``step`` of those that ``element`` knows."""

        def add(o: Expr, p: Expr) -> tirx.Stmt:
            def lane(v: Expr) -> tirx.Stmt:
                return tirx.BufferStore(sums, tirx.BufferLoad(sums, [o, p, v]) + element(p, step) * self.right(o, k, v), [o, p, v])

            return vectorized(self.block, lane)

        return unrolled(self.rows, lambda p: sequence(*(add(const(o), p) for o in range(self.blocks))), "p")
