"""Matrix products, written as TIR: matmul, dense and packed_dense.

The right operand lies in panels [block, K, b], packed at build (packed_dense) or by a kernel that runs first. A task computes
some rows of one group of panels in tiles whose sums stay in registers, each left element broadcast against a vector of a
panel (Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008). The last tile of a task's rows
overlaps the one before it and stores only what that has not: each element is written once. Where there are fewer rows than
a tile has, rows go one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.targets.schedules.base import Direct, DirectWork
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
    unrolled,
    vectorized,
)
from aotc.targets.schedules.fused import Fused, fused, prim_func
from aotc.targets.schedules.tile import Tile, tiles

Expr = Any

TILES_PER_TASK = 16
UNROLLED_STEPS = 4
"""Steps of K in the innermost body."""


@dataclass(frozen=True, slots=True)
class Operands:
    """A product as the kernel sees it: ``batch`` products of [M, K] and [K, N], where M runs over ``rows`` (row-major).

    ``left(batch, row, k)`` and ``right(batch, k, n)`` load elements; a ``panel`` (buffer [.., block, K, b], blocks before) is the
    right operand packed already.
    """

    batch: tuple[Expr, ...]
    rows: tuple[Expr, ...]
    depth: Expr
    columns: Expr
    left: Callable[[list[Expr], list[Expr], Expr], Expr]
    right: Callable[[list[Expr], Expr, Expr], Expr] | None
    panel: tirx.Buffer | None


def packed_dense(work: DirectWork) -> tirx.PrimFunc | None:
    view = fused(work)
    if view is None:
        return None
    x, weight = view.operands
    rows = tuple(x.shape[:-1]) or (const(1),)

    def left(_: list[Expr], row: list[Expr], k: Expr) -> Expr:
        return tirx.BufferLoad(x, [*row, k] if len(x.shape) > 1 else [k])

    return _Product(work, view, Operands((), rows, x.shape[-1], view.total.shape[-1], left, None, weight)).function()


def dense(work: DirectWork) -> tirx.PrimFunc | None:
    view = fused(work)
    if view is None or len(view.operands[0].shape) < 2:
        return None
    x, weight = view.operands

    def left(_: list[Expr], row: list[Expr], k: Expr) -> Expr:
        return tirx.BufferLoad(x, [*row, k])

    def right(_: list[Expr], k: Expr, n: Expr) -> Expr:
        return tirx.BufferLoad(weight, [n, k])

    return _Product(work, view, Operands((), tuple(x.shape[:-1]), x.shape[-1], weight.shape[0], left, right, None)).function()


def matmul(work: DirectWork) -> tirx.PrimFunc | None:
    view = fused(work)
    if view is None or min(len(operand.shape) for operand in view.operands) < 2:
        return None
    a, b = view.operands
    shared = len(b.shape) == 2  # then all leading axes of a are rows of one product
    batch = () if shared else tuple(view.total.shape[:-2])
    rows = tuple(a.shape[:-1]) if shared else (a.shape[-2],)

    def left(index: list[Expr], row: list[Expr], k: Expr) -> Expr:
        return tirx.BufferLoad(a, [*row, k] if shared else [*_broadcast(a, index), *row, k])

    def right(index: list[Expr], k: Expr, n: Expr) -> Expr:
        return tirx.BufferLoad(b, [*_broadcast(b, index), k, n])

    return _Product(work, view, Operands(batch, rows, a.shape[-1], b.shape[-1], left, right, None)).function()


def _broadcast(buffer: tirx.Buffer, index: list[Expr]) -> list[Expr]:
    """The batch indices of an operand: its axes are the last ones, those of extent 1 are repeated."""
    extents = list(buffer.shape[:-2])
    own = index[len(index) - len(extents) :] if extents else []
    return [const(0) if known(extent) == 1 else i for extent, i in zip(extents, own, strict=True)]


class _Product:
    """Writes the kernels."""

    def __init__(self, work: DirectWork, view: Fused, operands: Operands) -> None:
        self.view, self.of = view, operands
        self.dtype = str(view.total.dtype)
        lanes = work.target.lanes(self.dtype)
        self.rows = product(operands.rows)
        self.block = self._block(lanes)
        self.blocks = tirx.floordiv(operands.columns + (self.block - 1), const(self.block))
        if known(operands.columns) is not None:
            self.blocks = const(-(-int(known(operands.columns) or 0) // self.block))
        vectors = max(1, self.block // lanes)
        self.tile = work.choices.pick("tile", tiles(work.target.vector_registers, vectors, None, known(self.rows)))
        if known(self.blocks) is not None:
            self.tile = Tile(min(self.tile.blocks, int(known(self.blocks) or 1)), self.tile.pixels)
        self.panel = operands.panel if operands.panel is not None else self._new_panel()

    def _block(self, lanes: int) -> int:
        if self.of.panel is not None:
            return int(known(self.of.panel.shape[-1]) or 1)
        return lanes

    def _new_panel(self) -> tirx.Buffer:
        shape = [*self.of.batch, self.blocks, self.of.depth, const(self.block)]
        return tirx.decl_buffer(shape, str(self.view.operands[1].dtype), "panels")

    def function(self) -> tirx.PrimFunc:
        if self.of.panel is not None:
            return prim_func(self.view.params, self._product())
        return prim_func(self.view.params, sequence(self._packing(), self._product()), [self.panel])

    # --- packing ---------------------------------------------------------------------------------------------------

    def _packing(self) -> tirx.Stmt:
        """Columns beyond the last are zeros."""
        extents = [*self.of.batch, self.blocks]
        whole = _divides(self.of.columns, self.block)

        def task(index: Expr) -> tirx.Stmt:
            *batch, block = task_indices(index, extents)

            def copy(k: Expr, checked: bool) -> tirx.Stmt:
                def element(v: Expr) -> tirx.Stmt:
                    column = block * self.block + v
                    if checked:
                        value = self.of.right(batch, k, tirx.min(column, self.of.columns - 1))  # type: ignore[misc]
                        value = tirx.Select(column < self.of.columns, value, tirx.const(0, str(self.panel.dtype)))
                    else:
                        value = self.of.right(batch, k, column)  # type: ignore[misc]
                    return tirx.BufferStore(self.panel, value, [*batch, block, k, v])

                return serial(self.block, element, "v") if checked else vectorized(self.block, element)

            inner = serial(self.of.depth, lambda k: copy(k, False), "k")
            if whole:
                return inner
            return tirx.IfThenElse((block + 1) * self.block <= self.of.columns, inner, serial(self.of.depth, lambda k: copy(k, True), "k"))

        return parallel(product(extents), task)

    # --- the product -----------------------------------------------------------------------------------------------

    def _product(self) -> tirx.Stmt:
        """Tasks over batch, row chunks and groups of panels. Panels that fill no group are done one at a time."""
        size, columns = self.tile.blocks, known(self.of.columns)
        rows = known(self.rows)
        share = self.tile.pixels * TILES_PER_TASK
        chunks = tirx.max(const(1), tirx.floordiv(self.rows, const(share))) if rows is None else const(max(1, rows // share))
        whole = tirx.floordiv(self.of.columns, const(self.block * size)) if columns is None else const(columns // (self.block * size))
        groups = whole + (self.blocks - whole * size) if columns is None else const(_groups(columns, self.block, size))
        extents = [*self.of.batch, chunks, groups]

        def task(index: Expr) -> tirx.Stmt:
            *batch, chunk, group = task_indices(index, extents)
            first = chunk * share
            count = self.rows if known(chunks) == 1 else tirx.Select(chunk == chunks - 1, self.rows - first, const(share))
            full = self._rows(batch, group * size, first, count, size, masked=False)
            if known(whole) is not None and known(whole) == known(groups):
                return full
            single = self._rows(batch, whole * size + (group - whole), first, count, 1, masked=not _divides(self.of.columns, self.block))
            return single if known(whole) == 0 else tirx.IfThenElse(group < whole, full, single)

        return parallel(product(extents), task)

    def _rows(self, batch: list[Expr], block: Expr, first: Expr, count: Expr, blocks: int, masked: bool) -> tirx.Stmt:
        """The rows [first, first + count) of ``blocks`` panels from ``block`` on."""
        pixels, number = self.tile.pixels, known(count)

        def overlapping(t: Expr) -> tirx.Stmt:
            start = tirx.min(t * pixels, count - pixels)
            skip = None if number is not None and number % pixels == 0 else t * pixels - start
            return self._tile(batch, block, first + start, pixels, blocks, masked, skip)

        tiles = tirx.floordiv(count + (pixels - 1), const(pixels)) if number is None else const(-(-number // pixels))
        whole = serial(tiles, overlapping, "tile")
        if known(self.rows) is not None:
            return whole
        singly = serial(count, lambda t: self._tile(batch, block, first + t, 1, blocks, masked), "row")
        return tirx.IfThenElse(count >= pixels, whole, singly) if pixels > 1 else singly

    def _tile(
        self, batch: list[Expr], block: Expr, start: Expr, pixels: int, blocks: int, masked: bool, skip: Expr | None = None
    ) -> tirx.Stmt:
        """The first ``skip`` rows are stored already; the last of ``masked`` panels may be not full."""
        sums = tirx.decl_buffer((blocks, pixels, self.block), self.dtype, "sums")

        def each(body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
            return unrolled(blocks, lambda o: unrolled(pixels, lambda p: body(o, p), "p"), "o")

        def clear(o: Expr, p: Expr) -> tirx.Stmt:
            return vectorized(self.block, lambda v: tirx.BufferStore(sums, tirx.const(0, self.dtype), [o, p, v]))

        def step(k: Expr) -> tirx.Stmt:
            def add(o: Expr, p: Expr) -> tirx.Stmt:
                def lane(v: Expr) -> tirx.Stmt:
                    x = self._wide(self.of.left(batch, self._row(start + p), k))
                    w = self._wide(tirx.BufferLoad(self.panel, [*batch, block + o, k, v]))
                    return tirx.BufferStore(sums, tirx.BufferLoad(sums, [o, p, v]) + x * w, [o, p, v])

                return vectorized(self.block, lane)

            return unrolled(pixels, lambda p: unrolled(blocks, lambda o: add(o, p), "o"), "p")

        def finish(o: Expr, p: Expr) -> tirx.Stmt:
            def element(v: Expr) -> tuple[list[Expr], Expr]:
                return self._place(batch, start + p, (block + o) * self.block + v), tirx.BufferLoad(sums, [o, p, v])

            return self._unless_stored(p, skip, self.view.store(self.block, element))

        stores = each(finish)
        if masked:
            whole = (block + 1) * self.block <= self.of.columns
            stores = tirx.IfThenElse(whole, stores, self._store_some(batch, block, start, pixels, skip, sums))
        return sequence(registers(sums), each(clear), self._over_depth(step), stores)

    def _store_some(self, batch: list[Expr], block: Expr, start: Expr, pixels: int, skip: Expr | None, sums: tirx.Buffer) -> tirx.Stmt:
        """Stores the columns of a block that is not full. Its sums leave their registers first: the loop's indices vary."""
        kept = tirx.decl_buffer((pixels, self.block), self.dtype, "kept")

        def keep(p: Expr) -> tirx.Stmt:
            return vectorized(self.block, lambda v: tirx.BufferStore(kept, tirx.BufferLoad(sums, [const(0), p, v]), [p, v]))

        def row(p: Expr) -> tirx.Stmt:
            first = block * self.block
            store = serial(
                self.of.columns - first,
                lambda v: self.view.store(1, lambda _: (self._place(batch, start + p, first + v), tirx.BufferLoad(kept, [p, v]))),
                "v",
            )
            return self._unless_stored(p, skip, store)

        return sequence(registers(kept), unrolled(pixels, keep, "p"), serial(pixels, row, "p"))

    def _unless_stored(self, row: Expr, skip: Expr | None, store: tirx.Stmt) -> tirx.Stmt:
        return store if skip is None else tirx.IfThenElse(row >= skip, store, None)

    def _over_depth(self, step: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        depth = known(self.of.depth)
        if depth is None or depth % UNROLLED_STEPS:
            return serial(self.of.depth, step, "k")
        return serial(depth // UNROLLED_STEPS, lambda k: unrolled(UNROLLED_STEPS, lambda s: step(k * UNROLLED_STEPS + s), "s"), "k")

    def _row(self, row: Expr) -> list[Expr]:
        return unravel(row, self.of.rows)

    def _place(self, batch: list[Expr], row: Expr, column: Expr) -> list[Expr]:
        rows = self._row(row) if len(self.view.total.shape) > 1 else []
        return [*batch, *rows, column]

    def _wide(self, value: Expr) -> Expr:
        return value if str(value.ty) == self.dtype else tirx.Cast(self.dtype, value)


def _groups(columns: int, block: int, size: int) -> int:
    """Whole groups of ``size`` panels, then single panels."""
    whole = columns // (block * size)
    return whole + -(-columns // block) - whole * size


def _divides(extent: Expr, divisor: int) -> bool:
    number = known(extent)
    return number is not None and number % divisor == 0


DIRECT: dict[str, tuple[Direct, ...]] = {"packed_dense": (packed_dense,), "dense": (dense,), "matmul": (matmul,)}
