"""Recurrent layers: one launch runs all steps, a block for some rows of the batch.

The threads of a block share the units of a layer, and where units are few, the sum of a unit's products too. States lie in shared
memory in two halves, one for reading and one for writing, so that a step of one phase waits once. The input's part of the gates is an
operand: one product for all steps, made before by the schedules of products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_mutate

from aotc.lowering.ops import recurrent
from aotc.lowering.ops.common import constant
from aotc.lowering.ops.recurrent_sums import number
from aotc.ops.base import OpDef
from aotc.ops.recurrent import ARGUMENTS, GATES
from aotc.targets.schedules.cuda.launch import BLOCK, THREAD, WARP, Launch, allocated, barrier, dynamic_shared, itemsize, strided
from aotc.targets.schedules.cuda.work import Work
from aotc.targets.schedules.loops import const, known, loop, sequence
from aotc.targets.schedules.program import Program
from aotc.targets.schedules.rewrite import flat_index, local_buffer, read, write
from aotc.targets.schedules.tile import Tile

Expr = Any

THREADS = 512
"""Threads of a block at most: each of them then has 128 registers."""
PART = 16
"""Products that a thread adds up at least where several share a sum."""
ROWS = (4, 2, 1)
"""How many rows of the batch may share the weights that a block reads."""


def schedule(work: Work, program: Program) -> list[Launch] | None:
    """A recurrent layer alone, as these always are. ``None`` where its states are more than shared memory holds."""
    op, attrs = work.anchor.op, work.anchor.attrs
    if not isinstance(op, OpDef) or op not in GATES or getattr(attrs, "quantised", False):
        return None
    inputs = [program.buffers[list(work.function.params).index(arg)] for arg in work.anchor.args]  # type: ignore[arg-type]
    outputs = program.buffers[len(work.function.params) :]
    buffers = dict(zip([*ARGUMENTS[op](attrs), *recurrent.RESULTS[op.name]], [*inputs, *outputs], strict=True))
    layer = _Layer(op, attrs, buffers, _rows(buffers["gates"].shape[1], work.gpu.multiprocessors))
    size = layer.shared_elements * itemsize(layer.dtype)
    if size > work.gpu.shared_bytes:
        return None
    memory = dynamic_shared(layer.dtype, layer.shared_elements, "states")
    body = _flat(layer, layer.block(), program, memory)
    blocks = layer.rows if known(layer.rows) is None else const(number(layer.rows) // layer.share)
    return [Launch(sequence([tirx.AllocBuffer(memory), body]), blocks, layer.threads, size)]


def _rows(rows: Expr, multiprocessors: int) -> int:
    """Rows of a block: several where there are blocks enough for all multiprocessors."""
    count = known(rows)
    return 1 if count is None else next(share for share in ROWS if share == 1 or (count % share == 0 and count // share >= multiprocessors))


@dataclass(frozen=True)
class _Place:
    """Scratch of a block in shared memory: the first element, and how many a row has."""

    offset: int
    width: int


class _Layer(recurrent.Layer):
    """The loops of one block. ``share``: rows that it does; ``across``: threads that have a unit each; ``parts``: how many of them share
    a unit's sums."""

    def __init__(self, op: OpDef, attrs: Any, buffers: Mapping[str, tirx.Buffer], share: int) -> None:
        if attrs.lengths:
            share = 1
        super().__init__(op, attrs, dict(buffers), recurrent.Cut(Tile(1, share), 1))
        self.share = share
        self.across = min(THREADS, -(-max(self.units, self.outputs) // WARP) * WARP)
        self.parts = max(1, min(THREADS // self.across, self.outputs // PART))
        self.threads = self.across * self.parts
        self.places: dict[tirx.Buffer, _Place] = {}
        self.shared_elements = 0
        widths = recurrent.scratch_widths(op, attrs, self.units, self.outputs)
        widths["sums"] = GATES[op] * self.across * (self.parts - 1)
        for name, width in widths.items():
            if width:
                self.buffers[name] = tirx.decl_buffer((self.rows, const(width)), self.dtype, name)
                self.places[self.buffers[name]] = _Place(self.shared_elements, width)
                self.shared_elements += share * width

    def block(self) -> tirx.Stmt:
        """All steps of the block's rows."""
        first = BLOCK * const(self.share)
        begin = [self._begin(first + row) for row in range(self.share)]
        steps = loop(self.steps, lambda step: self._step(self._at(step, first, self.share)), name="step")
        return sequence([*begin, barrier(), steps])

    def vectors(self, units: int, body: Callable[[Expr, int], tirx.Stmt]) -> tirx.Stmt:
        return strided(const(units), THREAD, self.threads, lambda unit: body(unit, 1))

    def sums(self, weight: str, at: recurrent.At, gates: Sequence[int], source: Any, begin: Any, end: Any, cell: Any = None) -> Any:
        return _Sums(self, weight, at, tuple(gates), source, begin, end, cell)


@dataclass(frozen=True)
class _Sums:
    """What ``recurrent.Layer.sums`` says, shared out among threads."""

    layer: _Layer
    weight: str
    at: recurrent.At
    gates: tuple[int, ...]
    source: Callable[[Expr, Expr], Expr]
    begin: Callable[[Expr, int, Expr], Expr]
    end: Callable[[Expr, int, Expr, Expr], tirx.Stmt]
    cell: Callable[[recurrent.Vector], None] | None

    def write(self) -> tirx.Stmt:
        layer = self.layer
        units = self._units
        sums = local_buffer(layer.dtype, layer.share * len(self.gates), "sums")
        if layer.parts == 1:
            done = strided(
                const(units), THREAD, layer.threads, lambda unit: sequence([*self._added(sums, unit), *self._finished(sums, unit)])
            )
            return allocated([sums], done, barrier())
        unit, part = tirx.truncmod(THREAD, const(layer.across)), tirx.truncdiv(THREAD, const(layer.across))
        within = unit < const(units)
        own = tirx.IfThenElse(part == 0, sequence([*self._gathered(sums, unit), *self._finished(sums, unit)]), None)
        passed = tirx.IfThenElse(part > 0, sequence(self._passed_on(sums, unit, part)), None)
        return allocated(
            [sums],
            tirx.IfThenElse(within, sequence([*self._added(sums, unit, part), passed]), None), barrier(),
            tirx.IfThenElse(within, own, None), barrier(),
        )  # fmt: skip

    def _each(self) -> list[tuple[int, int, Expr]]:
        """Row, gate and place of all sums of a thread."""
        count = len(self.gates)
        return [(row, gate, const(row * count + i)) for row in range(self.layer.share) for i, gate in enumerate(self.gates)]

    def _row(self, row: int) -> Expr:
        return self.at.first + const(row)

    def _added(self, sums: tirx.Buffer, unit: Expr, part: Expr | None = None) -> list[tirx.Stmt]:
        """A thread's sums of the products of a unit: all, or those of a part of the inputs."""
        layer, weight = self.layer, self.layer.buffers[self.weight]
        inputs, (block, lane) = number(weight.shape[1]), self._place(weight, unit)

        def step(k: Expr) -> tirx.Stmt:
            def added(row: int, gate: int, i: Expr) -> tirx.Stmt:
                product = self.source(self._row(row), k) * tirx.BufferLoad(weight, [block, k, const(gate), lane])
                return tirx.BufferStore(sums, tirx.BufferLoad(sums, [i]) + product, [i])

            return sequence([added(*each) for each in self._each()])

        begin = sequence([tirx.BufferStore(sums, self.begin(self._row(row), gate, unit), [i]) for row, gate, i in self._each()])
        if part is None:
            return [begin, loop(inputs, step, name="k")]
        nothing = sequence([tirx.BufferStore(sums, constant(0, layer.dtype), [i]) for _, _, i in self._each()])
        share = -(-inputs // layer.parts)

        def of_part(i: Expr) -> tirx.Stmt:
            k = part * const(share) + i
            return step(k) if inputs % share == 0 and inputs // share == layer.parts else tirx.IfThenElse(k < const(inputs), step(k), None)

        return [tirx.IfThenElse(part == 0, begin, nothing), loop(share, of_part, name="k")]

    def _place(self, weight: tirx.Buffer, unit: Expr) -> tuple[Expr, Expr]:
        """The block of a packed weight that holds a unit, and where: the last block overlaps the one before it."""
        count, width = number(weight.shape[0]), number(weight.shape[3])
        if count == 1:
            return const(0), unit
        block = tirx.truncdiv(unit, const(width))
        return block, unit - tirx.min(block * const(width), const(self._units - width))

    @property
    def _units(self) -> int:
        return self.layer.outputs if self.weight == "projected" else self.layer.units

    def _passed_on(self, sums: tirx.Buffer, unit: Expr, part: Expr) -> list[tirx.Stmt]:
        return [
            tirx.BufferStore(
                self.layer.buffers["sums"], tirx.BufferLoad(sums, [i]), [self._row(row), self._slot(part - const(1), gate, unit)]
            )
            for row, gate, i in self._each()
        ]

    def _gathered(self, sums: tirx.Buffer, unit: Expr) -> list[tirx.Stmt]:
        """The sums of the other threads added, always in the same order."""
        return [
            tirx.BufferStore(
                sums,
                tirx.BufferLoad(sums, [i])
                + tirx.BufferLoad(self.layer.buffers["sums"], [self._row(row), self._slot(const(part), gate, unit)]),
                [i],
            )
            for row, gate, i in self._each()
            for part in range(self.layer.parts - 1)
        ]

    def _slot(self, part: Expr, gate: int, unit: Expr) -> Expr:
        return (part * const(len(self.gates)) + const(self.gates.index(gate))) * const(self.layer.across) + unit

    def _finished(self, sums: tirx.Buffer, unit: Expr) -> list[tirx.Stmt]:
        """What a thread does with the sums of its unit."""
        if self.cell is None:
            return [self.end(self._row(row), gate, unit, tirx.BufferLoad(sums, [i])) for row, gate, i in self._each()]
        statements: list[tirx.Stmt] = []
        for row in range(self.layer.share):
            made = _Unit(self.layer, self._row(row), unit, {gate: tirx.BufferLoad(sums, [i]) for r, gate, i in self._each() if r == row})
            self.cell(made)
            statements += made.statements
        return statements


class _Unit(recurrent.Vector):
    """A unit of one row, whose sums are in registers."""

    def __init__(self, layer: _Layer, row: Expr, unit: Expr, sums: Mapping[int, Expr]) -> None:
        super().__init__(layer, row, unit, 1)
        self.sums = sums

    def load(self, name: str, *place: Expr, gate: int = 0) -> recurrent.Lane:
        return (lambda v: self.sums[gate]) if name == "sums" else super().load(name, *place, gate=gate)


def _flat(layer: _Layer, stmt: tirx.Stmt, program: Program, memory: tirx.Buffer) -> tirx.Stmt:
    """A statement over flat buffers: those of the program, and scratch that is a part of the block's shared ``memory``."""

    def address(buffer: tirx.Buffer, indices: list[Expr]) -> tuple[tirx.Buffer, Expr]:
        if buffer in layer.places:
            place = layer.places[buffer]
            row = indices[0] - BLOCK * const(layer.share)
            return memory, const(place.offset) + row * const(place.width) + indices[1]
        if buffer in program.places:
            return program.places[buffer].buffer, flat_index(indices, buffer.shape)
        return buffer, indices[0]

    def load(node: tvm.ir.TensorLoad, mutator: Any) -> Expr:
        buffer, at = address(node.source, [mutator.mutate(index) for index in node.indices])
        return read(buffer, at, str(node.ty))

    def store(node: tirx.stmt.BufferStore, mutator: Any) -> tirx.Stmt:
        buffer, at = address(node.buffer, [mutator.mutate(index) for index in node.indices])
        return write(buffer, at, mutator.mutate(node.value))

    return structural_mutate(stmt, [(tvm.ir.TensorLoad, load), (tirx.stmt.BufferStore, store)])
