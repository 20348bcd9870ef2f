"""Depthwise convolution of bytes over blocked channels, summed in 32 bits, written as TIR.

Where the machine adds four products of bytes, the rows of a column of the window are put side by side for each channel, once for all
pixels that read the column: then a product takes up to four taps. Elsewhere bytes are made longer.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from aotc.ops.byte_products import BLOCK
from aotc.targets.schedules.base import Direct, DirectWork
from aotc.targets.schedules.byte_padding import Padding
from aotc.targets.schedules.byte_products import Products, products_of, ramp
from aotc.targets.schedules.conv_places import Axis
from aotc.targets.schedules.emit import const, known, parallel, product, registers, sequence, serial, task_indices, vectorized
from aotc.targets.schedules.fused import Fused, fused, prim_func, started

Expr = Any


def byte_depthwise_conv(work: DirectWork) -> tirx.PrimFunc | None:
    """``None`` where the machine does not multiply bytes of x's sign, or weights stand in other units."""
    view, products = fused(work), products_of(work.target)
    if view is None:
        return None
    view = started(view)
    x, w = view.operands
    unit = known(w.shape[-1])
    if str(x.dtype) != products.factor or unit != (4 if work.target.adds_byte_products else 1):
        return None
    return _Depthwise(work, view, products, unit).function()


class _Depthwise:
    """Writes the kernels."""

    def __init__(self, work: DirectWork, view: Fused, products: Products, unit: int) -> None:
        attrs: Any = work.anchor.attrs
        self.view, self.products, self.unit = view, products, unit
        x, self.w = view.operands
        self.rows, self.columns = (
            Axis(x.shape[2 + i], view.total.shape[2 + i], attrs.kernel[i], attrs.strides[i], attrs.dilation[i], *attrs.padding[i::2])
            for i in range(2)
        )
        self.padding = Padding(x, [self.rows, self.columns], attrs.pad_value)
        self.x = self.padding.buffer
        self.vectors = BLOCK // products.lanes
        self.pixels = self._pixels(work.target.vector_registers)

    def _pixels(self, count: int) -> int:
        """As many as leave room for the weights of a row of the window, the words of one column and what makes them."""
        most = max(1, (count - self.columns.kernel * self.vectors - 2 * self.vectors) // self.vectors)
        row = known(self.columns.out)
        tiles = 1 if row is None else -(-row // min(most, row))
        return most if row is None else -(-row // tiles)

    def function(self) -> tirx.PrimFunc:
        extents = self.view.total.shape[:3]

        def task(index: Expr) -> tirx.Stmt:
            return self._row(*task_indices(index, extents))

        return prim_func(self.view.params, sequence(*self.padding.nests(), parallel(product(extents), task)), self.padding.scratch)

    def _row(self, n: Expr, block: Expr, row: Expr) -> tirx.Stmt:
        out, pixels = self.columns.out, self.pixels
        length = known(out)
        whole = tirx.truncdiv(out, const(pixels)) if length is None else const(length // pixels)
        main = serial(whole, lambda t: self._tile(n, block, row, t * pixels, pixels), "tile")
        if length is None:
            rest = serial(out - whole * pixels, lambda t: self._tile(n, block, row, whole * pixels + t, 1), "pixel")
            return sequence(main, rest)
        start = length // pixels * pixels
        return sequence(main, self._tile(n, block, row, const(start), length - start)) if length > start else main

    def _tile(self, n: Expr, block: Expr, row: Expr, start: Expr, width: int) -> tirx.Stmt:
        sums = tirx.decl_buffer((width, BLOCK), "int32", "sums")

        def begin(p: int) -> tirx.Stmt:
            at = [n, block, row, start + p]
            return vectorized(BLOCK, lambda v: tirx.BufferStore(sums, self.view.start([*at, v]), [const(p), v]))

        def finish(p: int) -> tirx.Stmt:
            at = [n, block, row, start + p]
            return self.view.store(BLOCK, lambda v: ([*at, v], tirx.BufferLoad(sums, [const(p), v])))

        first = [row * self.rows.stride, start * self.columns.stride]
        add = self._dots if self.unit > 1 else self._wide
        return sequence(registers(sums), *map(begin, range(width)), *add(sums, n, block, first, width), *map(finish, range(width)))

    def _reads(self, width: int) -> dict[int, list[tuple[int, int]]]:
        """For each column that a tile reads the pairs of tap and pixel that it serves."""
        found: dict[int, list[tuple[int, int]]] = {}
        for p in range(width):
            for k in range(self.columns.kernel):
                found.setdefault(p * self.columns.stride + k * self.columns.dilation, []).append((k, p))
        return dict(sorted(found.items()))

    def _load(self, n: Expr, block: Expr, first: list[Expr], row: int, column: int) -> Expr:
        at = [n, block, first[0] + row * self.rows.dilation, first[1] + column]
        return tirx.BufferLoad(self.x, [*at, ramp(0, BLOCK)])

    # --- products of four ------------------------------------------------------------------------------------------

    def _dots(self, sums: tirx.Buffer, n: Expr, block: Expr, first: list[Expr], width: int) -> list[tirx.Stmt]:
        stmts: list[tirx.Stmt] = []
        for group in range(-(-self.rows.kernel // self.unit)):
            rows = range(group * self.unit, min((group + 1) * self.unit, self.rows.kernel))
            for column, uses in self._reads(width).items():
                words = tirx.decl_buffer((BLOCK,), "int32", "words")
                inputs = [self._load(n, block, first, row, column) for row in rows]
                stmts += [registers(words), *side_by_side(words, inputs, self.products.lanes)]
                stmts += [self._dot(sums, words, block, group, k, p, v) for k, p in uses for v in range(self.vectors)]
        return stmts

    def _dot(self, sums: tirx.Buffer, words: tirx.Buffer, block: Expr, group: int, k: int, p: int, v: int) -> tirx.Stmt:
        lanes = self.products.lanes
        at = [const(p), ramp(v * lanes, lanes)]
        weights = tirx.BufferLoad(self.w, [block, const(group), const(k), const(v * lanes), ramp(0, lanes * self.unit)])
        units = tirx.BufferLoad(words, [ramp(v * lanes, lanes)])
        return tirx.BufferStore(sums, self.products.add_vectors(tirx.BufferLoad(sums, at), weights, units), at)

    # --- longer bytes ----------------------------------------------------------------------------------------------

    def _wide(self, sums: tirx.Buffer, n: Expr, block: Expr, first: list[Expr], width: int) -> list[tirx.Stmt]:
        """Where weights are at least -127 two products of signed bytes fit 16 bits."""
        taps = [(row, k) for row in range(self.rows.kernel) for k in range(self.columns.kernel)]
        size = 2 if self.products.factor == "int8" else 1
        long = "int16" if size == 2 else "int32"

        def one(row: int, k: int, p: int) -> Expr:
            column = p * self.columns.stride + k * self.columns.dilation
            weights = tirx.BufferLoad(self.w, [block, const(row), const(k), const(0), ramp(0, BLOCK)])
            return tirx.Cast(f"{long}x{BLOCK}", self._load(n, block, first, row, column)) * tirx.Cast(f"{long}x{BLOCK}", weights)

        def add(some: list[tuple[int, int]], p: int) -> tirx.Stmt:
            parts = [one(row, k, p) for row, k in some]
            total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
            at = [const(p), ramp(0, BLOCK)]
            return tirx.BufferStore(sums, tirx.BufferLoad(sums, at) + tirx.Cast(f"int32x{BLOCK}", total), at)

        return [add(taps[i : i + size], p) for i in range(0, len(taps), size) for p in range(width)]


def side_by_side(words: tirx.Buffer, inputs: list[Expr], lanes: int) -> list[tirx.Stmt]:
    """Writes to ``words`` the bytes of up to four vectors of 16, those of one lane side by side in the low bytes of a word."""
    if lanes > 4:
        return _widened(words, inputs, lanes)
    low, high = (inputs + inputs[-1:])[:2], (inputs[2:] + inputs[-1:] * 2)[:2]  # what weights of zero meet may be anything
    stmts = []
    for half in range(2):
        pairs = [tirx.reinterpret("int16x8", _zipped(two, half, 16)) for two in (low, high)]
        for quarter in range(2):
            word = tirx.reinterpret("int32x4", _zipped(pairs, quarter, 8))
            stmts.append(tirx.BufferStore(words, word, [ramp((2 * half + quarter) * 4, 4)]))
    return stmts


def _zipped(two: list[Expr], half: int, lanes: int) -> Expr:
    first = half * lanes // 2
    return tirx.Shuffle(two, [const(i) for k in range(first, first + lanes // 2) for i in (k, lanes + k)])


def _widened(words: tirx.Buffer, inputs: list[Expr], lanes: int) -> list[tirx.Stmt]:
    wide = f"int32x{BLOCK}"
    total: Expr = None
    for i, each in enumerate(inputs):
        shifted = tirx.Cast(wide, each) << tirx.Broadcast(const(8 * i), BLOCK) if i else tirx.Cast(wide, each)
        total = shifted if total is None else total | shifted
    return [tirx.BufferStore(words, total, [ramp(0, BLOCK)])]


DIRECT: dict[str, tuple[Direct, ...]] = {"byte_depthwise_conv": (byte_depthwise_conv,)}
