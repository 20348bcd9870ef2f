"""Attention as one kernel: a block has some query rows, and all their scores in shared memory.

Keys, then values, pass by in tiles. Scores never reach memory, and heads and tokens are swapped by how operands are addressed. Where the
scores of a block do not fit, or a size is known only at run time, attention is products in tiles with a softmax between them (``generic``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from tvm import tirx

from aotc.ir.expr import Var
from aotc.ir.types import TensorType
from aotc.lowering.vector_math import exp_of_negative
from aotc.ops.attention import heads_first
from aotc.targets.schedules.cuda.launch import BLOCK, THREAD, Launch, address, allocated, barrier, call, dynamic_shared, unrolled
from aotc.targets.schedules.cuda.work import Work
from aotc.targets.schedules.loops import const, loop, sequence
from aotc.targets.schedules.program import Program

Expr = Any

ROWS, KEYS, THREADS = 32, 64, 128
"""Query rows of a block, keys of a tile, threads."""
ACROSS = 16
"""Threads that share a row, each with every 16th key or lane; the others are for other rows."""
DOWN = THREADS // ACROSS
PAD = 4
"""Floats between rows in shared memory, so that threads side by side read different banks."""
SHARERS = THREADS // ROWS
"""Threads that share the softmax of a row."""
WIDEST = 128


@dataclass(frozen=True)
class _Sizes:
    batch: int
    heads: int
    rows: int
    keys: int
    width: int

    @property
    def score_row(self) -> int:
        return -(-self.keys // KEYS) * KEYS + PAD

    @property
    def row(self) -> int:
        return self.width + PAD

    @property
    def floats(self) -> int:
        return ROWS * self.row + KEYS * self.row + ROWS * self.score_row + ROWS


def schedule(work: Work, program: Program) -> list[Launch] | None:
    anchor = work.anchor
    if anchor.op.name != "attention" or work.function.body is not anchor or not all(isinstance(arg, Var) for arg in anchor.args):
        return None
    attrs: Any = anchor.attrs
    q, k = (heads_first(cast(TensorType, arg.type).shape, flag) for arg, flag in zip(anchor.args[:2], attrs.tokens_first, strict=False))
    dims = (*q[:3], k[2], q[3])
    if not all(isinstance(dim, int) for dim in dims) or k[:2] != q[:2]:
        return None
    sizes = _Sizes(*(int(cast(int, dim)) for dim in dims))
    values = cast(TensorType, anchor.args[2].type)
    fits = sizes.floats * 4 <= work.gpu.shared_bytes and sizes.width % ACROSS == 0 and sizes.width <= WIDEST
    if not fits or heads_first(values.shape, attrs.tokens_first[2]) != k or 0 in dims:
        return None
    return [_Kernel(work, program, sizes).launch()]


class _Kernel:
    def __init__(self, work: Work, program: Program, sizes: _Sizes) -> None:
        self.sizes, self.attrs = sizes, cast(Any, work.anchor.attrs)
        params = list(work.function.params)
        self.types = [cast(TensorType, arg.type) for arg in work.anchor.args]
        self.operands = [program.params[params.index(cast(Var, arg))] for arg in work.anchor.args]
        self.output = program.params[len(params)]
        self.memory = dynamic_shared("float32", sizes.floats, "tiles")
        self.tile = ROWS * sizes.row
        self.scores = self.tile + KEYS * sizes.row
        self.totals = self.scores + ROWS * sizes.score_row
        tiles = -(-sizes.rows // ROWS)
        self.first = tirx.truncmod(BLOCK, const(tiles)) * const(ROWS)
        head = tirx.truncdiv(BLOCK, const(tiles))
        self.batch, self.head = tirx.truncdiv(head, const(sizes.heads)), tirx.truncmod(head, const(sizes.heads))
        self.down, self.across = tirx.truncdiv(THREAD, const(ACROSS)), tirx.truncmod(THREAD, const(ACROSS))
        self.blocks = sizes.batch * sizes.heads * tiles

    def launch(self) -> Launch:
        tiles = self.sizes.score_row // KEYS
        body = allocated(
            [self.memory],
            self._load(0, self.first, const(0), ROWS, self.sizes.rows),
            loop(tiles, lambda tile: sequence([self._load(1, tile * const(KEYS), const(self.tile), KEYS, self.sizes.keys), barrier(), self._score(tile), barrier()])),
            self._softmax(),
            self._mix(tiles),
        )  # fmt: skip
        return Launch(body, const(self.blocks), THREADS, self.sizes.floats * 4)

    def _at(self, which: int, token: Expr, lane: Expr) -> Expr:
        """The flat offset of an element of query, key, value or (3) result."""
        tokens = self.sizes.rows if which in (0, 3) else self.sizes.keys
        heads, width = const(self.sizes.heads), const(self.sizes.width)
        if self.attrs.tokens_first[which]:
            return ((self.batch * const(tokens) + token) * heads + self.head) * width + lane
        return ((self.batch * heads + self.head) * const(tokens) + token) * width + lane

    def _load(self, which: int, first: Expr, base: Expr, count: int, tokens: int) -> tirx.Stmt:
        """``count`` tokens from ``first`` on to shared memory, zeros beyond the last one."""
        width = self.sizes.width

        def element(step: Expr) -> tirx.Stmt:
            at = step * const(THREADS) + THREAD
            token, lane = tirx.truncdiv(at, const(width)), tirx.truncmod(at, const(width))
            value = tirx.BufferLoad(self.operands[which], [self._at(which, first + token, lane)])
            value = value if str(value.ty) == "float32" else tirx.Cast("float32", value)
            if tokens % count:
                value = tirx.if_then_else(first + token < const(tokens), value, tirx.const(0, "float32"))
            return tirx.BufferStore(self.memory, value, [base + token * const(self.sizes.row) + lane])

        return loop(count * width // THREADS, element)

    def _own_row(self, i: Expr) -> Expr:
        return self.down + i * const(DOWN)

    def _own_column(self, j: Expr) -> Expr:
        return self.across + j * const(ACROSS)

    def _score(self, tile: Expr) -> tirx.Stmt:
        """A thread's scores of a tile of keys: four rows by four keys."""
        down, across = ROWS // DOWN, KEYS // ACROSS
        sums, a, b = (
            tirx.decl_buffer([size], "float32", name) for size, name in ((down * across, "sums"), (down * 4, "a"), (across * 4, "b"))
        )
        row = const(self.sizes.row)

        def fetch(local: tirx.Buffer, count: int, base: Expr, place: Callable[[Expr], Expr], lane: Expr) -> tirx.Stmt:
            return unrolled(
                count,
                lambda i: call("aotc_move<16>", address(local, i * const(4)), address(self.memory, base + place(i) * row + lane)),
                "i",
            )

        def add(i: Expr, j: Expr, k: Expr) -> tirx.Stmt:
            at = i * const(across) + j
            product = tirx.BufferLoad(a, [i * const(4) + k]) * tirx.BufferLoad(b, [j * const(4) + k])
            return tirx.BufferStore(sums, tirx.BufferLoad(sums, [at]) + product, [at])

        def step(s: Expr) -> tirx.Stmt:
            lane = s * const(4)
            products = unrolled(4, lambda k: unrolled(down, lambda i: unrolled(across, lambda j: add(i, j, k), "j"), "i"), "k")
            loads = [fetch(a, down, const(0), self._own_row, lane), fetch(b, across, const(self.tile), self._own_column, lane)]
            return sequence([*loads, products])

        def put(i: Expr, j: Expr) -> tirx.Stmt:
            key = tile * const(KEYS) + self._own_column(j)
            value = tirx.BufferLoad(sums, [i * const(across) + j]) * tirx.const(self.attrs.scale, "float32")
            value = self._masked(value, self.first + self._own_row(i), key)
            return tirx.BufferStore(self.memory, value, [const(self.scores) + self._own_row(i) * const(self.sizes.score_row) + key])

        clear = unrolled(down * across, lambda i: tirx.BufferStore(sums, tirx.const(0, "float32"), [i]))
        results = unrolled(down, lambda i: unrolled(across, lambda j: put(i, j), "j"), "i")
        return allocated([sums, a, b], clear, loop(self.sizes.width // 4, step), results)

    def _masked(self, score: Expr, row: Expr, key: Expr) -> Expr:
        """A score under the mask; minus infinity beyond the last key."""
        if len(self.operands) > 3:
            shape = (1,) * (4 - self.types[3].rank) + tuple(int(cast(int, dim)) for dim in self.types[3].shape)
            safe = tirx.min(row, const(self.sizes.rows - 1)), tirx.min(key, const(self.sizes.keys - 1))
            at: Expr = const(0)
            for index, extent in zip((self.batch, self.head, *safe), shape, strict=True):
                at = at * const(extent) + (const(0) if extent == 1 else index)
            mask = tirx.BufferLoad(self.operands[3], [at])
            if str(mask.ty) == "bool":
                score = tirx.Select(mask, score, tirx.FloatImm("float32", self.attrs.fill))
            else:
                score = score + (mask if str(mask.ty) == "float32" else tirx.Cast("float32", mask))
        return tirx.Select(key < const(self.sizes.keys), score, tirx.FloatImm("float32", float("-inf")))

    def _softmax(self) -> tirx.Stmt:
        """Scores to powers, and the total of each row."""
        row, share = tirx.truncdiv(THREAD, const(SHARERS)), tirx.truncmod(THREAD, const(SHARERS))
        top, total, power = (tirx.decl_buffer([1], "float32", name) for name in ("top", "total", "power"))
        steps = (self.sizes.score_row - PAD) // SHARERS

        def place(s: Expr) -> Expr:
            return const(self.scores) + row * const(self.sizes.score_row) + s * const(SHARERS) + share

        def value(buffer: tirx.Buffer) -> Expr:
            return tirx.BufferLoad(buffer, [const(0)])

        def put(buffer: tirx.Buffer, new: Expr) -> tirx.Stmt:
            return tirx.BufferStore(buffer, new, [const(0)])

        def together(buffer: tirx.Buffer, combine: Callable[[Expr, Expr], Expr]) -> list[tirx.Stmt]:
            moved = [tirx.call_extern("float32", "aotc_shuffle", value(buffer), const(distance)) for distance in (2, 1)]
            return [put(power, moved[0]), put(buffer, combine(value(buffer), value(power))), put(power, moved[1]), put(buffer, combine(value(buffer), value(power)))]  # fmt: skip

        def raise_(s: Expr) -> tirx.Stmt:
            score = tirx.BufferLoad(self.memory, [place(s)])
            kept = tirx.BufferStore(self.memory, value(power), [place(s)])
            return sequence([put(power, exp_of_negative(score - value(top))), kept, put(total, value(total) + value(power))])

        lowest = tirx.FloatImm("float32", float("-inf"))
        zero = tirx.const(0, "float32")
        nothing = [put(top, tirx.Select(tirx.EQ(value(top), lowest), zero, value(top)))] if self.attrs.zero_rows else []
        return allocated(
            [top, total, power],
            put(top, lowest),
            put(total, zero),
            loop(steps, lambda s: put(top, tirx.max(value(top), tirx.BufferLoad(self.memory, [place(s)])))),
            *together(top, tirx.max),
            *nothing,
            loop(steps, raise_),
            *together(total, lambda a, b: a + b),
            tirx.IfThenElse(tirx.EQ(share, const(0)), tirx.BufferStore(self.memory, value(total), [const(self.totals) + row]), None),
            barrier(),
        )

    def _mix(self, tiles: int) -> tirx.Stmt:
        """The values, weighted."""
        down, across = ROWS // DOWN, self.sizes.width // ACROSS
        sums, weights = tirx.decl_buffer([down * across], "float32", "mixed"), tirx.decl_buffer([down * 4], "float32", "weights")

        def step(tile: Expr, s: Expr) -> tirx.Stmt:
            first = tile * const(KEYS) + s * const(4)

            def fetch(i: Expr) -> tirx.Stmt:
                source = const(self.scores) + self._own_row(i) * const(self.sizes.score_row) + first
                return call("aotc_move<16>", address(weights, i * const(4)), address(self.memory, source))

            def add(i: Expr, j: Expr, k: Expr) -> tirx.Stmt:
                lane = const(self.tile) + (s * const(4) + k) * const(self.sizes.row) + self._own_column(j)
                at = i * const(across) + j
                product = tirx.BufferLoad(weights, [i * const(4) + k]) * tirx.BufferLoad(self.memory, [lane])
                return tirx.BufferStore(sums, tirx.BufferLoad(sums, [at]) + product, [at])

            products = unrolled(4, lambda k: unrolled(down, lambda i: unrolled(across, lambda j: add(i, j, k), "j"), "i"), "k")
            return sequence([unrolled(down, fetch, "i"), products])

        def turn(tile: Expr) -> tirx.Stmt:
            load = self._load(2, tile * const(KEYS), const(self.tile), KEYS, self.sizes.keys)
            return sequence([load, barrier(), loop(KEYS // 4, lambda s: step(tile, s)), barrier()])

        def put(i: Expr, j: Expr) -> tirx.Stmt:
            row = self.first + self._own_row(i)
            total = tirx.BufferLoad(self.memory, [const(self.totals) + self._own_row(i)])
            value: Expr = tirx.BufferLoad(sums, [i * const(across) + j]) / total
            if self.attrs.zero_rows:
                zero = tirx.const(0, "float32")
                value = tirx.Select(tirx.EQ(total, zero), zero, value)
            value = value if str(self.output.dtype) == "float32" else tirx.Cast(str(self.output.dtype), value)
            stored = tirx.BufferStore(self.output, value, [self._at(3, row, self._own_column(j))])
            return stored if self.sizes.rows % ROWS == 0 else tirx.IfThenElse(row < const(self.sizes.rows), stored, None)

        clear = unrolled(down * across, lambda i: tirx.BufferStore(sums, tirx.const(0, "float32"), [i]))
        results = unrolled(down, lambda i: unrolled(across, lambda j: put(i, j), "j"), "i")
        return allocated([sums, weights], clear, loop(tiles, turn), results)
