"""What contractions on CUDA cores and on tensor cores share: which block computes which tile, and how tiles are loaded ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.targets.base import Gpu
from aotc.targets.schedules.address import stride
from aotc.targets.schedules.cuda.contraction import Contraction
from aotc.targets.schedules.cuda.elementwise import size
from aotc.targets.schedules.cuda.launch import BLOCK, barrier, call
from aotc.targets.schedules.cuda.operand import Source, Tile, decoded
from aotc.targets.schedules.loops import const, known, loop, sequence

Expr = Any
Env = Mapping[tirx.Var, Expr]

SPLITS = (1, 2, 4, 8, 16, 32)
"""Into how many parts the depth may be cut where blocks would be few."""
FEW = 4
"""Rows, columns or depths that are not worth a tile."""
GUESS = 64
"""What an extent known only at run time is taken for where times are estimated."""


@dataclass(frozen=True)
class Problem:
    """The extents of a contraction, guessed where ``static`` is false."""

    batch: int
    rows: int
    columns: int
    depth: int
    static: bool

    @staticmethod
    def of(problem: Contraction) -> Problem:
        sizes = [size(axes) for axes in (problem.batch, problem.rows, problem.columns, problem.depth)]
        values = [known(extent) for extent in sizes]
        batch, rows, columns, depth = (GUESS if value is None else value for value in values)
        return Problem(batch, rows, columns, depth, None not in values)

    def is_small(self, problem: Contraction) -> bool:
        """Whether tiles are of no use: few rows or columns whose operands are read along the depth (a warp for each sum does that as
        well), or next to no depth."""
        if self.depth < FEW or min(self.rows, self.columns) == 0 or not problem.columns:
            return True
        if self.rows >= FEW and self.columns >= FEW:
            return False
        large = Source(problem.right, problem.columns, problem.depth) if self.rows < self.columns else Source(problem.left, problem.rows, problem.depth)  # fmt: skip
        plain = large.plain()
        return plain is None or not problem.depth or stride(plain.load.indices[0], problem.depth[-1].var) == 1

    def blocks(self, rows: int, columns: int) -> int:
        return self.batch * -(-self.rows // rows) * -(-self.columns // columns)


@dataclass(frozen=True)
class Cost:
    """What a block of a contraction does: tiles of ``rows`` by ``columns`` by ``depth``, ``stages`` in flight, the depth in ``split``
    parts; ``multiplies`` are multiply-adds that a multiprocessor does in a cycle, ``resident`` blocks of ``warps`` warps that fit it."""

    rows: int
    columns: int
    depth: int
    stages: int
    split: int
    multiplies: float
    resident: int
    warps: int
    itemsize: int


LATENCY_CYCLES = 600
"""From the start of a load from memory to its use."""
BUSY_WARPS = 8
"""Warps of a multiprocessor from which on its arithmetic waits for nothing but itself."""
CACHE_BYTES = 32
"""Bytes that a multiprocessor reads from the second-level cache in a cycle."""
LAUNCH_SECONDS = 7e-6
"""What one launch more costs: itself, and that the GPU runs empty and fills again."""


def seconds(cost: Cost, sizes: Problem, gpu: Gpu) -> float:
    """A rough time: a turn of the loop over the depth takes as long as its multiply-adds, its loads, or their latency."""
    blocks = sizes.blocks(cost.rows, cost.columns) * cost.split
    together = min(cost.resident, -(-blocks // gpu.multiprocessors))
    busy = min(1.0, together * cost.warps / BUSY_WARPS)
    multiply = cost.rows * cost.columns * cost.depth / (cost.multiplies * busy)
    load = (cost.rows + cost.columns) * cost.depth * cost.itemsize / CACHE_BYTES
    turn = max(together * multiply, together * load, LATENCY_CYCLES / (cost.stages - 1))
    turns = -(-sizes.depth // (cost.split * cost.depth)) + 2
    cycles = -(-blocks // (gpu.multiprocessors * together)) * turn * turns + LATENCY_CYCLES
    sums = sizes.batch * sizes.rows * sizes.columns * 8 * cost.split / (gpu.memory_gbs * 1e9) + LAUNCH_SECONDS if cost.split > 1 else 0.0
    return cycles / (gpu.clock_ghz * 1e9) + sums


def _ceildiv(extent: Expr, tile: int) -> Expr:
    whole = known(extent)
    return const(-(-whole // tile)) if whole is not None else tirx.floordiv(extent + const(tile - 1), const(tile))


class Grid:
    """Blocks over tiles of ``rows`` by ``columns`` of each matrix of the batch, and over parts of the depth. Blocks of one column
    of tiles follow each other, so that what they share of the right operand is in the cache."""

    def __init__(self, problem: Contraction, rows: int, columns: int, depth: int, split: int) -> None:
        self.problem, self.rows, self.columns = problem, rows, columns
        self.row_extent, self.column_extent = size(problem.rows), size(problem.columns)
        self.row_tiles, self.column_tiles = _ceildiv(self.row_extent, rows), _ceildiv(self.column_extent, columns)
        self.tiles = _ceildiv(size(problem.depth), depth)
        self.split = split
        self.first_row, self.first_column, self.part = (tirx.Var(name, "int32") for name in ("first_row", "first_column", "part"))
        self.matrix = tirx.Var("matrix", "int32")
        self.blocks = size(problem.batch) * self.row_tiles * self.column_tiles * const(split)

    @property
    def env(self) -> dict[tirx.Var, Expr]:
        """The batch's axes."""
        return decoded(self.matrix, self.problem.batch)

    def bound(self, body: tirx.Stmt) -> tirx.Stmt:
        """``body`` with the names of the block's place."""
        left: Expr = BLOCK
        names: list[tirx.Stmt] = []

        def take(extent: Expr) -> Expr:
            nonlocal left
            if known(extent) == 1:
                return const(0)
            value, left = tirx.truncmod(left, extent), tirx.truncdiv(left, extent)
            return value

        names.append(tirx.stmt.Bind(self.first_row, take(self.row_tiles) * const(self.rows)))
        names.append(tirx.stmt.Bind(self.first_column, take(self.column_tiles) * const(self.columns)))
        names.append(tirx.stmt.Bind(self.part, take(const(self.split))))
        names.append(tirx.stmt.Bind(self.matrix, left if self.problem.batch else const(0)))
        return sequence([*names, body])

    def depth_tiles(self) -> tuple[Expr, Expr]:
        """The first tile of this block's part of the depth, and how many it has."""
        whole = known(self.tiles)
        if self.split == 1 or whole is None:
            return const(0), self.tiles
        each = -(-whole // self.split)
        first = self.part * const(each)
        return first, const(each) if whole % self.split == 0 else tirx.max(const(0), tirx.min(const(each), const(whole) - first))

    def guarded(self, row: Expr, column: Expr, body: Callable[[Env], tirx.Stmt]) -> tirx.Stmt:
        """``body`` where row and column exist."""
        conditions = []
        for index, extent, tile in ((row, self.row_extent, self.rows), (column, self.column_extent, self.columns)):
            whole = known(extent)
            if whole is None or whole % tile:
                conditions.append(index < extent)
        stmt = body({**self.env, **decoded(row, self.problem.rows)})
        return tirx.IfThenElse(tirx.all(*conditions), stmt, None) if conditions else stmt


class Pipeline:
    """The loop over tiles of the depth: while one is multiplied, the next ``stages`` - 1 are on their way."""

    def __init__(self, grid: Grid, tiles: Sequence[Tile], stages: int) -> None:
        self.grid, self.tiles, self.stages = grid, tiles, stages
        self.asynchronous = any(tile.asynchronous for tile in tiles)
        self.first, self.count = grid.depth_tiles()

    def loop(self, multiply: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        ahead = self.stages - 1
        start: list[tirx.Stmt] = []
        for i in range(ahead):
            start.append(self._if_any(const(i), sequence([self._begin(const(i), const(i)), *self._finish(const(i))])))
            start += self._commit()

        def turn(i: Expr) -> tirx.Stmt:
            coming, stage = i + const(ahead), tirx.truncmod(i + const(ahead), const(self.stages))
            wait = [call(f"aotc_wait<{ahead - 1}>")] if self.asynchronous else []
            late = self._finish(stage)
            parts = [*wait, barrier(), self._if_any(coming, self._begin(coming, stage)), *self._commit()]
            parts.append(multiply(tirx.truncmod(i, const(self.stages))))
            if late:
                parts.append(self._if_any(coming, sequence(late)))
            return sequence(parts)

        return sequence([*start, loop(self.count, turn, name="tile")])

    def _if_any(self, tile: Expr, stmt: tirx.Stmt) -> tirx.Stmt:
        count = known(self.count)
        if count is not None and known(tile) is not None:
            return stmt if int(tile.value) < count else tirx.Evaluate(const(0))
        return tirx.IfThenElse(tile < self.count, stmt, None)

    def _begin(self, tile: Expr, stage: Expr) -> tirx.Stmt:
        env, grid = self.grid.env, self.grid
        left, right = self.tiles
        depth = (self.first + tile) * const(left.depth)
        return sequence([left.begin(env, grid.first_row, depth, stage), right.begin(env, grid.first_column, depth, stage)])

    def _finish(self, stage: Expr) -> list[tirx.Stmt]:
        return [stmt for tile in self.tiles if (stmt := tile.finish(stage)) is not None]

    def _commit(self) -> list[tirx.Stmt]:
        return [call("aotc_commit")] if self.asynchronous else []
