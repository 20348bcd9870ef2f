"""How many sums a kernel keeps in registers at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """Blocks of output channels or columns, by pixels or rows."""

    blocks: int
    pixels: int

    def __str__(self) -> str:
        return f"{self.blocks}x{self.pixels}"


def tiles(registers: int, vectors: int, blocks: int | None, row: int | None, depthwise: bool = False) -> list[Tile]:
    """Tiles, from the least estimated time per useful multiply-add to the greatest.

    ``vectors`` is how many registers one block takes, ``blocks`` what the tile's blocks must divide, ``row`` the length of a
    row where it is known. The model: two multiply-adds and two loads a cycle, and eight multiply-adds in flight to hide their
    latency of four.
    """
    found: list[tuple[float, Tile]] = []
    # Where registers are many, LLVM moves loads far ahead of their use: without room for that it spills sums.
    spare = (2 if depthwise else 1) if registers <= 16 else 6
    for group in (1,) if depthwise else (1, 2, 3, 4, 6, 8):
        if blocks is not None and blocks % group:
            continue
        columns = group * vectors
        for pixels in range(1, 29):
            sums = columns * pixels
            if (pixels > 1 and sums + min(columns, 2) + spare > registers) or (row is not None and pixels > max(row, 1)):
                break
            if columns > registers - 3:
                continue
            # A weight comes from farther away than an input, which the next block reads again.
            loads = sums + pixels if depthwise else 1.5 * columns + pixels
            cycles = max(sums / 2, loads / 2, 4.0)
            waste = 1.0 if row is None or row == 0 else -(-row // pixels) * pixels / row
            cost = cycles / sums * waste + 0.05 / sums  # of equals, the larger tile reads less
            found.append((round(cost, 9), Tile(group, pixels)))
    return [tile for _, tile in sorted(found, key=lambda pair: pair[0])] or [Tile(1, 1)]
