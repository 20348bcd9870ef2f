"""How a matrix product is cut into tiles of sums, and its rows into tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.targets.base import Target
from aotc.targets.schedules.emit import const, known
from aotc.targets.schedules.tile import Tile, tiles
from aotc.targets.schedules.tile_sums import QUAD, by_element

Expr = Any

SPARE = 3
"""Registers that LLVM needs to move loads ahead of their use; with fewer it spills sums."""
PACKED_COLUMNS = 128
"""Columns from which on packing the left operand, which costs an instruction or two an element, is repaid."""
ONE_ROW_PANELS = 5
"""Panels that one row multiplies at a time: their weights come from memory, which is fetched ahead of use in few places at once (measured
on Zen 4: over a tenth faster than 8)."""
SHORT = 8
"""Rows of the largest tile for rows that fill no whole one, where left elements come as vectors."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A tile of panels (blocks) by rows (pixels); ``packed``: whether the left operand is packed first."""

    tile: Tile
    packed: bool = False

    def __str__(self) -> str:
        return f"{self.tile} packed" if self.packed else str(self.tile)


@dataclass(frozen=True, slots=True)
class RowTiles:
    """``count`` tiles of ``rows`` rows from row ``first`` on."""

    first: Expr
    count: Expr
    rows: int


def plans(target: Target, dtype: str, vectors: int, rows: int | None, columns: int | None, blocks: int | None) -> list[Plan]:
    """Plans, from the least estimated time to the greatest. ``vectors`` is how many registers a panel takes."""
    if not by_element(target, dtype):
        found = tiles(target.vector_registers, vectors, None, None)
        fitting = [t for t in found if t.blocks <= max(blocks or t.blocks, 1) and t.pixels <= max(rows or t.pixels, 1)]
        if rows == 1:
            fitting.sort(key=lambda tile: tile.blocks > ONE_ROW_PANELS)
        return [Plan(tile) for tile in fitting]
    costs: dict[Plan, float] = {}
    for packed in (False, True):
        if packed and ((columns is not None and columns < PACKED_COLUMNS) or (rows is not None and rows < QUAD)):
            continue
        for group in (1, 2, 3, 4, 6, 8):
            wide = group * vectors
            for height in range(QUAD, 25, 2) if packed else range(1, 17):
                left = height // QUAD * (1 if height % QUAD == 0 else 2) + height % QUAD // 2 if packed else height
                fits = wide * height + wide + left <= target.vector_registers - SPARE
                if fits and (blocks is None or group <= max(blocks, 1)) and (rows is None or height <= max(rows, 1)):
                    costs[Plan(Tile(group, height), packed)] = _cost(wide, height, packed, rows)
    return sorted(costs, key=lambda plan: costs[plan]) or [Plan(Tile(1, 1))]


def _cost(wide: int, height: int, packed: bool, rows: int | None) -> float:
    """Instructions a step per useful multiply-add: loads come in pairs; fewer than eight sums wait for one another."""

    def step(height: int) -> float:
        loads = wide / 2 + (height / (2 * QUAD) if packed else height / QUAD)
        return max(wide * height, 8) + loads + 0.4

    whole, rest = divmod(rows if rows is not None else 16 * height, height)
    return (whole * step(height) + (step(rest) if rest else 0)) / (wide * max(rows or 16 * height, 1))


def row_tiles(rows: Expr, height: int, short: bool) -> list[RowTiles]:
    """Whole tiles, then tiles for the rows that are left: at most ``SHORT`` high where ``short``. Those left of a number known
    only at run time are done by four and one by one."""
    number = known(rows)
    if number is not None:
        whole = number // height
        found, first = [RowTiles(const(0), const(whole), height)], whole * height
        while first < number:
            rest = number - first
            size = rest if not short or rest < QUAD else SHORT if rest >= SHORT else QUAD
            found.append(RowTiles(const(first), const(1), size))
            first += size
        return found
    whole = tirx.floordiv(rows, const(height))
    found, first = [RowTiles(const(0), whole, height)], whole * height
    for size in (QUAD, 1):
        if size < height:
            count = tirx.floordiv(rows - first, const(size))
            found.append(RowTiles(first, count, size))
            first = first + count * size
    return found
