"""How many sums a kernel keeps in registers at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """Blocks of output channels or columns, by pixels or rows."""

    blocks: int
    pixels: int

    def __str__(self) -> str:
        return f"{self.blocks}x{self.pixels}"


@dataclass(frozen=True, slots=True)
class Step:
    """What a tile of convolution does between two loads of its inputs. For ``pixels``, ``loads`` counts vectors of inputs
    loaded and ``live`` those in registers at a time; each pixel and column has ``products`` multiply-adds, as many weights
    being loaded for a column. ``by_element``: weights are loaded in pairs and multiply one element of an input; else inputs
    are vectors that multiply vectors."""

    loads: Callable[[int], int]
    live: Callable[[int], int]
    products: int
    by_element: bool


def tiles(registers: int, vectors: int, blocks: int | None, row: int | None, step: Step | None = None, shorter: bool = False) -> list[Tile]:
    """Tiles, from the least estimated time per useful multiply-add to the greatest.

    ``vectors`` is how many registers one block takes, ``blocks`` what the tile's blocks must divide, ``row`` the length of a
    row where it is known; its last tile is ``shorter`` than the others or overlaps them. Without a ``step`` each input is
    broadcast from memory. The model: two multiply-adds and two loads a cycle, eight multiply-adds in flight to hide their
    latency of four, and a little for every other instruction.
    """
    found: list[tuple[float, Tile]] = []
    for group in (1, 2, 3, 4, 5, 6, 8) if step is None or step.by_element else (1,):
        if blocks is not None and blocks % group:
            continue
        columns = group * vectors
        for pixels in range(1, 29):
            if (pixels > 1 and _registers(columns, pixels, registers, step) > registers) or (row is not None and pixels > max(row, 1)):
                break
            if columns > registers - 3:
                continue
            cycles = _cycles(columns, pixels, step)
            if row is None or row == 0:
                cost = cycles / (columns * pixels)
            elif shorter:
                rest = _cycles(columns, row % pixels, step) if row % pixels else 0.0
                cost = (cycles * (row // pixels) + rest) / (columns * row)
            else:
                cost = cycles / (columns * pixels) * (-(-row // pixels) * pixels / row)
            found.append((round(cost + 0.05 / (columns * pixels), 9), Tile(group, pixels)))  # of equals, the larger tile reads less
    return [tile for _, tile in sorted(found, key=lambda pair: pair[0])] or [Tile(1, 1)]


def _registers(columns: int, pixels: int, registers: int, step: Step | None) -> int:
    """Sums, inputs and weights. Where registers are many, LLVM moves loads far ahead of their use: without room for that it
    spills sums."""
    sums = columns * pixels
    if step is not None and step.by_element:
        return sums + step.live(pixels) + (4 if columns <= 2 else 2)  # weights come in pairs
    if step is not None:
        return sums + step.live(pixels) + step.products
    return sums + min(columns, 2) + (1 if registers <= 16 else 6)


def _cycles(columns: int, pixels: int, step: Step | None) -> float:
    """The time of one input channel, or of one tap of a depthwise convolution."""
    sums = columns * pixels
    if step is None:
        # A weight comes from farther away than an input, which the next block reads again.
        return float(max(sums / 2, (1.5 * columns + pixels) / 2, 4.0))
    loads = step.loads(pixels) / step.products
    loads += columns if step.by_element else 1.0
    return float(max(sums / 2, loads / 2, 4.0) + 0.1 * loads + OVERHEAD / step.products)


OVERHEAD = 1.0
"""Cycles that a step takes for its addresses and its loop."""
