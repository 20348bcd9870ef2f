"""Direct convolution over blocked channels, written as TIR.

A task computes one row of one group of output blocks. It walks the row in tiles whose sums stay in registers: ``blocks``
output blocks by ``pixels`` pixels, each input element against a vector of weights (Zhang et al., High Performance
Zero-Memory Overhead Direct Convolutions, ICML 2018; Georganas et al., Anatomy of High-Performance Deep Learning
Convolutions, SC 2018). Padding is never copied: rows skip the taps that lie outside, and tiles at the row's ends are
written for their place. A row that does not divide into tiles ends in a shorter one. Where its length is known only at run
time, its last tile overlaps the one before it and stores only what that has not. So each element is written once, and the
result may stand over an operand of what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from aotc.ops.conv import is_depthwise_blocked
from aotc.targets import Target
from aotc.targets.schedules.base import Direct, DirectWork
from aotc.targets.schedules.choices import Choices
from aotc.targets.schedules.conv_dense import DenseSums
from aotc.targets.schedules.conv_places import TYPE_BYTES, Ahead, Axis, Place, is_far
from aotc.targets.schedules.conv_sums import DepthwiseSums
from aotc.targets.schedules.emit import (
    const,
    hidden_zero,
    known,
    opaque,
    parallel,
    product,
    registers,
    sequence,
    serial,
    task_indices,
    unravel,
    vectorized,
)
from aotc.targets.schedules.fused import Fused, fused, prim_func, started
from aotc.targets.schedules.lane_sums import LaneSums
from aotc.targets.schedules.tile import Tile, tiles

Expr = Any

EDGE_TILES = 4
"""Tiles at a row's ends that are written out one by one; with more of them a checked loop does all tiles."""

MOST_NARROWED = 3
"""Blocks up to which one tile takes all of them if the last has filling, which only such a tile leaves out."""

TILES_PER_TASK, FEW_TILES = 16, 2
"""Tiles of a row that is shared among tasks, at least; and where these would be fewer than ``MANY_TASKS``, so that threads get
shares of about one size."""
MANY_TASKS = 32

RELOADING_TILES = 4
"""Tiles of a row from which on a bias is kept once for each pixel of a tile."""

MANY_ROW_TASKS = 64
"""Tasks that are left, at least, where one computes several rows."""

AHEAD_TILES = 64
"""Where more tiles than these use a weight, it matters little that the first of them waits for it."""


def blocked_conv(work: DirectWork) -> tirx.PrimFunc | None:
    """conv with ``channel_block``, of one group or of one group a channel."""
    attrs: Any = work.anchor.attrs
    if not attrs.channel_block:
        return None
    view = fused(work)
    if view is None:
        return None
    view = started(view)
    x, w = view.operands
    depthwise = is_depthwise_blocked(attrs, len(w.shape), len(x.shape))
    n = len(attrs.strides)
    kernel = [known(extent) for extent in (w.shape[1 : 1 + n] if depthwise else w.shape[2 : 2 + n])]
    if None in kernel or known(view.total.shape[1]) is None:
        return None
    axes = tuple(
        Axis(x.shape[2 + i], view.total.shape[2 + i], int(kernel[i] or 1), attrs.strides[i], attrs.dilation[i], *attrs.padding[i::n])
        for i in range(n)
    )
    return _Blocked(view, work.target, axes, depthwise, attrs, work.choices).function()


class _Blocked:
    """Writes the kernel: tasks, rows, tiles and what follows the sums, which ``conv_sums`` computes."""

    def __init__(self, view: Fused, target: Target, axes: Sequence[Axis], depthwise: bool, attrs: Any, choices: Choices) -> None:
        self.view, self.target = view, target
        self.dtype = str(view.total.dtype)
        self.blocks, self.block = int(known(view.total.shape[1]) or 1), int(known(view.total.shape[-1]) or 1)
        self.full_axes = axes
        # A 1x1 convolution sees one long row.
        self.flat = len(axes) > 1 and all(axis.is_pointwise for axis in axes)
        if self.flat:
            size = product([axis.size for axis in axes])
            axes = [Axis(size, size, 1, 1, 1, 0, 0)]
        self.outer, self.row = list(axes[:-1]), axes[-1]
        place = (view, target, self.full_axes, self.outer, self.row, self.flat)
        if depthwise:
            self.sums: DepthwiseSums | LaneSums | DenseSums = DepthwiseSums(*place)
        elif self.block == 1 and known(view.operands[0].shape[-1]) != 1:
            self.sums = LaneSums(*place)
        else:
            self.sums = DenseSums(*place, attrs.in_channels, attrs.out_channels)
        self.far = is_far(target, view.total.shape[2:], str(view.outputs[0].dtype))
        self.tile = choices.pick("tile", self._tiles())
        self.rows_first = False
        # Sums that start as loads, two at a time, leave the units that multiply alone; copies of one bias would not. LLVM does not see
        # that they are equal.
        tiles_of_row = (known(self.row.out) or 0) // self.tile.pixels
        self.reloads = target.multiplies_by_element and isinstance(self.sums, DenseSums) and tiles_of_row >= RELOADING_TILES

    def _tiles(self) -> list[Tile]:
        target, row = self.target, self.row
        vectors = max(1, self.block // target.lanes(self.dtype))
        offered = tiles(target.vector_registers, vectors, self.blocks, known(row.out), self.sums.step(vectors), shorter=True)
        fitting = [tile for tile in offered if self.sums.fits(tile)]
        if self.sums.last_lanes < self.block and self.blocks <= MOST_NARROWED:
            fitting.sort(key=lambda tile: tile.blocks != self.blocks)
        return fitting or offered[:1]

    def function(self) -> tirx.PrimFunc:
        groups = const(self.blocks // self.tile.blocks)
        pieces, piece_loop = self._pieces(TILES_PER_TASK)
        batch, outer = self.view.total.shape[0], [axis.out for axis in self.outer]
        self.rows_first = self._rows_first(known(pieces))
        if not self.rows_first and (known(pieces) or MANY_TASKS) * self.blocks // self.tile.blocks < MANY_TASKS:
            pieces, piece_loop = self._pieces(FEW_TILES)
        rows = self._rows_at_once(known(product([batch, groups, *outer])))
        if rows > 1:
            outer[-1] = const(int(known(outer[-1]) or 1) // rows)
        extents = [batch, *outer, pieces, groups] if self.rows_first else [batch, groups, *outer, pieces]

        def task(index: Expr) -> tirx.Stmt:
            n, *rest = task_indices(index, extents)
            group = rest.pop(-1 if self.rows_first else 0)
            *places, piece = rest
            if rows == 1:
                return piece_loop(n, group, places, piece)
            return serial(rows, lambda y: piece_loop(n, group, [*places[:-1], places[-1] * rows + y], piece), "y")

        return prim_func(self.view.params, parallel(product(extents), task))

    def _rows_at_once(self, rows: int | None) -> int:
        """How many rows a task of a depthwise convolution computes, of ``rows`` in all: one by itself takes about as many instructions
        to find as to sum up."""
        last = known(self.outer[-1].out) if self.outer else None
        if not isinstance(self.sums, DepthwiseSums) or rows is None or last is None:
            return 1
        return next(n for n in range(max(1, min(last, rows // MANY_ROW_TASKS)), 0, -1) if last % n == 0)

    def _rows_first(self, pieces: int | None) -> bool:
        """Whether all groups of a piece of a row come one after the other, since the whole input is read again for each group
        from beyond the second cache otherwise, and the weights are the less to read again."""
        inputs, weights = (known(product(buffer.shape)) for buffer in self.view.operands)
        if inputs is None or weights is None or pieces in (None, 1) or not self.flat:
            return False
        size, cache = TYPE_BYTES.get(str(self.view.operands[0].dtype), 4), self.target.l2_bytes
        groups = self.blocks // self.tile.blocks

        def read(once: int, times: int) -> int:
            return once * size * (times if once * size > cache // 2 else 1)

        # By some: a piece of many channels is many pieces of memory, which are not fetched ahead as well as all of them are.
        return 4 * (read(inputs, 1) + read(weights, pieces)) < read(inputs, groups) + read(weights, 1)

    # --- the row, in tiles -----------------------------------------------------------------------------------------

    def _pieces(self, least: int) -> tuple[Expr, Callable[[Expr, Expr, list[Expr], Expr], tirx.Stmt]]:
        """How many tasks, of so many tiles at least, share a row, and the loop over the tiles of one of them."""
        row = known(self.row.out)
        if row is None:
            return const(1), lambda n, group, outer, _: self._unknown_row(n, group, outer)
        if self.outer or self.row.before or self.row.after:
            return const(1), lambda n, group, outer, _: self._known_row(n, group, outer, row)
        whole = row // self.tile.pixels
        share = max(1, whole // max(1, whole // least))
        pieces = max(1, whole // share)

        def some(n: Expr, group: Expr, outer: list[Expr], piece: Expr) -> tirx.Stmt:
            """The last task takes the tiles left over, and the shorter one."""
            last = piece == pieces - 1
            count = const(whole) if pieces == 1 else tirx.Select(last, const(whole - (pieces - 1) * share), const(share))
            stmts = [self._loop(n, group, outer, count, lambda t: (piece * share + t) * self.tile.pixels)] if whole else []
            if row % self.tile.pixels:
                start = self._apart(whole * self.tile.pixels, row % self.tile.pixels)
                short = self._tile(n, group, outer, Place(start, row % self.tile.pixels, inside=True))
                stmts.append(short if pieces == 1 else tirx.IfThenElse(last, short, None))
            return sequence(*stmts)

        return const(pieces), some

    def _loop(self, n: Expr, group: Expr, outer: list[Expr], count: Expr, start: Callable[[Expr], Expr]) -> tirx.Stmt:
        """Whole tiles that read no padding."""
        return serial(count, lambda t: self._tile(n, group, outer, Place(start(t), self.tile.pixels, inside=True)), "tile")

    def _known_row(self, n: Expr, group: Expr, outer: list[Expr], row: int) -> tirx.Stmt:
        pixels, size = self.tile.pixels, known(self.row.size)
        starts = list(range(0, row, pixels))
        widths = [min(pixels, row - start) for start in starts]
        if not (self.row.before or self.row.after):
            inner = [width == pixels for width in widths]
        elif size is None:
            return self._unknown_row(n, group, outer)
        else:
            inner = [width == pixels and self.row.is_inner(start, width, size) for start, width in zip(starts, widths, strict=True)]
        loop = [t for t, is_inner in enumerate(inner) if is_inner]
        if len(starts) - len(loop) > EDGE_TILES or (loop and loop != list(range(loop[0], loop[-1] + 1))):
            return self._unknown_row(n, group, outer)
        stmts = []
        for t, (start, width) in enumerate(zip(starts, widths, strict=True)):
            if t not in loop:
                stmts.append(self._tile(n, group, outer, Place(self._apart(start, width), width, inside=False, known=start)))
            elif t == loop[0]:
                first = self._apart(start, pixels) if len(loop) == 1 else const(start)
                stmts.append(self._loop(n, group, outer, const(len(loop)), _steps(first, pixels)))
        return sequence(*stmts)

    def _apart(self, start: int, width: int) -> Expr:
        """Where a tile starts, as a number that LLVM does not see if the offsets of loads do not reach its end from the row's begin."""
        reach = (start + width) * self.row.stride * self.block * TYPE_BYTES.get(self.dtype, 4)
        return opaque(start) if start and reach > self.target.offset_bytes else const(start)

    def _unknown_row(self, n: Expr, group: Expr, outer: list[Expr]) -> tirx.Stmt:
        """A row known only at run time, perhaps shorter than a tile: tiles not wholly inside are checked."""
        pixels, axis = self.tile.pixels, self.row
        reach = (pixels - 1) * axis.stride + (axis.kernel - 1) * axis.dilation

        def body(t: Expr) -> tirx.Stmt:
            start = tirx.max(const(0), tirx.min(t * pixels, axis.out - pixels))
            skip = t * pixels - start
            inside = [axis.out >= pixels]
            if axis.before:
                inside.append(start * axis.stride >= axis.before)
            if axis.after:
                inside.append(start * axis.stride + (reach - axis.before) < axis.size)
            whole = self._tile(n, group, outer, Place(start, pixels, inside=True), skip)
            checked = self._tile(n, group, outer, Place(start, pixels, inside=False), skip)
            return tirx.IfThenElse(tirx.all(*inside), whole, checked)

        return serial(tirx.floordiv(axis.out + (pixels - 1), const(pixels)), body, "tile")

    # --- one tile --------------------------------------------------------------------------------------------------

    def _tile(self, n: Expr, group: Expr, outer: list[Expr], place: Place, skip: Expr | None = None) -> tirx.Stmt:
        """The sums of a tile and what follows them. The first ``skip`` pixels are stored already."""
        blocks = self.tile.blocks
        sums = tirx.decl_buffer((blocks, place.width, self.sums.vector), self.dtype, "sums")  # each tile that is written out has its own

        def each(body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
            return sequence(*(body(const(o), const(p)) for o in range(blocks) for p in range(place.width)))

        def at(o: Expr, p: Expr, v: Expr, stored: bool = False) -> list[Expr]:
            number = known(o)
            block = opaque(number) if stored and self.far and number else o
            return [n, group * blocks + block, *self._spatial(outer, place.start + p), v]

        def begin(o: Expr, p: Expr) -> tirx.Stmt:
            if isinstance(self.sums, LaneSums):
                zero = tirx.const(0, self.dtype)
                return vectorized(self.sums.vector, lambda v: tirx.BufferStore(sums, zero, [o, p, v]))

            pixel = known(p) if self.reloads and place.width == self.tile.pixels else 0
            same = hidden_zero(pixel) if pixel else const(0)

            def some(first: int, lanes: int) -> tirx.Stmt:
                return vectorized(lanes, lambda v: tirx.BufferStore(sums, self.view.start(at(o, p, first + v + same)), [o, p, first + v]))

            return self._in_parts(o, some)

        def finish(held: tirx.Buffer, o: Expr, p: Expr) -> tirx.Stmt:
            def some(first: int, lanes: int) -> tirx.Stmt:
                return self.view.store(lanes, lambda v: (at(o, p, first + v, stored=True), tirx.BufferLoad(held, [o, p, first + v])))

            if isinstance(self.sums, LaneSums):
                steps, total = self.sums.folded(held, o, p)
                place_of = at(o, p, const(0), stored=True)
                stmt = sequence(*steps, self.view.store(1, lambda v: (place_of, self.view.start(at(o, p, const(0))) + total)))
            else:
                stmt = self._in_parts(o, some)
            checks = [] if skip is None or known(skip) == 0 else [p >= skip]
            if not place.inside and place.known is None:
                checks.append(place.start + p < self.row.out)
            return tirx.IfThenElse(tirx.all(*checks), stmt, None) if checks else stmt

        ahead = self._ahead(group, outer, place)
        work = self.sums.added(sums, n, group, blocks, outer, place, *([ahead] if ahead else []))
        dense = isinstance(self.sums, DenseSums)
        stores = self.view.finish_all(sums, each, finish) if dense else each(lambda o, p: finish(sums, o, p))
        return sequence(registers(sums), each(begin), work, stores)

    def _ahead(self, group: Expr, outer: list[Expr], place: Place) -> Ahead | None:
        """What a tile asks for ahead of its use, where the tiles of a group follow one another."""
        row, rows, weights = known(self.row.out), known(product([axis.out for axis in self.outer])), self.view.operands[1]
        groups, size = self.blocks // self.tile.blocks, known(product(weights.shape))
        if not isinstance(self.sums, DenseSums) or self.rows_first or not self.target.outruns_memory:
            return None
        if row is None or rows is None or groups == 1:
            return None
        across = -(-row // self.tile.pixels)
        if rows * across > AHEAD_TILES or int(size or 0) * TYPE_BYTES.get(str(weights.dtype), 4) < self.target.l2_bytes // 2:
            return None
        before: Expr = const(0)
        for position, axis in zip(outer, self.outer, strict=True):
            before = before * axis.out + position
        number = before * across + tirx.truncdiv(place.start, const(self.tile.pixels))
        return Ahead(tirx.min(group + 1, const(groups - 1)), number, rows * across)

    def _in_parts(self, o: Expr, body: Callable[[int, int], tirx.Stmt]) -> tirx.Stmt:
        """``body(first, lanes)`` for the lanes of a block of the tile, in the vectors that its sums have."""
        lanes = self.sums.lanes_of(known(o), self.tile.blocks)
        return sequence(*(body(first, lanes) for first in range(0, self.block, lanes)))

    def _spatial(self, outer: list[Expr], position: Expr) -> list[Expr]:
        if not self.flat:
            return [*outer, position]
        return unravel(position, [axis.out for axis in self.full_axes])


def _steps(first: Expr, step: int) -> Callable[[Expr], Expr]:
    return lambda t: first + t * step


DIRECT: dict[str, tuple[Direct, ...]] = {"conv": (blocked_conv,)}
