"""What a Winograd kernel chooses: the order of its tiles, which products each needs, sizes by estimated time.

Tiles at the end of an axis that does not divide by the tile have fewer outputs and need fewer products. Where all tiles of an
image make one group, they are ordered so that those which need a product are neighbours: first the row of short tiles without
its last one, then the whole tiles, then the column of short tiles, last the tile in the corner.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from aotc.lowering.ops.winograd import positions
from aotc.targets import Target
from aotc.targets.schedules.tile import Tile


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of ``size``, giving ``out`` in tiles of ``tile``. ``before`` is the padding at its begin."""

    size: int
    out: int
    before: int
    tile: int

    @property
    def count(self) -> int:
        return -(-self.out // self.tile)

    @property
    def rest(self) -> int:
        """Outputs of the last tile."""
        return self.out - (self.count - 1) * self.tile

    @property
    def whole(self) -> int:
        """Tiles before the short one, if there is a short one."""
        return self.count - (self.rest < self.tile)

    def inside(self, number: int) -> tuple[int, int]:
        """The range of a tile's inputs that are not padding."""
        start = number * self.tile - self.before
        return max(0, -start), min(self.tile + 2, self.size - start)

    def runs(self, begin: int, end: int) -> list[tuple[int, int, int, int]]:
        """(begin, end, low, high): the tiles from ``begin`` to ``end``, in runs whose inputs low to high are inside."""
        found: list[tuple[int, int, int, int]] = []
        for number in range(begin, end):
            low, high = self.inside(number)
            if found and found[-1][2:] == (low, high):
                begin = found.pop()[0]
            else:
                begin = number
            found.append((begin, number + 1, low, high))
        return found


@dataclass(frozen=True, slots=True)
class Area:
    """Tiles of the same kind: rows, columns, the number of the first, and how many outputs one has along rows and columns."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    first: int
    outputs: tuple[int, int]

    @property
    def count(self) -> int:
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])


@dataclass(frozen=True, slots=True)
class Share:
    """Products that the same tiles need: those at ``rows`` x ``columns`` of the points, for ``count`` tiles from ``first`` on."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    first: int
    count: int


def areas(rows: Axis, columns: Axis) -> list[Area]:
    """The tiles of an image as one group, in their order."""
    short = (rows.rest, columns.rest)
    spans = [
        ((rows.whole, rows.count), (0, columns.whole), (short[0], columns.tile)),
        ((0, rows.whole), (0, columns.whole), (rows.tile, columns.tile)),
        ((0, rows.whole), (columns.whole, columns.count), (rows.tile, short[1])),
        ((rows.whole, rows.count), (columns.whole, columns.count), short),
    ]
    found: list[Area] = []
    for span in spans:
        area = Area(span[0], span[1], sum(area.count for area in found), span[2])
        if area.count:
            found.append(area)
    return found


def shares(rows: Axis, columns: Axis) -> list[Share]:
    """The products of an image's tiles."""
    tile, found = rows.tile, []
    kept = [set(positions(tile, axis.rest)) for axis in (rows, columns)]
    parts = [(tuple(sorted(some)), tuple(i for i in range(tile + 2) if i not in some)) for some in kept]
    for i, j in itertools.product((0, 1), (0, 1)):
        # Products beyond those of short tiles are for the tiles that are whole along that axis.
        needed = [area for area in areas(rows, columns) if all(not more or area.outputs[axis] == tile for axis, more in enumerate((i, j)))]
        if parts[0][i] and parts[1][j] and needed:
            found.append(Share(parts[0][i], parts[1][j], needed[0].first, sum(area.count for area in needed)))
    return found


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the estimates of time depend on. ``panel`` is how many blocks of weights stand together."""

    count: int
    wide: int
    channels: int
    blocks: int
    block: int
    panel: int
    lanes: int
    in_lanes: int


def tiles_by_time(of: Sizes, count: int, target: Target) -> list[Tile]:
    """Blocks of outputs by tiles of the image whose sums are in registers, by estimated time for ``count`` tiles of the image."""
    found: list[tuple[float, Tile]] = []
    by_element = target.multiplies_by_element
    for blocks, pixels in itertools.product((1, 2, 3, 4, 6, 8), range(1, min(count, 28) + 1)):
        columns = blocks * of.block // of.lanes
        sums = columns * pixels
        # The first is always there. Registers hold sums, inputs and weights.
        if found and sums + (pixels + 4 if by_element else columns + 1) > target.vector_registers:
            continue
        if of.blocks % blocks or (of.panel % blocks and blocks % of.panel):
            continue
        # Inputs come from the innermost cache; elsewhere wide vectors of weights come from farther away.
        loads = columns / 2 + pixels / 2 / of.in_lanes if by_element else 2.25 * columns + pixels
        streams = max(1, blocks // of.panel) - 1 if by_element else 0
        cycles = max(sums / target.multiply_adds, loads / 2, 4.0)
        once = (3 * sums + 20) / of.channels
        shared = -(-target.cores // (of.blocks // blocks))  # parts of the tiles for as many tasks as there are cores
        chunks = -(-count // pixels)
        waste = -(-chunks // shared) * min(shared, chunks) * pixels / count
        found.append((round((cycles + 0.1 * (sums + loads + streams + once)) * waste / sums, 6), Tile(blocks, pixels)))
    return [tile for _, tile in sorted(found, key=lambda pair: pair[0])]


def groups_by_time(of: Sizes, sums: Tile, fewest: int, target: Target) -> list[int]:
    """How many tiles make a group, by estimated time with one thread and with one a core: for the products, of which a single
    group has ``fewest``, or for reading meanwhile weights once and inputs once for all blocks of a register tile, whichever takes
    longer; and for writing the inputs."""
    weights = 4 * of.wide**2 * of.channels * of.blocks * of.block
    chunks, pieces = -(-of.count // sums.pixels), of.blocks // sums.blocks
    product = of.channels * of.blocks * of.block / of.lanes / target.multiply_adds
    found: dict[int, float] = {}
    for wanted in range(1, chunks + 1):
        share = -(-chunks // wanted)
        groups, v = -(-chunks // share), 4 * of.wide**2 * share * sums.pixels * of.channels
        alone = is_alone(groups, target)
        products = product * (fewest if groups == 1 else share * sums.pixels * of.wide**2)
        reading = weights / _reading(weights, target) + pieces * v / _reading(v, target)
        writing = v / _writing(v if alone else groups * v, target)
        time = groups * (max(products, reading) + writing)
        tasks = groups if alone else groups * pieces
        longest = -(-tasks // target.cores) * time / tasks
        shared = 0.0 if alone else groups * v / target.cores / SHARED_BYTES
        found[share * sums.pixels] = longest + time / target.cores + shared
    return sorted(found, key=found.__getitem__)


def is_alone(groups: int, target: Target) -> bool:
    """Whether a task does all of a group, its input too: so no core reads what another one transformed."""
    return groups >= 3 * target.cores or groups == target.cores


SHARED_BYTES = 2.0
"""Bytes a cycle that a core writes where another one has read: its copies have to be called back first (measured on Zen 4: 2.7 with
a third cache between the two, else 0.6)."""


def _reading(size: int, target: Target) -> float:
    """How many bytes a core reads in a cycle of ``size`` that it reads again and again: rough figures of its caches."""
    if size <= target.l2_bytes // 2:
        return 16.0
    return 12.0 if size <= target.l3_bytes // 2 else target.memory_bytes


def _writing(size: int, target: Target) -> float:
    """How many bytes a core writes in a cycle of ``size`` that it writes in many places while weights pass through its caches, to read
    them after that (measured on Zen 4: 2.5 beyond the second cache)."""
    if size <= target.l2_bytes // 4:
        return 16.0
    return 2.5 if size <= target.l3_bytes // 2 else target.memory_bytes / 3
