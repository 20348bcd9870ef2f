"""Direct convolution over blocked channels, written as TIR.

A task computes one row of one group of output blocks. It walks the row in tiles whose sums stay in registers: ``blocks``
output blocks by ``pixels`` pixels, each input element broadcast against a vector of weights (Zhang et al., High Performance
Zero-Memory Overhead Direct Convolutions, ICML 2018; Georganas et al., Anatomy of High-Performance Deep Learning
Convolutions, SC 2018). Padding is never copied: rows skip the taps that lie outside, and tiles at the row's ends are
written for their place. A row that does not divide into tiles ends in a tile that overlaps the one before it and stores only
what that has not: each element is written once, so that the result may stand over an operand of what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.ops.conv import is_depthwise_blocked
from aotc.targets import Target
from aotc.targets.schedules.base import Direct, DirectWork
from aotc.targets.schedules.choices import Choices
from aotc.targets.schedules.emit import (
    const,
    known,
    parallel,
    product,
    registers,
    sequence,
    serial,
    task_indices,
    unravel,
    unrolled,
    vectorized,
)
from aotc.targets.schedules.fused import Fused, fused, prim_func
from aotc.targets.schedules.tile import tiles

Expr = Any

UNROLLED_OPERATIONS = 320
"""Multiply-adds (vectors) that the innermost body may hold: more do not fit the CPUs' caches of decoded instructions."""

EDGE_TILES = 4
"""Tiles at a row's ends that are written out one by one; with more of them a checked loop does all tiles."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis. ``size`` and ``out`` are its extents before and after."""

    size: Expr
    out: Expr
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def is_pointwise(self) -> bool:
        return self.kernel == 1 and self.stride == 1 and not self.before and not self.after

    def taps(self, position: Expr) -> tuple[Expr, Expr]:
        """The range of taps that fall inside for an output position."""
        low: Expr = const(0)
        if self.before:
            low = tirx.max(const(0), tirx.floordiv(const(self.before + self.dilation - 1) - position * self.stride, const(self.dilation)))
        high: Expr = const(self.kernel)
        if self.after:
            room = self.size + const(self.before + self.dilation - 1) - position * self.stride
            high = tirx.min(high, tirx.floordiv(room, const(self.dilation)))
        return low, high


def blocked_conv(work: DirectWork) -> tirx.PrimFunc | None:
    """conv with ``channel_block``, of one group or of one group a channel."""
    attrs: Any = work.anchor.attrs
    if not attrs.channel_block:
        return None
    view = fused(work)
    if view is None:
        return None
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
    return _Blocked(view, work.target, axes, depthwise, work.choices).function()


class _Blocked:
    """Writes the kernel."""

    def __init__(self, view: Fused, target: Target, axes: Sequence[Axis], depthwise: bool, choices: Choices) -> None:
        self.view, self.target, self.depthwise = view, target, depthwise
        self.x, self.w = view.operands
        self.dtype = str(view.total.dtype)
        self.batch, self.blocks, self.block = (
            view.total.shape[0],
            int(known(view.total.shape[1]) or 1),
            int(known(view.total.shape[-1]) or 1),
        )
        self.full_axes = axes
        # A 1x1 convolution sees one long row.
        self.flat = len(axes) > 1 and all(axis.is_pointwise for axis in axes)
        if self.flat:
            size = product([axis.size for axis in axes])
            axes = [Axis(size, size, 1, 1, 1, 0, 0)]
        self.outer, self.row = list(axes[:-1]), axes[-1]
        vectors = max(1, self.block // target.lanes(self.dtype))
        self.tile = choices.pick("tile", tiles(target.vector_registers, vectors, self.blocks, known(self.row.out), depthwise))
        self.sums = self._new_sums()

    def function(self) -> tirx.PrimFunc:
        groups = const(self.blocks // self.tile.blocks)
        pieces, piece_loop = self._pieces()
        extents = [self.batch, groups, *(axis.out for axis in self.outer), pieces]

        def task(index: Expr) -> tirx.Stmt:
            n, group, *rest = task_indices(index, extents)
            return piece_loop(n, group, rest[:-1], rest[-1])

        return prim_func(self.view.params, parallel(product(extents), task))

    def _new_sums(self) -> tirx.Buffer:
        """The registers of one tile: each tile that is written out has its own."""
        return tirx.decl_buffer((self.tile.blocks, self.tile.pixels, self.block), self.dtype, "sums")

    # --- the row, in tiles -----------------------------------------------------------------------------------------

    def _pieces(self) -> tuple[Expr, Callable[[Expr, Expr, list[Expr], Expr], tirx.Stmt]]:
        """How many tasks share a row, and the loop over the tiles of one of them."""
        pixels = self.tile.pixels
        row = known(self.row.out)
        if row is None:
            return const(1), lambda n, group, outer, _: self._unknown_row(n, group, outer)
        if self.outer or self.row.before or self.row.after:
            return const(1), lambda n, group, outer, _: self._known_row(n, group, outer, row)
        tiles = -(-row // pixels)
        share = max(1, tiles // max(1, tiles // 16))
        pieces = max(1, tiles // share)

        def some(n: Expr, group: Expr, outer: list[Expr], piece: Expr) -> tirx.Stmt:
            # The last task takes the tiles left over, so that the overlapping tile and its neighbour are in one task.
            count = const(tiles) if pieces == 1 else tirx.Select(piece == pieces - 1, const(tiles - (pieces - 1) * share), const(share))
            return serial(count, lambda t: self._inner_tile(n, group, outer, *self._start(piece * share + t, row)), "tile")

        return const(pieces), some

    def _start(self, tile: Expr, row: int) -> tuple[Expr, Expr | None]:
        """Where a tile starts, and how many of its first pixels belong to the tile before."""
        pixels = self.tile.pixels
        if row % pixels == 0:
            return tile * pixels, None
        start = tirx.min(tile * pixels, const(row - pixels))
        return start, tile * pixels - start

    def _known_row(self, n: Expr, group: Expr, outer: list[Expr], row: int) -> tirx.Stmt:
        pixels = self.tile.pixels
        starts = [min(t * pixels, row - pixels) for t in range(-(-row // pixels))]
        size = known(self.row.size)
        if size is None or not (self.row.before or self.row.after):
            return self._all_tiles(n, group, outer, row, len(starts), checked=bool(self.row.before or self.row.after))
        inner = [t for t, start in enumerate(starts) if self._is_inner(start, size)]
        if len(starts) - len(inner) > EDGE_TILES or (inner and inner != list(range(inner[0], inner[-1] + 1))):
            return self._all_tiles(n, group, outer, row, len(starts), checked=True)
        edges = [t for t in range(len(starts)) if t not in inner]
        stmts = [self._tile(n, group, outer, const(starts[t]), starts[t], skip=const(t * pixels - starts[t])) for t in edges]
        if inner:
            stmts.append(serial(len(inner), lambda t: self._inner_tile(n, group, outer, *self._start(t + inner[0], row)), "tile"))
        return sequence(*stmts)

    def _all_tiles(self, n: Expr, group: Expr, outer: list[Expr], row: Expr, tiles: Expr, checked: bool) -> tirx.Stmt:
        last = row - self.tile.pixels

        def body(t: Expr) -> tirx.Stmt:
            start = tirx.min(t * self.tile.pixels, last)
            skip = t * self.tile.pixels - start
            return self._tile(n, group, outer, start, None, skip=skip) if checked else self._inner_tile(n, group, outer, start, skip)

        return serial(tiles, body, "tile")

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
            checked = self._tile(n, group, outer, start, None, skip=skip, whole=False)
            return tirx.IfThenElse(tirx.all(*inside), self._inner_tile(n, group, outer, start, skip), checked)

        return serial(tirx.floordiv(axis.out + (pixels - 1), const(pixels)), body, "tile")

    def _is_inner(self, start: int, size: int) -> bool:
        axis = self.row
        first = start * axis.stride - axis.before
        return first >= 0 and first + (self.tile.pixels - 1) * axis.stride + (axis.kernel - 1) * axis.dilation < size

    # --- one tile --------------------------------------------------------------------------------------------------

    def _inner_tile(self, n: Expr, group: Expr, outer: list[Expr], start: Expr, skip: Expr | None) -> tirx.Stmt:
        return self._tile(n, group, outer, start, None, skip, inner=True)

    def _tile(
        self,
        n: Expr,
        group: Expr,
        outer: list[Expr],
        start: Expr,
        place: int | None,
        skip: Expr | None = None,
        inner: bool = False,
        whole: bool = True,
    ) -> tirx.Stmt:
        """The sums of a tile and what follows them. ``place`` is the start where it is known; the first ``skip`` pixels are
        stored already; an ``inner`` tile reads no padding; a tile that is not ``whole`` reaches beyond the row."""
        blocks, pixels = self.tile.blocks, self.tile.pixels
        first_block = group * blocks
        self.sums = self._new_sums()

        def each(body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
            return unrolled(blocks, lambda o: unrolled(pixels, lambda p: body(o, p), "p"), "o")

        def clear(o: Expr, p: Expr) -> tirx.Stmt:
            return vectorized(self.block, lambda v: tirx.BufferStore(self.sums, tirx.const(0, self.dtype), [o, p, v]))

        def finish(o: Expr, p: Expr) -> tirx.Stmt:
            at = self._spatial(outer, start + p)
            stmt = self.view.store(self.block, lambda v: ([n, first_block + o, *at, v], tirx.BufferLoad(self.sums, [o, p, v])))
            checks = [] if skip is None or known(skip) == 0 else [p >= skip]
            if not whole:
                checks.append(start + p < self.row.out)
            return tirx.IfThenElse(tirx.all(*checks), stmt, None) if checks else stmt

        work = self._reduction(n, first_block, outer, start, place, inner)
        return sequence(registers(self.sums), each(clear), work, each(finish))

    def _spatial(self, outer: list[Expr], position: Expr) -> list[Expr]:
        if not self.flat:
            return [*outer, position]
        return unravel(position, [axis.out for axis in self.full_axes])

    def _reduction(self, n: Expr, first_block: Expr, outer: list[Expr], start: Expr, place: int | None, inner: bool) -> tirx.Stmt:
        ranges = [axis.taps(position) for axis, position in zip(self.outer, outer, strict=True)]

        def over_taps(c0: Expr, chosen: list[Expr]) -> tirx.Stmt:
            if len(chosen) < len(ranges):
                low, high = ranges[len(chosen)]
                extent = high if known(low) == 0 else high - low
                return serial(extent, lambda k: over_taps(c0, [*chosen, k]), "k", first=low)
            rows = [y * a.stride + k * a.dilation - a.before for a, y, k in zip(self.outer, outer, chosen, strict=True)]
            return self._row_taps(n, first_block, c0, rows, chosen, start, place, inner)

        if self.depthwise:
            return over_taps(const(0), [])
        return serial(self.x.shape[1], lambda c0: over_taps(c0, []), "c0")

    def _row_taps(
        self, n: Expr, first_block: Expr, c0: Expr, rows: list[Expr], chosen: list[Expr], start: Expr, place: int | None, inner: bool
    ) -> tirx.Stmt:
        """The taps along the row and the channels of one input block."""
        axis, tile = self.row, self.tile
        channels = 1 if self.depthwise else int(known(self.x.shape[-1]) or 1)
        vectors = max(1, self.block // self.target.lanes(self.dtype))
        body_size = channels * tile.blocks * tile.pixels * vectors

        inside = inner or place is not None

        def tap(k: Expr, low: int, high: int) -> tirx.Stmt:
            def channel(c1: Expr) -> tirx.Stmt:
                return unrolled(
                    high - low,
                    lambda p: unrolled(
                        tile.blocks, lambda o: self._multiply_add(n, first_block, c0, rows, chosen, start, k, c1, o, p, inside), "o"
                    ),
                    "p",
                    first=low,
                )

            if self.depthwise or channels == 1:
                return channel(const(0))
            return (unrolled if body_size <= UNROLLED_OPERATIONS else serial)(channels, channel, "c1")

        if place is not None:
            stmts = []
            for k in range(axis.kernel):
                low, high = self._inside(place, k)
                if low < high:
                    stmts.append(tap(const(k), low, high))
            return sequence(*stmts) if stmts else tirx.Evaluate(const(0))
        unroll = body_size * axis.kernel <= UNROLLED_OPERATIONS
        return (unrolled if unroll else serial)(axis.kernel, lambda k: tap(k, 0, tile.pixels), "k")

    def _inside(self, place: int, k: int) -> tuple[int, int]:
        """The pixels of a tile at ``place`` whose tap ``k`` is not padding."""
        size, axis = int(known(self.row.size) or 0), self.row
        inside = [p for p in range(self.tile.pixels) if 0 <= (place + p) * axis.stride + k * axis.dilation - axis.before < size]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def _multiply_add(
        self,
        n: Expr,
        first_block: Expr,
        c0: Expr,
        rows: list[Expr],
        chosen: list[Expr],
        start: Expr,
        k: Expr,
        c1: Expr,
        o: Expr,
        p: Expr,
        inside: bool,
    ) -> tirx.Stmt:
        axis = self.row
        column = (start + p) * axis.stride + k * axis.dilation - axis.before

        def body(v: Expr) -> tirx.Stmt:
            block, lane = (first_block + o, v) if self.depthwise else (c0, c1)

            def value(at: Expr) -> Expr:
                spatial = unravel(at, [a.size for a in self.full_axes]) if self.flat else [*rows, at]
                return self._wide(tirx.BufferLoad(self.x, [n, block, *spatial, lane]))

            if inside:
                x = value(column)
            else:
                clamped = tirx.max(const(0), tirx.min(column, axis.size - 1))
                x = tirx.Select(tirx.all(column >= 0, column < axis.size), value(clamped), tirx.const(0, self.dtype))
            at = [first_block + o, *chosen, k, v] if self.depthwise else [first_block + o, c0, *self._flat_taps(chosen), k, c1, v]
            weight = self._wide(tirx.BufferLoad(self.w, at))
            return tirx.BufferStore(self.sums, tirx.BufferLoad(self.sums, [o, p, v]) + x * weight, [o, p, v])

        return vectorized(self.block, body)

    def _flat_taps(self, chosen: list[Expr]) -> list[Expr]:
        return [const(0)] * (len(self.full_axes) - 1) if self.flat else chosen

    def _wide(self, value: Expr) -> Expr:
        return value if str(value.ty) == self.dtype else tirx.Cast(self.dtype, value)


DIRECT: dict[str, tuple[Direct, ...]] = {"conv": (blocked_conv,)}
