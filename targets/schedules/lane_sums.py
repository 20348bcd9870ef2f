"""The sums of a tile where output channels are few: vectors hold input channels, and the lanes of a sum are added up at the end."""

from __future__ import annotations

from tvm import tirx

from aotc.targets.schedules.conv_places import Place
from aotc.targets.schedules.conv_sums import UNROLLED_OPERATIONS, Expr, Sums
from aotc.targets.schedules.emit import const, known, registers, sequence, serial, vectorized
from aotc.targets.schedules.tile import Step


class LaneSums(Sums):
    """Result in blocks of one channel, weights [O, C / b, *k, b, 1]."""

    @property
    def vector(self) -> int:
        return int(known(self.x.shape[-1]) or 1)

    def step(self, vectors: int) -> Step | None:
        return None

    def added(self, sums: tirx.Buffer, n: Expr, group: Expr, blocks: int, outer: list[Expr], place: Place) -> tirx.Stmt:
        """Adds all products of a tile to ``sums[blocks, width, vector]``."""

        def block(c0: Expr) -> tirx.Stmt:
            return self.over_taps(outer, lambda taps, rows: self._row(sums, n, group * blocks, [c0, *taps], rows, blocks, place))

        return serial(self.x.shape[1], block, "c0")

    def _row(self, sums: tirx.Buffer, n: Expr, first: Expr, at: list[Expr], rows: list[Expr], blocks: int, place: Place) -> tirx.Stmt:
        """All taps along the row, of the block of inputs and the outer taps ``at``."""
        row, checked = self.row, not place.inside and place.known is None

        def tap(k: Expr, pixels: list[int]) -> tirx.Stmt:
            ws = tirx.decl_buffer((blocks, self.vector), self.dtype, "ws")
            tapped = [at[0], *[const(0)] * len(self.full)] if self.flat else [*at, k]

            def weight(o: int) -> tirx.Stmt:
                return vectorized(
                    self.vector,
                    lambda v: tirx.BufferStore(ws, self.wide(tirx.BufferLoad(self.w, [first + o, *tapped, v, const(0)])), [const(o), v]),
                )

            def add(o: int, p: int) -> tirx.Stmt:
                column = place.start * row.stride + (p * row.stride - row.before + k * row.dilation)

                def lane(v: Expr) -> tirx.Stmt:
                    total = tirx.BufferLoad(sums, [const(o), const(p), v])
                    x = self.input(n, at[0], rows, column, v, checked)
                    return tirx.BufferStore(sums, total + x * tirx.BufferLoad(ws, [const(o), v]), [const(o), const(p), v])

                return vectorized(self.vector, lane)

            return sequence(registers(ws), *map(weight, range(blocks)), *(add(o, p) for p in pixels for o in range(blocks)))

        if place.known is not None or row.kernel * blocks * place.width <= UNROLLED_OPERATIONS:
            stmts = [tap(const(k), pixels) for k in range(row.kernel) if (pixels := self.inside(place, k))]
            return sequence(*stmts) if stmts else tirx.Evaluate(const(0))
        return serial(row.kernel, lambda k: tap(k, list(range(place.width))), "k")

    def folded(self, sums: tirx.Buffer, o: Expr, p: Expr) -> tuple[list[tirx.Stmt], Expr]:
        """Statements that add up the lanes of a sum, and what they give."""
        half, steps = self.vector, []
        while half > 1 and half % 2 == 0:
            half //= 2

            def lane(v: Expr, half: int = half) -> tirx.Stmt:
                high = tirx.BufferLoad(sums, [o, p, half + v])
                return tirx.BufferStore(sums, tirx.BufferLoad(sums, [o, p, v]) + high, [o, p, v])

            steps.append(vectorized(half, lane))
        total = tirx.BufferLoad(sums, [o, p, const(0)])
        for v in range(1, half):
            total = total + tirx.BufferLoad(sums, [o, p, const(v)])
        return steps, total
