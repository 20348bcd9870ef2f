"""Convolution of bytes over blocked channels, summed in 32 bits, written as TIR.

As in ``conv.py`` a task computes one row of one group of output blocks, in tiles whose sums stay in registers. Input that has
padding is copied with it first: of bytes that costs next to nothing, padding may hold any value, and no tile needs a check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from aotc.ops.byte_products import BLOCK
from aotc.targets.schedules.base import Direct, DirectWork
from aotc.targets.schedules.byte_padding import Padding
from aotc.targets.schedules.byte_products import Products, products_of, ramp
from aotc.targets.schedules.conv_places import Axis
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
    vectorized,
)
from aotc.targets.schedules.fused import Fused, fused, prim_func, started
from aotc.targets.schedules.tile import Step, Tile, tiles

Expr = Any

TILES_PER_TASK, FEW_TILES, MANY_TASKS = 16, 2, 32
"""As in ``conv.py``."""
VECTOR_BYTES = 16
"""What is loaded at once of an input whose units multiply by element."""


def byte_conv(work: DirectWork) -> tirx.PrimFunc | None:
    """``None`` where the machine does not multiply bytes of x's sign, or weights stand in other units."""
    view, products = fused(work), products_of(work.target)
    if view is None:
        return None
    view = started(view)
    x, w = view.operands
    if str(x.dtype) != products.factor or known(w.shape[-1]) != products.unit:
        return None
    return _Conv(work, view, products).function()


class _Conv:
    """Writes the kernels."""

    def __init__(self, work: DirectWork, view: Fused, products: Products) -> None:
        attrs: Any = work.anchor.attrs
        self.view, self.products, self.target = view, products, work.target
        x, self.w = view.operands
        n = len(attrs.strides)
        kernel = [int(known(extent) or 1) for extent in self.w.shape[2 : 2 + n]]
        self.full_axes = [
            Axis(x.shape[2 + i], view.total.shape[2 + i], kernel[i], attrs.strides[i], attrs.dilation[i], *attrs.padding[i::n])
            for i in range(n)
        ]
        self.padding = Padding(x, self.full_axes, attrs.pad_value)
        self.x = self.padding.buffer
        self.flat = n > 1 and all(axis.is_pointwise for axis in self.full_axes)
        size = product([axis.size for axis in self.full_axes])
        axes = [Axis(size, size, 1, 1, 1, 0, 0)] if self.flat else self.full_axes
        self.outer, self.row = axes[:-1], axes[-1]
        self.channels = int(known(x.shape[-1]) or 1)
        self.in_blocks, self.in_channels = int(known(x.shape[1]) or 1), attrs.in_channels
        self.units = self.channels // products.unit
        self.blocks, self.out_channels = int(known(view.total.shape[1]) or 1), attrs.out_channels
        self.panel = int(known(self.w.shape[-2]) or BLOCK) // BLOCK
        self.vectors = BLOCK // products.lanes
        self.tile: Tile = work.choices.pick("tile", self._tiles())

    def _tiles(self) -> list[Tile]:
        # Products that are longer than bytes take registers of their own; with more sums LLVM moves these about in every step.
        count = self.target.vector_registers
        room = count if self.target.adds_byte_products else count // 2 + 4
        offered = tiles(room, self.vectors, self.blocks, known(self.row.out), self._step(), shorter=True)
        return [tile for tile in offered if tile.blocks % self.panel == 0 or self.panel % tile.blocks == 0] or [Tile(1, 1)]

    def _step(self) -> Step | None:
        if not self.products.by_element:
            return None
        row = self.row
        if self.packed:

            def packed(pixels: int) -> int:
                columns = (pixels - 1) * row.stride + (row.kernel - 1) * row.dilation + 1
                return -(-columns * self.channels // VECTOR_BYTES)

            return Step(packed, packed, row.kernel * self.units, True)
        return Step(lambda pixels: pixels, lambda pixels: pixels, self.units, True)

    @property
    def packed(self) -> bool:
        """Whether a vector of inputs holds several pixels."""
        return self.products.by_element and self.channels < VECTOR_BYTES

    def function(self) -> tirx.PrimFunc:
        groups = const(self.blocks // self.tile.blocks)
        outer = [axis.out for axis in self.outer]
        pieces, piece = self._pieces(TILES_PER_TASK)
        if (known(product([*outer, pieces])) or MANY_TASKS) * (self.blocks // self.tile.blocks) < MANY_TASKS:
            pieces, piece = self._pieces(FEW_TILES)
        extents = [self.view.total.shape[0], groups, *outer, pieces]

        def task(index: Expr) -> tirx.Stmt:
            n, group, *rows, part = task_indices(index, extents)
            return self._last_apart(group, groups, lambda last: piece(n, group, rows, part, last))

        nests = [*self.padding.nests(), parallel(product(extents), task)]
        return prim_func(self.view.params, sequence(*nests), self.padding.scratch)

    def _last_apart(self, group: Expr, groups: Expr, body: Callable[[bool], tirx.Stmt]) -> tirx.Stmt:
        """``body(whether the group ends in filling that takes no products)``."""
        if -(-(self.out_channels % BLOCK or BLOCK) // self.products.lanes) == self.vectors:
            return body(False)
        count = known(groups)
        return body(True) if count == 1 else tirx.IfThenElse(group == groups - 1, body(True), body(False))

    # --- the row, in tiles -----------------------------------------------------------------------------------------

    def _pieces(self, least: int) -> tuple[Expr, Callable[..., tirx.Stmt]]:
        """How many tasks, of so many tiles at least, share a row, and what one of them does. The last one takes the tiles left
        over, and a shorter one."""
        row, pixels = known(self.row.out), self.tile.pixels
        if row is None:
            return const(1), self._unknown_row
        whole = row // pixels
        share = max(1, whole // max(1, whole // least)) if not self.outer else max(1, whole)
        pieces = max(1, whole // share)

        def some(n: Expr, group: Expr, outer: list[Expr], piece: Expr, last: bool) -> tirx.Stmt:
            ends = piece == pieces - 1
            count = const(whole) if pieces == 1 else tirx.Select(ends, const(whole - (pieces - 1) * share), const(share))
            place = (n, group, outer)
            stmts = [serial(count, lambda t: self._tile(*place, (piece * share + t) * pixels, pixels, last), "tile")] if whole else []
            if row % pixels:
                short = self._tile(*place, const(whole * pixels), row % pixels, last)
                stmts.append(short if pieces == 1 else tirx.IfThenElse(ends, short, None))
            return sequence(*stmts)

        return const(pieces), some

    def _unknown_row(self, n: Expr, group: Expr, outer: list[Expr], _: Expr, last: bool) -> tirx.Stmt:
        pixels = self.tile.pixels
        whole = tirx.truncdiv(self.row.out, const(pixels))
        main = serial(whole, lambda t: self._tile(n, group, outer, t * pixels, pixels, last), "tile")
        rest = self.row.out - whole * pixels
        return sequence(main, serial(rest, lambda t: self._tile(n, group, outer, whole * pixels + t, 1, last), "pixel"))

    # --- one tile --------------------------------------------------------------------------------------------------

    def _tile(self, n: Expr, group: Expr, outer: list[Expr], start: Expr, width: int, last: bool) -> tirx.Stmt:
        blocks, lanes = self.tile.blocks, self.products.lanes
        sums = tirx.decl_buffer((blocks, width, BLOCK), "int32", "sums")

        def at(o: int, p: int, v: Expr) -> list[Expr]:
            spatial = unravel(start + p, [axis.out for axis in self.full_axes]) if self.flat else [*outer, start + p]
            return [n, group * blocks + o, *spatial, v]

        def begin(o: int, p: int) -> tirx.Stmt:
            return vectorized(BLOCK, lambda v: tirx.BufferStore(sums, self.view.start(at(o, p, v)), [const(o), const(p), v]))

        def finish(o: int, p: int) -> tirx.Stmt:
            return self.view.store(BLOCK, lambda v: (at(o, p, v), tirx.BufferLoad(sums, [const(o), const(p), v])))

        def each(body: Callable[[int, int], tirx.Stmt]) -> list[tirx.Stmt]:
            return [body(o, p) for o in range(blocks) for p in range(width)]

        used = [self.vectors] * blocks
        if last:
            used[-1] = -(-(self.out_channels % BLOCK or BLOCK) // lanes)
        adds = _Adds(self, sums, n, group, outer, start, width, used)
        return sequence(registers(sums), *each(begin), adds.all(), *each(finish))


class _Adds:
    """The products of one tile. Of block o of outputs ``used[o]`` vectors have any."""

    def __init__(
        self, of: _Conv, sums: tirx.Buffer, n: Expr, group: Expr, outer: list[Expr], start: Expr, width: int, used: Sequence[int]
    ) -> None:
        self.of, self.sums, self.n, self.group, self.outer, self.width, self.used = of, sums, n, group, outer, width, used
        self.first = start * of.row.stride

    def all(self) -> tirx.Stmt:
        of = self.of
        rest = -(-(of.in_channels % of.channels or of.channels) // of.products.unit)
        rest += rest % of.products.together
        if rest == of.units:
            return serial(of.in_blocks, lambda c: self._taps(c, of.units), "block")
        last = self._taps(const(of.in_blocks - 1), rest)
        return sequence(serial(of.in_blocks - 1, lambda c: self._taps(c, of.units), "block"), last) if of.in_blocks > 1 else last

    def _taps(self, block: Expr, units: int) -> tirx.Stmt:
        of = self.of

        def step(taps: list[Expr], rows: list[Expr]) -> tirx.Stmt:
            if len(taps) == len(of.outer):
                return self._row(block, taps, rows, units)
            axis, position = of.outer[len(taps)], self.outer[len(taps)]
            return serial(axis.kernel, lambda k: step([*taps, k], [*rows, position * axis.stride + k * axis.dilation]), "k")

        return step([], [])

    def _row(self, block: Expr, taps: list[Expr], rows: list[Expr], units: int) -> tirx.Stmt:
        of, row = self.of, self.of.row
        if of.packed:
            return self._packed_row(block, taps, rows, units)
        # A loop: of taps side by side LLVM would keep the inputs that they share, in registers that there are not.
        return serial(row.kernel, lambda k: self._tap(block, taps, rows, k, units), "k")

    def _tap(self, block: Expr, taps: list[Expr], rows: list[Expr], k: Expr, units: int) -> tirx.Stmt:
        of, products = self.of, self.of.products

        def column(p: int) -> Expr:
            return self.first + (p * of.row.stride + k * of.row.dilation)

        if not products.by_element:
            return self._products(
                block, [*taps, k], units, lambda p, u: products.word_at(of.x, self._at(block, rows, column(p)), _expr(u * products.unit))
            )
        words = tirx.decl_buffer((self.width, of.units), products.word, "words")

        def load(p: int) -> tirx.Stmt:
            vector = products.words_at(of.x, self._at(block, rows, column(p)), const(0), of.units)
            return tirx.BufferStore(words, vector, [const(p), ramp(0, of.units)])

        adds = self._products(block, [*taps, k], units, lambda p, u: tirx.BufferLoad(words, [const(p), const(u)]))
        return sequence(registers(words), *map(load, range(self.width)), adds)

    def _packed_row(self, block: Expr, taps: list[Expr], rows: list[Expr], units: int) -> tirx.Stmt:
        """All taps along the row: vectors hold neighbouring pixels, and cover what the taps read and no more."""
        of, row, products = self.of, self.of.row, self.of.products
        unit, most = products.unit, VECTOR_BYTES // products.unit
        count = ((self.width - 1) * row.stride + (row.kernel - 1) * row.dilation + 1) * of.units
        lanes = most if count >= most else 1
        starts = list(range(0, count - lanes + 1, lanes))
        starts += [count - lanes] if count % lanes else []
        words = tirx.decl_buffer((len(starts), lanes), products.word, "words")

        def load(i: int) -> tirx.Stmt:
            column, first = divmod(starts[i] * unit, of.channels)
            # Pixels stand side by side: a channel beyond the last is one of the next pixel.
            vector = products.words_at(of.x, self._at(block, rows, self.first + column), const(first), lanes)
            return tirx.BufferStore(words, vector, [const(i), ramp(0, lanes) if lanes > 1 else const(0)])

        def word(k: int) -> Callable[[int, int], Expr]:
            def of_pixel(p: int, u: int) -> Expr:
                at = (p * row.stride + k * row.dilation) * of.units + u
                i = min(at // lanes, len(starts) - 1)
                return tirx.BufferLoad(words, [const(i), const(at - starts[i])])

            return of_pixel

        adds = [self._products(block, [*taps, const(k)], units, word(k)) for k in range(row.kernel)]
        return sequence(registers(words), *map(load, range(len(starts))), *adds)

    def _products(self, block: Expr, taps: list[Expr], units: int, word: Callable[[int, Any], Expr]) -> tirx.Stmt:
        """Each weight is loaded once where words are held in registers, and each word otherwise."""
        of, step = self.of, self.of.products.together
        vectors = [(o, v) for o in range(of.tile.blocks) for v in range(self.used[o])]
        pixels = range(self.width)
        order = [(vector, p) for vector in vectors for p in pixels]
        if not of.products.by_element:
            order = [(vector, p) for p in pixels for vector in vectors]

        def add(u: Any, o: int, v: int, p: int) -> tirx.Stmt:
            lanes = of.products.lanes
            at = [const(o), const(p), ramp(v * lanes, lanes)]
            weights = [self._weight(block, taps, u + i, o, v * lanes) for i in range(step)]
            total = of.products.add(tirx.BufferLoad(self.sums, at), weights, [word(p, u + i) for i in range(step)])
            return tirx.BufferStore(self.sums, total, at)

        if not of.target.adds_byte_products and units > step:
            # A short body: LLVM moves products of 16 bits away from the sums that take them.
            return serial(units // step, lambda u: sequence(*(add(u * step, *vector, p) for vector, p in order)), "unit")
        return sequence(*(add(u, *vector, p) for u in range(0, units, step) for vector, p in order))

    def _weight(self, block: Expr, taps: list[Expr], unit: Any, o: int, lane: int) -> Expr:
        """The vector of weights from output ``lane`` of block ``o`` of the tile on: a panel holds some blocks of outputs."""
        of, blocks, panel = self.of, self.of.tile.blocks, self.of.panel
        if blocks % panel == 0:
            which, within = self.group * (blocks // panel) + o // panel, const(o % panel)
        else:
            parts = panel // blocks
            which, within = tirx.truncdiv(self.group, const(parts)), tirx.truncmod(self.group, const(parts)) * blocks + o
        size = of.products.unit
        first = (within * BLOCK + lane) * size
        # The last two axes are one run of bytes.
        at = [which, block, *([const(0)] * len(of.full_axes) if of.flat else taps), _expr(unit), tirx.truncdiv(first, const(size))]
        return tirx.BufferLoad(of.w, [*at, ramp(0, of.products.lanes * size)])

    def _at(self, block: Expr, rows: list[Expr], column: Expr) -> list[Expr]:
        spatial = unravel(column, [axis.size for axis in self.of.full_axes]) if self.of.flat else [*rows, column]
        return [self.n, block, *spatial]


def _expr(value: Any) -> Expr:
    return const(value) if isinstance(value, int) else value


DIRECT: dict[str, tuple[Direct, ...]] = {"byte_conv": (byte_conv,)}
