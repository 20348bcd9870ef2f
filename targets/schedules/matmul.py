"""Matrix products, written as TIR: matmul, dense and packed_dense.

The right operand lies in panels [block, K, b], packed at build (packed_dense) or by a kernel that runs first. A task computes
some rows of one group of panels in tiles whose sums stay in registers, each left element broadcast against a vector of a
panel (Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008). Where vectors can be multiplied by one
element of another, a kernel packs the left operand too where it is used often enough. Rows that fill no tile have smaller
tiles of their own, over more panels.
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
from aotc.targets.schedules.product_tiles import Plan, RowTiles, plans, row_tiles
from aotc.targets.schedules.tile_sums import QUAD, Broadcasts, Left, PackedRows, RowRuns, TileSums, by_element

Expr = Any

TILES_PER_TASK = 16
VECTORS_PER_TASK = 8
"""Vectors of columns that a task has at least, for the sums of few rows."""


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
        self.view, self.of, self.target = view, operands, work.target
        self.dtype = str(view.total.dtype)
        self.lanes = work.target.lanes(self.dtype)
        self.rows = product(operands.rows)
        self.block = self.lanes if operands.panel is None else int(known(operands.panel.shape[-1]) or 1)
        count = known(operands.columns)
        self.blocks = (
            tirx.floordiv(operands.columns + (self.block - 1), const(self.block)) if count is None else const(-(-count // self.block))
        )
        self.by_element = by_element(work.target, self.dtype)
        self.plan: Plan = work.choices.pick(
            "tile", plans(work.target, self.dtype, max(1, self.block // self.lanes), known(self.rows), count, known(self.blocks))
        )
        self.tiles = row_tiles(self.rows, self.plan.tile.pixels, self.by_element)
        self.panel = operands.panel if operands.panel is not None else self._new_panel()
        size = product([*operands.batch, self.rows, operands.depth])
        self.packed = tirx.decl_buffer((size,), self.dtype, "left") if self.plan.packed else None

    def _new_panel(self) -> tirx.Buffer:
        shape = [*self.of.batch, self.blocks, self.of.depth, const(self.block)]
        return tirx.decl_buffer(shape, str(self.view.operands[1].dtype), "panels")

    def function(self) -> tirx.PrimFunc:
        nests, scratch = [], []
        if self.of.panel is None:
            nests.append(self._packing())
            scratch.append(self.panel)
        if self.packed is not None:
            nests.append(self._packing_left(self.packed))
            scratch.append(self.packed)
        return prim_func(self.view.params, sequence(*nests, self._product()), scratch)

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

    def _packing_left(self, packed: tirx.Buffer) -> tirx.Stmt:
        """The rows of each tile of four rows or more side by side, step by step. A task packs one tile, the last one those
        that are smaller."""
        main = self.tiles[0]
        smaller = [part for part in self.tiles[1:] if self._is_packed(part.rows)]
        extents = [*self.of.batch, main.count + 1 if smaller else main.count]

        def task(index: Expr) -> tirx.Stmt:
            *batch, tile = task_indices(index, extents)
            whole = self._pack_rows(packed, batch, main.first + tile * main.rows, main.rows)
            rest = [
                serial(part.count, lambda t, part=part: self._pack_rows(packed, batch, part.first + t * part.rows, part.rows), "t")  # type: ignore[misc]
                for part in smaller
            ]
            return tirx.IfThenElse(tile < main.count, whole, sequence(*rest)) if rest else whole

        return parallel(product(extents), task)

    def _pack_rows(self, packed: tirx.Buffer, batch: list[Expr], start: Expr, rows: int) -> tirx.Stmt:
        base = self._packed_base(batch, start)

        def square(k: Expr, p: Expr) -> tirx.Stmt:
            """Four steps of four rows, turned over in registers."""
            held = tirx.decl_buffer((QUAD, QUAD), self.dtype, "held")

            def load(r: Expr) -> tirx.Stmt:
                return vectorized(QUAD, lambda v: tirx.BufferStore(held, self._left(batch, start + p + r, k + v), [r, v]))

            def store(s: Expr) -> tirx.Stmt:
                at = base + (k + s) * rows + p
                return vectorized(QUAD, lambda v: tirx.BufferStore(packed, tirx.BufferLoad(held, [v, s]), [at + v]))

            return sequence(registers(held), unrolled(QUAD, load, "r"), unrolled(QUAD, store, "s"))

        def single(k: Expr) -> tirx.Stmt:
            return serial(rows, lambda p: tirx.BufferStore(packed, self._left(batch, start + p, k), [base + k * rows + p]), "p")

        whole = tirx.floordiv(self.of.depth, const(QUAD)) if known(self.of.depth) is None else const(int(known(self.of.depth) or 0) // QUAD)
        squares = serial(whole, lambda k: unrolled(rows // QUAD, lambda p: square(k * QUAD, p * QUAD), "p"), "k")
        if _divides(self.of.depth, QUAD):
            return squares
        return sequence(squares, serial(self.of.depth - whole * QUAD, lambda k: single(whole * QUAD + k), "k"))

    def _packed_base(self, batch: list[Expr], start: Expr) -> Expr:
        flat: Expr = const(0)
        for position, extent in zip(batch, self.of.batch, strict=True):
            flat = flat * extent + position
        return (flat * self.rows + start) * self.of.depth

    def _left(self, batch: list[Expr], row: Expr, k: Expr) -> Expr:
        return self._wide(self.of.left(batch, self._row(row), k))

    # --- the product -----------------------------------------------------------------------------------------------

    def _product(self) -> tirx.Stmt:
        """Tasks over batch, row chunks and groups of panels. Panels that fill no group are done one at a time."""
        main = self.tiles[0].count
        tiles, columns = known(main), known(self.of.columns)
        chunks = tirx.max(const(1), tirx.floordiv(main, const(TILES_PER_TASK))) if tiles is None else const(max(1, tiles // TILES_PER_TASK))
        size = self._panels_per_task(known(chunks))
        whole = tirx.floordiv(self.of.columns, const(self.block * size)) if columns is None else const(columns // (self.block * size))
        groups = whole + (self.blocks - whole * size) if columns is None else const(_groups(columns, self.block, size))
        extents = [*self.of.batch, chunks, groups]

        def task(index: Expr) -> tirx.Stmt:
            *batch, chunk, group = task_indices(index, extents)
            full = self._rows(batch, group * size, chunk, chunks, size, masked=False)
            if known(whole) is not None and known(whole) == known(groups):
                return full
            masked = not _divides(self.of.columns, self.block)
            single = self._rows(batch, whole * size + (group - whole), chunk, chunks, 1, masked=masked)
            return single if known(whole) == 0 else tirx.IfThenElse(group < whole, full, single)

        return parallel(product(extents), task)

    def _panels_per_task(self, chunks: int | None) -> int:
        size, blocks = self.plan.tile.blocks, known(self.blocks)
        vectors = max(1, self.block // self.lanes)
        wide = size * max(1, VECTORS_PER_TASK // (size * vectors))
        batch = known(product(self.of.batch))
        if blocks is not None and chunks is not None and batch is not None and known(self.tiles[0].count) != 0:
            return wide if batch * chunks * (blocks // wide) >= 2 * self.target.cores else size
        return wide if blocks is None else min(wide, max(blocks, 1))

    def _rows(self, batch: list[Expr], block: Expr, chunk: Expr, chunks: Expr, panels: int, masked: bool) -> tirx.Stmt:
        """The rows of a chunk by ``panels`` panels from ``block`` on. The last chunk has the tiles that are left over."""
        main, *smaller = self.tiles
        one, last = known(chunks) == 1, chunk == chunks - 1
        first = chunk * TILES_PER_TASK
        count = main.count if one else tirx.Select(last, main.count - first, const(TILES_PER_TASK))
        parts = [self._panels(batch, block, RowTiles(first * main.rows, count, main.rows), panels, masked)]
        rest = [self._panels(batch, block, part, panels, masked) for part in smaller]
        if known(main.count) == 0:
            parts = []
        if rest:
            parts.append(sequence(*rest) if one else tirx.IfThenElse(last, sequence(*rest), None))
        return sequence(*parts)

    def _panels(self, batch: list[Expr], block: Expr, part: RowTiles, panels: int, masked: bool) -> tirx.Stmt:
        """Groups of panels, each by all the tiles of a part: as many panels together as the part's few rows leave room for."""
        size, most = 1, max(self.plan.tile.blocks * self.plan.tile.pixels // part.rows, 1)
        enough = -(-VECTORS_PER_TASK // (part.rows * max(1, self.block // self.lanes)))
        while part.rows < self.plan.tile.pixels and size < enough and panels % (2 * size) == 0 and 2 * size <= most:
            size *= 2
        if part.rows == self.plan.tile.pixels and panels % self.plan.tile.blocks == 0:
            size = self.plan.tile.blocks

        def group(g: Expr) -> tirx.Stmt:
            return serial(
                part.count, lambda t: self._tile(batch, block + g * size, part.first + t * part.rows, part.rows, size, masked), "tile"
            )

        return serial(panels // size, group, "panels")

    def _tile(self, batch: list[Expr], block: Expr, start: Expr, rows: int, blocks: int, masked: bool) -> tirx.Stmt:
        """The last of ``masked`` panels may be not full."""

        def right(o: Expr, k: Expr, v: Expr) -> Expr:
            return self._wide(tirx.BufferLoad(self.panel, [*batch, block + o, k, v]))

        tile = TileSums(self.dtype, blocks, rows, self.block, self.lanes, self.of.depth, self._left_of(batch, start, rows), right)
        sums = tile.buffer()

        def finish(o: Expr, p: Expr) -> tirx.Stmt:
            def element(v: Expr) -> tuple[list[Expr], Expr]:
                return self._place(batch, start + p, (block + o) * self.block + v), tirx.BufferLoad(sums, [o, p, v])

            return self.view.store(self.block, element)

        stores = tile.each(finish)
        if masked:
            whole = (block + 1) * self.block <= self.of.columns
            stores = tirx.IfThenElse(whole, stores, self._store_some(batch, block, start, rows, sums))
        return tile.write(sums, stores)

    def _left_of(self, batch: list[Expr], start: Expr, rows: int) -> Left:
        if self.packed is not None and self._is_packed(rows):
            return PackedRows(rows, self.packed, self._packed_base(batch, start))

        def element(p: Expr, k: Expr) -> Expr:
            return self._left(batch, start + p, k)

        return RowRuns(rows, self.dtype, element) if self.by_element else Broadcasts(element)

    def _is_packed(self, rows: int) -> bool:
        return rows % QUAD == 0

    def _store_some(self, batch: list[Expr], block: Expr, start: Expr, rows: int, sums: tirx.Buffer) -> tirx.Stmt:
        """Stores the columns of a block that is not full. Its sums leave their registers first: the loop's indices vary."""
        kept = tirx.decl_buffer((rows, self.block), self.dtype, "kept")

        def keep(p: Expr) -> tirx.Stmt:
            return vectorized(self.block, lambda v: tirx.BufferStore(kept, tirx.BufferLoad(sums, [const(0), p, v]), [p, v]))

        def row(p: Expr) -> tirx.Stmt:
            first = block * self.block
            return serial(
                self.of.columns - first,
                lambda v: self.view.store(1, lambda _: (self._place(batch, start + p, first + v), tirx.BufferLoad(kept, [p, v]))),
                "v",
            )

        return sequence(registers(kept), unrolled(rows, keep, "p"), serial(rows, row, "p"))

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
