"""The sums of one tile of a blocked convolution: multiply-adds over input channels and taps, in registers.

Where the machine multiplies a vector by one element of another (Arm), inputs are loaded as whole vectors, of several
channels or of several pixels; elsewhere each element is broadcast from memory. A depthwise tile loads each input once for
all taps that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from aotc.targets import Target
from aotc.targets.schedules.conv_places import TYPE_BYTES, Ahead, Axis, Place, is_far
from aotc.targets.schedules.emit import ask_for, clamped, const, known, opaque, registers, sequence, serial, unravel, vectorized
from aotc.targets.schedules.fused import Fused
from aotc.targets.schedules.tile import Step, Tile

Expr = Any

UNROLLED_OPERATIONS = 320
"""Multiply-adds (vectors) that the innermost body may hold: more do not fit the CPUs' caches of decoded instructions."""

LINE_BYTES = 64
"""What memory brings at a time."""

WIDE_LANES, SOME_OPERATIONS, MOST_PIXELS = 16, 8, 14
"""With so many lanes, and more operations behind the sums, a tile of a depthwise convolution has so many pixels at most."""

SHORT_LOOP = 8
"""Steps of a loop that LLVM may unroll whole."""


class Sums:
    """What all kinds share: loads of the input, taps over the outer axes."""

    def __init__(self, view: Fused, target: Target, full: Sequence[Axis], outer: Sequence[Axis], row: Axis, flat: bool) -> None:
        self.x, self.w = view.operands
        self.dtype, self.operations = str(view.total.dtype), view.operations
        self.blocks, self.block = int(known(view.total.shape[1]) or 1), int(known(view.total.shape[-1]) or 1)
        self.target = target
        self.lanes = min(self.block, target.lanes(self.dtype))
        self.full, self.outer, self.row, self.flat = full, list(outer), row, flat

    @property
    def vector(self) -> int:
        """Elements that hold one sum of each channel of a block."""
        return self.block

    @property
    def last_lanes(self) -> int:
        """How many lanes of the last block sums are taken of."""
        return self.block

    def lanes_of(self, o: int | None, blocks: int) -> int:
        """The same for block ``o`` of a tile of so many. Which of them is the last one is known where they are all there are."""
        return self.last_lanes if o == blocks - 1 and blocks == self.blocks else self.block

    def fits(self, tile: Tile) -> bool:
        """Whether the kernel can have such a tile."""
        return True

    def step(self, vectors: int) -> Step | None:
        """What the choice of a tile depends on, where blocks take ``vectors`` registers."""
        raise NotImplementedError

    def columns(self, pixels: int) -> int:
        """How many different columns the taps of ``pixels`` neighbours read."""
        return len({self.row.reads(p, k) for p in range(pixels) for k in range(self.row.kernel)})

    def inside(self, place: Place, k: int) -> list[int]:
        """The pixels of a tile that tap ``k`` adds to: all of them unless the place tells which read padding."""
        if place.known is None or place.inside:
            return list(range(place.width))
        size, first = int(known(self.row.size) or 0), place.known * self.row.stride
        return [p for p in range(place.width) if 0 <= first + self.row.reads(p, k) < size]

    def input(self, n: Expr, block: Expr, rows: list[Expr], column: Expr, lane: Expr, checked: bool = False) -> Expr:
        """One element of the input, zero in the padding if it is ``checked``."""

        def value(at: Expr) -> Expr:
            spatial = unravel(at, [axis.size for axis in self.full]) if self.flat else [*rows, at]
            return self.wide(tirx.BufferLoad(self.x, [n, block, *spatial, lane]))

        if not checked:
            return value(column)
        inside = tirx.all(column >= 0, column < self.row.size)
        return tirx.Select(inside, value(clamped(column, self.row.size)), tirx.const(0, self.dtype))

    def wide(self, value: Expr) -> Expr:
        return value if str(value.ty) == self.dtype else tirx.Cast(self.dtype, value)

    def over_taps(self, outer: list[Expr], body: Callable[[list[Expr], list[Expr]], tirx.Stmt]) -> tirx.Stmt:
        """Loops over the taps of the outer axes that fall inside: ``body(taps, rows)``."""
        ranges = [axis.taps(position) for axis, position in zip(self.outer, outer, strict=True)]

        def step(taps: list[Expr], rows: list[Expr]) -> tirx.Stmt:
            if len(taps) == len(ranges):
                return body(taps, rows)
            low, high = ranges[len(taps)]
            axis, position = self.outer[len(taps)], outer[len(taps)]
            base = position * axis.stride - axis.before
            if axis.dilation > 1 or not axis.before:
                extent = high if known(low) == 0 else high - low
                return serial(extent, lambda k: step([*taps, k], [*rows, base + k * axis.dilation]), "k", first=low)
            # The first row as a maximum: of ``base + k`` LLVM would take the constant out and add it at every load.
            first = tirx.max(const(0), base)
            extent = tirx.max(opaque(1), high - low) if axis.meets_input else high - low
            return serial(extent, lambda k: step([*taps, low + k], [*rows, first + k]), "k")

        return step([], [])

    def rows(self, outer: list[Expr], taps: list[Expr]) -> list[Expr]:
        return [y * a.stride + k * a.dilation - a.before for a, y, k in zip(self.outer, outer, taps, strict=True)]


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
        self.by_element = (
            target.multiplies_by_element and not self.planes and (self.channels % self.lanes == 0 or self.channels < self.lanes)
        )

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

            def packed(pixels: int) -> int:
                return -(-((pixels - 1) * row.stride + (row.kernel - 1) * row.dilation + 1) * channels // self.lanes)

            return Step(packed, packed, row.kernel * channels, True)
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
            zeros = [const(0)] * len(self.outer)
            rows = self.rows(outer, zeros)
            # LLVM would unroll a short loop, and then run out of registers.
            extent = opaque(count) if 1 < count <= SHORT_LOOP else count
            return serial(extent, lambda c0: tile.tap(c0, zeros, rows, 0), "c0", first)

        def block(c0: Expr) -> tirx.Stmt:
            return self.over_taps(outer, lambda taps, rows: tile.taps(c0, taps, rows))

        return serial(extent, block, "c0", first)


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

    def tap(self, c0: Expr, taps: list[Expr], rows: list[Expr], k: Any) -> tirx.Stmt:
        """All channels of an input block for one tap, and a share of the weights of the group after this one."""
        products = self._products(c0, taps, rows, k)
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

    def _products(self, c0: Expr, taps: list[Expr], rows: list[Expr], k: Any) -> tirx.Stmt:
        of = self.of
        pixels = of.inside(self.place, k) if isinstance(k, int) else list(range(self.place.width))
        checked = not self.place.inside and self.place.known is None
        if of.by_element and self.channels % of.lanes == 0 and not checked:
            return sequence(*(self._vectors(c0, taps, rows, k, pixels, c) for c in range(0, self.channels, of.lanes)))

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

    def _vectors(self, c0: Expr, taps: list[Expr], rows: list[Expr], k: Any, pixels: list[int], first: int) -> tirx.Stmt:
        """The channels from ``first`` on that one vector holds."""
        of = self.of
        xs = tirx.decl_buffer((self.place.width, of.lanes), of.dtype, "xs")

        def load(p: int) -> tirx.Stmt:
            return vectorized(
                of.lanes, lambda v: tirx.BufferStore(xs, of.input(self.n, c0, rows, self._column(p, k), first + v), [const(p), v])
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
        of, row = self.of, self.of.row
        reads = [(k, p, row.reads(p, k)) for k in range(row.kernel) for p in of.inside(self.place, k)]
        if not reads:
            return tirx.Evaluate(const(0))
        low, high = min(r for _, _, r in reads), max(r for _, _, r in reads) + 1
        length = (high - low) * of.channels
        starts = list(range(0, length - of.lanes + 1, of.lanes))
        if length < of.lanes:
            starts, lanes = list(range(length)), 1
        else:
            lanes = of.lanes
            starts += [length - lanes] if length % lanes else []
        xs = tirx.decl_buffer((len(starts), lanes), of.dtype, "xs")

        def load(i: int) -> tirx.Stmt:
            # Pixels stand side by side: a channel beyond the last is one of the next pixel.
            return vectorized(
                lanes, lambda v: tirx.BufferStore(xs, of.input(self.n, c0, rows, self.first + low, starts[i] + v), [const(i), v])
            )

        def element(p: int, k: int, c: int) -> Expr:
            at = (row.reads(p, k) - low) * of.channels + c
            i = min(at // lanes, len(starts) - 1)
            return tirx.BufferLoad(xs, [const(i), const(at - starts[i])])

        adds = [
            self._add(o, p, element(p, k, c), self._weight(c0, taps, k, const(c), o))
            for k in range(row.kernel)
            for c in range(of.channels)
            for o in range(self.blocks)
            for p in of.inside(self.place, k)
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


class DepthwiseSums(Sums):
    """Every channel is its own group: vectors of inputs by vectors of weights."""

    def fits(self, tile: Tile) -> bool:
        """Instructions of wide vectors are long, and taps and what follows are written out for the ends of a row, too: narrower
        tiles, which still hide the latency of sums, keep such kernels small."""
        return self.lanes < WIDE_LANES or self.operations <= SOME_OPERATIONS or tile.pixels <= MOST_PIXELS

    def step(self, vectors: int) -> Step:
        return Step(lambda pixels: vectors * self.columns(pixels), lambda pixels: 4, self.row.kernel * vectors, False)

    def added(self, sums: tirx.Buffer, n: Expr, group: Expr, blocks: int, outer: list[Expr], place: Place) -> tirx.Stmt:
        """Adds all products of a tile to ``sums[1, width, block]``. Rows that read no padding have their taps written out."""
        taps = [axis.kernel for axis in self.outer]
        looped = self.over_taps(outer, lambda chosen, rows: self._row(sums, n, group, chosen, rows, place))
        size = self.row.kernel * place.width * (self.block // self.lanes)
        for extent in taps:
            size *= extent
        if not taps or size > UNROLLED_OPERATIONS or self.far(taps):
            return looped
        written = []
        for number in range(size // (self.row.kernel * place.width * (self.block // self.lanes))):
            chosen = [const(i) for i in unravel_static(number, taps)]
            written.append(self._row(sums, n, group, chosen, self.rows(outer, chosen), place))
        inner = []
        for axis, position in zip(self.outer, outer, strict=True):
            low, high = axis.taps(position)
            inner += [low == 0] if known(low) != 0 else []
            inner += [high == axis.kernel] if known(high) != axis.kernel else []
        return tirx.IfThenElse(tirx.all(*inner), sequence(*written), looped) if inner else sequence(*written)

    def far(self, taps: list[int]) -> bool:
        """Whether the rows that a tile reads are too far apart for the offsets of one address."""
        strides = [self.x.shape[3 + i :] for i in range(len(taps))]
        return any(is_far(self.target, extents, str(self.x.dtype), k - 1) for k, extents in zip(taps, strides, strict=True))

    def _row(self, sums: tirx.Buffer, n: Expr, group: Expr, taps: list[Expr], rows: list[Expr], place: Place) -> tirx.Stmt:
        """The taps along the row: each input that any of them reads is loaded once."""
        row, checked = self.row, not place.inside and place.known is None
        reads = {(k, p): row.reads(p, k) for k in range(row.kernel) for p in self.inside(place, k)}
        if not reads:
            return tirx.Evaluate(const(0))
        places = {column: i for i, column in enumerate(sorted(set(reads.values())))}
        xs = tirx.decl_buffer((len(places), self.block), self.dtype, "xs")
        ws = tirx.decl_buffer((row.kernel, self.block), self.dtype, "ws")
        first = place.start * row.stride

        def load(column: int, i: int) -> tirx.Stmt:
            return vectorized(
                self.block, lambda v: tirx.BufferStore(xs, self.input(n, group, rows, first + column, v, checked), [const(i), v])
            )

        def weight(k: int) -> tirx.Stmt:
            at = [group, *taps, const(k)]
            return vectorized(self.block, lambda v: tirx.BufferStore(ws, self.wide(tirx.BufferLoad(self.w, [*at, v])), [const(k), v]))

        def add(k: int, p: int) -> tirx.Stmt:
            at, i = [const(0), const(p)], const(places[reads[k, p]])
            return vectorized(
                self.block,
                lambda v: tirx.BufferStore(
                    sums, tirx.BufferLoad(sums, [*at, v]) + tirx.BufferLoad(xs, [i, v]) * tirx.BufferLoad(ws, [const(k), v]), [*at, v]
                ),
            )

        # In the order of the inputs: each is needed for a short time only, and many sums fit the registers.
        used = sorted({k for k, _ in reads})
        steps = [step for c, i in places.items() for step in (load(c, i), *(add(k, p) for (k, p), at in reads.items() if at == c))]
        return sequence(registers(xs), registers(ws), *map(weight, used), *steps)


def unravel_static(number: int, extents: Sequence[int]) -> list[int]:
    """The indices of a row-major number."""
    indices = []
    for extent in reversed(extents):
        indices.append(number % extent)
        number //= extent
    return indices[::-1]
