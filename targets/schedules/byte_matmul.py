"""Products of a matrix of bytes and packed weights, summed in 32 bits, written as TIR: rows by blocks of 16 columns in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from aotc.ops.byte_products import BLOCK
from aotc.targets.schedules.base import Direct, DirectWork
from aotc.targets.schedules.byte_products import Products, products_of, ramp
from aotc.targets.schedules.emit import (
    const,
    known,
    parallel,
    product,
    registers,
    sequence,
    serial,
    task_indices,
    unravel,
    vectorized,
)
from aotc.targets.schedules.fused import Fused, fused, prim_func, started
from aotc.targets.schedules.tile import Step, Tile, tiles

Expr = Any

TILES_PER_TASK = 16
VECTOR_BYTES = 16
"""What is loaded at once of a row whose units multiply by element."""


def byte_matmul(work: DirectWork) -> tirx.PrimFunc | None:
    """``None`` where the machine does not multiply bytes of x's sign, weights stand in other units, or nothing is to be added."""
    view, products = fused(work), products_of(work.target)
    if view is None:
        return None
    x, w = view.operands
    if str(x.dtype) != products.factor or known(w.shape[3]) != products.unit or not known(x.shape[-1]):
        return None
    return _Product(work, view, products).function()


class _Product:
    """Writes the kernel."""

    def __init__(self, work: DirectWork, view: Fused, products: Products) -> None:
        attrs: Any = work.anchor.attrs
        self.x, self.w = view.operands
        self.products, self.columns = products, attrs.columns
        # Columns beyond the last have no bias.
        self.view = view if self.columns % BLOCK else started(view)
        self.leading = list(self.x.shape[:-1])
        self.rows = product(self.leading)
        self.depth = int(known(self.x.shape[-1]) or 0)
        self.blocks = -(-self.columns // BLOCK)
        self.vectors = BLOCK // products.lanes
        count = VECTOR_BYTES // products.unit
        step = Step(lambda rows: rows, lambda rows: rows, count, True) if products.by_element else None
        offered = tiles(work.target.vector_registers, self.vectors, self.blocks, known(self.rows), step, shorter=True)
        self.tile: Tile = work.choices.pick("tile", offered)

    def function(self) -> tirx.PrimFunc:
        height, rows = self.tile.pixels, known(self.rows)
        whole = tirx.floordiv(self.rows, const(height)) if rows is None else const(rows // height)
        tiles_ = known(whole)
        chunks = (
            const(max(1, (tiles_ or 0) // TILES_PER_TASK))
            if tiles_ is not None
            else tirx.max(const(1), tirx.floordiv(whole, const(TILES_PER_TASK)))
        )
        groups = const(self.blocks // self.tile.blocks)

        def task(index: Expr) -> tirx.Stmt:
            chunk, group = task_indices(index, [chunks, groups])
            last = chunk == chunks - 1
            first = chunk * TILES_PER_TASK
            count = whole if known(chunks) == 1 else tirx.Select(last, whole - first, const(TILES_PER_TASK))
            main = serial(count, lambda t: self._tile(group, (first + t) * height, height), "tile")
            rest = self._rest(group, whole * height)
            if rest is None:
                return main
            return sequence(main, rest if known(chunks) == 1 else tirx.IfThenElse(last, rest, None))

        return prim_func(self.view.params, parallel(chunks * groups, task))

    def _rest(self, group: Expr, first: Expr) -> tirx.Stmt | None:
        """Rows that fill no tile."""
        rows = known(self.rows)
        if rows is not None:
            left = rows % self.tile.pixels
            return self._tile(group, first, left) if left else None
        return None if self.tile.pixels == 1 else serial(self.rows - first, lambda i: self._tile(group, first + i, 1), "row")

    # --- one tile --------------------------------------------------------------------------------------------------

    def _tile(self, group: Expr, first: Expr, rows: int) -> tirx.Stmt:
        blocks = self.tile.blocks
        sums = tirx.decl_buffer((blocks, rows, BLOCK), "int32", "sums")

        def place(o: int, p: int, v: Expr) -> list[Expr]:
            return (
                [*unravel(first + p, self.leading), (group * blocks + o) * BLOCK + v]
                if self.leading
                else [(group * blocks + o) * BLOCK + v]
            )

        def begin(o: int, p: int) -> tirx.Stmt:
            return vectorized(BLOCK, lambda v: tirx.BufferStore(sums, self.view.start(place(o, p, v)), [const(o), const(p), v]))

        def element(o: int, p: int) -> Callable[[Expr], tuple[list[Expr], Expr]]:
            return lambda v: (place(o, p, v), tirx.BufferLoad(sums, [const(o), const(p), v]))

        def each(body: Callable[[int, int], tirx.Stmt]) -> list[tirx.Stmt]:
            return [body(o, p) for o in range(blocks) for p in range(rows)]

        finish = each(lambda o, p: self.view.store(BLOCK, element(o, p)))
        if self.columns % BLOCK:
            whole = (group + 1) * (blocks * BLOCK) <= self.columns
            finish = [tirx.IfThenElse(whole, sequence(*finish), sequence(*each(lambda o, p: self._some(group, o, p, sums, place))))]
        return sequence(registers(sums), *each(begin), *self._over_depth(sums, group, first, rows), *finish)

    def _some(self, group: Expr, o: int, p: int, sums: tirx.Buffer, place: Callable[..., list[Expr]]) -> tirx.Stmt:
        """Stores the columns that there are, one by one. The sums leave their registers first: indices vary."""
        kept = tirx.decl_buffer((BLOCK,), "int32", "kept")
        keep = vectorized(BLOCK, lambda v: tirx.BufferStore(kept, tirx.BufferLoad(sums, [const(o), const(p), v]), [v]))
        count = tirx.min(const(BLOCK), self.columns - (group * self.tile.blocks + o) * BLOCK)
        one = serial(count, lambda i: self.view.store(1, lambda _: (place(o, p, i), tirx.BufferLoad(kept, [i]))), "i")
        return sequence(registers(kept), keep, one)

    def _over_depth(self, sums: tirx.Buffer, group: Expr, first: Expr, rows: int) -> list[tirx.Stmt]:
        unit, together = self.products.unit, self.products.together
        step = VECTOR_BYTES // unit
        units, rest = divmod(self.depth, unit)
        whole = units // step
        parts = [serial(whole, lambda k: self._steps(sums, group, first, rows, k * step, step), "k")] if whole else []
        single = [self._single(sums, group, first, rows, u, min(together, units - u)) for u in range(whole * step, units, together)]
        return [*parts, *single, *([self._tail(sums, group, first, rows, units, rest)] if rest else [])]

    def _steps(self, sums: tirx.Buffer, group: Expr, first: Expr, rows: int, k: Expr, count: int) -> tirx.Stmt:
        """``count`` units of each row, from unit ``k`` on."""
        products = self.products
        if not products.by_element:
            return sequence(*(self._single(sums, group, first, rows, k + u, 1) for u in range(count)))
        words = tirx.decl_buffer((rows, count), products.word, "words")

        def load(p: int) -> tirx.Stmt:
            vector = products.words_at(self.x, self._row(first + p), k * products.unit, count)
            return tirx.BufferStore(words, vector, [const(p), ramp(0, count)])

        adds = [
            self._add(sums, group, rows, k + u, products.together, lambda p, i, u=u: tirx.BufferLoad(words, [const(p), const(u + i)]))  # type: ignore[misc]
            for u in range(0, count, products.together)
        ]
        return sequence(registers(words), *map(load, range(rows)), *adds)

    def _single(self, sums: tirx.Buffer, group: Expr, first: Expr, rows: int, k: Expr | int, count: int) -> tirx.Stmt:
        products = self.products

        def word(p: int, i: int) -> Expr:
            start = (k + i) * products.unit
            return products.word_at(self.x, self._row(first + p), const(start) if isinstance(start, int) else start)

        return self._add(sums, group, rows, k, count, word)

    def _tail(self, sums: tirx.Buffer, group: Expr, first: Expr, rows: int, k: int, rest: int) -> tirx.Stmt:
        """The last bytes, which fill no unit."""
        unit, dtype = self.products.unit, str(self.x.dtype)
        bytes_ = tirx.decl_buffer((rows, unit), dtype, "bytes")

        def fill(p: int) -> tirx.Stmt:
            some = [
                tirx.BufferLoad(self.x, [*self._row(first + p), const(k * unit + i)]) if i < rest else tirx.const(0, dtype)
                for i in range(unit)
            ]
            return sequence(*(tirx.BufferStore(bytes_, value, [const(p), const(i)]) for i, value in enumerate(some)))

        add = self._add(sums, group, rows, k, 1, lambda p, _: self.products.word_at(bytes_, [const(p)], const(0)))
        return sequence(registers(bytes_), *map(fill, range(rows)), add)

    def _add(self, sums: tirx.Buffer, group: Expr, rows: int, k: Expr | int, count: int, word: Callable[[int, int], Expr]) -> tirx.Stmt:
        """The products of ``count`` units from ``k`` on, which are added together."""
        products, lanes = self.products, self.products.lanes

        def add(o: int, v: int, p: int) -> tirx.Stmt:
            at = [const(o), const(p), ramp(v * lanes, lanes)]
            weights = [
                tirx.BufferLoad(self.w, [group * self.tile.blocks + o, _expr(k + i), const(v * lanes), ramp(0, lanes * products.unit)])
                for i in range(count)
            ]
            total = products.add(tirx.BufferLoad(sums, at), weights, [word(p, i) for i in range(count)])
            return tirx.BufferStore(sums, total, at)

        vectors = [(o, v) for o in range(self.tile.blocks) for v in range(self.vectors)]
        order = (
            [(o, v, p) for o, v in vectors for p in range(rows)]
            if products.by_element
            else [(o, v, p) for p in range(rows) for o, v in vectors]
        )
        return sequence(*(add(*each) for each in order))

    def _row(self, row: Expr) -> list[Expr]:
        return unravel(row, self.leading) if self.leading else []


def _expr(value: Expr | int) -> Expr:
    return const(value) if isinstance(value, int) else value


DIRECT: dict[str, tuple[Direct, ...]] = {"byte_matmul": (byte_matmul,)}
