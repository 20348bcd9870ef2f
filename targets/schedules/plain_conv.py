"""Convolution and transposed convolution over plain channels [N, C, *S], grouped ones included, written as TIR.

A task computes one row for some output channels. Vectors run along the row, each weight is broadcast against them, and the
sums of a tile (channels by vectors) stay in registers. Where there is padding a kernel of its own copies the input into a
padded one, so that no load is checked. A row's last tile overlaps the one before it and stores only what that has not.

A transposed convolution of stride s is s ordinary ones along each axis: output s * j + phase sums the taps k for which
phase + padding - k * dilation is a multiple of s (Dumoulin and Visin, A guide to convolution arithmetic, 2016).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from aotc.targets.schedules.base import Direct, DirectWork
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

Expr = Any
Taps = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of ``size``, giving ``out``. Output ``phases * j + phase`` sums ``input[stride * j + offset] * weight[k]``
    over ``taps[phase]``, which holds pairs (k, offset)."""

    size: Expr
    out: Expr
    stride: int
    taps: tuple[Taps, ...]

    @property
    def phases(self) -> int:
        return len(self.taps)

    @property
    def steps(self) -> Expr:
        """How many ``j`` there are."""
        return _ceil(self.out, self.phases)

    @property
    def before(self) -> int:
        return max(0, -min((offset for taps in self.taps for _, offset in taps), default=0))

    @property
    def reach(self) -> int:
        return max((offset for taps in self.taps for _, offset in taps), default=0)

    @property
    def is_pointwise(self) -> bool:
        return self.taps == (((0, 0),),) and self.stride == 1


def _ceil(value: Expr, divisor: int) -> Expr:
    number = known(value)
    if number is not None:
        return const(-(-number // divisor))
    return value if divisor == 1 else tirx.floordiv(value + (divisor - 1), const(divisor))


def plain_conv(work: DirectWork) -> tirx.PrimFunc | None:
    attrs: Any = work.anchor.attrs
    view = None if attrs.channel_block else fused(work)
    if view is None:
        return None
    x, w = view.operands
    n = len(attrs.strides)
    kernel = _kernel(w, n)
    if kernel is None:
        return None
    axes = [
        Axis(
            x.shape[2 + a],
            view.total.shape[2 + a],
            attrs.strides[a],
            (tuple((k, k * attrs.dilation[a] - attrs.padding[a]) for k in range(kernel[a])),),
        )
        for a in range(n)
    ]

    def weight(group: Expr, o: Expr, c: Expr, taps: list[int]) -> Expr:
        return tirx.BufferLoad(w, [group * (int(known(w.shape[0]) or 1) // attrs.groups) + o, c, *map(const, taps)])

    return _Plain(work, view, axes, attrs.groups, weight, getattr(attrs, "pad_value", 0)).function()


def conv_transpose(work: DirectWork) -> tirx.PrimFunc | None:
    attrs: Any = work.anchor.attrs
    view = fused(work)
    if view is None:
        return None
    x, w = view.operands
    n = len(attrs.strides)
    kernel = _kernel(w, n)
    if kernel is None:
        return None
    axes = []
    for a in range(n):
        s, pad, dilation = attrs.strides[a], attrs.padding[a], attrs.dilation[a]
        shifts = [[(k, phase + pad - k * dilation) for k in range(kernel[a])] for phase in range(s)]
        taps = tuple(tuple((k, shift // s) for k, shift in phase if shift % s == 0) for phase in shifts)
        axes.append(Axis(x.shape[2 + a], view.total.shape[2 + a], 1, taps))

    def weight(group: Expr, o: Expr, c: Expr, taps: list[int]) -> Expr:
        return tirx.BufferLoad(w, [group * (int(known(w.shape[0]) or 1) // attrs.groups) + c, o, *map(const, taps)])

    return _Plain(work, view, axes, attrs.groups, weight).function()


def _kernel(w: tirx.Buffer, n: int) -> list[int] | None:
    extents = [known(extent) for extent in w.shape]
    return None if None in extents else [int(extent or 0) for extent in extents[-n:]]


class _Plain:
    """Writes the kernels."""

    def __init__(
        self, work: DirectWork, view: Fused, axes: Sequence[Axis], groups: int, weight: Callable[..., Expr], pad_value: int = 0
    ) -> None:
        self.view, self.weight, self.groups, self.pad_value = view, weight, groups, pad_value
        self.x = view.operands[0]
        self.dtype = str(view.total.dtype)
        self.lanes = work.target.lanes(self.dtype)
        self.channels = int(known(self.x.shape[1]) or 1) // groups
        self.outputs = int(known(view.total.shape[1]) or 1) // groups
        self.full_axes = list(axes)
        self.flat = len(axes) > 1 and all(axis.is_pointwise for axis in axes)
        if self.flat:
            size = product([axis.size for axis in axes])
            axes = [Axis(size, size, 1, (((0, 0),),))]
        self.outer, self.row = list(axes[:-1]), axes[-1]
        self.tall, self.wide = self._tile(work.target.vector_registers)
        self.width = self.wide * self.lanes
        steps = known(self.row.steps)
        self.short = steps is None or steps < self.width or known(self.row.out) != steps * self.row.phases
        self.ragged = self.short or int(steps or 0) % self.width != 0
        self.padded = self._padded()

    def _tile(self, registers_: int) -> tuple[int, int]:
        """Output channels and vectors of a tile: see ``tile.tiles`` for the model."""
        best, least = (1, 1), float("inf")
        steps = known(self.row.steps)
        for tall, wide in itertools.product(range(1, 9), range(1, 9)):
            sums = tall * wide
            if tall > self.outputs or (sums > 1 and sums + wide + 1 > registers_):
                continue
            width = wide * self.lanes
            waste = -(-self.outputs // tall) * tall / self.outputs
            waste *= 1.0 if steps is None else max(-(-steps // width) * width / max(steps, 1), 1.0)
            cost = max(sums / 2, (tall + wide) / 2, 4.0) / sums * waste
            if cost < least - 1e-9:
                best, least = (tall, wide), cost
        return best

    def function(self) -> tirx.PrimFunc:
        if self.padded is None:
            return prim_func(self.view.params, self._conv())
        return prim_func(self.view.params, sequence(self._padding(), self._conv()), [self.padded])

    # --- padding ---------------------------------------------------------------------------------------------------

    def _padded(self) -> tirx.Buffer | None:
        """The padded input, if one is needed. Its rows let every tile load whole vectors."""
        axes = [*self.outer, self.row]
        extents = []
        for axis in axes:
            steps = axis.steps
            if axis is self.row and self.short:
                number = known(steps)
                steps = tirx.max(steps, const(self.width)) if number is None else const(max(number, self.width))
            last = (steps - 1) * axis.stride + (axis.reach + axis.before + 1)
            number = known(last) if known(steps) is None else (int(known(steps) or 0) - 1) * axis.stride + axis.reach + axis.before + 1
            extents.append(last if number is None else const(number))
        inside = all(
            axis.before == 0
            and known(axis.size) is not None
            and known(extent) is not None
            and int(known(extent) or 0) <= int(known(axis.size) or 0)
            for axis, extent in zip(axes, extents, strict=True)
        )
        if inside:
            return None
        return tirx.decl_buffer([self.x.shape[0], self.x.shape[1], *extents], str(self.x.dtype), "padded")

    def _padding(self) -> tirx.Stmt:
        assert self.padded is not None
        padded, axes = self.padded, [*self.outer, self.row]
        *rows, width = padded.shape[2:]

        def task(index: Expr) -> tirx.Stmt:
            n, c, *outer = task_indices(index, [*padded.shape[:2], *rows])
            at = [position - axis.before for position, axis in zip(outer, self.outer, strict=True)]
            inside = [t for a, axis in zip(at, self.outer, strict=True) for t in (a >= 0, a < axis.size)]

            def element(i: Expr) -> tirx.Stmt:
                column = i - axes[-1].before
                value = self._input(n, c, at, column)
                fits = tirx.all(*inside, column >= 0, column < self.row.size)
                value = tirx.if_then_else(fits, value, tirx.const(self.pad_value, str(padded.dtype)))
                return tirx.BufferStore(padded, value, [n, c, *outer, i])

            return serial(width, element, "x")

        return parallel(product(padded.shape[:-1]), task)

    def _input(self, n: Expr, c: Expr, outer: list[Expr], column: Expr) -> Expr:
        spatial = unravel(column, [axis.size for axis in self.full_axes]) if self.flat else [*outer, column]
        return tirx.BufferLoad(self.x, [n, c, *spatial])

    def _load(self, n: Expr, c: Expr, outer: list[Expr], column: Expr) -> Expr:
        """The input at positions that may lie in the padding."""
        if self.padded is None:
            return self._cast(self._input(n, c, outer, column))
        at = [position + axis.before for position, axis in zip([*outer, column], [*self.outer, self.row], strict=True)]
        return self._cast(tirx.BufferLoad(self.padded, [n, c, *at]))

    # --- the convolution -------------------------------------------------------------------------------------------

    def _conv(self) -> tirx.Stmt:
        pieces, rest = divmod(self.outputs, self.tall)
        extents = [self.view.total.shape[0], const(self.groups), const(pieces + bool(rest)), *(axis.steps for axis in self.outer)]

        def task(index: Expr) -> tirx.Stmt:
            n, group, piece, *steps = task_indices(index, extents)
            full = self._phases(n, group, piece * self.tall, self.tall, steps)
            if not rest:
                return full
            last = self._phases(n, group, piece * self.tall, rest, steps)
            return tirx.IfThenElse(piece < pieces, full, last) if pieces else last

        return parallel(product(extents), task)

    def _phases(self, n: Expr, group: Expr, first: Expr, tall: int, steps: list[Expr]) -> tirx.Stmt:
        stmts = []
        for phases in itertools.product(*(range(axis.phases) for axis in [*self.outer, self.row])):
            rows = [step * axis.phases + phase for step, axis, phase in zip(steps, self.outer, phases, strict=False)]
            stmt = self._row(n, group, first, tall, steps, rows, phases)
            fits = [
                row < axis.out
                for row, axis in zip(rows, self.outer, strict=True)
                if axis.phases > 1 and (known(axis.out) is None or int(known(axis.out) or 0) % axis.phases)
            ]
            stmts.append(tirx.IfThenElse(tirx.all(*fits), stmt, None) if fits else stmt)
        return sequence(*stmts)

    def _row(self, n: Expr, group: Expr, first: Expr, tall: int, steps: list[Expr], rows: list[Expr], phases: tuple[int, ...]) -> tirx.Stmt:
        def tile(t: Expr) -> tirx.Stmt:
            last = self.row.steps - self.width
            start = tirx.min(t * self.width, tirx.max(const(0), last) if self.short else last)
            return self._one_tile(n, group, first, tall, steps, rows, phases, start, t * self.width - start)

        return serial(_ceil(self.row.steps, self.width), tile, "tile")

    def _one_tile(
        self,
        n: Expr,
        group: Expr,
        first: Expr,
        tall: int,
        steps: list[Expr],
        rows: list[Expr],
        phases: tuple[int, ...],
        start: Expr,
        skip: Expr,
    ) -> tirx.Stmt:
        sums = tirx.decl_buffer((tall, self.wide, self.lanes), self.dtype, "sums")
        outer_taps = [axis.taps[phase] for axis, phase in zip(self.outer, phases, strict=False)]
        row_taps = self.row.taps[phases[-1]]

        def each(body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
            return unrolled(tall, lambda o: unrolled(self.wide, lambda p: body(o, p), "p"), "o")

        def clear(o: Expr, p: Expr) -> tirx.Stmt:
            return vectorized(self.lanes, lambda v: tirx.BufferStore(sums, tirx.const(0, self.dtype), [o, p, v]))

        def channel(c: Expr) -> tirx.Stmt:
            stmts = []
            for chosen in itertools.product(*outer_taps, row_taps):
                numbers, offsets = [k for k, _ in chosen], [offset for _, offset in chosen]
                at = [step * axis.stride + offset for step, axis, offset in zip(steps, self.outer, offsets, strict=False)]

                def add(o: Expr, p: Expr, numbers: list[int] = numbers, at: list[Expr] = at, shift: int = offsets[-1]) -> tirx.Stmt:
                    def lane(v: Expr) -> tirx.Stmt:
                        column = (start + p * self.lanes + v) * self.row.stride + shift
                        x = self._load(n, group * self.channels + c, at, column)
                        w = self._cast(self.weight(group, first + o, c, self._taps(numbers)))
                        return tirx.BufferStore(sums, tirx.BufferLoad(sums, [o, p, v]) + w * x, [o, p, v])

                    return vectorized(self.lanes, lane)

                stmts.append(each(add))
            return sequence(*stmts) if stmts else tirx.Evaluate(const(0))

        work = serial(self.channels, channel, "c")
        return sequence(registers(sums), each(clear), work, self._store(n, group, first, tall, rows, phases[-1], start, skip, sums))

    def _taps(self, numbers: list[int]) -> list[int]:
        return [0] * len(self.full_axes) if self.flat else numbers

    def _store(
        self, n: Expr, group: Expr, first: Expr, tall: int, rows: list[Expr], phase: int, start: Expr, skip: Expr, sums: tirx.Buffer
    ) -> tirx.Stmt:
        def place(o: Expr, step: Expr) -> list[Expr]:
            column = step * self.row.phases + phase
            spatial = unravel(column, [axis.out for axis in self.full_axes]) if self.flat else [*rows, column]
            return [n, group * self.outputs + first + o, *spatial]

        def vector(o: Expr, p: Expr) -> tirx.Stmt:
            return self.view.store(self.lanes, lambda v: (place(o, start + p * self.lanes + v), tirx.BufferLoad(sums, [o, p, v])))

        whole = unrolled(tall, lambda o: unrolled(self.wide, lambda p: vector(o, p), "p"), "o")
        if not self.ragged:
            return whole
        # Some columns may be stored already or lie beyond the row. The sums leave their registers first: indices vary.
        kept = tirx.decl_buffer((tall, self.wide, self.lanes), self.dtype, "kept")

        def keep(o: Expr, p: Expr) -> tirx.Stmt:
            return vectorized(self.lanes, lambda v: tirx.BufferStore(kept, tirx.BufferLoad(sums, [o, p, v]), [o, p, v]))

        def single(o: Expr) -> tirx.Stmt:
            count = tirx.min(const(self.width), tirx.floordiv(self.row.out - phase + (self.row.phases - 1), const(self.row.phases)) - start)

            def column(i: Expr) -> tirx.Stmt:
                p, v = unravel(i, [const(self.wide), const(self.lanes)])
                return self.view.store(1, lambda _: (place(o, start + i), tirx.BufferLoad(kept, [o, p, v])))

            return serial(count, lambda i: tirx.IfThenElse(i >= skip, column(i), None), "i")

        some = sequence(
            registers(kept), unrolled(tall, lambda o: unrolled(self.wide, lambda p: keep(o, p), "p"), "o"), serial(tall, single, "o")
        )
        fits = (start + (self.width - 1)) * self.row.phases + phase < self.row.out
        return tirx.IfThenElse(tirx.all(skip == 0, fits), whole, some)

    def _cast(self, value: Expr) -> Expr:
        return value if str(value.ty) == self.dtype else tirx.Cast(self.dtype, value)


DIRECT: dict[str, tuple[Direct, ...]] = {"conv": (plain_conv,), "conv_transpose": (conv_transpose,)}
