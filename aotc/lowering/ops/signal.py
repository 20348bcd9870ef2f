"""The Fourier transform as loops: Stockham's form of Cooley and Tukey's, of any length, several rows side by side.

A transform of length r * m is m butterflies of r elements each, then r transforms of length m; Stockham's order of the
elements (W. T. Cochran et al., What is the fast Fourier transform?, Proc. IEEE 55, 1967) needs no reordering at the end. The
radix is 4 where it divides, else the least divisor, so that the work is length * (sum of divisors). ``LANES`` rows
are transformed together: they are the innermost axis, and vectors run along it.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from aotc.ir.dims import Dim, ceildiv, product
from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import INDEX, Expr, Expression, Scope, cast, constant, int_constant
from aotc.lowering.ops.extern import extern, local, rows_per_task

LANES = 8


def radices(length: int) -> list[int]:
    """The radix of each step for a length."""
    found = []
    while length > 1:
        radix = 4 if length % 4 == 0 else next(r for r in range(2, length + 1) if length % r == 0 or r * r > length)
        radix = radix if length % radix == 0 else length
        found.append(radix)
        length //= radix
    return found


class _Transform:
    """``lanes`` transforms at once. Their data is in ``work[task, buffer, part, element * lanes + lane]``, in one buffer and
    then the other."""

    def __init__(self, work: Any, table: Any, length: Expr, lanes: int, dtype: str, inverse: bool) -> None:
        self.work, self.table, self.length, self.lanes, self.dtype, self.inverse = work, table, length, lanes, dtype, inverse
        self.cos, self.sin = local(dtype), local(dtype)
        self.at = local(INDEX)

    def rotation(self, index: Expr) -> None:
        """Sets ``cos`` and ``sin`` to entry ``index`` of the table."""
        self.cos[0] = self.table[[index, int_constant(0)]]
        sine = self.table[[index, int_constant(1)]]
        self.sin[0] = -sine if self.inverse else sine

    def turned(self, re: Expr, im: Expr) -> tuple[Expr, Expr]:
        return re * self.cos[0] - im * self.sin[0], re * self.sin[0] + im * self.cos[0]

    def step(self, task: Expr, source: Expr, radix: Expr | int, rest: Expr, stride: Expr) -> None:
        """One step from buffer ``source`` to the other. ``rest``: the length of the transforms that remain after it;
        ``stride``: the distance of neighbouring elements."""
        emit = {2: self._by_two, 4: self._by_four}.get(radix if isinstance(radix, int) else 0, self._by_any)
        scale = tirx.floordiv(stride, int_constant(self.lanes))  # of the table's entries at this step
        with T.serial(0, rest) as p:
            emit(task, source, radix, rest, stride, p, p * scale)

    def _read(self, task: Expr, source: Expr, place: Expr) -> tuple[Expr, Expr]:
        return self.work[[task, source, int_constant(0), place]], self.work[[task, source, int_constant(1), place]]

    def _write(self, task: Expr, source: Expr, place: Expr, value: tuple[Expr, Expr]) -> None:
        for part in (0, 1):
            self.work[[task, 1 - source, int_constant(part), place]] = value[part]

    def _by_two(self, task: Expr, source: Expr, radix: Any, rest: Expr, stride: Expr, p: Expr, entry: Expr) -> None:
        self.rotation(entry)
        with T.serial(0, stride) as q:
            (a, b), (c, d) = (self._read(task, source, q + stride * (p + rest * j)) for j in range(2))
            self._write(task, source, q + stride * (p * 2), (a + c, b + d))
            self._write(task, source, q + stride * (p * 2 + 1), self.turned(a - c, b - d))

    def _by_four(self, task: Expr, source: Expr, radix: Any, rest: Expr, stride: Expr, p: Expr, entry: Expr) -> None:
        turns = []
        for k in (1, 2, 3):
            self.rotation(entry * k)
            turns.append((local(self.dtype), local(self.dtype)))
            turns[-1][0][0], turns[-1][1][0] = self.cos[0], self.sin[0]
        with T.serial(0, stride) as q:
            x = [self._read(task, source, q + stride * (p + rest * j)) for j in range(4)]
            (ar, ai), (br, bi) = (tuple(x[0][part] + sign * x[2][part] for part in (0, 1)) for sign in (1, -1))
            (cr, ci), (dr, di) = (tuple(x[1][part] + sign * x[3][part] for part in (0, 1)) for sign in (1, -1))
            # Times -i forward, i inverse.
            er, ei = (-di, dr) if self.inverse else (di, -dr)
            sums = [(ar + cr, ai + ci), (br + er, bi + ei), (ar - cr, ai - ci), (br - er, bi - ei)]
            self._write(task, source, q + stride * (p * 4), sums[0])
            for k, (cos, sin) in enumerate(turns, 1):
                re, im = sums[k]
                value = re * cos[0] - im * sin[0], re * sin[0] + im * cos[0]
                self._write(task, source, q + stride * (p * 4 + k), value)

    def _by_any(self, task: Expr, source: Expr, radix: Any, rest: Expr, stride: Expr, p: Expr, entry: Expr) -> None:
        """A sum over all elements of the butterfly for each of its results, both rotations in one."""
        share = tirx.floordiv(self.length, radix)
        with T.serial(0, radix) as k:
            self.at[0] = entry * k
            with T.serial(0, radix) as j:
                self.rotation(self.at[0])
                with T.serial(0, stride) as q:
                    place = q + stride * (p * radix + k)
                    value = self.turned(*self._read(task, source, q + stride * (p + rest * j)))
                    for part in (0, 1):
                        target = [task, 1 - source, int_constant(part), place]
                        so_far = tirx.if_then_else(j == 0, constant(0, self.dtype), self.work[target])
                        self.work[target] = so_far + value[part]
                self.at[0] = self.at[0] + share * k
                with T.If(self.at[0] >= self.length), T.Then():
                    self.at[0] = tirx.floormod(self.at[0], self.length)

    def run(self, task: Expr, length: Dim) -> Expr:
        """All steps; the buffer that has the result."""
        if isinstance(length, int):
            rest, stride, buffer = length, self.lanes, 0
            for radix in radices(length):
                rest //= radix
                self.step(task, int_constant(buffer), radix, int_constant(rest), int_constant(stride))
                stride, buffer = stride * radix, 1 - buffer
            return int_constant(buffer)
        return self._run_unknown(task)

    def _run_unknown(self, task: Expr) -> Expr:
        rest, stride, buffer, radix = (local(INDEX) for _ in range(4))
        rest[0], stride[0], buffer[0] = self.length, int_constant(self.lanes), int_constant(0)
        with T.While(rest[0] > 1):
            four = tirx.floormod(rest[0], int_constant(4)) == 0
            with T.If(four):
                with T.Then():
                    radix[0] = int_constant(4)
                    rest[0] = tirx.floordiv(rest[0], int_constant(4))
                    self.step(task, buffer[0], 4, rest[0], stride[0])
                with T.Else():
                    radix[0] = int_constant(2)
                    with T.While(tirx.all(tirx.floormod(rest[0], radix[0]) != 0, radix[0] * radix[0] <= rest[0])):
                        radix[0] = radix[0] + 1
                    with T.If(tirx.floormod(rest[0], radix[0]) != 0), T.Then():
                        radix[0] = rest[0]
                    rest[0] = tirx.floordiv(rest[0], radix[0])
                    self.step(task, buffer[0], radix[0], rest[0], stride[0])
            stride[0] = stride[0] * radix[0]
            buffer[0] = 1 - buffer[0]
        return buffer[0]


def _fourier(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
    x, result = inputs[0], results[0]
    wide, outer = common.dtype_of(inputs[1]), [scope.dim(extent) for extent in x.shape[:-2]]
    total = product(outer)
    lanes = LANES if not isinstance(total, int) or total > LANES // 2 else 1
    groups, chunk = ceildiv(total, lanes), rows_per_task(attrs.length * lanes * 4)
    tasks, length = scope.expr(ceildiv(groups, chunk)), scope.expr(attrs.length)
    extents = common.extents(scope, result.shape)

    def body(source: Any, table: Any, target: Any, work: Any) -> None:
        with T.parallel(0, tasks) as task:
            transform = _Transform(work, table, length, lanes, wide, attrs.inverse)
            with T.serial(0, tirx.min(int_constant(chunk), scope.expr(groups) - task * chunk)) as step:
                first = (task * chunk + step) * lanes
                count = tirx.min(int_constant(lanes), scope.expr(total) - first)
                _load(attrs, source, work, task, (first, count, lanes), length, extents, wide)
                buffer = transform.run(task, attrs.length)
                factor = constant(1, wide) / cast(length, wide) if attrs.inverse else None
                with T.serial(0, count) as lane:
                    row = common.unravel(first + lane, extents[:-2])
                    with T.serial(0, extents[-2]) as k:
                        for part in range(int(result.shape[-1])):  # type: ignore[arg-type]
                            value = work[[task, buffer, int_constant(part), k * lanes + lane]]
                            value = value if factor is None else value * factor
                            target[[*row, k, int_constant(part)]] = cast(value, result.dtype)

    shapes = [(extents, result.dtype), ((tasks, int_constant(2), int_constant(2), length * lanes), wide)]
    return extern(inputs, shapes, body, "fourier")[:1]


def _load(attrs: Any, source: Any, work: Any, task: Expr, rows: tuple[Expr, Expr, int], length: Expr, extents: Any, wide: str) -> None:
    """Fills the first buffer: rows ``first`` to ``first + count``, zeros beyond the data; a half spectrum is completed."""
    first, count, lanes = rows
    elements, parts = source.shape[-2], int(source.shape[-1])
    zero = constant(0, wide)
    with T.serial(0, lanes) as lane:
        row = common.unravel(first + tirx.min(lane, count - 1), extents[:-2])
        with T.serial(0, length) as k:
            whole = k
            if attrs.inverse and attrs.onesided:
                whole = tirx.Select(k > tirx.floordiv(length, int_constant(2)), length - k, k)
            for part in (0, 1):
                value = zero
                if part < parts:
                    value = tirx.if_then_else(whole < elements, cast(source[[*row, whole, int_constant(part)]], wide), zero)
                if part == 1 and attrs.inverse and attrs.onesided:
                    real = tirx.any(k == 0, k * 2 == length)
                    value = tirx.Select(real, zero, tirx.Select(k * 2 > length, -value, value))
                work[[task, int_constant(0), int_constant(part), k * lanes + lane]] = value


EXPRESSIONS: dict[str, Expression] = {"fourier": _fourier}
