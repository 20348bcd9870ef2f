"""Contractions on tensor cores: which block and warp does what, and how tiles of the depth come.

Where the GPU copies to shared memory asynchronously, several tiles of the depth are under way at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from aotc.targets.base import Gpu
from aotc.targets.schedules.cuda import bfloats, epilogue
from aotc.targets.schedules.cuda.blocks import SPLITS, Cost, Grid, Pipeline, Problem, seconds
from aotc.targets.schedules.cuda.contraction import Contraction
from aotc.targets.schedules.cuda.fragments import FRAGMENT, HELD, Kind, Share, Warps, kind_of
from aotc.targets.schedules.cuda.launch import WARP, Launch, allocated, barrier, dynamic_shared, itemsize
from aotc.targets.schedules.cuda.operand import Source, Tile
from aotc.targets.schedules.cuda.work import Work
from aotc.targets.schedules.program import Program

Expr = Any

PAD_BYTES = 16
"""Between the rows of a tile, so that those that are read together lie in different banks."""
DEPTH_BYTES = (64, 128)
"""Of a tile's rows."""
SUM_BYTES = 4


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
    def share(self) -> Share:
        return Share(self.warps_across, self.down, self.across)

    @property
    def sums_bytes(self) -> int:
        """Shared memory through which the warps' sums go."""
        return self.warps * FRAGMENT * self.share.sums_row * SUM_BYTES


_WARPS = (
    (2, 4, 4, 2), (4, 2, 2, 4), (2, 2, 4, 2), (2, 2, 2, 4), (2, 2, 2, 2), (2, 2, 1, 2), (2, 2, 2, 1), (2, 2, 1, 1), (1, 4, 1, 1), (4, 1, 1, 1),
    (1, 4, 1, 2), (4, 1, 2, 1), (1, 2, 1, 1), (2, 1, 1, 1), (1, 1, 1, 1),
)  # fmt: skip


def tiles(work: Work, program: Program, problem: Contraction, name: str) -> list[Launch] | None:
    """The launches of a contraction whose factors tensor cores multiply; ``name`` is what the choice of a tile is called."""
    problem = bfloats.over_bits(problem)
    kind, sizes = kind_of(problem, work.gpu), Problem.of(problem)
    if kind is None or sizes.is_small(problem):
        return None
    options = sorted(_options(kind, sizes, work.gpu), key=lambda shape: seconds(_cost(kind, shape, work.gpu), sizes, work.gpu))
    shape = work.choices.pick(name, options)
    return epilogue.launches(problem, program, shape, lambda part, grid: _product(kind, shape, part, grid, work.gpu))


def _options(kind: Kind, sizes: Problem, gpu: Gpu) -> Iterator[Shape]:
    least, most = (size // itemsize(kind.element) for size in DEPTH_BYTES)
    for warps in _WARPS:
        for depth in (least, most):
            for stages in (3, 4) if gpu.async_copy else (2,):
                shape = Shape(*warps, depth, stages)
                if _shared_bytes(kind, shape) > gpu.shared_bytes or (depth == most and sizes.depth <= least):
                    continue
                for split in SPLITS:
                    if split == 1 or (sizes.static and sizes.depth >= split * 4 * depth):
                        yield replace(shape, split=split)


def _shared_bytes(kind: Kind, shape: Shape) -> int:
    """Shared memory at most: whatever way tiles lie, and the sums."""
    size = itemsize(kind.element)
    tiles = [max(own * (shape.depth * size + PAD_BYTES), shape.depth * (own * size + PAD_BYTES)) for own in (shape.rows, shape.columns)]
    return max(shape.stages * sum(tiles), shape.sums_bytes)


def _cost(kind: Kind, shape: Shape, gpu: Gpu) -> Cost:
    registers = HELD * shape.down * shape.across + kind.held * (shape.down + shape.across) + 48
    resident = max(1, min(1536 // shape.threads, 65536 // (shape.threads * registers), gpu.shared_bytes // _shared_bytes(kind, shape), 16))
    products, loads = shape.down * shape.across, (shape.down + shape.across) / 2
    rate = gpu.tensor_multiplies * kind.speed * products / (products + loads)
    return Cost(shape.rows, shape.columns, shape.depth, shape.stages, shape.split, rate, resident, shape.warps, itemsize(kind.element))


def _product(kind: Kind, shape: Shape, problem: Contraction, grid: Grid, gpu: Gpu) -> Launch:
    size = itemsize(kind.element)

    def tile(name: str, value: Expr, axes: Any, own: int) -> Tile:
        source = Source(value, axes, problem.depth)
        return Tile(name, source, str(value.ty), own, shape.depth, shape.stages, shape.threads, gpu.async_copy, PAD_BYTES // size)

    left = tile("left", problem.left, problem.rows, shape.rows)
    right = tile("right", problem.right, problem.columns, shape.columns)
    base = shape.stages * left.stage_size
    elements = max(base + shape.stages * right.stage_size, shape.sums_bytes // size)
    buffer = dynamic_shared(kind.element, elements, "tiles")
    left.place(buffer, 0)
    right.place(buffer, base)
    warps = Warps(kind, shape.share, shape.depth, left, right, buffer)
    body = allocated(
        [buffer, *warps.buffers, left.registers, right.registers],
        warps.clear(),
        Pipeline(grid, [left, right], shape.stages).loop(warps.multiply),
        barrier(),
        warps.store(problem, grid),
    )
    return Launch(grid.bound(body), grid.blocks, shape.threads, elements * size, epilogue.written(problem))
