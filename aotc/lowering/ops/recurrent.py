"""Recurrent layers as loops: one kernel runs all steps of some rows of the batch, which are its tasks.

In each step the products of the state and the recurrent weight are summed in registers and left in scratch; then the gates
are applied, vector by vector. The last vector of units overlaps the one before it where they do not divide: nothing is masked,
and what is computed twice is the same. So a step reads the old states and writes new ones beside them, which are copied over
when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import elementwise
from aotc.lowering.ops.common import Expr, Expression, Scope, constant, dtype_of
from aotc.lowering.ops.recurrent_sums import WIDEST, Sums, number, rounded, widest
from aotc.ops.base import OpDef
from aotc.ops.recurrent import ARGUMENTS, GATES, gru, lstm, rnn
from aotc.targets.schedules.emit import const, known, parallel, sequence, serial, vectorized
from aotc.targets.schedules.rewrite import Computation
from aotc.targets.schedules.tile import Tile

Lane = Callable[[Expr], Expr]
"""A value for each lane of a vector, by the lane's number."""

_RESULTS = {"lstm": ("y", "last_h", "last_c"), "gru": ("y", "last_h"), "rnn": ("y", "last_h")}


def scratch_widths(op: OpDef, attrs: Any, units: int) -> dict[str, int]:
    """The scratch that each row of the batch needs, by name."""
    sums = {"sums": GATES[op] * units}
    if op is lstm:
        optional = {"unprojected": attrs.projected, "rounded": attrs.quantised}
        return {**sums, "next_c": units, **{name: units for name, there in optional.items() if there}}
    return {**sums, "gated": 2 * units} if op is gru and not attrs.reset_after else sums


@dataclass(frozen=True, slots=True)
class Cut:
    """``tile``: how many rows share the weights that are read (pixels), and how many vectors of units, all their gates, are summed at
    a time (blocks). ``lanes`` is how many units a vector has at most. With ``runs``, elements of the state come as vectors."""

    tile: Tile = field(default_factory=lambda: Tile(1, 1))
    lanes: int = WIDEST
    runs: bool = False


def kernel(op: OpDef, attrs: Any, inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer], scratch: Any, cut: Cut) -> tirx.Stmt:
    """The kernel of a call. ``scratch`` has a buffer [B, width] for each of ``scratch_widths``, in order."""
    names = [*ARGUMENTS[op](attrs), *_RESULTS[op.name]]
    buffers = dict(zip(names, [*inputs, *outputs], strict=True))
    buffers |= dict(zip(scratch_widths(op, attrs, 0), scratch, strict=True))
    return _Layer(op, attrs, buffers, cut).kernel()


class _Layer:
    def __init__(self, op: OpDef, attrs: Any, buffers: dict[str, tirx.Buffer], cut: Cut) -> None:
        self.op, self.attrs, self.buffers, self.cut = op, attrs, buffers, cut
        self.dtype = str(buffers["gates"].dtype)
        self.steps, self.rows, width = buffers["gates"].shape
        self.quantised = op is lstm and attrs.quantised
        self.states = ["h", "c"] if op is lstm else ["h"]
        self.units, self.outputs = number(width) // GATES[op], number(buffers["y"].shape[2])

    def kernel(self) -> tirx.Stmt:
        """The loop over tasks. Rows that do not fill the last one go one by one."""
        if self.quantised:
            return parallel(const(1), lambda _: self._together())
        share, rows = self.cut.tile.pixels, known(self.rows)
        tasks = tirx.floordiv(self.rows + (share - 1), const(share)) if rows is None else const(-(-rows // share))

        def task(index: Expr) -> tirx.Stmt:
            first = index * share
            together = self._over_time(first, share)
            if share == 1 or (rows is not None and rows % share == 0):
                return together
            singly = serial(self.rows - first, lambda row: self._over_time(first + row, 1), "row")
            return tirx.IfThenElse(first + share <= self.rows, together, singly)

        return parallel(tasks, task)

    def _over_time(self, first: Expr, rows: int) -> tirx.Stmt:
        begin = serial(rows, lambda p: self._begin(first + p), "p")
        return sequence(begin, serial(self.steps, lambda s: self._step(self._time(s), first, rows), "step"))

    def _together(self) -> tirx.Stmt:
        """All rows in each step, for what is computed of their states together."""

        def step(s: Expr) -> tirx.Stmt:
            rows = serial(self.rows, lambda row: self._step(self._time(s), row, 1), "row")
            return sequence(rounded(self.buffers["last_h"], self.buffers["rounded"]), rows)

        return sequence(serial(self.rows, self._begin, "row"), serial(self.steps, step, "step"))

    def _time(self, step: Expr) -> Expr:
        return self.steps - 1 - step if self.attrs.reverse else step

    def _begin(self, row: Expr) -> tirx.Stmt:
        given = sequence(*(self._copy(f"last_{state}", [row], state, [row]) for state in self.states))
        if not self.attrs.lengths:
            return given
        nothing = sequence(*(self._fill(f"last_{state}", [row], self._zero) for state in self.states))
        return tirx.IfThenElse(self.load("lengths", row) > 0, given, nothing)

    def _step(self, t: Expr, first: Expr, rows: int) -> tirx.Stmt:
        def keep(p: Expr) -> tirx.Stmt:
            new = {"h": ("y", [t, first + p]), "c": ("next_c", [first + p])}
            return sequence(*(self._copy(f"last_{state}", [first + p], *new[state]) for state in self.states))

        work = sequence(*_STEPS[self.op.name](self, t, first, rows), serial(rows, keep, "p"))
        if not self.attrs.lengths:
            return work
        over = self._fill("y", [t, first], self._zero)
        return tirx.IfThenElse(t < self.load("lengths", first), work, over)  # rows with lengths go one by one

    def load(self, name: str, *place: Expr) -> Expr:
        return tirx.BufferLoad(self.buffers[name], list(place))

    def _zero(self, unit: Expr) -> Expr:
        return constant(0, self.dtype)

    def vectors(self, units: int, body: Callable[[Expr, int], tirx.Stmt]) -> tirx.Stmt:
        """``body(first unit, lanes)`` for vectors that cover all units."""
        block = number(self.buffers["recurrent"].shape[3])
        lanes = widest(units, min(block, self.cut.lanes) if block < units else self.cut.lanes)
        last = const(units - lanes)
        return serial(-(-units // lanes), lambda i: body(tirx.min(i * lanes, last) if units % lanes else i * lanes, lanes), "vector")

    def _fill(self, name: str, at: list[Expr], value: Lane) -> tirx.Stmt:
        buffer = self.buffers[name]

        def body(first: Expr, lanes: int) -> tirx.Stmt:
            return vectorized(lanes, lambda v: tirx.BufferStore(buffer, value(first + v), [*at, first + v]))

        return self.vectors(number(buffer.shape[-1]), body)

    def _copy(self, target: str, at: list[Expr], source: str, place: list[Expr]) -> tirx.Stmt:
        return self._fill(target, at, lambda u: self.load(source, *place, u))

    def sums(self, weight: str, first: Expr, rows: int, gates: Sequence[int], source: Any, begin: Any, end: Any) -> tirx.Stmt:
        """As ``Sums`` says, for rows from ``first`` on."""
        group = max(1, self.cut.tile.blocks * GATES[self.op] // len(gates))
        units = self.outputs if weight == "projected" else self.units
        return Sums(
            self.buffers[weight], units, rows, group, self.cut.lanes, self.cut.runs, gates,
            lambda p, k: source(first + p, k), lambda p, g, u: begin(first + p, g, u), lambda p, g, u, x: end(first + p, g, u, x),
        ).write()  # fmt: skip

    def recurrent(self, first: Expr, rows: int, gates: Sequence[int], begin: Any, source: str = "last_h") -> tirx.Stmt:
        """The scratch "sums" of some gates: the product of the state and their weight, and what ``begin(row, gate, unit)`` gives."""

        def end(row: Expr, gate: int, unit: Expr, total: Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.buffers["sums"], total, [row, gate * self.units + unit])

        return self.sums("recurrent", first, rows, gates, lambda row, k: self.load(source, row, k), begin, end)

    def gate(self, t: Expr) -> Callable[[Expr, int, Expr], Expr]:
        """The projected input of step ``t``: what sums begin with."""
        return lambda row, gate, unit: self.load("gates", t, row, gate * self.units + unit)

    def cells(self, first: Expr, rows: int, body: Callable[[_Vector], None]) -> tirx.Stmt:
        """What ``body`` writes for each vector of units of each row."""

        def vector(p: Expr) -> Callable[[Expr, int], tirx.Stmt]:
            def write(unit: Expr, lanes: int) -> tirx.Stmt:
                made = _Vector(self, first + p, unit, lanes)
                body(made)
                return sequence(*made.statements)

            return write

        return serial(rows, lambda p: self.vectors(self.units, vector(p)), "p")


class _Vector:
    """Statements for the units of one vector of one row, each value in a register of its own."""

    def __init__(self, layer: _Layer, row: Expr, unit: Expr, lanes: int) -> None:
        self.layer, self.row, self.unit, self.lanes = layer, row, unit, lanes
        self.statements: list[tirx.Stmt] = []

    def load(self, name: str, *place: Expr, gate: int = 0) -> Lane:
        """Of a buffer over units, or over the units of several gates; ``place`` is what its other axes are indexed by."""
        return lambda v: self.layer.load(name, *place, gate * self.layer.units + self.unit + v)

    def value(self, compute: Lane) -> Lane:
        """Computes a value once."""
        kept = tirx.decl_buffer([self.lanes], self.layer.dtype, "value")
        self.statements += [tirx.AllocBuffer(kept), vectorized(self.lanes, lambda v: tirx.BufferStore(kept, compute(v), [v]))]
        return lambda v: tirx.BufferLoad(kept, [v])

    def store(self, name: str, place: Sequence[Expr], value: Lane, gate: int = 0) -> None:
        buffer, start = self.layer.buffers[name], gate * self.layer.units + self.unit
        self.statements.append(vectorized(self.lanes, lambda v: tirx.BufferStore(buffer, value(v), [*place, start + v])))

    def activation(self, which: int, x: Lane, clipped: bool = True) -> Lane:
        """Activation number ``which`` of the layer."""
        attrs, dtype = self.layer.attrs, self.layer.dtype
        if attrs.clip is not None and clipped:
            low, high = constant(-attrs.clip, dtype), constant(attrs.clip, dtype)
            unclipped = x
            x = self.value(lambda v: elementwise.between(unclipped(v), low, high))
        argument = tirx.Var("x", dtype)
        computation = Computation((_activation(attrs.activations[which], argument, attrs.alphas[which], attrs.betas[which]),))
        parts, result = computation.temporaries(self.lanes), tirx.decl_buffer([self.lanes], dtype, "active")

        def lane(v: Expr) -> tirx.Stmt:
            statements, (value,) = computation.emit({argument: x(v)}, parts, v)
            return sequence(*statements, tirx.BufferStore(result, value, [v]))

        self.statements += [*map(tirx.AllocBuffer, [*parts, result]), vectorized(self.lanes, lane)]
        return lambda v: tirx.BufferLoad(result, [v])


def _activation(name: str, x: Expr, alpha: float, beta: float) -> Expr:
    first, second = constant(alpha, dtype_of(x)), constant(beta, dtype_of(x))
    if name == "affine":
        return first * x + second
    if name == "scaled_tanh":
        return first * elementwise.tanh(second * x)
    return elementwise.UNARY[name](x, SimpleNamespace(alpha=alpha, beta=beta))


# --- one step of each layer ---------------------------------------------------------------------------------------------


def _lstm_step(layer: _Layer, t: Expr, first: Expr, rows: int) -> list[tirx.Stmt]:
    attrs, one = layer.attrs, constant(1, layer.dtype)

    def cell(vector: _Vector) -> None:
        row = vector.row
        i, f, g, o = (vector.load("sums", row, gate=gate) for gate in range(4))
        old = vector.value(vector.load("last_c", row))

        def peeped(x: Lane, which: int, state: Lane) -> Lane:
            weight = vector.load("peepholes", const(which))
            return vector.value(lambda v: x(v) + weight(v) * state(v)) if attrs.peepholes else x

        into = vector.activation(0, peeped(i, 0, old))
        kept = vector.value(lambda v: one - into(v)) if attrs.input_forget else vector.activation(0, peeped(f, 1, old))
        fresh = vector.activation(1, g)
        new = vector.value(lambda v: kept(v) * old(v) + into(v) * fresh(v))
        vector.store("next_c", [row], new)
        out, shown = vector.activation(0, peeped(o, 2, new)), vector.activation(2, new, clipped=False)
        name, place = ("unprojected", [row]) if attrs.projected else ("y", [t, row])
        vector.store(name, place, lambda v: out(v) * shown(v))

    source = "rounded" if attrs.quantised else "last_h"
    statements = [layer.recurrent(first, rows, range(4), layer.gate(t), source), layer.cells(first, rows, cell)]
    if attrs.projected:
        y, zero = layer.buffers["y"], constant(0, layer.dtype)
        statements.append(layer.sums(
            "projected", first, rows, range(1), lambda row, k: layer.load("unprojected", row, k), lambda row, gate, unit: zero,
            lambda row, gate, unit, total: tirx.BufferStore(y, total, [t, row, unit]),
        ))  # fmt: skip
    return statements


def _gru_step(layer: _Layer, t: Expr, first: Expr, rows: int) -> list[tirx.Stmt]:
    return (_reset_after if layer.attrs.reset_after else _reset_before)(layer, t, first, rows)


def _reset_after(layer: _Layer, t: Expr, first: Expr, rows: int) -> list[tirx.Stmt]:
    inputs = layer.gate(t)

    def begin(row: Expr, gate: int, unit: Expr) -> Expr:
        return layer.load("reset_bias", unit) if gate == 2 else inputs(row, gate, unit)

    def cell(vector: _Vector) -> None:
        row = vector.row
        reset, update = (vector.activation(0, vector.load("sums", row, gate=gate)) for gate in range(2))
        own, product = vector.load("gates", t, row, gate=2), vector.load("sums", row, gate=2)
        _mixed(vector, t, vector.activation(1, vector.value(lambda v: own(v) + reset(v) * product(v))), update)

    return [layer.recurrent(first, rows, range(3), begin), layer.cells(first, rows, cell)]


def _reset_before(layer: _Layer, t: Expr, first: Expr, rows: int) -> list[tirx.Stmt]:
    def gates(vector: _Vector) -> None:
        row = vector.row
        reset, update = (vector.activation(0, vector.load("sums", row, gate=gate)) for gate in range(2))
        old = vector.load("last_h", row)
        vector.store("gated", [row], lambda v: reset(v) * old(v))
        vector.store("gated", [row], update, gate=1)

    def cell(vector: _Vector) -> None:
        new = vector.activation(1, vector.load("sums", vector.row, gate=2))
        _mixed(vector, t, new, vector.load("gated", vector.row, gate=1))

    return [
        layer.recurrent(first, rows, range(2), layer.gate(t)), layer.cells(first, rows, gates),
        layer.recurrent(first, rows, range(2, 3), layer.gate(t), "gated"), layer.cells(first, rows, cell),
    ]  # fmt: skip


def _mixed(vector: _Vector, t: Expr, new: Lane, update: Lane) -> None:
    one, old = constant(1, vector.layer.dtype), vector.load("last_h", vector.row)
    vector.store("y", [t, vector.row], lambda v: (one - update(v)) * new(v) + update(v) * old(v))


def _rnn_step(layer: _Layer, t: Expr, first: Expr, rows: int) -> list[tirx.Stmt]:
    def cell(vector: _Vector) -> None:
        vector.store("y", [t, vector.row], vector.activation(0, vector.load("sums", vector.row)))

    return [layer.recurrent(first, rows, range(1), layer.gate(t)), layer.cells(first, rows, cell)]


_STEPS: dict[str, Callable[[_Layer, Expr, Expr, int], list[tirx.Stmt]]] = {"lstm": _lstm_step, "gru": _gru_step, "rnn": _rnn_step}


def _expression(op: OpDef) -> Expression:
    """One row and one vector at a time."""

    def build(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
        count, rows = len(results), inputs[0].shape[1]
        dtype = results[0].dtype
        shapes = [tuple(scope.expr(dim) for dim in result.shape) for result in results]
        shapes += [(rows, const(width)) for width in scratch_widths(op, attrs, number(inputs[0].shape[2]) // GATES[op]).values()]
        made = te.extern(
            shapes, inputs, lambda ins, outs: kernel(op, attrs, ins, outs[:count], outs[count:], Cut()), name=op.name,
            in_buffers=[tirx.decl_buffer(t.shape, t.dtype, f"in{i}") for i, t in enumerate(inputs)],
            out_buffers=[tirx.decl_buffer(shape, dtype, f"out{i}") for i, shape in enumerate(shapes)],
        )  # fmt: skip
        return list(made)[:count]

    return build


EXPRESSIONS: dict[str, Expression] = {op.name: _expression(op) for op in (lstm, gru, rnn)}
