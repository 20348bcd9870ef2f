"""Packing of a matrix product's operands: the right one into panels, rows of the left one side by side for each tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.targets.schedules.emit import (
    clamped,
    const,
    known,
    parallel,
    product,
    registers,
    sequence,
    serial,
    task_indices,
    unrolled,
    vectorized,
)
from aotc.targets.schedules.product_tiles import RowTiles
from aotc.targets.schedules.tile_sums import QUAD

Expr = Any


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


def right(of: Operands, panel: tirx.Buffer, blocks: Expr, size: int) -> tirx.Stmt:
    """The nest that packs the right operand into ``blocks`` panels [.., block, K, size]. Columns beyond the last are zeros."""
    extents = [*of.batch, blocks]
    load = of.right
    assert load is not None

    def task(index: Expr) -> tirx.Stmt:
        *batch, block = task_indices(index, extents)

        def copy(k: Expr, checked: bool) -> tirx.Stmt:
            def element(v: Expr) -> tirx.Stmt:
                column = block * size + v
                if checked:
                    value = load(batch, k, clamped(column, of.columns))
                    value = tirx.Select(column < of.columns, value, tirx.const(0, str(panel.dtype)))
                else:
                    value = load(batch, k, column)
                return tirx.BufferStore(panel, value, [*batch, block, k, v])

            return serial(size, element, "v") if checked else vectorized(size, element)

        inner = serial(of.depth, lambda k: copy(k, False), "k")
        if divides(of.columns, size):
            return inner
        return tirx.IfThenElse((block + 1) * size <= of.columns, inner, serial(of.depth, lambda k: copy(k, True), "k"))

    return parallel(product(extents), task)


Load = Callable[["list[Expr]", Expr, Expr], Expr]
"""An element of the left operand at (batch, row, k), in the type of the sums."""


def left(of: Operands, packed: tirx.Buffer, tiles: Sequence[RowTiles], load: Load) -> tirx.Stmt:
    """The nest that packs the rows of each tile that ``is_packed``, step by step. A task packs one tile, the last one those
    that are smaller."""
    main = tiles[0]
    smaller = [part for part in tiles[1:] if is_packed(part.rows)]
    extents = [*of.batch, main.count + 1 if smaller else main.count]

    def some(batch: list[Expr], part: RowTiles) -> tirx.Stmt:
        return serial(part.count, lambda t: _rows(of, packed, batch, part.first + t * part.rows, part.rows, load), "t")

    def task(index: Expr) -> tirx.Stmt:
        *batch, tile = task_indices(index, extents)
        whole = _rows(of, packed, batch, main.first + tile * main.rows, main.rows, load)
        rest = [some(batch, part) for part in smaller]
        return tirx.IfThenElse(tile < main.count, whole, sequence(*rest)) if rest else whole

    return parallel(product(extents), task)


def is_packed(rows: int) -> bool:
    """Whether tiles of so many rows are packed, where any are."""
    return rows >= QUAD and rows % 2 == 0


def packed_base(of: Operands, batch: list[Expr], start: Expr) -> Expr:
    """Where the tile that begins with row ``start`` begins in the packed operand."""
    flat: Expr = const(0)
    for position, extent in zip(batch, of.batch, strict=True):
        flat = flat * extent + position
    return (flat * product(of.rows) + start) * of.depth


def _rows(of: Operands, packed: tirx.Buffer, batch: list[Expr], start: Expr, rows: int, load: Load) -> tirx.Stmt:
    base, dtype = packed_base(of, batch, start), str(packed.dtype)

    def square(k: Expr, p: Expr, high: int) -> tirx.Stmt:
        """Four steps of ``high`` rows, turned over in registers."""
        held = tirx.decl_buffer((high, QUAD), dtype, "held")

        def fill(r: Expr) -> tirx.Stmt:
            return vectorized(QUAD, lambda v: tirx.BufferStore(held, load(batch, start + p + r, k + v), [r, v]))

        def store(s: Expr) -> tirx.Stmt:
            at = base + (k + s) * rows + p
            return vectorized(high, lambda v: tirx.BufferStore(packed, tirx.BufferLoad(held, [v, s]), [at + v]))

        return sequence(registers(held), unrolled(high, fill, "r"), unrolled(QUAD, store, "s"))

    def squares(k: Expr) -> tirx.Stmt:
        full, rest = divmod(rows, QUAD)
        parts = [unrolled(full, lambda p: square(k, p * QUAD, QUAD), "p")] if full else []
        return sequence(*parts, *([square(k, const(full * QUAD), rest)] if rest else []))

    def single(k: Expr) -> tirx.Stmt:
        return serial(rows, lambda p: tirx.BufferStore(packed, load(batch, start + p, k), [base + k * rows + p]), "p")

    whole = tirx.floordiv(of.depth, const(QUAD)) if known(of.depth) is None else const(int(known(of.depth) or 0) // QUAD)
    body = serial(whole, lambda k: squares(k * QUAD), "k")
    if divides(of.depth, QUAD):
        return body
    return sequence(body, serial(of.depth - whole * QUAD, lambda k: single(whole * QUAD + k), "k"))


def divides(extent: Expr, divisor: int) -> bool:
    """Whether an extent is surely a multiple of ``divisor``."""
    number = known(extent)
    return number is not None and number % divisor == 0
