"""The sums of one tile of a blocked convolution, in registers: what all kinds share, and depthwise ones.

A depthwise tile loads each input once for all taps that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from aotc.targets import Target
from aotc.targets.schedules.conv_places import Axis, Place, is_far
from aotc.targets.schedules.emit import clamped, const, known, opaque, registers, sequence, serial, unravel, vectorized
from aotc.targets.schedules.fused import Fused
from aotc.targets.schedules.tile import Step, Tile

Expr = Any

UNROLLED_OPERATIONS = 320
"""Multiply-adds (vectors) that the innermost body may hold: more do not fit the CPUs' caches of decoded instructions."""

WIDE_LANES, SOME_OPERATIONS, MOST_PIXELS = 16, 8, 14
"""With so many lanes, and more operations behind the sums, a tile of a depthwise convolution has so many pixels at most."""


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

    def rows(self, outer: list[Expr], taps: list[int], number: Callable[[int], Expr] = const) -> list[Expr]:
        """The places on the outer axes that ``taps`` read, their distance from that of the output written as ``number`` does."""
        return [y * a.stride + number(k * a.dilation - a.before) for a, y, k in zip(self.outer, outer, taps, strict=True)]


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
        if not taps or size > UNROLLED_OPERATIONS:
            return looped
        written, far = [], self.far(taps)
        for number in range(size // (self.row.kernel * place.width * (self.block // self.lanes))):
            chosen = unravel_static(number, taps)
            rows = self.rows(outer, chosen, opaque if far else const)
            written.append(self._row(sums, n, group, [const(k) for k in chosen], rows, place))
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
