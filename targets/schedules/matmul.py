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

from aotc.targets.schedules import product_packing as packing
from aotc.targets.schedules.base import SCRATCH, Direct, DirectWork
from aotc.targets.schedules.emit import (
    const,
    known,
    opaque,
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
from aotc.targets.schedules.fused import Fused, fused, prim_func, started
from aotc.targets.schedules.product_packing import Operands, divides, is_packed, packed_base
from aotc.targets.schedules.product_tiles import Plan, RowTiles, plans, row_tiles
from aotc.targets.schedules.tile_sums import MOST_STEPS, Broadcasts, Left, PackedRows, RowRuns, TileSums, by_element

Expr = Any

TILES_PER_TASK = 16
VECTORS_PER_TASK = 8
"""Vectors of columns that a task has at least, for the sums of few rows."""
REUSES = 4
"""Tiles that read a panel, from which on it is read in parts that stay in the innermost cache."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps [first, first + count) of K. Sums that are not ``new`` go on from those of the steps before; those that are not
    ``done`` are kept for the steps that follow."""

    first: Expr
    count: Expr
    new: bool = True
    done: bool = True


def packed_dense(work: DirectWork) -> tirx.PrimFunc | None:
    view = fused(work)
    if view is None:
        return None
    x, weight = view.operands
    rows = tuple(x.shape[:-1]) or (const(1),)

    def left(_: list[Expr], row: list[Expr], k: Expr) -> Expr:
        return tirx.BufferLoad(x, [*row, k] if len(x.shape) > 1 else [k])

    return _written(work, view, Operands((), rows, x.shape[-1], view.total.shape[-1], left, None, weight))


def dense(work: DirectWork) -> tirx.PrimFunc | None:
    view = fused(work)
    if view is None or len(view.operands[0].shape) < 2:
        return None
    x, weight = view.operands

    def left(_: list[Expr], row: list[Expr], k: Expr) -> Expr:
        return tirx.BufferLoad(x, [*row, k])

    def right(_: list[Expr], k: Expr, n: Expr) -> Expr:
        return tirx.BufferLoad(weight, [n, k])

    return _written(work, view, Operands((), tuple(x.shape[:-1]), x.shape[-1], weight.shape[0], left, right, None))


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

    return _written(work, view, Operands(batch, rows, a.shape[-1], b.shape[-1], left, right, None))


def _written(work: DirectWork, view: Fused, operands: Operands) -> tirx.PrimFunc | None:
    """The kernels; ``None`` where there is nothing to add up or to write: that needs no tiles."""
    if 0 in map(known, [*operands.batch, *operands.rows, operands.depth, operands.columns]):
        return None
    return _Product(work, view, operands).function()


def _broadcast(buffer: tirx.Buffer, index: list[Expr]) -> list[Expr]:
    """The batch indices of an operand: its axes are the last ones, those of extent 1 are repeated."""
    extents = list(buffer.shape[:-2])
    own = index[len(index) - len(extents) :] if extents else []
    return [const(0) if known(extent) == 1 else i for extent, i in zip(extents, own, strict=True)]


class _Product:
    """Writes the kernels."""

    def __init__(self, work: DirectWork, view: Fused, operands: Operands) -> None:
        self.of, self.target = operands, work.target
        self.dtype = str(view.total.dtype)
        self.lanes = work.target.lanes(self.dtype)
        self.rows = product(operands.rows)
        self.block = self.lanes if operands.panel is None else int(known(operands.panel.shape[-1]) or 1)
        # Columns beyond the last have no bias.
        self.view = started(view) if divides(operands.columns, self.block) else view
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
        self.task: Expr = const(0)
        self.partial = tirx.decl_buffer((1,), self.dtype, f"{SCRATCH}partial")

    def _new_panel(self) -> tirx.Buffer:
        shape = [*self.of.batch, self.blocks, self.of.depth, const(self.block)]
        return tirx.decl_buffer(shape, str(self.view.operands[1].dtype), "panels")

    def function(self) -> tirx.PrimFunc:
        nests, scratch = [], []
        if self.of.panel is None:
            nests.append(packing.right(self.of, self.panel, self.blocks, self.block))
            scratch.append(self.panel)
        if self.packed is not None:
            nests.append(packing.left(self.of, self.packed, self.tiles, self._left))
            scratch.append(self.packed)
        nests.append(self._product())
        return prim_func(
            self.view.params, sequence(*nests), scratch if self._steps_at_once(self.tiles[0]) is None else [*scratch, self.partial]
        )

    def _left(self, batch: list[Expr], row: Expr, k: Expr) -> Expr:
        return self._wide(self.of.left(batch, unravel(row, self.of.rows), k))

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
        kept = const(self._kept_size(known(main) if known(chunks) == 1 else None))
        self.partial = tirx.decl_buffer((product([*extents, kept]),), self.dtype, f"{SCRATCH}partial")

        def task(index: Expr) -> tirx.Stmt:
            self.task = index * kept
            *batch, chunk, group = task_indices(index, extents)
            full = self._rows(batch, group * size, chunk, chunks, size, masked=False)
            if known(whole) is not None and known(whole) == known(groups):
                return full
            masked = not divides(self.of.columns, self.block)
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

        def some(g: Expr, steps: _Steps) -> tirx.Stmt:
            def tile(t: Expr) -> tirx.Stmt:
                kept = self.task + t * (size * part.rows * self.block)
                return self._tile(batch, block + g * size, part.first + t * part.rows, part.rows, size, masked, steps, kept)

            return serial(part.count, tile, "tile")

        return serial(panels // size, lambda g: self._over_depth(part, lambda steps: some(g, steps)), "panels")

    def _over_depth(self, part: RowTiles, body: Callable[[_Steps], tirx.Stmt]) -> tirx.Stmt:
        """``body`` for all steps of K, or for one part of them after the other."""
        depth, size = self.of.depth, self._steps_at_once(part)
        if size is None:
            return body(_Steps(const(0), depth))
        whole = (int(known(depth) or 0) - 1) // size  # parts before the last
        first = body(_Steps(const(0), const(size), done=False))
        between = serial(whole - 1, lambda i: body(_Steps((i + 1) * size, const(size), new=False, done=False)), "part")
        last = body(_Steps(const(whole * size), depth - whole * size, new=False))
        return sequence(first, *([between] if whole > 1 else []), last)

    def _steps_at_once(self, part: RowTiles) -> int | None:
        """So many steps of K that a panel's stay in the innermost cache while all tiles of a part read them; ``None`` for all."""
        depth, tiles = known(self.of.depth), known(part.count)
        bytes_ = 0 if depth is None else depth * self.block * (self.target.vector_bits // 8 // self.lanes)
        room = self.target.l1_bytes * 3 // 4
        if depth is None or bytes_ <= room or part.rows != self.tiles[0].rows or (tiles is not None and tiles < REUSES):
            return None
        return -(-depth // (-(-bytes_ // room) * MOST_STEPS)) * MOST_STEPS

    def _kept_size(self, tiles: int | None) -> int:
        """Elements of the unfinished sums of a task."""
        most = 2 * TILES_PER_TASK - 1 if tiles is None else tiles
        return most * self.plan.tile.pixels * self.plan.tile.blocks * self.block

    def _tile(
        self, batch: list[Expr], block: Expr, start: Expr, rows: int, blocks: int, masked: bool, steps: _Steps, kept: Expr
    ) -> tirx.Stmt:
        """The last of ``masked`` panels may be not full; ``kept`` is where unfinished sums are."""

        def right(o: Expr, k: Expr, v: Expr) -> Expr:
            number = known(o) if self.by_element else 0
            at = block + (opaque(number) if number else o)
            return self._wide(tirx.BufferLoad(self.panel, [*batch, at, steps.first + k, v]))

        left = self._left_of(batch, start, rows, steps.first)
        tile = TileSums(self.dtype, blocks, rows, self.block, self.lanes, steps.count, left, right)
        sums = tile.buffer()

        def place(o: Expr, p: Expr, v: Expr) -> list[Expr]:
            return [kept + (o * rows + p) * self.block + v]

        def keep(o: Expr, p: Expr) -> tirx.Stmt:
            return vectorized(self.block, lambda v: tirx.BufferStore(self.partial, tirx.BufferLoad(sums, [o, p, v]), place(o, p, v)))

        def finish(held: tirx.Buffer, o: Expr, p: Expr) -> tirx.Stmt:
            def element(v: Expr) -> tuple[list[Expr], Expr]:
                return self._place(batch, start + p, (block + o) * self.block + v), tirx.BufferLoad(held, [o, p, v])

            return self.view.store(self.block, element)

        def begin(o: Expr, p: Expr, v: Expr) -> Expr:
            if steps.new:
                return self.view.start(self._place(batch, start + p, (block + o) * self.block + v))
            return tirx.BufferLoad(self.partial, place(o, p, v))

        if not steps.done:
            return tile.write(sums, tile.each(keep), begin)
        stores = self.view.finish_all(sums, tile.each, finish)
        if masked:
            whole = (block + 1) * self.block <= self.of.columns
            stores = tirx.IfThenElse(whole, stores, self._store_some(batch, block, start, rows, sums))
        return tile.write(sums, stores, begin)

    def _left_of(self, batch: list[Expr], start: Expr, rows: int, first: Expr) -> Left:
        """The left elements of a tile, from step ``first`` on."""
        if self.packed is not None and is_packed(rows):
            return PackedRows(rows, self.packed, packed_base(self.of, batch, start) + first * rows)

        def element(p: Expr, k: Expr) -> Expr:
            return self._left(batch, start + p, first + k)

        return RowRuns(rows, self.dtype, element) if self.by_element else Broadcasts(element)

    def _store_some(self, batch: list[Expr], block: Expr, start: Expr, rows: int, sums: tirx.Buffer) -> tirx.Stmt:
        """Stores the columns of a block that is not full: in shorter vectors, or, where only a run tells how many there are, one by one
        from memory."""
        columns = known(self.of.columns)
        if columns is not None:
            parts = _shorter(columns % self.block, self.lanes)

            def some(p: Expr, first: int, lanes: int) -> tirx.Stmt:
                def element(v: Expr) -> tuple[list[Expr], Expr]:
                    return self._place(batch, start + p, block * self.block + first + v), tirx.BufferLoad(sums, [const(0), p, first + v])

                return self.view.store(lanes, element)

            return unrolled(rows, lambda p: sequence(*(some(p, first, lanes) for first, lanes in parts)), "p")
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

    def _place(self, batch: list[Expr], row: Expr, column: Expr) -> list[Expr]:
        rows = unravel(row, self.of.rows) if len(self.view.total.shape) > 1 else []
        return [*batch, *rows, column]

    def _wide(self, value: Expr) -> Expr:
        return value if str(value.ty) == self.dtype else tirx.Cast(self.dtype, value)


def _shorter(count: int, lanes: int) -> list[tuple[int, int]]:
    """``count`` elements in vectors of powers of two, of ``lanes`` at most: where each begins and how long it is."""
    parts, first = [], 0
    while first < count:
        while lanes > count - first:
            lanes //= 2
        parts.append((first, lanes))
        first += lanes
    return parts


def _groups(columns: int, block: int, size: int) -> int:
    """Whole groups of ``size`` panels, then single panels."""
    whole = columns // (block * size)
    return whole + -(-columns // block) - whole * size


DIRECT: dict[str, tuple[Direct, ...]] = {"packed_dense": (packed_dense,), "dense": (dense,), "matmul": (matmul,)}
