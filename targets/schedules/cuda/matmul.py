"""Contractions on CUDA cores: a block keeps tiles of both operands in shared memory, a thread a tile of sums in registers.

While a block multiplies one pair of tiles, the next pair is on its way to the other half of shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from aotc.targets.base import Gpu
from aotc.targets.schedules.cuda import epilogue
from aotc.targets.schedules.cuda.blocks import SPLITS, Cost, Grid, Pipeline, Problem, seconds
from aotc.targets.schedules.cuda.contraction import Contraction
from aotc.targets.schedules.cuda.launch import THREAD, WARP, Launch, address, call, itemsize, shared, unrolled
from aotc.targets.schedules.cuda.operand import Source, Tile
from aotc.targets.schedules.cuda.work import Work
from aotc.targets.schedules.loops import const, sequence
from aotc.targets.schedules.program import Program

Expr = Any

STAGES = 2
STEP = 4
"""Depths that a thread multiplies between two loads from shared memory: a vector of four floats."""
PAD = 4


@dataclass(frozen=True)
class Shape:
    """A block computes ``rows`` by ``columns`` sums, a thread ``down`` by ``across`` of them."""

    rows: int
    columns: int
    depth: int
    down: int
    across: int
    split: int = 1

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}/{self.down}x{self.across}" + (f"/{self.split}" if self.split > 1 else "")

    @property
    def threads(self) -> int:
        return self.rows // self.down * (self.columns // self.across)


_SHAPES = (
    Shape(128, 128, 8, 8, 8), Shape(128, 64, 8, 8, 8), Shape(64, 128, 8, 8, 8), Shape(64, 64, 16, 8, 4), Shape(64, 64, 16, 4, 4),
    Shape(32, 128, 16, 4, 8), Shape(128, 32, 16, 8, 4), Shape(32, 64, 16, 4, 4), Shape(64, 32, 16, 4, 4), Shape(32, 32, 16, 4, 4),
    Shape(32, 32, 16, 4, 2), Shape(16, 128, 16, 4, 4), Shape(16, 64, 16, 4, 2), Shape(8, 128, 16, 2, 4), Shape(8, 64, 16, 2, 2),
    Shape(16, 32, 32, 2, 2), Shape(64, 16, 16, 4, 2),
)  # fmt: skip


def tiles(work: Work, program: Program, problem: Contraction, name: str) -> list[Launch] | None:
    """The launches of a contraction; ``name`` is what the choice of a tile is called."""
    dtype, sizes = str(problem.total.ty), Problem.of(problem)
    if dtype not in ("float32", "int32", "float64") or sizes.is_small(problem):
        return None
    options = sorted(_options(sizes, work.gpu, dtype), key=lambda shape: seconds(_cost(shape, dtype), sizes, work.gpu))
    if not options:
        return None
    shape = work.choices.pick(name, options)
    return epilogue.launches(problem, program, shape, lambda part, grid: _product(shape, part, grid, work.gpu))


def _options(sizes: Problem, gpu: Gpu, dtype: str) -> Iterator[Shape]:
    for shape in _SHAPES:
        registers = (shape.down * shape.across + STEP * (shape.down + shape.across)) * itemsize(dtype) // 4 + 40
        if registers * shape.threads > gpu.registers or registers > 255:
            continue
        for split in SPLITS:
            if split == 1 or (sizes.static and sizes.depth >= split * 4 * shape.depth):
                yield replace(shape, split=split)


def _cost(shape: Shape, dtype: str) -> Cost:
    resident = max(1, min(1536 // shape.threads, 65536 // (shape.threads * (shape.down * shape.across + 64)), 8))
    loads = (shape.down + shape.across) / 2  # a load from shared memory takes as long as two multiply-adds, and brings four elements
    rate = 128 * 4 / itemsize(dtype) * shape.down * shape.across / (shape.down * shape.across + loads)
    return Cost(shape.rows, shape.columns, shape.depth, STAGES, shape.split, rate, resident, -(-shape.threads // WARP), itemsize(dtype))


def _product(shape: Shape, problem: Contraction, grid: Grid, gpu: Gpu) -> Launch:
    dtype = str(problem.total.ty)
    left = Tile("left", Source(problem.left, problem.rows, problem.depth), dtype, shape.rows, shape.depth, STAGES, shape.threads, gpu.async_copy, PAD)  # fmt: skip
    right = Tile("right", Source(problem.right, problem.columns, problem.depth), dtype, shape.columns, shape.depth, STAGES, shape.threads, gpu.async_copy, PAD)  # fmt: skip
    buffers = []
    for tile, name in ((left, "left"), (right, "right")):
        buffers.append(shared(dtype, STAGES * tile.stage_size, name))
        tile.place(buffers[-1], 0)
    sums = Sums(shape, left, right, dtype)
    pipeline = Pipeline(grid, [left, right], STAGES)
    body = sequence(
        [
            *map(tirx.AllocBuffer, [*buffers, *sums.buffers, left.registers, right.registers]),
            sums.clear(),
            pipeline.loop(sums.multiply),
            sums.store(problem, grid),
        ]
    )
    return Launch(grid.bound(body), grid.blocks, shape.threads, written=epilogue.written(problem))


class Sums:
    """A thread's sums, and the elements that it multiplies next."""

    def __init__(self, shape: Shape, left: Tile, right: Tile, dtype: str) -> None:
        self.shape, self.left, self.right, self.dtype = shape, left, right, dtype
        self.sums = tirx.decl_buffer([shape.down * shape.across], dtype, "sums")
        self.a = tirx.decl_buffer([shape.down * STEP], dtype, "a")
        self.b = tirx.decl_buffer([shape.across * STEP], dtype, "b")
        self.buffers = [self.sums, self.a, self.b]
        wide = shape.columns // shape.across
        self.row_thread, self.column_thread = tirx.truncdiv(THREAD, const(wide)), tirx.truncmod(THREAD, const(wide))

    def _vector(self, tile: Tile, count: int) -> int:
        """How many neighbours a thread takes at once: vectors where the tile has neighbours next to each other, else single
        elements, so that threads side by side read different banks."""
        return min(4 * 4 // itemsize(self.dtype), count) if tile.depth_major else 1

    def _place(self, tile: Tile, count: int, thread: Expr, which: Expr) -> Expr:
        """The row (column) of the tile that is number ``which`` of a thread's ``count``."""
        vector = self._vector(tile, count)
        threads = tile.own // count
        if vector == 1:
            return which * const(threads) + thread
        return tirx.truncdiv(which, const(vector)) * const(threads * vector) + thread * const(vector) + tirx.truncmod(which, const(vector))

    def clear(self) -> tirx.Stmt:
        zero = tirx.const(0, self.dtype)
        return unrolled(self.shape.down * self.shape.across, lambda i: tirx.BufferStore(self.sums, zero, [i]))

    def multiply(self, stage: Expr) -> tirx.Stmt:
        """Adds the products of the tiles in ``stage``."""
        shape = self.shape

        def step(depth: Expr) -> tirx.Stmt:
            loads = [
                self._load(self.left, self.a, shape.down, self.row_thread, stage, depth),
                self._load(self.right, self.b, shape.across, self.column_thread, stage, depth),
            ]

            def product(k: Expr) -> tirx.Stmt:
                return unrolled(shape.down, lambda i: unrolled(shape.across, lambda j: self._add(i, j, k), "j"), "i")

            return sequence([*loads, unrolled(STEP, product, "k")])

        return unrolled(shape.depth // STEP, lambda s: step(s * const(STEP)), "step")

    def _load(self, tile: Tile, local: tirx.Buffer, count: int, thread: Expr, stage: Expr, depth: Expr) -> tirx.Stmt:
        assert tile.buffer is not None
        vector = self._vector(tile, count)
        if tile.depth_major:
            name = f"aotc_move<{vector * itemsize(self.dtype)}>"

            def at(k: Expr, chunk: Expr) -> tirx.Stmt:
                source = tile.offset(stage, self._place(tile, count, thread, chunk * const(vector)), depth + k)
                return call(name, address(local, k * const(count) + chunk * const(vector)), address(tile.buffer, source))

            return unrolled(STEP, lambda k: unrolled(count // vector, lambda chunk: at(k, chunk), "c"), "k")
        pieces = STEP * itemsize(self.dtype) // 16

        def along(i: Expr, piece: Expr) -> tirx.Stmt:
            step = piece * const(STEP // pieces)
            source = tile.offset(stage, self._place(tile, count, thread, i), depth + step)
            return call("aotc_move<16>", address(local, i * const(STEP) + step), address(tile.buffer, source))

        return unrolled(count, lambda i: unrolled(pieces, lambda piece: along(i, piece), "p"), "i")

    def _add(self, i: Expr, j: Expr, k: Expr) -> tirx.Stmt:
        def element(tile: Tile, local: tirx.Buffer, count: int, which: Expr) -> Expr:
            return tirx.BufferLoad(local, [k * const(count) + which if tile.depth_major else which * const(STEP) + k])

        a, b = element(self.left, self.a, self.shape.down, i), element(self.right, self.b, self.shape.across, j)
        at = i * const(self.shape.across) + j
        return tirx.BufferStore(self.sums, tirx.BufferLoad(self.sums, [at]) + a * b, [at])

    def store(self, problem: Contraction, grid: Grid) -> tirx.Stmt:
        shape = self.shape
        lanes = epilogue.vector_lanes(problem, min(4, self._vector(self.right, shape.across)))

        def part(i: Expr, chunk: Expr) -> tirx.Stmt:
            row = grid.first_row + self._place(self.left, shape.down, self.row_thread, i)
            column = grid.first_column + self._place(self.right, shape.across, self.column_thread, chunk * const(lanes))

            def total(lane: Expr) -> Expr:
                return tirx.BufferLoad(self.sums, [i * const(shape.across) + chunk * const(lanes) + lane])

            return grid.guarded(row, column, lambda env: epilogue.store(problem, env, column, lanes, total))

        return unrolled(shape.down, lambda i: unrolled(shape.across // lanes, lambda chunk: part(i, chunk), "chunk"), "i")
