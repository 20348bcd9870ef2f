"""Products of a state and a packed weight [blocks, inputs, gates, block], summed in registers: a vector of units for each gate
at a time, for some rows and some blocks together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.lowering.ops.common import Expr, constant
from aotc.targets.schedules.emit import const, known, sequence, serial, unrolled, vectorized
from aotc.targets.schedules.tile_sums import Broadcasts, Element, Left, RowRuns

WIDEST = 16
"""Lanes of the widest vector that loops are written for."""
UNROLLED_STEPS = 4


def number(extent: Expr) -> int:
    """An extent that types say is a number."""
    found = known(extent)
    assert found is not None, f"{extent} is no number"
    return found


def widest(units: int, most: int = WIDEST) -> int:
    """The largest power of two that is at most ``units`` and ``most``."""
    return 1 << min(units, most).bit_length() - 1


@dataclass(frozen=True, slots=True)
class Sums:
    """``end(row, gate, unit, begin(row, gate, unit) + sum over k of source(row, k) * weight[unit, k])`` for ``rows`` rows, all
    ``units`` and the chosen ``gates``; ``group`` vectors of units, of ``lanes`` at most, are summed at a time, and ``then(first unit,
    lanes)`` follows for each of these. With ``runs``, elements of the source come as vectors of several k."""

    weight: tirx.Buffer
    units: int
    rows: int
    group: int
    lanes: int
    runs: bool
    gates: Sequence[int]
    source: Callable[[Expr, Expr], Expr]
    begin: Callable[[Expr, int, Expr], Expr]
    end: Callable[[Expr, int, Expr, Expr], tirx.Stmt]
    then: Callable[[Expr, int], tirx.Stmt] | None = None

    def write(self) -> tirx.Stmt:
        size, whole, rest = self._groups()
        parts = [serial(whole, lambda i: self._vectors(i * size, size), "group")]
        return sequence(*parts, *([self._vectors(const(whole * size), rest)] if rest else []))

    def groups(self) -> int:
        """How many groups there are."""
        _, whole, rest = self._groups()
        return whole + (1 if rest else 0)

    def write_group(self, i: Expr) -> tirx.Stmt:
        """One of them. None reads what another one writes."""
        size, whole, rest = self._groups()
        full = self._vectors(i * size, size)
        return tirx.IfThenElse(i < whole, full, self._vectors(const(whole * size), rest)) if rest else full

    def each_vector(self, i: Expr, body: Callable[[Expr, int], tirx.Stmt]) -> tirx.Stmt:
        """``body(first unit, lanes)`` for the vectors of group ``i``."""
        size, whole, rest = self._groups()
        count = tirx.min(const(size), const(whole * size + rest) - i * size) if rest else const(size)
        return serial(count, lambda o: body(self._first_unit(i * size + o), self._lanes), "vector")

    def _groups(self) -> tuple[int, int, int]:
        """Vectors of a group, how many such groups there are, and vectors of the last one, if it is smaller."""
        vectors, per_block = number(self.weight.shape[0]) * self._per_block, self._per_block
        if self.group < per_block:
            size = next(count for count in range(self.group, 0, -1) if per_block % count == 0)
        else:
            blocks = number(self.weight.shape[0])
            groups = -(-blocks // (self.group // per_block))
            size = -(-blocks // groups) * per_block  # even shares: a group of few vectors would wait for its multiply-adds
        return size, *divmod(vectors, size)

    @property
    def _block(self) -> int:
        return number(self.weight.shape[3])

    @property
    def _lanes(self) -> int:
        """A vector is a block, or divides it."""
        lanes = widest(self._block, self.lanes)
        while self._block % lanes:
            lanes //= 2
        return lanes

    @property
    def _per_block(self) -> int:
        return self._block // self._lanes

    def _place(self, vector: Expr) -> tuple[Expr, Expr]:
        """The block that holds a vector, and the vector's first lane there."""
        if self._per_block == 1:
            return vector, const(0)
        return tirx.floordiv(vector, const(self._per_block)), tirx.floormod(vector, const(self._per_block)) * self._lanes

    def _first_unit(self, vector: Expr) -> Expr:
        block, lane = self._place(vector)
        return tirx.min(block * self._block, const(self.units - self._block)) + lane

    def _vectors(self, first: Expr, count: int) -> tirx.Stmt:
        sums = tirx.decl_buffer((self.rows, count, len(self.gates), self._lanes), str(self.weight.dtype), "acc")

        def each(lane: Callable[[list[Any]], tirx.Stmt]) -> tirx.Stmt:
            """``lane([row, vector, position of the gate, lane])`` for all sums."""

            def gates(p: Expr, o: Expr) -> tirx.Stmt:
                return sequence(*(vectorized(self._lanes, lambda v, g=g: lane([p, o, const(g), v])) for g in range(len(self.gates))))  # type: ignore[misc]

            return unrolled(self.rows, lambda p: unrolled(count, lambda o: gates(p, o), "o"), "p")

        def where(at: list[Any]) -> tuple[Expr, int, Expr]:
            return at[0], self.gates[number(at[2])], self._first_unit(first + at[1]) + at[3]

        def step(k: Expr, element: Element, s: Expr) -> tirx.Stmt:
            def add(at: list[Any]) -> tirx.Stmt:
                block, lane = self._place(first + at[1])
                weight = tirx.BufferLoad(self.weight, [block, k, const(self.gates[number(at[2])]), lane + at[3]])
                return tirx.BufferStore(sums, tirx.BufferLoad(sums, at) + element(at[0], s) * weight, at)

            return each(add)

        begin = each(lambda at: tirx.BufferStore(sums, self.begin(*where(at)), at))
        end = each(lambda at: self.end(*where(at), tirx.BufferLoad(sums, at)))
        then = self.then
        after = [] if then is None else [serial(count, lambda o: then(self._first_unit(first + o), self._lanes), "vector")]
        return sequence(tirx.AllocBuffer(sums), begin, *self._over_inputs(step), end, *after)

    def _over_inputs(self, step: Callable[[Expr, Element, Expr], tirx.Stmt]) -> list[tirx.Stmt]:
        whole, rest = divmod(number(self.weight.shape[1]), UNROLLED_STEPS)
        left: Left = RowRuns(self.rows, str(self.weight.dtype), self.source, UNROLLED_STEPS) if self.runs else Broadcasts(self.source)

        def single(k: Expr) -> tirx.Stmt:
            return step(k, lambda row, _: self.source(row, k), const(0))

        def some(k: Expr) -> tirx.Stmt:
            first = k * UNROLLED_STEPS
            loads, element = left.load(first)
            return sequence(*loads, unrolled(UNROLLED_STEPS, lambda s: step(first + s, element, s), "s"))

        parts = [serial(whole, some, "k")] if whole else []
        return [*parts, *([unrolled(rest, lambda s: single(whole * UNROLLED_STEPS + s), "s")] if rest else [])]


def rounded(states: tirx.Buffer, target: tirx.Buffer) -> tirx.Stmt:
    """``target`` [B, inputs] is ``states`` as 8 bits would hold them: scaled by the range of all of them, zero included."""
    dtype, (rows, inputs) = str(states.dtype), states.shape
    low, high, scale, zero = (tirx.decl_buffer([1], dtype, name) for name in ("low", "high", "scale", "zero"))

    def get(buffer: tirx.Buffer) -> Expr:
        return tirx.BufferLoad(buffer, [const(0)])

    def put(buffer: tirx.Buffer, value: Expr) -> tirx.Stmt:
        return tirx.BufferStore(buffer, value, [const(0)])

    def over_all(body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        return serial(rows, lambda row: serial(inputs, lambda k: body(row, k), "k"), "row")

    def within(value: Expr) -> Expr:
        return tirx.max(tirx.min(value, constant(255, dtype)), constant(0, dtype))

    def widen(row: Expr, k: Expr) -> tirx.Stmt:
        value = tirx.BufferLoad(states, [row, k])
        return sequence(put(low, tirx.min(get(low), value)), put(high, tirx.max(get(high), value)))

    def store(row: Expr, k: Expr) -> tirx.Stmt:
        whole = within(tirx.nearbyint(tirx.BufferLoad(states, [row, k]) / get(scale)) + get(zero))
        return tirx.BufferStore(target, (whole - get(zero)) * get(scale), [row, k])

    nothing = get(high) == get(low)
    step = tirx.Select(nothing, constant(1, dtype), (get(high) - get(low)) / constant(255, dtype))
    start = tirx.nearbyint(within(constant(0, dtype) - get(low) / get(scale)))
    return sequence(
        *map(tirx.AllocBuffer, (low, high, scale, zero)), put(low, constant(0, dtype)), put(high, constant(0, dtype)),
        over_all(widen), put(scale, step), put(zero, start), over_all(store),
    )  # fmt: skip
