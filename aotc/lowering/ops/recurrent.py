"""Recurrent layers as loops: one kernel runs all steps, of some rows of the batch in each task or, where rows are few, of some units.

In each step the products of the state and the recurrent weight are summed in registers, for a group of vectors of units at a time,
and the gates are applied to them. The last vector of units overlaps the one before it where they do not divide: nothing is masked,
and what is computed twice is the same. So a step reads the old states from one half of some scratch and writes new ones to the
other, and groups of units can be tasks: each step is a round of them.
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
from aotc.targets.schedules.emit import FIRST_TASK, const, known, parallel, rounds, sequence, serial, vectorized
from aotc.targets.schedules.rewrite import Computation
from aotc.targets.schedules.tile import Tile

Lane = Callable[[Expr], Expr]
"""A value for each lane of a vector, by the lane's number."""

RESULTS = {"lstm": ("y", "last_h", "last_c"), "gru": ("y", "last_h"), "rnn": ("y", "last_h")}


def scratch_widths(op: OpDef, attrs: Any, units: int, outputs: int) -> dict[str, int]:
    """The scratch that each row of the batch needs, by name."""
    common = {"sums": GATES[op] * units, "halves_h": 2 * outputs}
    if op is lstm:
        optional = {"unprojected": attrs.projected, "rounded": attrs.quantised}
        return {**common, "halves_c": 2 * units, **{name: units for name, there in optional.items() if there}}
    return {**common, "gated": 2 * units} if op is gru and not attrs.reset_after else common


def has_one_phase(op: OpDef, attrs: Any) -> bool:
    """Whether units of a step need nothing of each other, and all rows take part in all steps."""
    if attrs.lengths or (op is gru and not attrs.reset_after):
        return False
    return not (op is lstm and (attrs.projected or attrs.quantised))


@dataclass(frozen=True, slots=True)
class Cut:
    """``tile``: how many rows share the weights that are read (pixels), and how many vectors of units, all their gates, are summed at
    a time (blocks). ``lanes`` is how many units a vector has at most. With ``runs``, elements of the state come as vectors. With
    ``rounds``, tasks are groups of units, for all rows, which are as many as share weights; the layer ``has_one_phase``."""

    tile: Tile = field(default_factory=lambda: Tile(1, 1))
    lanes: int = WIDEST
    runs: bool = False
    rounds: bool = False


@dataclass(frozen=True, slots=True)
class At:
    """Step ``t`` of ``rows`` rows from ``first`` on; the halves (0 or 1) from which states are read, and to which they are written."""

    t: Expr
    first: Expr
    rows: int
    old: Expr
    new: Expr


def kernel(op: OpDef, attrs: Any, inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer], scratch: Any, cut: Cut) -> tirx.Stmt:
    """The kernel of a call. ``scratch`` has a buffer [B, width] for each of ``scratch_widths``, in order."""
    names = [*ARGUMENTS[op](attrs), *RESULTS[op.name]]
    buffers = dict(zip(names, [*inputs, *outputs], strict=True))
    buffers |= dict(zip(scratch_widths(op, attrs, 0, 0), scratch, strict=True))
    return Layer(op, attrs, buffers, cut).kernel()


class Layer:
    """Writes the loops of a call. Subclasses write them for other machines: ``sums`` is all of a step's work, ``vectors`` how units are
    gone through."""

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
        if self.cut.rounds:
            return self._in_rounds()
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
        return sequence(begin, serial(self.steps, lambda s: self._step(self._at(s, first, rows)), "step"))

    def _in_rounds(self) -> tirx.Stmt:
        """A round that puts the states in place, then one for each step. Its tasks are groups of units; a call that runs all rounds
        goes through them back and forth, since the weights that were read last are those that caches still have."""
        rows = self.cut.tile.pixels
        (phase,) = STEPS[self.op.name](self, self._at(const(0), const(0), rows))
        last = phase.groups() - 1

        def task(number: Expr, group: Expr) -> tirx.Stmt:
            def begin(first: Expr, lanes: int) -> tirx.Stmt:
                copies = [self._given(state, const(p), first, lanes) for p in range(rows) for state in self.states]
                return sequence(*copies)

            # Hidden, or the 1 would go into all addresses as a negative offset, which Arm's loads do not have.
            (phase,) = STEPS[self.op.name](self, self._at(self._hidden(number - 1), const(0), rows))
            back = tirx.all(FIRST_TASK == 0, tirx.bitwise_and(number, const(1)) == 1)
            step = phase.write_group(tirx.Select(back, last - group, group))
            return tirx.IfThenElse(number == 0, phase.each_vector(group, begin), step)

        return rounds(self.steps + 1, phase.groups(), task)

    def _given(self, state: str, row: Expr, first: Expr, lanes: int) -> tirx.Stmt:
        """Some units of a given state to all places where it is read."""
        return vectorized(lanes, lambda v: self.keep(state, row, first + v, self.load(state, row, first + v), const(0), const(1)))

    def _together(self) -> tirx.Stmt:
        """All rows in each step, for what is computed of their states together."""

        def step(s: Expr) -> tirx.Stmt:
            rows = serial(self.rows, lambda row: self._step(self._at(s, row, 1)), "row")
            return sequence(rounded(self.buffers["last_h"], self.buffers["rounded"]), rows)

        return sequence(serial(self.rows, self._begin, "row"), serial(self.steps, step, "step"))

    def _at(self, step: Expr, first: Expr, rows: int) -> At:
        old = tirx.bitwise_and(step, const(1))
        return At(self.steps - 1 - step if self.attrs.reverse else step, first, rows, old, const(1) - old)

    def _begin(self, row: Expr) -> tirx.Stmt:
        def state(name: str, value: Callable[[Expr], Expr]) -> tirx.Stmt:
            def some(first: Expr, lanes: int) -> tirx.Stmt:
                return vectorized(lanes, lambda v: self.keep(name, row, first + v, value(first + v), const(0), const(1)))

            return self.vectors(number(self.buffers[name].shape[1]), some)

        given = sequence(*(state(name, lambda u, name=name: self.load(name, row, u)) for name in self.states))  # type: ignore[misc]
        if not self.attrs.lengths:
            return given
        nothing = sequence(*(state(name, self._zero) for name in self.states))
        return tirx.IfThenElse(self.load("lengths", row) > 0, given, nothing)

    def keep(self, state: str, row: Expr, unit: Expr, value: Expr, *halves: Expr) -> tirx.Stmt:
        """Stores a unit of a state as the last one and in halves of its scratch."""
        last, scratch = self.buffers[f"last_{state}"], self.buffers[f"halves_{state}"]
        stores = [tirx.BufferStore(scratch, value, [row, self.in_half(state, half, unit)]) for half in halves]
        return sequence(tirx.BufferStore(last, value, [row, unit]), *stores)

    def in_half(self, state: str, half: Expr, unit: Expr) -> Expr:
        """The place of a unit. LLVM must not see that halves are apart by a power of two: it would put places together from bits."""
        return self._hidden(half * number(self.buffers[f"last_{state}"].shape[1])) + unit

    def _hidden(self, value: Expr) -> Expr:
        """``value``, which is not negative, by an expression of which LLVM does not know that. Only schedules number their tasks."""
        return tirx.max(value, const(0) - FIRST_TASK) if self.cut.rounds else value

    def _step(self, at: At) -> tirx.Stmt:
        work = sequence(*(phase.write() for phase in STEPS[self.op.name](self, at)))
        if not self.attrs.lengths:
            return work
        over = self._fill("y", [at.t, at.first], self._zero)
        return tirx.IfThenElse(at.t < self.load("lengths", at.first), work, over)  # rows with lengths go one by one

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

    def sums(self, weight: str, at: At, gates: Sequence[int], source: Any, begin: Any, end: Any, cell: Any = None) -> Sums:
        """As ``Sums`` says, for the rows of a step; ``cell`` then writes what follows for each vector of units of each row."""
        first, group = at.first, max(1, self.cut.tile.blocks * GATES[self.op] // len(gates))
        units = self.outputs if weight == "projected" else self.units

        def then(unit: Expr, lanes: int) -> tirx.Stmt:
            def row(p: Expr) -> tirx.Stmt:
                made = Vector(self, first + p, unit, lanes)
                cell(made)
                return sequence(*made.statements)

            return serial(at.rows, row, "p")

        return Sums(
            self.buffers[weight], units, at.rows, group, self.cut.lanes, self.cut.runs, gates,
            lambda p, k: source(first + p, k), lambda p, g, u: begin(first + p, g, u), lambda p, g, u, x: end(first + p, g, u, x),
            None if cell is None else then,
        )  # fmt: skip

    def recurrent(self, at: At, gates: Sequence[int], begin: Any, cell: Callable[[Vector], None], source: str = "") -> Sums:
        """The scratch "sums" of some gates: the product of the state and their weight, and what ``begin(row, gate, unit)`` gives."""

        def end(row: Expr, gate: int, unit: Expr, total: Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.buffers["sums"], total, [row, gate * self.units + unit])

        def state(row: Expr, k: Expr) -> Expr:
            return self.load(source, row, k) if source else self.load("halves_h", row, self.in_half("h", at.old, k))

        return self.sums("recurrent", at, gates, state, begin, end, cell)

    def gate(self, t: Expr) -> Callable[[Expr, int, Expr], Expr]:
        """The projected input of step ``t``: what sums begin with."""
        return lambda row, gate, unit: self.load("gates", t, row, gate * self.units + unit)

    def output(self, at: At, row: Expr, unit: Expr, value: Expr) -> tirx.Stmt:
        """Stores a unit of what a step gives."""
        return sequence(tirx.BufferStore(self.buffers["y"], value, [at.t, row, unit]), self.keep("h", row, unit, value, at.new))


class Vector:
    """Statements for the units of one vector of one row, each value in a register of its own."""

    def __init__(self, layer: Layer, row: Expr, unit: Expr, lanes: int) -> None:
        self.layer, self.row, self.unit, self.lanes = layer, row, unit, lanes
        self.statements: list[tirx.Stmt] = []

    def load(self, name: str, *place: Expr, gate: int = 0) -> Lane:
        """Of a buffer over units, or over the units of several gates; ``place`` is what its other axes are indexed by."""
        return lambda v: self.layer.load(name, *place, gate * self.layer.units + self.unit + v)

    def old(self, state: str, at: At) -> Lane:
        return lambda v: self.layer.load(f"halves_{state}", self.row, self.layer.in_half(state, at.old, self.unit + v))

    def value(self, compute: Lane) -> Lane:
        """Computes a value once."""
        kept = tirx.decl_buffer([self.lanes], self.layer.dtype, "value")
        self.statements += [tirx.AllocBuffer(kept), vectorized(self.lanes, lambda v: tirx.BufferStore(kept, compute(v), [v]))]
        return lambda v: tirx.BufferLoad(kept, [v])

    def store(self, name: str, place: Sequence[Expr], value: Lane, gate: int = 0) -> None:
        buffer, start = self.layer.buffers[name], gate * self.layer.units + self.unit
        self.statements.append(vectorized(self.lanes, lambda v: tirx.BufferStore(buffer, value(v), [*place, start + v])))

    def each(self, body: Callable[[Expr, Expr], tirx.Stmt]) -> None:
        """``body(unit, lane)`` for all lanes."""
        self.statements.append(vectorized(self.lanes, lambda v: body(self.unit + v, v)))

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


def _lstm_step(layer: Layer, at: At) -> list[Sums]:
    attrs, one = layer.attrs, constant(1, layer.dtype)

    def cell(vector: Vector) -> None:
        row = vector.row
        i, f, g, o = (vector.load("sums", row, gate=gate) for gate in range(4))
        old = vector.value(vector.old("c", at))

        def peeped(x: Lane, which: int, state: Lane) -> Lane:
            weight = vector.load("peepholes", const(which))
            return vector.value(lambda v: x(v) + weight(v) * state(v)) if attrs.peepholes else x

        into = vector.activation(0, peeped(i, 0, old))
        kept = vector.value(lambda v: one - into(v)) if attrs.input_forget else vector.activation(0, peeped(f, 1, old))
        fresh = vector.activation(1, g)
        new = vector.value(lambda v: kept(v) * old(v) + into(v) * fresh(v))
        vector.each(lambda u, v: layer.keep("c", row, u, new(v), at.new))
        out, shown = vector.activation(0, peeped(o, 2, new)), vector.activation(2, new, clipped=False)
        result = vector.value(lambda v: out(v) * shown(v))
        if attrs.projected:
            vector.store("unprojected", [row], result)
        else:
            vector.each(lambda u, v: layer.output(at, row, u, result(v)))

    phases = [layer.recurrent(at, range(4), layer.gate(at.t), cell, "rounded" if attrs.quantised else "")]
    if attrs.projected:
        phases.append(layer.sums(
            "projected", at, range(1), lambda row, k: layer.load("unprojected", row, k), lambda row, gate, unit: constant(0, layer.dtype),
            lambda row, gate, unit, total: layer.output(at, row, unit, total),
        ))  # fmt: skip
    return phases


def _gru_step(layer: Layer, at: At) -> list[Sums]:
    return (_reset_after if layer.attrs.reset_after else _reset_before)(layer, at)


def _reset_after(layer: Layer, at: At) -> list[Sums]:
    inputs = layer.gate(at.t)

    def begin(row: Expr, gate: int, unit: Expr) -> Expr:
        return layer.load("reset_bias", unit) if gate == 2 else inputs(row, gate, unit)

    def cell(vector: Vector) -> None:
        row = vector.row
        reset, update = (vector.activation(0, vector.load("sums", row, gate=gate)) for gate in range(2))
        own, product = vector.load("gates", at.t, row, gate=2), vector.load("sums", row, gate=2)
        _mixed(vector, at, vector.activation(1, vector.value(lambda v: own(v) + reset(v) * product(v))), update)

    return [layer.recurrent(at, range(3), begin, cell)]


def _reset_before(layer: Layer, at: At) -> list[Sums]:
    def gates(vector: Vector) -> None:
        row = vector.row
        reset, update = (vector.activation(0, vector.load("sums", row, gate=gate)) for gate in range(2))
        old = vector.old("h", at)
        vector.store("gated", [row], lambda v: reset(v) * old(v))
        vector.store("gated", [row], update, gate=1)

    def cell(vector: Vector) -> None:
        new = vector.activation(1, vector.load("sums", vector.row, gate=2))
        _mixed(vector, at, new, vector.load("gated", vector.row, gate=1))

    return [
        layer.recurrent(at, range(2), layer.gate(at.t), gates),
        layer.recurrent(at, range(2, 3), layer.gate(at.t), cell, "gated"),
    ]  # fmt: skip


def _mixed(vector: Vector, at: At, new: Lane, update: Lane) -> None:
    layer, row = vector.layer, vector.row
    one, old = constant(1, layer.dtype), vector.old("h", at)
    mixed = vector.value(lambda v: (one - update(v)) * new(v) + update(v) * old(v))
    vector.each(lambda u, v: layer.output(at, row, u, mixed(v)))


def _rnn_step(layer: Layer, at: At) -> list[Sums]:
    def cell(vector: Vector) -> None:
        result = vector.activation(0, vector.load("sums", vector.row))
        vector.each(lambda u, v: layer.output(at, vector.row, u, result(v)))

    return [layer.recurrent(at, range(1), layer.gate(at.t), cell)]


STEPS: dict[str, Callable[[Layer, At], list[Sums]]] = {"lstm": _lstm_step, "gru": _gru_step, "rnn": _rnn_step}


def _widths(op: OpDef, attrs: Any, gates: te.Tensor, y: TensorType) -> dict[str, int]:
    return scratch_widths(op, attrs, number(gates.shape[2]) // GATES[op], int(y.shape[2]))  # type: ignore[arg-type]


def _expression(op: OpDef) -> Expression:
    """One row and one vector at a time."""

    def build(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
        count, rows = len(results), inputs[0].shape[1]
        dtype = results[0].dtype
        shapes = [tuple(scope.expr(dim) for dim in result.shape) for result in results]
        shapes += [(rows, const(width)) for width in _widths(op, attrs, inputs[0], results[0]).values()]
        made = te.extern(
            shapes, inputs, lambda ins, outs: kernel(op, attrs, ins, outs[:count], outs[count:], Cut()), name=op.name,
            in_buffers=[tirx.decl_buffer(t.shape, t.dtype, f"in{i}") for i, t in enumerate(inputs)],
            out_buffers=[tirx.decl_buffer(shape, dtype, f"out{i}") for i, shape in enumerate(shapes)],
        )  # fmt: skip
        return list(made)[:count]

    return build


EXPRESSIONS: dict[str, Expression] = {op.name: _expression(op) for op in (lstm, gru, rnn)}
