"""The sums of one tile of a blocked convolution of one group: multiply-adds over input channels and taps, in registers.

Where the machine multiplies a vector by one element of another (Arm), inputs are loaded as whole vectors, of several
channels or of several pixels; elsewhere each element is broadcast from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from aotc.targets import Target
from aotc.targets.schedules.conv_places import TYPE_BYTES, Ahead, Axis, Place, is_far
from aotc.targets.schedules.conv_sums import UNROLLED_OPERATIONS, Sums
from aotc.targets.schedules.emit import apart, ask_for, const, known, opaque, registers, sequence, serial, vectorized
from aotc.targets.schedules.fused import Fused
from aotc.targets.schedules.tile import Step, Tile

Expr = Any

OPERATIONS_TOGETHER = 400
"""Multiply-adds (vectors) of several blocks of inputs that one body may hold."""

LINE_BYTES = 64
"""What memory brings at a time."""

SHORT_LOOP = 8
"""Steps of a loop that LLVM may unroll whole."""


class DenseSums(Sums):
    """Every output channel sums over all input channels, filling left out."""

    def __init__(
        self,
        view: Fused,
        target: Target,
        full: Sequence[Axis],
        outer: Sequence[Axis],
        row: Axis,
        flat: bool,
        in_channels: int,
        out_channels: int,
    ) -> None:
        super().__init__(view, target, full, outer, row, flat)
        # Blocks of one channel, a few: they are the channels of one block, but for where they stand.
        self.planes = known(self.x.shape[-1]) == 1 and 1 < (known(self.x.shape[1]) or 0) < self.lanes
        self.channels = int(known(self.x.shape[1 if self.planes else -1]) or 1)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.panel = int(known(self.w.shape[-1]) or 1) // self.block
        self.by_element = target.multiplies_by_element and (self.channels % self.lanes == 0 or self.channels < self.lanes)

    @property
    def last_lanes(self) -> int:
        """A vector that is a power of two, of four at least."""
        used = self.out_channels % self.block or self.block
        return min(self.block, max(4, 1 << (used - 1).bit_length()))

    def last_channels(self) -> int:
        """How many channels of the last block of inputs count."""
        used = self.in_channels % self.channels or self.channels
        return min(-(-used // self.lanes) * self.lanes, self.channels) if self.by_element else used

    def fits(self, tile: Tile) -> bool:
        return tile.blocks % self.panel == 0 or self.panel % tile.blocks == 0

    def step(self, vectors: int) -> Step | None:
        if not self.by_element:
            return None
        row, channels = self.row, self.channels
        if channels < self.lanes:
            side_by_side, rows = (1, channels) if self.planes else (channels, 1)

            def packed(pixels: int) -> int:
                return -(-((pixels - 1) * row.stride + (row.kernel - 1) * row.dilation + 1) * side_by_side // self.lanes)

            return Step(lambda pixels: rows * packed(pixels), packed, row.kernel * channels, True)
        return Step(self.columns, lambda pixels: max(pixels, self.columns(pixels) - (row.stride > 1)), row.kernel * self.lanes, True)

    def added(
        self, sums: tirx.Buffer, n: Expr, group: Expr, blocks: int, outer: list[Expr], place: Place, ahead: Ahead | None = None
    ) -> tirx.Stmt:
        """Adds all products of a tile to ``sums[blocks, width, block]``."""

        def tile(channels: int) -> _DenseTile:
            return _DenseTile(self, sums, n, group, blocks, place, channels, ahead)

        if self.planes:
            return self._added_blocks(tile(self.channels), outer, 1)
        count, last = known(self.x.shape[1]), self.last_channels()
        if count is None or last == self.channels:
            return self._added_blocks(tile(self.channels), outer, self.x.shape[1])
        rest = self._added_blocks(tile(last), outer, 1, count - 1)
        return sequence(self._added_blocks(tile(self.channels), outer, count - 1), rest) if count > 1 else rest

    def _added_blocks(self, tile: _DenseTile, outer: list[Expr], extent: Expr, first: int = 0) -> tirx.Stmt:
        """The products of so many blocks of inputs."""
        once = self.row.kernel == 1 and all(axis.kernel == 1 and not axis.before and not axis.after for axis in self.outer)
        count = known(extent)
        if once and count is not None:
            return self._pointwise(tile, outer, count, first)

        def block(c0: Expr) -> tirx.Stmt:
            return self.over_taps(outer, lambda taps, rows: tile.taps(c0, taps, rows))

        return serial(extent, block, "c0", first)

    def _pointwise(self, tile: _DenseTile, outer: list[Expr], count: int, first: int) -> tirx.Stmt:
        """The products of ``count`` blocks of inputs for the only tap."""
        zeros, rows, run = [const(0)] * len(self.outer), self.rows(outer, [0] * len(self.outer)), self._together(tile, count)

        def some(turn: Expr) -> tirx.Stmt:
            begin = turn * run + first
            stmts = [tile.tap(begin, zeros, rows, 0)]
            for i in range(1, run):
                stmts += [
                    apart(tile.first_weight(begin)),
                    tile.tap(
                        begin + i, zeros, rows, 0, begin + (opaque(i) if is_far(self.target, self.x.shape[2:], str(self.x.dtype), i) else i)
                    ),
                ]
            return sequence(*stmts)

        # LLVM would unroll a short loop, and then run out of registers.
        return serial(opaque(count // run) if run > 1 or 1 < count <= SHORT_LOOP else count, some, "c0")

    def _together(self, tile: _DenseTile, count: int) -> int:
        """How many of ``count`` blocks of inputs the body of their loop adds, where it is so short that the loop itself counts. There
        are two turns at least: of a single one LLVM would load all weights before the loop over tiles."""
        if not self.by_element:
            return 1
        weights = tile.channels * self.panel * self.block * TYPE_BYTES.get(str(self.w.dtype), 4)
        most = min(OPERATIONS_TOGETHER // tile.size(tile.channels), (self.target.offset_bytes + 16) // weights, count // 2)
        return next(run for run in range(max(1, most), 0, -1) if count % run == 0)


class _DenseTile:
    """The multiply-adds of one tile."""

    def __init__(
        self, of: DenseSums, sums: tirx.Buffer, n: Expr, group: Expr, blocks: int, place: Place, channels: int, ahead: Ahead | None
    ) -> None:
        self.of, self.sums, self.n, self.group, self.blocks, self.place = of, sums, n, group, blocks, place
        self.channels, self.ahead = channels, ahead
        self.first = place.start * of.row.stride

    def size(self, channels: int) -> int:
        """How many vectors of multiply-adds one tap has."""
        return channels * self.blocks * self.place.width * (self.of.block // self.of.lanes)

    def taps(self, c0: Expr, taps: list[Expr], rows: list[Expr]) -> tirx.Stmt:
        """All taps along the row."""
        row, of = self.of.row, self.of
        if of.by_element and self.channels < of.lanes and (self.place.inside or self.place.known is not None):
            return self._packed_row(c0, taps, rows)
        if self.place.known is not None or (of.by_element and row.kernel * self.size(self.channels) <= UNROLLED_OPERATIONS):
            stmts = [self.tap(c0, taps, rows, k) for k in range(row.kernel) if of.inside(self.place, k)]
            return sequence(*stmts) if stmts else tirx.Evaluate(const(0))
        return serial(row.kernel, lambda k: self.tap(c0, taps, rows, k), "k")

    def tap(self, c0: Expr, taps: list[Expr], rows: list[Expr], k: Any, read: Expr | None = None) -> tirx.Stmt:
        """All channels of an input block for one tap, and a share of the weights of the group after this one. ``read`` is ``c0``
        again, as inputs are addressed with it."""
        products = self._products(c0, taps, rows, k, c0 if read is None else read)
        return products if self.ahead is None else sequence(*self._ask_ahead(self.ahead, c0, taps, k), products)

    def _ask_ahead(self, ahead: Ahead, c0: Expr, taps: list[Expr], k: Any) -> list[tirx.Stmt]:
        channels, line = self.of.channels, LINE_BYTES // TYPE_BYTES.get(str(self.of.w.dtype), 4)
        first = tirx.truncdiv(ahead.number * channels, const(ahead.tiles))
        count = -(-channels // ahead.tiles)
        lines = range(0, self.blocks * self.of.block, line)
        return [
            ask_for(tirx.BufferLoad(self.of.w, self._weight_at(ahead.after, c0, taps, k, tirx.min(first + c, channels - 1), lane)))
            for c in range(count)
            for lane in lines
        ]

    def _products(self, c0: Expr, taps: list[Expr], rows: list[Expr], k: Any, read: Expr) -> tirx.Stmt:
        of = self.of
        pixels = of.inside(self.place, k) if isinstance(k, int) else list(range(self.place.width))
        checked = not self.place.inside and self.place.known is None
        if of.by_element and self.channels % of.lanes == 0 and not checked:
            return sequence(*(self._vectors(c0, taps, rows, k, pixels, c, read) for c in range(0, self.channels, of.lanes)))

        def channel(c: Expr) -> tirx.Stmt:
            block, lane = (c, const(0)) if of.planes else (c0, c)
            return sequence(
                *(
                    self._add(o, p, of.input(self.n, block, rows, self._column(p, k), lane, checked), self._weight(block, taps, k, lane, o))
                    for p in pixels
                    for o in range(self.blocks)
                )
            )

        # Of several taps side by side LLVM would keep the inputs that they share, in registers that there are not: so these
        # have a loop, of a length that LLVM does not see, since it would unroll it.
        if self.place.known is not None and of.row.kernel > 1 and self.channels >= of.lanes:
            return serial(opaque(self.channels), channel, "c1")
        if self.size(self.channels) > UNROLLED_OPERATIONS:
            return serial(self.channels, channel, "c1")
        return sequence(*(channel(const(c)) for c in range(self.channels)))

    def _vectors(self, c0: Expr, taps: list[Expr], rows: list[Expr], k: Any, pixels: list[int], first: int, read: Expr) -> tirx.Stmt:
        """The channels from ``first`` on that one vector holds."""
        of = self.of
        xs = tirx.decl_buffer((self.place.width, of.lanes), of.dtype, "xs")

        def load(p: int) -> tirx.Stmt:
            return vectorized(
                of.lanes, lambda v: tirx.BufferStore(xs, of.input(self.n, read, rows, self._column(p, k), first + v), [const(p), v])
            )

        adds = [
            self._add(o, p, tirx.BufferLoad(xs, [const(p), const(c)]), self._weight(c0, taps, k, const(first + c), o))
            for c in range(of.lanes)
            for o in range(self.blocks)
            for p in pixels
        ]
        return sequence(registers(xs), *map(load, pixels), *adds)

    def _packed_row(self, c0: Expr, taps: list[Expr], rows: list[Expr]) -> tirx.Stmt:
        """Fewer channels than a vector has lanes: a vector holds several pixels. Loads cover what the taps read, and no more."""
        reads = [(k, p, self.of.row.reads(p, k)) for k in range(self.of.row.kernel) for p in self.of.inside(self.place, k)]
        if not reads:
            return tirx.Evaluate(const(0))
        if not self.of.planes:
            return self._run(c0, taps, rows, reads, list(range(self.of.channels)))
        return sequence(*(self._run(opaque(c) if c else const(0), taps, rows, reads, [0]) for c in range(self.of.channels)))

    def _run(self, block: Expr, taps: list[Expr], rows: list[Expr], reads: list[tuple[int, int, int]], channels: list[int]) -> tirx.Stmt:
        """The products of ``channels`` of a block, which stand side by side. Tap ``k`` of pixel ``p`` reads column ``r`` (k, p, r)."""
        of, count = self.of, len(channels)
        low, high = min(r for _, _, r in reads), max(r for _, _, r in reads) + 1
        length = (high - low) * count
        starts = list(range(0, length - of.lanes + 1, of.lanes))
        if length < of.lanes:
            starts, lanes = list(range(length)), 1
        else:
            lanes = of.lanes
            starts += [length - lanes] if length % lanes else []
        xs = tirx.decl_buffer((len(starts), lanes), of.dtype, "xs")

        def load(i: int) -> tirx.Stmt:
            # Pixels stand side by side: a channel beyond the last is one of the next pixel.
            column, lane = (self.first + (low + starts[i]), 0) if count == 1 else (self.first + low, starts[i])

            def element(v: Expr) -> tirx.Stmt:
                at = (
                    of.input(self.n, block, rows, column + v, const(lane))
                    if count == 1
                    else of.input(self.n, block, rows, column, lane + v)
                )
                return tirx.BufferStore(xs, at, [const(i), v])

            return vectorized(lanes, element)

        def element(column: int, c: int) -> Expr:
            at = (column - low) * count + c
            i = min(at // lanes, len(starts) - 1)
            return tirx.BufferLoad(xs, [const(i), const(at - starts[i])])

        adds = [
            self._add(o, p, element(column, c), self._weight(block, taps, k, const(c), o))
            for tap in range(of.row.kernel)
            for c in channels
            for o in range(self.blocks)
            for k, p, column in reads
            if k == tap
        ]
        return sequence(registers(xs), *(load(i) for i in range(len(starts))), *adds)

    def _column(self, p: int, k: Any) -> Expr:
        row = self.of.row
        return self.first + (p * row.stride - row.before + k * row.dilation)

    def _weight(self, c0: Expr, taps: list[Expr], k: Any, c: Expr, o: int) -> Callable[[Expr], Expr]:
        """A vector of weights by lane."""
        of = self.of
        *at, first = self._weight_at(self.group, c0, taps, k, c, o * of.block)
        return lambda v: of.wide(tirx.BufferLoad(of.w, [*at, first + v]))

    def first_weight(self, c0: Expr) -> Expr:
        return tirx.BufferLoad(self.of.w, self._weight_at(self.group, c0, [const(0)] * len(self.of.outer), 0, const(0), 0))

    def _weight_at(self, group: Expr, c0: Expr, taps: list[Expr], k: Any, c: Expr, lane: int) -> list[Expr]:
        """Where the weights of a tile's lane are. Their panels are several blocks wide."""
        of, panel = self.of, self.of.panel
        o, v = divmod(lane, of.block)
        if self.blocks % panel == 0:
            which, within = group * (self.blocks // panel) + o // panel, o % panel
        else:
            parts = panel // self.blocks
            which, within = tirx.truncdiv(group, const(parts)), tirx.truncmod(group, const(parts)) * self.blocks + o
        tap = [const(0)] * len(of.full) if of.flat else [*taps, const(k) if isinstance(k, int) else k]
        return [which, c0, *tap, c, within * of.block + v]

    def _add(self, o: int, p: int, x: Expr, w: Callable[[Expr], Expr]) -> tirx.Stmt:
        at = [const(o), const(p)]

        def lane(v: Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.sums, tirx.BufferLoad(self.sums, [*at, v]) + x * w(v), [*at, v])

        return vectorized(self.of.lanes_of(o, self.blocks), lane)
