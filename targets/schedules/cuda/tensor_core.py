"""Contractions of halves on tensor cores: a warp multiplies fragments of 16x16 elements, which it reads from shared memory.

Where the GPU copies to shared memory asynchronously, several tiles of the depth are under way at a time. The sums go through
shared memory once, 16 rows of a warp at a time, so that whatever is fused behind sees rows and columns, and stores vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from aotc.targets.base import Gpu
from aotc.targets.schedules.address import stride
from aotc.targets.schedules.cuda import epilogue
from aotc.targets.schedules.cuda.blocks import SPLITS, Cost, Grid, Pipeline, Problem, seconds
from aotc.targets.schedules.cuda.contraction import Contraction
from aotc.targets.schedules.cuda.launch import (
    THREAD,
    WARP,
    Launch,
    address,
    allocated,
    barrier,
    call,
    dynamic_shared,
    unrolled,
    warp_barrier,
)
from aotc.targets.schedules.cuda.operand import Source, Tile
from aotc.targets.schedules.cuda.work import Work
from aotc.targets.schedules.loops import const, known, sequence
from aotc.targets.schedules.program import Program

Expr = Any

FRAGMENT = 16
"""Rows, columns and depth of what one instruction multiplies."""
HELD = 8
"""32-bit registers that a thread holds of a fragment."""
PAD = 8
"""Halves between the rows of a tile, so that those that are read together lie in different banks."""
SUMS_PAD = 4
"""The same, of floats, for sums on their way to the results."""


@dataclass(frozen=True)
class Shape:
    """``warps_down`` by ``warps_across`` warps, each with ``down`` by ``across`` fragments; ``stages`` tiles of ``depth`` in flight."""

    warps_down: int
    warps_across: int
    down: int
    across: int
    depth: int
    stages: int
    split: int = 1

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}/{self.warps_down}x{self.warps_across}/{self.stages}" + (
            f"/{self.split}" if self.split > 1 else ""
        )

    @property
    def rows(self) -> int:
        return self.warps_down * self.down * FRAGMENT

    @property
    def columns(self) -> int:
        return self.warps_across * self.across * FRAGMENT

    @property
    def warps(self) -> int:
        return self.warps_down * self.warps_across

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def sums_row(self) -> int:
        """Floats from row to row of what a warp has in shared memory of its sums."""
        return self.across * FRAGMENT + SUMS_PAD


_WARPS = (
    (2, 4, 4, 2), (4, 2, 2, 4), (2, 2, 4, 2), (2, 2, 2, 4), (2, 2, 2, 2), (2, 2, 1, 2), (2, 2, 2, 1), (2, 2, 1, 1), (1, 4, 1, 1), (4, 1, 1, 1),
    (1, 4, 1, 2), (4, 1, 2, 1), (1, 2, 1, 1), (2, 1, 1, 1), (1, 1, 1, 1),
)  # fmt: skip


def tiles(work: Work, program: Program, problem: Contraction, name: str) -> list[Launch] | None:
    """The launches of a contraction of halves; ``name`` is what the choice of a tile is called."""
    if "float16" not in work.gpu.tensor_types:
        return None
    if str(problem.total.ty) != "float32" or {str(problem.left.ty), str(problem.right.ty)} != {"float16"}:
        return None
    sizes = Problem.of(problem)
    if sizes.is_small(problem):
        return None
    options = sorted(_options(sizes, work.gpu), key=lambda shape: seconds(_cost(shape, work.gpu), sizes, work.gpu))
    return launches(work.choices.pick(name, options), problem, program, work.gpu)


def _options(sizes: Problem, gpu: Gpu) -> Iterator[Shape]:
    for warps in _WARPS:
        for depth in (32, 64):
            for stages in (3, 4) if gpu.async_copy else (2,):
                shape = Shape(*warps, depth, stages)
                if _shared_halves(shape) * 2 > gpu.shared_bytes or (depth == 64 and sizes.depth <= 32):
                    continue
                for split in SPLITS:
                    if split == 1 or (sizes.static and sizes.depth >= split * 4 * depth):
                        yield replace(shape, split=split)


def _shared_halves(shape: Shape) -> int:
    """Shared memory at most, in halves: whatever way tiles lie, and the sums."""
    left = max(shape.rows * (shape.depth + PAD), shape.depth * (shape.rows + PAD))
    right = max(shape.columns * (shape.depth + PAD), shape.depth * (shape.columns + PAD))
    return max(shape.stages * (left + right), shape.warps * FRAGMENT * shape.sums_row * 2)


def _cost(shape: Shape, gpu: Gpu) -> Cost:
    registers = HELD * (shape.down * shape.across + shape.down + shape.across) + 48
    resident = max(1, min(1536 // shape.threads, 65536 // (shape.threads * registers), gpu.shared_bytes // (_shared_halves(shape) * 2), 16))
    products, loads = shape.down * shape.across, (shape.down + shape.across) / 2
    rate = gpu.tensor_multiplies * products / (products + loads)
    return Cost(shape.rows, shape.columns, shape.depth, shape.stages, shape.split, rate, resident, shape.warps, 2)


def launches(shape: Shape, problem: Contraction, program: Program, gpu: Gpu) -> list[Launch]:
    grid = Grid(problem, shape.rows, shape.columns, shape.depth, shape.split)
    if shape.split == 1:
        return [_product(shape, problem, grid, gpu)]
    partial, rest = epilogue.in_parts(problem, program, shape.split, grid.part)
    return [_product(shape, partial, grid, gpu), rest]


def _product(shape: Shape, problem: Contraction, grid: Grid, gpu: Gpu) -> Launch:
    def tile(name: str, value: Expr, axes: Any, own: int) -> Tile:
        return Tile(name, Source(value, axes, problem.depth), "float16", own, shape.depth, shape.stages, shape.threads, gpu.async_copy, PAD)

    left = tile("left", problem.left, problem.rows, shape.rows)
    right = tile("right", problem.right, problem.columns, shape.columns)
    base = shape.stages * left.stage_size
    halves = max(base + shape.stages * right.stage_size, shape.warps * FRAGMENT * shape.sums_row * 2)
    buffer = dynamic_shared("float16", halves, "tiles")
    left.place(buffer, 0)
    right.place(buffer, base)
    warps = Warps(shape, left, right, buffer)
    body = allocated(
        [buffer, *warps.buffers, left.registers, right.registers],
        warps.clear(),
        Pipeline(grid, [left, right], shape.stages).loop(warps.multiply),
        barrier(),
        warps.store(problem, grid),
    )
    return Launch(grid.bound(body), grid.blocks, shape.threads, halves * 2, epilogue.written(problem))


class Warps:
    """What a warp does with the tiles of its block."""

    def __init__(self, shape: Shape, left: Tile, right: Tile, buffer: tirx.Buffer) -> None:
        self.shape, self.left, self.right, self.buffer = shape, left, right, buffer
        self.sums = tirx.decl_buffer([shape.down * shape.across * HELD], "float32", "sums")
        self.a = tirx.decl_buffer([shape.down * HELD], "uint32", "a")
        self.b = tirx.decl_buffer([shape.across * HELD], "uint32", "b")
        self.buffers = [self.sums, self.a, self.b]
        self.warp, self.lane = tirx.truncdiv(THREAD, const(WARP)), tirx.truncmod(THREAD, const(WARP))
        self.row = tirx.truncdiv(self.warp, const(shape.warps_across)) * const(shape.down * FRAGMENT)
        self.column = tirx.truncmod(self.warp, const(shape.warps_across)) * const(shape.across * FRAGMENT)

    def clear(self) -> tirx.Stmt:
        count = self.shape.down * self.shape.across * HELD
        return unrolled(count, lambda i: tirx.BufferStore(self.sums, tirx.const(0, "float32"), [i]))

    def multiply(self, stage: Expr) -> tirx.Stmt:
        shape = self.shape

        def load(name: str, tile: Tile, local: tirx.Buffer, first: Expr, transposed: bool, i: Expr, depth: Expr) -> tirx.Stmt:
            source = address(self.buffer, tile.offset(stage, first + i * const(FRAGMENT), depth))
            return call(f"aotc_load_{name}<{str(transposed).lower()}>", address(local, i * const(HELD)), source, const(tile.row))

        def add(i: Expr, j: Expr) -> tirx.Stmt:
            at = (i * const(shape.across) + j) * const(HELD)
            return call("aotc_multiply", address(self.sums, at), address(self.a, i * const(HELD)), address(self.b, j * const(HELD)))

        def step(s: Expr) -> tirx.Stmt:
            depth = s * const(FRAGMENT)
            left, right = self.left, self.right
            return sequence(
                [
                    unrolled(shape.down, lambda i: load("left", left, self.a, self.row, left.depth_major, i, depth), "i"),
                    unrolled(shape.across, lambda j: load("right", right, self.b, self.column, not right.depth_major, j, depth), "j"),
                    unrolled(shape.down, lambda i: unrolled(shape.across, lambda j: add(i, j), "j"), "i"),
                ]
            )

        return unrolled(shape.depth // FRAGMENT, step, "step")

    def store(self, problem: Contraction, grid: Grid) -> tirx.Stmt:
        """Sixteen rows of the warp's sums after the other through shared memory of the warp's own."""
        shape = self.shape
        own = self.warp * const(FRAGMENT * shape.sums_row * 2)

        def slab(i: Expr) -> tirx.Stmt:
            def put(j: Expr) -> tirx.Stmt:
                target = address(self.buffer, own + j * const(FRAGMENT * 2))
                source = address(self.sums, (i * const(shape.across) + j) * const(HELD))
                return call("aotc_store_sums", target, source, const(shape.sums_row))

            first = grid.first_row + self.row + i * const(FRAGMENT)
            results = self._results(problem, grid, own, first, grid.first_column + self.column)
            return sequence([unrolled(shape.across, put, "j"), warp_barrier(), results, warp_barrier()])

        return unrolled(shape.down, slab, "slab")

    def _results(self, problem: Contraction, grid: Grid, own: Expr, first_row: Expr, first_column: Expr) -> tirx.Stmt:
        shape, lanes = self.shape, epilogue.vector_lanes(problem, 8)
        wide = shape.across * FRAGMENT // lanes
        down_first = _rows_touch(problem, lanes)

        def piece(which: Expr) -> tirx.Stmt:
            at = which * const(WARP) + self.lane
            if down_first:
                row, column = tirx.truncmod(at, const(FRAGMENT)), tirx.truncdiv(at, const(FRAGMENT)) * const(lanes)
            else:
                row, column = tirx.truncdiv(at, const(wide)), tirx.truncmod(at, const(wide)) * const(lanes)
            total = tirx.decl_buffer([lanes], "float32", "total")
            source = own + (row * const(shape.sums_row) + column) * const(2)
            width = min(lanes, 4)

            def move(part: Expr) -> tirx.Stmt:
                begin = part * const(width)
                return call(f"aotc_move<{width * 4}>", address(total, begin), address(self.buffer, source + begin * const(2)))

            def results(env: Any) -> tirx.Stmt:
                done = epilogue.store(problem, env, first_column + column, lanes, lambda lane: tirx.BufferLoad(total, [lane]))
                return allocated([total], unrolled(lanes // width, move, "part"), done)

            return grid.guarded(first_row + row, first_column + column, results)

        return unrolled(FRAGMENT * wide // WARP, piece, "piece")


def _rows_touch(problem: Contraction, lanes: int) -> bool:
    """Whether the vectors of neighbouring rows, not columns, lie next to each other (channels in blocks of one vector)."""
    if not problem.rows or known(problem.columns[-1].extent) != lanes:
        return False
    return all(stride(offset, problem.rows[-1].var) == lanes for _, offset, _ in problem.results)
