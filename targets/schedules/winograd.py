"""Winograd convolution over blocked channels, written as TIR.

The tiles of an image are cut into groups. For a group the input tiles are transformed into ``v``, whose vectors hold channels;
then, for some blocks of output channels at a time, each of the (tile + 2)^2 positions is a product of [tiles, C] and
[C, outputs] with sums in registers; what these give, ``m``, is small and goes through the inverse transform and what follows
it into the result. Tiles that reach beyond the input read zeros: nothing is copied to be padded.

Where there are groups enough for all cores, a task does all of this for one group. Where there are few, a kernel of its own
transforms all tiles and the tasks of the second one share the output channels of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from aotc.lowering.ops.winograd import STAGES, positions, transform_input, transform_output
from aotc.targets.schedules.base import SCRATCH, Direct, DirectWork
from aotc.targets.schedules.emit import (
    FIRST_TASK,
    clamped,
    const,
    known,
    opaque,
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
from aotc.targets.schedules.winograd_plan import Area, Axis, Share, Sizes, areas, groups_by_time, is_alone, shares, tiles_by_time

Expr = Any

UNROLLED_OPERATIONS = 256
"""Multiply-adds (vectors) in the innermost body."""
PIECES = 16
"""Tasks, at most, that transform the input of one group where that is a kernel of its own."""


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
        self.rows, self.columns = Axis(height, rows, attrs.padding[0], self.tile), Axis(width, columns, attrs.padding[1], self.tile)
        self.count = self.rows.count * self.columns.count
        self.channels = self.in_blocks * self.in_block
        self.panel = (known(self.u.shape[3]) or 1) // self.block
        lanes = work.target.lanes(self.dtype)
        self.in_lanes, self.lanes = (next(n for n in (lanes, 4, 2, 1) if n <= lanes and b % n == 0) for b in (self.in_block, self.block))
        self.by_element, self.reach = work.target.multiplies_by_element, work.target.offset_bytes + 16
        self._choose(work)

    def _choose(self, work: DirectWork) -> None:
        sizes = Sizes(
            self.count, self.wide, self.channels, self.blocks, self.block, self.panel, self.lanes, self.in_lanes
        )  # fmt: skip
        sums = work.choices.pick("tile", tiles_by_time(sizes, self.count, work.target))
        fewest = sum(len(share.rows) * len(share.columns) * share.count for share in shares(self.rows, self.columns))
        self.group = work.choices.pick("tiles in a group", groups_by_time(sizes, sums, fewest, work.target))
        self.groups = -(-self.count // self.group)
        self.alone = is_alone(self.groups, work.target)
        self.together = sums.blocks
        if self.groups > 1:
            every = tuple(range(self.wide))
            self.shares = [(Share(every, every, 0, self.group), sums)]
        else:
            self.group = self.count
            self.shares = [(share, self._sums(share, sums, sizes, work)) for share in shares(self.rows, self.columns)]
        pieces, wanted = self.blocks // self.together, -(-4 * work.target.cores // self.groups)
        self.parts = 1 if self.alone else next(n for n in range(min(wanted, pieces), 0, -1) if pieces % n == 0)
        padded = [(share, sums, -(-share.count // sums.pixels) * sums.pixels) for share, sums in self.shares]
        slots = self.batch * const(self.groups)
        shape = [self.wide**2, max(count for _, _, count in padded) * self.channels]
        self.v = tirx.decl_buffer([slots, *map(const, shape)], self.dtype, f"{SCRATCH}v")
        shape = [self.wide**2, self.together, max(share.first + count for share, _, count in padded), self.block]
        self.m = tirx.decl_buffer([slots * const(self.parts), *map(const, shape)], self.dtype, f"{SCRATCH}m")

    def _sums(self, share: Share, most: Tile, sizes: Sizes, work: DirectWork) -> Tile:
        if share.count == self.count:
            return most
        return next(sums for sums in tiles_by_time(sizes, share.count, work.target) if most.blocks % sums.blocks == 0)

    def function(self) -> tirx.PrimFunc:
        slots = self.batch * const(self.groups)
        if self.alone:

            def task(index: Expr) -> tirx.Stmt:
                n, group = task_indices(index, [self.batch, const(self.groups)])
                into = self._transform(n, group, FIRST_TASK, const(0), const(self.in_blocks))
                return sequence(into, self._outputs(n, group, FIRST_TASK, const(0)))

            return prim_func(self.view.params, parallel(slots, task), [self.v, self.m])
        share = -(-self.in_blocks // min(self.in_blocks, PIECES))
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

    def _in_row_order(self, group: Expr, body: Callable[[Expr, Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        """``body`` of each tile of one of several groups: its number in the group, row and column."""

        def one(number: Expr) -> tirx.Stmt:
            place = group * self.group + number
            row, column = task_indices(place, [const(self.rows.count), const(self.columns.count)])
            stmt = body(number, row, column)
            return stmt if self.groups * self.group == self.count else tirx.IfThenElse(place < self.count, stmt, None)

        return serial(self.group, one, "tile")

    def _in_area(self, area: Area, columns: tuple[int, int], body: Callable[[Expr, Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        """``body`` of each tile of some columns of an area."""
        across = area.columns[1] - area.columns[0]

        def row(y: Expr) -> tirx.Stmt:
            def one(x: Expr) -> tirx.Stmt:
                return body((y - area.rows[0]) * across + (x - area.columns[0]) + area.first, y, x)

            return serial(columns[1] - columns[0], one, "column", first=columns[0])

        return serial(area.rows[1] - area.rows[0], row, "row", first=area.rows[0])

    # --- the input -------------------------------------------------------------------------------------------------

    def _transform(self, n: Expr, group: Expr, slot: Expr, first: Expr, count: Expr) -> tirx.Stmt:
        """The input tiles of a group, of ``count`` blocks of channels from ``first`` on."""
        parts = self.in_block // self.in_lanes

        def channels(number: Expr, row: Expr, column: Expr, low: int, high: int, outputs: tuple[int, int]) -> tirx.Stmt:
            at = self._places(number, outputs)

            def vector(c: Expr, part: Expr) -> tirx.Stmt:
                return self._input_tile([n, first + c, row, column, part], [slot, (first + c) * parts + part], at, low, high, outputs)

            return serial(count, lambda c: serial(parts, lambda part: vector(c, part), "part"), "c")

        if self.groups > 1:
            whole = (self.tile, self.tile)
            *others, (_, _, low, high) = self.columns.runs(0, self.columns.count)

            def any_tile(number: Expr, row: Expr, column: Expr) -> tirx.Stmt:
                stmt = channels(number, row, column, low, high, whole)
                for run in reversed(others):
                    stmt = tirx.IfThenElse(column < run[1], channels(number, row, column, *run[2:], whole), stmt)
                return stmt

            return self._in_row_order(group, any_tile)
        stmts = []
        for area in areas(self.rows, self.columns):
            for begin, end, low, high in self.columns.runs(*area.columns):

                def tile(number: Expr, row: Expr, column: Expr, low: int = low, high: int = high, area: Area = area) -> tirx.Stmt:
                    return channels(number, row, column, low, high, area.outputs)

                stmts.append(self._in_area(area, (begin, end), tile))
        return sequence(*stmts)

    def _places(self, number: Expr, outputs: tuple[int, int]) -> dict[tuple[int, int], tuple[Expr, int]]:
        """Where in ``v`` a tile's vectors of the first channels go, and the elements from one to the next, by position."""
        found = {}
        kept = [positions(self.tile, some) for some in outputs]
        for share, sums in self.shares:
            chunk, p = task_indices(number - share.first, [const(0), const(sums.pixels)])
            place = chunk * (sums.pixels * self.channels) + p * self.in_lanes
            for i in (i for i in share.rows if i in kept[0]):
                for j in (j for j in share.columns if j in kept[1]):
                    found[i, j] = place, sums.pixels * self.in_lanes
        return found

    def _input_tile(
        self,
        at: Sequence[Expr],
        to: Sequence[Expr],
        places: dict[tuple[int, int], tuple[Expr, int]],
        low: int,
        high: int,
        outputs: tuple[int, int],
    ) -> tirx.Stmt:
        """One vector of channels of a tile whose columns ``low`` to ``high`` are inside. Rows outside are read somewhere inside and
        masked: branches would cost more."""
        n, block, row, column, part = at
        slot, step = to
        zero = tirx.const(0, self.dtype)
        down, across = (positions(self.tile, some) for some in outputs)
        tall = min(self.wide, outputs[0] + 2)
        done = tirx.decl_buffer((tall, len(across), self.in_lanes), self.dtype, "rows")

        def along(i: int) -> tirx.Stmt:
            y = row * self.tile + (i - self.rows.before)
            inside = [y >= 0] if i < self.rows.before else []
            if (self.rows.count - 1) * self.tile + i - self.rows.before >= self.rows.size:
                inside.append(y < self.rows.size)

            def load(j: int, v: Expr) -> Expr:
                if not low <= j < high:
                    return zero
                x = column * self.tile + (j - self.columns.before)
                value = tirx.BufferLoad(self.x, [n, block, clamped(y, self.rows.size) if inside else y, x, part * self.in_lanes + v])
                return tirx.Select(tirx.all(*inside), value, zero) if inside else value

            def lane(v: Expr) -> tirx.Stmt:
                values = transform_input(self.tile, [load(j, v) for j in range(self.wide)], outputs[1])
                return sequence(*(tirx.BufferStore(done, value, [const(i), const(j), v]) for j, value in enumerate(values)))

            return vectorized(self.in_lanes, lane)

        def finish(v: Expr) -> tirx.Stmt:
            stores = []
            for number, j in enumerate(across):
                loads = [tirx.BufferLoad(done, [const(i), const(number), v]) for i in range(tall)]
                values = transform_input(self.tile, [*loads, *[zero] * (self.wide - tall)], outputs[0])
                for i, value in zip(down, values, strict=True):
                    place, stride = places[i, j]
                    stores.append(tirx.BufferStore(self.v, value, [slot, const(i * self.wide + j), place + step * stride + v]))
            return sequence(*stores)

        return sequence(registers(done), *map(along, range(tall)), vectorized(self.in_lanes, finish))

    # --- products and outputs --------------------------------------------------------------------------------------

    def _outputs(self, n: Expr, group: Expr, slot: Expr, part: Expr) -> tirx.Stmt:
        """A part of the output channels of a group."""
        own = slot if self.alone else FIRST_TASK
        count = self.blocks // self.together // self.parts

        def some(index: Expr) -> tirx.Stmt:
            first = (part * count + index) * self.together
            products = [self._products(share, sums, slot, own, first) for share, sums in self.shares]
            return sequence(*products, self._inverse(n, group, own, first))

        return serial(count, some, "blocks")

    def _products(self, share: Share, sums: Tile, slot: Expr, own: Expr, first: Expr) -> tirx.Stmt:
        """A share's products for ``together`` blocks of outputs."""

        def chunks(i: Expr, j: Expr) -> tirx.Stmt:
            at = _point(share.rows, i) * self.wide + _point(share.columns, j)

            def blocks(o: Expr) -> tirx.Stmt:
                chunk_count = -(-share.count // sums.pixels)
                place = [slot, own, at]
                return serial(chunk_count, lambda chunk: self._product(sums, place, first, o * sums.blocks, chunk, share), "chunk")

            return serial(self.together // sums.blocks, blocks, "o")

        return serial(len(share.rows), lambda i: serial(len(share.columns), lambda j: chunks(i, j), "j"), "i")

    def _product(self, sums: Tile, at: Sequence[Expr], first: Expr, o0: Expr, chunk: Expr, share: Share) -> tirx.Stmt:
        """One position of a chunk of tiles, for ``sums.blocks`` blocks of outputs from the one ``o0`` after ``first`` on."""
        slot, own, position = at
        total = tirx.decl_buffer((sums.blocks, sums.pixels, self.block), self.dtype, "sums")
        # Registers of several channels of a tile, each of which is multiplied by lane; elsewhere loads broadcast.
        held = tirx.decl_buffer((sums.pixels, self.in_lanes), self.dtype, "held")
        steps = self.channels // self.in_lanes

        def each(body: Callable[[Expr, Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
            return unrolled(
                sums.blocks, lambda o: unrolled(sums.pixels, lambda p: vectorized(self.block, lambda v: body(o, p, v)), "p"), "o"
            )

        def step(c: Expr) -> tirx.Stmt:
            def load(p: Expr, c1: Expr) -> Expr:
                place = ((chunk * steps + c) * sums.pixels + p) * self.in_lanes + c1
                return tirx.BufferLoad(self.v, [slot, position, place])

            def channel(c1: Expr) -> tirx.Stmt:
                def add(o: Expr, p: Expr, v: Expr) -> tirx.Stmt:
                    x = tirx.BufferLoad(held, [p, c1]) if self.by_element else load(p, c1)
                    panel, lane = self._weight_block(first + o0, o, sums.blocks)
                    w = tirx.BufferLoad(self.u, [panel, position, c * self.in_lanes + c1, lane + v])
                    return tirx.BufferStore(total, tirx.BufferLoad(total, [o, p, v]) + x * w, [o, p, v])

                if self.by_element:
                    return each(add)
                # Few registers hold the weights of a channel; an input that is broadcast is needed for a moment.
                return unrolled(
                    sums.pixels, lambda p: unrolled(sums.blocks, lambda o: vectorized(self.block, lambda v: add(o, p, v)), "o"), "p"
                )

            def hold(p: Expr) -> tirx.Stmt:
                return vectorized(self.in_lanes, lambda c1: tirx.BufferStore(held, load(p, c1), [p, c1]))

            if self.by_element:
                return sequence(unrolled(sums.pixels, hold, "p"), unrolled(self.in_lanes, channel, "c1"))
            # In a loop that LLVM leaves one: a share's products are code of their own, of which a file with many shares has much.
            some = next(n for n in (8, 4, 2, 1) if self.in_lanes % n == 0)
            return serial(opaque(self.in_lanes // some), lambda i: unrolled(some, lambda c1: channel(i * some + c1), "c1"), "c2")

        # As many steps as fit the innermost body and the offsets of loads.
        reach = self.reach // (max(self.panel, sums.blocks) * self.block * self.in_lanes * 4)
        most = max(1, min(reach, UNROLLED_OPERATIONS // (sums.blocks * sums.pixels * self.block // self.lanes * self.in_lanes)))
        run = next(n for n in range(most, 0, -1) if steps % n == 0)
        work = serial(steps // run, lambda c: unrolled(run, lambda i: step(c * run + i), "i"), "c")
        clear = each(lambda o, p, v: tirx.BufferStore(total, tirx.const(0, self.dtype), [o, p, v]))
        keep = each(
            lambda o, p, v: tirx.BufferStore(
                self.m, tirx.BufferLoad(total, [o, p, v]), [own, position, o0 + o, chunk * sums.pixels + p + share.first, v]
            )
        )
        return sequence(registers(total), registers(held), clear, work, keep)

    def _weight_block(self, first: Expr, o: Expr, count: int) -> tuple[Expr, Expr]:
        """The panel of weights of a block, and where in it the block begins. ``first`` is a multiple of ``count``."""
        if self.panel == 1:
            return first + o, const(0)
        if count % self.panel == 0:
            panels, lane = task_indices(o, [const(0), const(self.panel)])
            return tirx.truncdiv(first, const(self.panel)) + panels, lane * self.block
        panel, lane = task_indices(first, [const(0), const(self.panel)])
        return panel, (lane + o) * self.block

    def _inverse(self, n: Expr, group: Expr, own: Expr, first: Expr) -> tirx.Stmt:
        parts = self.block // self.lanes

        def vectors(number: Expr, row: Expr, column: Expr, outputs: tuple[int, int]) -> tirx.Stmt:
            def vector(o: Expr, part: Expr) -> tirx.Stmt:
                return self._output_tile([own, o, number, part * self.lanes], [n, first + o, row, column], outputs)

            return serial(self.together, lambda o: serial(parts, lambda part: vector(o, part), "part"), "o")

        if self.groups > 1:
            return self._in_row_order(group, lambda number, row, column: vectors(number, row, column, (self.tile, self.tile)))
        stmts = []
        for area in areas(self.rows, self.columns):

            def tile(number: Expr, row: Expr, column: Expr, area: Area = area) -> tirx.Stmt:
                return vectors(number, row, column, area.outputs)

            stmts.append(self._in_area(area, area.columns, tile))
        return sequence(*stmts)

    def _output_tile(self, at: Sequence[Expr], to: Sequence[Expr], outputs: tuple[int, int]) -> tirx.Stmt:
        """One vector of outputs of a tile: its inverse transform and what follows it."""
        own, o, number, lane = at
        n, block, row, column = to
        down, across = (positions(self.tile, some) for some in outputs)
        done = tirx.decl_buffer((outputs[0], len(across), self.lanes), self.dtype, "columns")
        result = tirx.decl_buffer((*outputs, self.lanes), self.dtype, "tile")

        def columns(v: Expr) -> tirx.Stmt:
            stores = []
            for place, j in enumerate(across):
                loads = [tirx.BufferLoad(self.m, [own, const(i * self.wide + j), o, number, lane + v]) for i in down]
                values = transform_output(self.tile, loads, outputs[0])
                stores += [tirx.BufferStore(done, value, [const(i), const(place), v]) for i, value in enumerate(values)]
            return sequence(*stores)

        def along(i: int) -> tirx.Stmt:
            def values(v: Expr) -> tirx.Stmt:
                loads = [tirx.BufferLoad(done, [const(i), const(place), v]) for place in range(len(across))]
                found = transform_output(self.tile, loads, outputs[1])
                return sequence(*(tirx.BufferStore(result, value, [const(i), const(j), v]) for j, value in enumerate(found)))

            y = row * self.tile + i
            stores = sequence(vectorized(self.lanes, values), *(store(i, j, y) for j in range(outputs[1])))
            return self._if_inside(self.rows, i, y, stores)

        def store(i: int, j: int, y: Expr) -> tirx.Stmt:
            x = column * self.tile + j
            stmt = self.view.store(
                self.lanes,
                lambda v: ([n, block, y, x, lane + v], tirx.BufferLoad(result, [const(i), const(j), v])),
            )
            return self._if_inside(self.columns, j, x, stmt)

        return sequence(registers(done), registers(result), vectorized(self.lanes, columns), *map(along, range(outputs[0])))

    def _if_inside(self, axis: Axis, offset: int, position: Expr, stmt: tirx.Stmt) -> tirx.Stmt:
        """A group in the order of rows treats short tiles like whole ones: their outputs beyond the end are not stored."""
        return stmt if self.groups == 1 or offset < axis.rest else tirx.IfThenElse(position < axis.out, stmt, None)


def _point(points: tuple[int, ...], number: Expr) -> Expr:
    """The point of a number, for points that have one gap at most."""
    before = next((n for n, point in enumerate(points) if point != points[0] + n), len(points))
    if before == len(points):
        return number + points[0]
    return tirx.Select(number < before, number + points[0], number + (points[before] - before))


DIRECT: dict[str, tuple[Direct, ...]] = {"winograd_conv": (winograd_conv,)}
