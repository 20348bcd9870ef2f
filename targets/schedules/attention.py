"""Attention in one kernel: some rows of the query at a time, for which all scores lie in scratch.

A tile of query rows stands transposed, [D, rows], so that vectors run along its rows. Their scores do too, [T, rows]: each key
element is multiplied by vectors of the query, the softmax needs no sums across lanes, and the scores are the packed left
operand of the product with the values. The product is divided by the sums at the end (as in Dao et al., FlashAttention, NeurIPS
2022, though scores of a tile are kept whole: they fit the cache where tiles are low). Transposes of heads and tokens cost nothing,
since operands are read where they lie. A task is a share of all tiles and has scratch for one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.ir.expr import Var
from aotc.lowering.ops.attention import masked
from aotc.lowering.vector_math import exp_of_negative
from aotc.ops.attention import heads_first
from aotc.targets.schedules.base import SCRATCH, Direct, DirectWork
from aotc.targets.schedules.emit import const, known, parallel, product, registers, sequence, serial, task_indices, unrolled, vectorized
from aotc.targets.schedules.fused import prim_func
from aotc.targets.schedules.product_tiles import SPARE, row_tiles
from aotc.targets.schedules.rewrite import Computation
from aotc.targets.schedules.tile_sums import QUAD, Broadcasts, Left, PackedRows, RowRuns, TileSums, by_element

Expr = Any

TASKS_PER_CORE = 4
WIDEST = 512
"""Elements of a head from which on a query tile would not fit the cache beside its scores."""


def attention(work: DirectWork) -> tirx.PrimFunc | None:
    params = [param for param in work.graph.prim_func().params if tirx.is_buffer_var(param)]
    names = list(work.function.params)
    if not all(isinstance(arg, Var) and arg in names for arg in work.anchor.args):
        return None
    operands = [params[names.index(arg)] for arg in work.anchor.args]  # type: ignore[arg-type]
    result = params[len(names)]
    widths = [known(buffer.shape[3]) for buffer in (operands[0], operands[2])]
    if str(result.dtype) != "float32" or any(width is None or not 0 < width <= WIDEST for width in widths):
        return None
    return _Attention(work, params, operands, result).function()


@dataclass(frozen=True, slots=True)
class _Tile:
    """Query rows from ``row`` on of one head, ``vectors`` vectors of them, in the scratch of one task; ``whole``: all exist."""

    task: Expr
    batch: Expr
    head: Expr
    row: Expr
    vectors: int
    whole: bool


class _Attention:
    """Writes the kernel."""

    def __init__(self, work: DirectWork, params: list[tirx.Buffer], operands: list[tirx.Buffer], result: tirx.Buffer) -> None:
        self.params, self.result, self.attrs = params, result, work.anchor.attrs
        self.q, self.k, self.v, *masks = operands
        self.mask = masks[0] if masks else None
        self.own: tuple[int, ...] = self.attrs.tokens_first  # type: ignore[attr-defined]
        self.dtype = str(result.dtype)
        self.lanes = work.target.lanes(self.dtype)
        self.by_element, self.registers = by_element(work.target, self.dtype), work.target.vector_registers
        self.batch, self.heads, self.rows, width = heads_first(self.q.shape, self.own[0])
        self.keys = heads_first(self.k.shape, self.own[1])[2]
        self.width, self.value_width = int(known(width) or 0), int(known(self.v.shape[3]) or 0)
        rows = known(self.rows)
        self.vectors = 3 if self.by_element else 2
        if rows is not None:
            self.vectors = max(1, min(self.vectors, -(-rows // self.lanes)))
        self.wide = self.vectors * self.lanes
        self.tiles = tirx.floordiv(self.rows + (self.wide - 1), const(self.wide)) if rows is None else const(-(-rows // self.wide))
        count = known(product([self.batch, self.heads, self.tiles]))
        most = TASKS_PER_CORE * work.target.cores
        self.tasks = most if count is None else max(1, min(most, count))
        self.query = tirx.decl_buffer((self.tasks * self.width * self.wide,), self.dtype, f"{SCRATCH}query")
        self.scores = tirx.decl_buffer((const(self.tasks) * self.keys * self.wide,), self.dtype, f"{SCRATCH}scores")

    def function(self) -> tirx.PrimFunc:
        extents = [self.batch, self.heads, self.tiles]
        count = product(extents)
        share = tirx.floordiv(count + (self.tasks - 1), const(self.tasks))

        def task(number: Expr) -> tirx.Stmt:
            def tile(i: Expr) -> tirx.Stmt:
                batch, head, tile = task_indices(number * share + i, extents)
                return self._rows(number, batch, head, tile * self.wide)

            return serial(tirx.max(const(0), tirx.min(share, count - number * share)), tile, "tile")

        return prim_func(self.params, parallel(const(self.tasks), task), [self.query, self.scores])

    def _rows(self, task: Expr, batch: Expr, head: Expr, row: Expr) -> tirx.Stmt:
        """A tile; the last one may have fewer vectors, and need not be full."""
        rows, left = known(self.rows), self.rows - row

        def tile(vectors: int, whole: bool) -> tirx.Stmt:
            return self._tile(_Tile(task, batch, head, row, vectors, whole))

        if rows is None:
            partial = tile(self.vectors, False)
            if self.vectors > 1:
                partial = tirx.IfThenElse(left <= self.lanes, tile(1, False), partial)
            return tirx.IfThenElse(left >= self.wide, tile(self.vectors, True), partial)
        full, rest = divmod(rows, self.wide)
        if not rest:
            return tile(self.vectors, True)
        last = tile(-(-rest // self.lanes), rest % self.lanes == 0)
        return tirx.IfThenElse(left >= self.wide, tile(self.vectors, True), last) if full else last

    def _tile(self, tile: _Tile) -> tirx.Stmt:
        greatest, inverse = (tirx.decl_buffer((tile.vectors * self.lanes,), self.dtype, name) for name in ("greatest", "inverse"))
        parts = [self._copy_query(tile), self._scores(tile, greatest), self._softmax(tile, greatest, inverse), self._mix(tile, inverse)]
        return sequence(registers(greatest), registers(inverse), *parts)

    def _each(self, tile: _Tile, body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """``body(lane)`` for all lanes of a tile, vector by vector."""
        return unrolled(tile.vectors, lambda o: vectorized(self.lanes, lambda v: body(o * self.lanes + v)), "o")

    def _query_at(self, tile: _Tile, d: Expr, lane: Expr) -> Expr:
        return tile.task * (self.width * self.wide) + d * (tile.vectors * self.lanes) + lane

    def _score_at(self, tile: _Tile, key: Expr, lane: Expr) -> Expr:
        return tile.task * (self.keys * self.wide) + key * (tile.vectors * self.lanes) + lane

    def _row(self, tile: _Tile, lane: Expr) -> Expr:
        return tile.row + lane if tile.whole else tirx.min(tile.row + lane, self.rows - 1)

    def _copy_query(self, tile: _Tile) -> tirx.Stmt:
        """The tile, scaled, in vectors along its rows; squares of it are turned over in registers."""
        scale, lanes = tirx.const(self.attrs.scale, self.dtype), self.lanes  # type: ignore[attr-defined]

        def element(row: Expr, d: Expr) -> Expr:
            index = (tile.batch, tile.head, self._row(tile, row), d)
            return tirx.BufferLoad(self.q, list(heads_first(index, self.own[0]))) * scale

        def square(o: Expr, d: Expr, size: int) -> tirx.Stmt:
            held = tirx.decl_buffer((lanes, size), self.dtype, "held")

            def load(r: Expr) -> tirx.Stmt:
                return vectorized(size, lambda v: tirx.BufferStore(held, element(o * lanes + r, d + v), [r, v]))

            def store(s: Expr) -> tirx.Stmt:
                at = self._query_at(tile, d + s, o * lanes)
                return vectorized(lanes, lambda v: tirx.BufferStore(self.query, tirx.BufferLoad(held, [v, s]), [at + v]))

            return sequence(registers(held), unrolled(lanes, load, "r"), unrolled(size, store, "s"))

        size = QUAD
        whole, rest = divmod(self.width, size)
        parts = [serial(whole, lambda d: unrolled(tile.vectors, lambda o: square(o, d * size, size), "o"), "d")] if whole else []
        parts += [unrolled(tile.vectors, lambda o, d=d: square(o, const(d), 1), "o") for d in range(whole * size, self.width)]  # type: ignore[misc]
        return sequence(*parts) if rest or whole else tirx.Evaluate(const(0))

    # --- scores ----------------------------------------------------------------------------------------------------

    def _scores(self, tile: _Tile, greatest: tirx.Buffer) -> tirx.Stmt:
        """Scores of all keys, masked, and the greatest of each row."""
        least = tirx.const(float("-inf"), self.dtype)
        begin = self._each(tile, lambda v: tirx.BufferStore(greatest, least, [v]))
        parts = row_tiles(self.keys, self._keys_at_once(tile.vectors), self.by_element)
        tiles = [
            serial(part.count, lambda t, part=part: self._score_tile(tile, greatest, part.first + t * part.rows, part.rows), "keys")  # type: ignore[misc]
            for part in parts
            if known(part.count) != 0
        ]
        return sequence(begin, *tiles)

    def _keys_at_once(self, vectors: int) -> int:
        """As many keys as registers have room for their sums, a vector of query rows and what is multiplied by it."""
        room = self.registers - vectors
        most = (room - SPARE) // (vectors + 1) if self.by_element else (room - 2) // vectors
        return max(1, min(most, 8))

    def _score_tile(self, tile: _Tile, greatest: tirx.Buffer, first: Expr, keys: int) -> tirx.Stmt:
        def key(p: Expr, d: Expr) -> Expr:
            return tirx.BufferLoad(self.k, list(heads_first((tile.batch, tile.head, first + p, d), self.own[1])))

        def query(o: Expr, d: Expr, v: Expr) -> Expr:
            return tirx.BufferLoad(self.query, [self._query_at(tile, d, o * self.lanes + v)])

        left: Left = RowRuns(keys, self.dtype, key) if self.by_element else Broadcasts(key)
        work = TileSums(self.dtype, tile.vectors, keys, self.lanes, self.lanes, const(self.width), left, query)
        sums = work.buffer()

        def finish(o: Expr, p: Expr) -> tirx.Stmt:
            def lane(v: Expr) -> tirx.Stmt:
                at, row = self._score_at(tile, first + p, o * self.lanes + v), o * self.lanes + v
                score = masked(self.attrs, tirx.BufferLoad(sums, [o, p, v]), self._mask(tile, row, first + p))
                kept, top = tirx.BufferLoad(self.scores, [at]), tirx.BufferLoad(greatest, [row])
                store = tirx.BufferStore(self.scores, score, [at])
                return sequence(store, tirx.BufferStore(greatest, tirx.Select(top > kept, top, kept), [row]))

            return vectorized(self.lanes, lane)

        return work.write(sums, work.each(finish))

    def _mask(self, tile: _Tile, row: Expr, key: Expr) -> Expr | None:
        if self.mask is None:
            return None
        index = [tile.batch, tile.head, self._row(tile, row), key][4 - len(self.mask.shape) :]
        at = [const(0) if known(extent) == 1 else i for i, extent in zip(index, self.mask.shape, strict=True)]
        return tirx.BufferLoad(self.mask, at)

    # --- softmax and the product with the values -------------------------------------------------------------------

    def _softmax(self, tile: _Tile, greatest: tirx.Buffer, inverse: tirx.Buffer) -> tirx.Stmt:
        """Scores to powers of e, and the inverse of each row's sum."""
        zero, one = tirx.const(0, self.dtype), tirx.const(1, self.dtype)
        zero_rows = bool(self.attrs.zero_rows)  # type: ignore[attr-defined]
        total, argument = tirx.decl_buffer((tile.vectors * self.lanes,), self.dtype, "total"), tirx.Var("x", self.dtype)
        computation = Computation((exp_of_negative(argument),))

        def power(key: Expr) -> tirx.Stmt:
            def vector(o: Expr) -> tirx.Stmt:
                parts = computation.temporaries(self.lanes)

                def lane(v: Expr) -> tirx.Stmt:
                    row = o * self.lanes + v
                    at = self._score_at(tile, key, row)
                    x = tirx.BufferLoad(self.scores, [at]) - tirx.BufferLoad(greatest, [row])
                    statements, (value,) = computation.emit({argument: x}, parts, v)
                    store = tirx.BufferStore(self.scores, value, [at])
                    add = tirx.BufferStore(total, tirx.BufferLoad(total, [row]) + tirx.BufferLoad(self.scores, [at]), [row])
                    return sequence(*statements, store, add)

                return sequence(*map(registers, parts), vectorized(self.lanes, lane))

            return unrolled(tile.vectors, vector, "o")

        def finite(v: Expr) -> tirx.Stmt:
            top = tirx.BufferLoad(greatest, [v])
            return tirx.BufferStore(greatest, tirx.Select(top == tirx.const(float("-inf"), self.dtype), zero, top), [v])

        def invert(v: Expr) -> tirx.Stmt:
            whole = tirx.BufferLoad(total, [v])
            return tirx.BufferStore(inverse, tirx.Select(whole == zero, zero, one / whole) if zero_rows else one / whole, [v])

        begin = [self._each(tile, finite)] if zero_rows else []
        clear = self._each(tile, lambda v: tirx.BufferStore(total, zero, [v]))
        return sequence(registers(total), *begin, clear, serial(self.keys, power, "key"), self._each(tile, invert))

    def _mix(self, tile: _Tile, inverse: tirx.Buffer) -> tirx.Stmt:
        """The product with the values: some rows by some vectors of a head at a time, then by what fills no vector."""
        rows, vectors = tile.vectors * self.lanes, self.value_width // self.lanes
        high = rows if self.by_element else min(rows, 6 if rows > 8 else 4)
        most = max(1, (self.registers - (SPARE + high // QUAD if self.by_element else 1)) // (high + 1))
        pieces = [(first, min(high, rows - first)) for first in range(0, rows, high)]
        parts = []
        if vectors:
            size = next(count for count in range(min(most, vectors, 4), 0, -1) if vectors % count == 0 or count <= 2)
            whole, rest = divmod(vectors, size)
            for first, height in pieces:
                parts.append(self._mix_tiles(tile, inverse, (first, height), const(0), whole, size, self.lanes))
                if rest:
                    parts.append(self._mix_tile(tile, inverse, first, height, const(whole * size * self.lanes), rest, self.lanes))
        left = self.value_width - vectors * self.lanes
        for piece in pieces if left else ():
            parts.append(self._mix_tiles(tile, inverse, piece, const(vectors * self.lanes), left, 1, 1))
        return sequence(*parts)

    def _mix_tiles(
        self, tile: _Tile, inverse: tirx.Buffer, rows: tuple[int, int], column: Expr, count: int, vectors: int, lanes: int
    ) -> tirx.Stmt:
        """``count`` tiles side by side from ``column`` on."""
        step = vectors * lanes
        return serial(count, lambda g: self._mix_tile(tile, inverse, *rows, column + g * step, vectors, lanes), "part")

    def _mix_tile(self, tile: _Tile, inverse: tirx.Buffer, first: int, rows: int, column: Expr, vectors: int, lanes: int) -> tirx.Stmt:
        def weight(p: Expr, key: Expr) -> Expr:
            return tirx.BufferLoad(self.scores, [self._score_at(tile, key, first + p)])

        def value(o: Expr, key: Expr, v: Expr) -> Expr:
            index = (tile.batch, tile.head, key, column + o * lanes + v)
            return tirx.BufferLoad(self.v, list(heads_first(index, self.own[2])))

        left: Left = PackedRows(rows, self.scores, self._score_at(tile, const(0), const(0))) if self.by_element else Broadcasts(weight)
        work = TileSums(self.dtype, vectors, rows, lanes, lanes, self.keys, left, value)
        sums = work.buffer()

        def finish(o: Expr, p: Expr) -> tirx.Stmt:
            row, factor = tile.row + first + p, tirx.BufferLoad(inverse, [first + p])

            def lane(v: Expr) -> tirx.Stmt:
                index = (tile.batch, tile.head, row, column + o * lanes + v)
                return tirx.BufferStore(self.result, tirx.BufferLoad(sums, [o, p, v]) * factor, list(heads_first(index, self.own[3])))

            store = vectorized(lanes, lane)
            return store if tile.whole else tirx.IfThenElse(row < self.rows, store, None)

        return work.write(sums, work.each(finish))


DIRECT: dict[str, tuple[Direct, ...]] = {"attention": (attention,)}
