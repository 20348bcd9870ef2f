"""Winograd convolution over blocked channels, written as TIR.

The tiles of the output, row by row, are cut into groups. For a group the input tiles are transformed into ``v``, whose vectors
hold channels; then, for some blocks of output channels at a time, each of the (tile + 2)^2 positions is a product of
[tiles, C] and [C, outputs] with sums in registers; what these give, ``m``, is small and goes through the inverse transform and
what follows it into the result. Tiles that reach beyond the input read zeros, those beyond the output store less: nothing is
copied to be padded.

Where there are groups enough for all cores, a task does all of this for one group. Where there are few, a kernel of its own
transforms all tiles and the tasks of the second one share the output channels of a group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.lowering.ops.winograd import STAGES, transform_input, transform_output
from aotc.targets import Target
from aotc.targets.schedules.base import SCRATCH, Direct, DirectWork
from aotc.targets.schedules.emit import (
    FIRST_TASK,
    const,
    known,
    parallel,
    registers,
    sequence,
    serial,
    task_indices,
    unrolled,
    vectorized,
)
from aotc.targets.schedules.fused import Fused, fused, prim_func
from aotc.targets.schedules.tile import Tile

Expr = Any


UNROLLED_OPERATIONS = 256
"""Multiply-adds (vectors) in the innermost body."""
REACH = 65536
"""Bytes from an address that stores of a vector can reach: what is stored for a tile should lie within."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of ``size``, giving ``out`` in tiles of ``tile``."""

    size: int
    out: int
    before: int
    tile: int

    @property
    def count(self) -> int:
        return -(-self.out // self.tile)

    def inside(self, number: int) -> tuple[int, int]:
        """The range of a tile's inputs that are not padding."""
        start = number * self.tile - self.before
        return max(0, -start), min(self.tile + 2, self.size - start)

    def patterns(self) -> list[tuple[int, int, int]]:
        """(end, low, high): tiles before ``end``, and not before the end of the pattern before, have inputs low to high inside."""
        found: list[tuple[int, int, int]] = []
        for number in range(self.count):
            low, high = self.inside(number)
            if found and found[-1][1:] == (low, high):
                found.pop()
            found.append((number + 1, low, high))
        return found


def winograd_conv(work: DirectWork) -> tirx.PrimFunc | None:
    view = fused(work, STAGES)
    if view is None:
        return None
    spatial = [known(extent) for extent in (*view.operands[0].shape[2:4], *view.total.shape[2:4])]
    if None in spatial or 0 in spatial:
        return None
    return _Winograd(work, view).function()


class _Winograd:
    """Writes the kernels. In it ``wide`` is tile + 2 and a position is a number below wide^2."""

    def __init__(self, work: DirectWork, view: Fused) -> None:
        attrs: Any = work.anchor.attrs
        self.view, self.tile = view, attrs.tile
        self.wide = self.tile + 2
        self.x, self.u = view.operands
        self.dtype = str(view.total.dtype)
        self.batch = view.total.shape[0]
        _, self.in_blocks, height, width, self.in_block = (known(extent) or 1 for extent in self.x.shape)
        _, self.blocks, rows, columns, self.block = (known(extent) or 1 for extent in view.total.shape)
        self.axes = (Axis(height, rows, attrs.padding[0], self.tile), Axis(width, columns, attrs.padding[1], self.tile))
        self.count = self.axes[0].count * self.axes[1].count
        self.channels = self.in_blocks * self.in_block
        lanes = work.target.lanes(self.dtype)
        self.in_lanes, self.lanes = (next(n for n in (lanes, 4, 2, 1) if n <= lanes and b % n == 0) for b in (self.in_block, self.block))
        self.by_lane = work.target.architecture == "aarch64"
        self.sums = work.choices.pick("tile", self._tiles_by_time(work.target))
        self.group = work.choices.pick("tiles in a group", self._groups_by_time(work.target))
        self.groups = -(-self.count // self.group)
        self.alone = self.groups >= 3 * work.target.cores
        self.parts = 1 if self.alone else self._parts(work.target)

    def _tiles_by_time(self, target: Target) -> list[Tile]:
        """Blocks of outputs by tiles of the image whose sums are in registers, by estimated time and instructions."""
        found: list[tuple[float, Tile]] = []
        vectors = self.block // self.lanes
        for blocks, pixels in itertools.product((n for n in (1, 2, 3, 4, 6) if self.blocks % n == 0), range(1, min(self.count, 28) + 1)):
            sums, columns = blocks * vectors * pixels, blocks * vectors
            if sums + (pixels + 4 if self.by_lane else columns + 1) > target.vector_registers and (blocks, pixels) != (1, 1):
                continue
            # Loads for one channel, and additions that step through several streams of weights.
            loads = columns / 2 + pixels / 2 / self.in_lanes if self.by_lane else columns + pixels
            steps = blocks - 1 if self.by_lane else 0
            cycles = max(sums / target.multiply_adds, loads / 2, 4.0)
            once = (3 * sums + 20) / self.channels
            waste = -(-self.count // pixels) * pixels / self.count
            found.append((round((cycles + 0.1 * (sums + loads + steps + once)) * waste / sums, 6), Tile(blocks, pixels)))
        return [tile for _, tile in sorted(found, key=lambda pair: pair[0])]

    def _groups_by_time(self, target: Target) -> list[int]:
        """How many tiles make a group, by estimated time for reading: weights once a group, ``v`` once for all blocks of a tile."""
        pixels = self.sums.pixels
        weights = 4 * self.wide**2 * self.channels * self.blocks * self.block
        chunks = -(-self.count // pixels)
        found: dict[int, float] = {}
        for wanted in range(1, chunks + 1):
            share = -(-chunks // wanted)
            groups, v = -(-chunks // share), 4 * self.wide**2 * share * pixels * self.channels
            again = (groups - 1) * weights / _bytes_a_cycle(weights, target)
            found[share * pixels] = again + groups * self.blocks / self.sums.blocks * v / _bytes_a_cycle(v, target)
        return sorted(found, key=found.__getitem__)

    def _parts(self, target: Target) -> int:
        """How many tasks share the output channels of a group."""
        pieces = self.blocks // self.sums.blocks
        wanted = -(-4 * target.cores // self.groups)
        return next(parts for parts in range(min(wanted, pieces), 0, -1) if pieces % parts == 0)

    def function(self) -> tirx.PrimFunc:
        chunks = self.group // self.sums.pixels
        slots = self.batch * const(self.groups)
        steps = self.channels // self.in_lanes
        fits = REACH // (4 * self.wide**2 * self.sums.pixels * self.in_lanes)
        self.run = next(n for n in range(min(steps, max(fits, self.in_block // self.in_lanes)), 0, -1) if steps % n == 0)
        shape = [const(n) for n in (chunks, steps // self.run, self.wide**2, self.run, self.sums.pixels, self.in_lanes)]
        self.v = tirx.decl_buffer([slots, *shape], self.dtype, f"{SCRATCH}v")
        shape = [const(n) for n in (chunks, self.wide**2, self.sums.blocks, self.sums.pixels, self.block)]
        self.m = tirx.decl_buffer([slots * const(self.parts), *shape], self.dtype, f"{SCRATCH}m")
        if self.alone:

            def task(index: Expr) -> tirx.Stmt:
                n, group = task_indices(index, [self.batch, const(self.groups)])
                return sequence(
                    self._transform(n, group, FIRST_TASK, const(0), const(self.in_blocks)), self._outputs(n, group, FIRST_TASK, const(0))
                )

            return prim_func(self.view.params, parallel(slots, task), [self.v, self.m])
        pieces = min(self.in_blocks, 16)
        share = -(-self.in_blocks // pieces)
        pieces = -(-self.in_blocks // share)

        def first(index: Expr) -> tirx.Stmt:
            n, group, piece = task_indices(index, [self.batch, const(self.groups), const(pieces)])
            count = const(share) if self.in_blocks % share == 0 else tirx.min(const(share), self.in_blocks - piece * share)
            return self._transform(n, group, n * self.groups + group, piece * share, count)

        def second(index: Expr) -> tirx.Stmt:
            n, group, part = task_indices(index, [self.batch, const(self.groups), const(self.parts)])
            return self._outputs(n, group, n * self.groups + group, part)

        nests = parallel(slots * const(pieces), first), parallel(slots * const(self.parts), second)
        return prim_func(self.view.params, sequence(*nests), [self.v, self.m])

    # --- tiles -----------------------------------------------------------------------------------------------------

    def _tiles(self, group: Expr, body: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt], chunk: Expr | None = None) -> tirx.Stmt:
        """``body`` of each tile of a group: the chunk and place in it, the tile's row and column."""
        pixels = self.sums.pixels

        def one(chunk: Expr, p: Expr) -> tirx.Stmt:
            number = group * self.group + chunk * pixels + p
            row, column = task_indices(number, [const(self.axes[0].count), const(self.axes[1].count)])
            stmt = body(chunk, p, row, column)
            return stmt if self.groups * self.group == self.count else tirx.IfThenElse(number < self.count, stmt, None)

        return serial(self.group // pixels, lambda chunk: serial(pixels, lambda p: one(chunk, p), "p"), "chunk")

    # --- the input -------------------------------------------------------------------------------------------------

    def _transform(self, n: Expr, group: Expr, slot: Expr, first: Expr, count: Expr) -> tirx.Stmt:
        """The input tiles of a group, of ``count`` blocks of channels from ``first`` on."""
        parts = self.in_block // self.in_lanes

        def tile(chunk: Expr, p: Expr, row: Expr, column: Expr) -> tirx.Stmt:
            def channels(low: int, high: int) -> tirx.Stmt:
                return serial(
                    count,
                    lambda b: serial(parts, lambda s: self._input_tile(n, slot, chunk, p, row, column, first + b, s, low, high), "s"),
                    "c",
                )

            *others, (_, low, high) = self.axes[1].patterns()
            stmt = channels(low, high)
            for end, low, high in reversed(others):
                stmt = tirx.IfThenElse(column < end, channels(low, high), stmt)
            return stmt

        return self._tiles(group, tile)

    def _input_tile(
        self, n: Expr, slot: Expr, chunk: Expr, p: Expr, row: Expr, column: Expr, block: Expr, part: Expr, low: int, high: int
    ) -> tirx.Stmt:
        """One vector of channels of a tile whose columns ``low`` to ``high`` are inside. Rows outside are read somewhere inside and
        masked: branches would cost more."""
        rows, columns = self.axes
        done = tirx.decl_buffer((self.wide, self.wide, self.in_lanes), self.dtype, "rows")
        zero = tirx.const(0, self.dtype)

        def along(i: int) -> tirx.Stmt:
            y = row * self.tile + (i - rows.before)

            inside = [y >= 0] if i < rows.before else []
            if (rows.count - 1) * self.tile + i - rows.before >= rows.size:
                inside.append(y < rows.size)

            def load(j: int, v: Expr) -> Expr:
                if not low <= j < high:
                    return zero
                at = tirx.max(const(0), tirx.min(y, const(rows.size - 1))) if inside else y
                x = column * self.tile + (j - columns.before)
                value = tirx.BufferLoad(self.x, [n, block, at, x, part * self.in_lanes + v])
                return tirx.Select(tirx.all(*inside), value, zero) if inside else value

            def lane(v: Expr) -> tirx.Stmt:
                values = transform_input(self.tile, [load(j, v) for j in range(self.wide)])
                return sequence(*(tirx.BufferStore(done, value, [const(i), const(j), v]) for j, value in enumerate(values)))

            return vectorized(self.in_lanes, lane)

        def down(v: Expr) -> tirx.Stmt:
            stores = []
            run, step = task_indices(block * (self.in_block // self.in_lanes) + part, [const(0), const(self.run)])
            for j in range(self.wide):
                values = transform_input(self.tile, [tirx.BufferLoad(done, [const(i), const(j), v]) for i in range(self.wide)])
                places = [[slot, chunk, run, const(i * self.wide + j), step, p, v] for i in range(self.wide)]
                stores += [tirx.BufferStore(self.v, value, place) for value, place in zip(values, places, strict=True)]
            return sequence(*stores)

        return sequence(registers(done), *map(along, range(self.wide)), vectorized(self.in_lanes, down))

    # --- products and outputs --------------------------------------------------------------------------------------

    def _outputs(self, n: Expr, group: Expr, slot: Expr, part: Expr) -> tirx.Stmt:
        """A part of the output channels of a group."""
        own = slot if self.alone else FIRST_TASK
        count = self.blocks // self.sums.blocks // self.parts

        def some(index: Expr) -> tirx.Stmt:
            first = (part * count + index) * self.sums.blocks
            chunks = self.group // self.sums.pixels
            products = serial(
                self.wide**2, lambda at: serial(chunks, lambda chunk: self._product(slot, own, first, at, chunk), "chunk"), "position"
            )
            return sequence(products, self._inverse(n, group, own, first))

        return serial(count, some, "blocks")

    def _product(self, slot: Expr, own: Expr, first: Expr, at: Expr, chunk: Expr) -> tirx.Stmt:
        """One position of a chunk of tiles, for ``sums.blocks`` blocks of outputs."""
        blocks, pixels = self.sums.blocks, self.sums.pixels
        sums = tirx.decl_buffer((blocks, pixels, self.block), self.dtype, "sums")

        def each(body: Callable[[Expr, Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
            return unrolled(blocks, lambda o: unrolled(pixels, lambda p: vectorized(self.block, lambda v: body(o, p, v)), "p"), "o")

        # A register of several channels of a tile, each of which is multiplied by lane; elsewhere loads broadcast.
        held = tirx.decl_buffer((pixels, self.in_lanes), self.dtype, "held")

        def step(run: Expr, c: Expr) -> tirx.Stmt:
            first_channel = (run * self.run + c) * self.in_lanes

            def load(p: Expr, c1: Expr) -> Expr:
                return tirx.BufferLoad(self.v, [slot, chunk, run, at, c, p, c1])

            def channel(c1: Expr) -> tirx.Stmt:
                def add(o: Expr, p: Expr, v: Expr) -> tirx.Stmt:
                    x = tirx.BufferLoad(held, [p, c1]) if self.by_lane else load(p, c1)
                    w = tirx.BufferLoad(self.u, [first + o, at, first_channel + c1, v])
                    return tirx.BufferStore(sums, tirx.BufferLoad(sums, [o, p, v]) + x * w, [o, p, v])

                return each(add)

            def hold(p: Expr) -> tirx.Stmt:
                return vectorized(self.in_lanes, lambda c1: tirx.BufferStore(held, load(p, c1), [p, c1]))

            channels = unrolled(self.in_lanes, channel, "c1")
            return sequence(unrolled(pixels, hold, "p"), channels) if self.by_lane else channels

        clear = each(lambda o, p, v: tirx.BufferStore(sums, tirx.const(0, self.dtype), [o, p, v]))
        keep = each(lambda o, p, v: tirx.BufferStore(self.m, tirx.BufferLoad(sums, [o, p, v]), [own, chunk, at, o, p, v]))
        most = max(1, UNROLLED_OPERATIONS // (blocks * pixels * self.block // self.lanes * self.in_lanes))
        together = next(n for n in range(most, 0, -1) if self.run % n == 0)

        def run(number: Expr) -> tirx.Stmt:
            return serial(self.run // together, lambda c: unrolled(together, lambda i: step(number, c * together + i), "i"), "c")

        work = serial(self.channels // self.in_lanes // self.run, run, "run")
        return sequence(registers(sums), registers(held), clear, work, keep)

    def _inverse(self, n: Expr, group: Expr, own: Expr, first: Expr) -> tirx.Stmt:
        parts = self.block // self.lanes

        def tile(chunk: Expr, p: Expr, row: Expr, column: Expr) -> tirx.Stmt:
            return serial(
                self.sums.blocks,
                lambda o: serial(parts, lambda s: self._output_tile(n, own, chunk, p, row, column, first, o, s), "s"),
                "o",
            )

        return self._tiles(group, tile)

    def _output_tile(
        self, n: Expr, own: Expr, chunk: Expr, p: Expr, row: Expr, column: Expr, first: Expr, o: Expr, part: Expr
    ) -> tirx.Stmt:
        """One vector of outputs of a tile: its inverse transform and what follows it."""
        done = tirx.decl_buffer((self.tile, self.wide, self.lanes), self.dtype, "columns")
        result = tirx.decl_buffer((self.tile, self.tile, self.lanes), self.dtype, "tile")

        def lane(v: Expr) -> Expr:
            return part * self.lanes + v

        def down(v: Expr) -> tirx.Stmt:
            stores = []
            for j in range(self.wide):
                loads = [tirx.BufferLoad(self.m, [own, chunk, const(i * self.wide + j), o, p, lane(v)]) for i in range(self.wide)]
                values = transform_output(self.tile, loads)
                stores += [tirx.BufferStore(done, value, [const(i), const(j), v]) for i, value in enumerate(values)]
            return sequence(*stores)

        def along(i: int) -> tirx.Stmt:
            def values(v: Expr) -> tirx.Stmt:
                found = transform_output(self.tile, [tirx.BufferLoad(done, [const(i), const(j), v]) for j in range(self.wide)])
                return sequence(*(tirx.BufferStore(result, value, [const(i), const(j), v]) for j, value in enumerate(found)))

            y = row * self.tile + i
            return self._if_inside(0, i, y, sequence(vectorized(self.lanes, values), *(store(i, j, y) for j in range(self.tile))))

        def store(i: int, j: int, y: Expr) -> tirx.Stmt:
            x = column * self.tile + j
            stmt = self.view.store(
                self.lanes,
                lambda v: ([n, first + o, y, x, lane(v)], tirx.BufferLoad(result, [const(i), const(j), v])),
            )
            return self._if_inside(1, j, x, stmt)

        return sequence(registers(done), registers(result), vectorized(self.lanes, down), *map(along, range(self.tile)))

    def _if_inside(self, axis: int, offset: int, position: Expr, stmt: tirx.Stmt) -> tirx.Stmt:
        out = self.axes[axis].out
        last = (self.axes[axis].count - 1) * self.tile + offset
        return stmt if last < out else tirx.IfThenElse(position < out, stmt, None)


def _bytes_a_cycle(size: int, target: Target) -> float:
    """How fast a core reads ``size`` bytes again and again: rough figures of its caches."""
    if size <= target.l2_bytes // 2:
        return 16.0
    return 8.0 if size <= target.l3_bytes // 2 else target.memory_bytes


DIRECT: dict[str, tuple[Direct, ...]] = {"winograd_conv": (winograd_conv,)}
