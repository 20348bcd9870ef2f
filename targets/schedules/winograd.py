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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.lowering.ops.winograd import STAGES, transform_input, transform_output
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
from aotc.targets.schedules.tile import tiles

Expr = Any


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
        self.sums = work.choices.pick(
            "tile", tiles(work.target.vector_registers, self.block // self.lanes, self.blocks, min(self.count, self.most(work)))
        )
        share = max(1, min(self.most(work), self.count) // self.sums.pixels) * self.sums.pixels
        self.group = min(share, -(-self.count // self.sums.pixels) * self.sums.pixels)
        self.groups = -(-self.count // self.group)
        self.alone = self.groups >= 3 * work.target.cores
        self.parts = 1 if self.alone else self._parts(work)

    def most(self, work: DirectWork) -> int:
        return max(1, work.target.l2_bytes // 2 // (4 * self.channels * self.wide**2))

    def _parts(self, work: DirectWork) -> int:
        """How many tasks share the output channels of a group."""
        pieces = self.blocks // self.sums.blocks
        wanted = -(-4 * work.target.cores // self.groups)
        return next(parts for parts in range(min(wanted, pieces), 0, -1) if pieces % parts == 0)

    def function(self) -> tirx.PrimFunc:
        chunks = self.group // self.sums.pixels
        slots = self.batch * const(self.groups)
        shape = [const(n) for n in (self.wide**2, chunks, self.channels // self.in_lanes, self.sums.pixels, self.in_lanes)]
        self.v = tirx.decl_buffer([slots, *shape], self.dtype, f"{SCRATCH}v")
        shape = [const(n) for n in (chunks, self.sums.blocks, self.sums.pixels, self.wide**2, self.block)]
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
        """One vector of channels of a tile whose columns ``low`` to ``high`` are inside. Along rows first: a row outside is zero."""
        rows, columns = self.axes
        done = tirx.decl_buffer((self.wide, self.wide, self.in_lanes), self.dtype, "rows")
        zero = tirx.const(0, self.dtype)

        def along(i: int) -> tirx.Stmt:
            y = row * self.tile + (i - rows.before)

            def load(j: int, v: Expr) -> Expr:
                if not low <= j < high:
                    return zero
                x = column * self.tile + (j - columns.before)
                return tirx.BufferLoad(self.x, [n, block, y, x, part * self.in_lanes + v])

            def lane(v: Expr) -> tirx.Stmt:
                values = transform_input(self.tile, [load(j, v) for j in range(self.wide)])
                return sequence(*(tirx.BufferStore(done, value, [const(i), const(j), v]) for j, value in enumerate(values)))

            def clear(v: Expr) -> tirx.Stmt:
                return sequence(*(tirx.BufferStore(done, zero, [const(i), const(j), v]) for j in range(self.wide)))

            checks = [y >= 0] if i < rows.before else []
            if (rows.count - 1) * self.tile + i - rows.before >= rows.size:
                checks.append(y < rows.size)
            stmt = vectorized(self.in_lanes, lane)
            return tirx.IfThenElse(tirx.all(*checks), stmt, vectorized(self.in_lanes, clear)) if checks else stmt

        def down(v: Expr) -> tirx.Stmt:
            stores = []
            c = block * (self.in_block // self.in_lanes) + part
            for j in range(self.wide):
                values = transform_input(self.tile, [tirx.BufferLoad(done, [const(i), const(j), v]) for i in range(self.wide)])
                stores += [
                    tirx.BufferStore(self.v, value, [slot, const(i * self.wide + j), chunk, c, p, v]) for i, value in enumerate(values)
                ]
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

        def step(c0: Expr) -> tirx.Stmt:
            def channel(c1: Expr) -> tirx.Stmt:
                def add(o: Expr, p: Expr, v: Expr) -> tirx.Stmt:
                    x = tirx.BufferLoad(self.v, [slot, at, chunk, c0, p, c1])
                    w = tirx.BufferLoad(self.u, [first + o, at, c0 * self.in_lanes + c1, v])
                    return tirx.BufferStore(sums, tirx.BufferLoad(sums, [o, p, v]) + x * w, [o, p, v])

                return each(add)

            return unrolled(self.in_lanes, channel, "c1")

        clear = each(lambda o, p, v: tirx.BufferStore(sums, tirx.const(0, self.dtype), [o, p, v]))
        keep = each(lambda o, p, v: tirx.BufferStore(self.m, tirx.BufferLoad(sums, [o, p, v]), [own, chunk, o, p, at, v]))
        return sequence(registers(sums), clear, serial(self.channels // self.in_lanes, step, "c0"), keep)

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
                loads = [tirx.BufferLoad(self.m, [own, chunk, o, p, const(i * self.wide + j), lane(v)]) for i in range(self.wide)]
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


DIRECT: dict[str, tuple[Direct, ...]] = {"winograd_conv": (winograd_conv,)}
