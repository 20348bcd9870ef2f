"""A fused function seen from its anchor: the buffers that the anchor reads, and what follows it, element by element.

Kernels that are written as TIR compute the anchor's sums in registers and hand them to ``Fused.store``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir.prim.expr import BinaryOpExpr
from tvm_ffi.structural import structural_equal, structural_walk

from aotc.ir.expr import Var
from aotc.targets.schedules.base import DirectWork
from aotc.targets.schedules.emit import const, known, opaque, registers, sequence, serial, task_indices, vectorized
from aotc.targets.schedules.rewrite import Computation, Rewriter, substitute
from aotc.targets.schedules.stages import Stage, loads_of, read_stages

Expr = Any

OPERATIONS = (BinaryOpExpr, tirx.Select, tvm.ir.Call)
FEW_OPERATIONS = 16
"""Up to so many operations behind a sum are written out for each sum of a tile; a sigmoid has some ninety."""
LOOPED_LANES = 16
"""So many lanes a loop behind the sums takes a turn at least: with fewer, LLVM keeps the sums in memory from their start (BERT's
layers took 1.3 times the instructions on Arm)."""


@dataclass(frozen=True, slots=True)
class Fused:
    """``operands`` are the buffers of the anchor's arguments. ``total`` is the buffer of the anchor's sums."""

    params: tuple[tirx.Buffer, ...]
    outputs: tuple[tirx.Buffer, ...]
    operands: tuple[tirx.Buffer, ...]
    total: tirx.Buffer
    stages: dict[tirx.Buffer, Stage]
    initial: tuple[Stage, Expr] | None = None

    def start(self, indices: Sequence[Expr]) -> Expr:
        """What the sum at ``indices`` starts as."""
        if self.initial is None:
            return tirx.const(0, str(self.total.dtype))
        stage, value = self.initial
        return substitute(value, dict(zip((axis.var for axis in stage.axes), indices, strict=True)))

    def store(self, lanes: int, at: Callable[[Expr], tuple[list[Expr], Expr]]) -> tirx.Stmt:
        """Stores every output for each of ``lanes``: ``at(lane)`` gives its indices and the anchor's sum there. Values in between
        have room for all lanes."""
        between: list[tirx.Buffer] = []

        def each(lane: Expr) -> tirx.Stmt:
            indices, total = at(lane)
            computation = Computation([self._value(output, indices, total) for output in self.outputs])
            buffers = computation.temporaries(lanes)
            between.extend(buffers)
            statements, values = computation.emit({}, buffers, lane)
            stores = [tirx.BufferStore(output, value, indices) for output, value in zip(self.outputs, values, strict=True)]
            return sequence(*statements, *stores)

        vector = vectorized(lanes, each)
        return sequence(*map(registers, between), vector)

    def finish_all(
        self,
        sums: tirx.Buffer,
        each: Callable[[Callable[[Expr, Expr], tirx.Stmt]], tirx.Stmt],
        finish: Callable[[tirx.Buffer, Expr, Expr], tirx.Stmt],
    ) -> tirx.Stmt:
        """``finish(sums, i, j)``, which stores, for all ``sums[i, j, lanes]``: ``each(body)`` writes ``body(i, j)`` out for all of them.
        Where what follows a sum is long and vectors are too, the sums leave their registers and a loop finishes them: code for each would be much of a
        file, and more than fits the CPUs' caches of decoded instructions."""
        first, second, lanes = (int(known(extent) or 1) for extent in sums.shape)
        if first * second == 1 or lanes < LOOPED_LANES or self.operations <= FEW_OPERATIONS:
            return each(lambda i, j: finish(sums, i, j))
        kept = tirx.decl_buffer((first, second, lanes), str(sums.dtype), "kept")

        def keep(i: Expr, j: Expr) -> tirx.Stmt:
            return vectorized(lanes, lambda v: tirx.BufferStore(kept, tirx.BufferLoad(sums, [i, j, v]), [i, j, v]))

        def one(number: Expr) -> tirx.Stmt:
            i, j = task_indices(number, [const(first), const(second)])
            return finish(kept, i, j)

        # One loop, of a length that LLVM does not see: it would unroll it. In a nest of two it would rather have what the body needs
        # in registers than the sums.
        return sequence(registers(kept), each(keep), serial(opaque(first * second), one, "finished"))

    @property
    def operations(self) -> int:
        """How many follow a sum, as expressions have them: what they share is counted wherever it stands."""
        found: list[Any] = []
        for stage in self.stages.values():
            for value in stage.values:
                structural_walk(value, lambda node: found.append(node) if isinstance(node, OPERATIONS) else None)
        return len(found)

    def _value(self, output: tirx.Buffer, indices: Sequence[Expr], total: Expr) -> Expr:
        if output.same_as(self.total):
            return total

        def load(buffer: tirx.Buffer, at: list[Expr]) -> Expr:
            return total if buffer.same_as(self.total) else tirx.BufferLoad(buffer, at)

        stage = self.stages[output]
        rewriter = Rewriter(load, {buffer: s for buffer, s in self.stages.items() if not buffer.same_as(output)})
        return rewriter.expression(stage.values[0], dict(zip((axis.var for axis in stage.axes), indices, strict=True)))


def fused(work: DirectWork, sums: int = 1) -> Fused | None:
    """``None`` unless the anchor reads parameters, consists of ``sums`` sums, the last of which is its result, and all that
    follows is elementwise in the anchor's shape."""
    if not all(isinstance(arg, Var) for arg in work.anchor.args):
        return None
    func = work.graph.prim_func()
    stages = read_stages(func)
    summed = [stage for stage in stages if stage.reduction]
    if len(summed) != sums or any(stage.opaque is not None or len(stage.outputs) != 1 for stage in stages):
        return None
    inputs = len(work.function.params)
    numbers = [list(work.function.params).index(arg) for arg in work.anchor.args]  # type: ignore[arg-type]
    outputs = tuple(func.params[inputs:])
    total = summed[-1].output
    if not all(_same_shape(output, total) for output in outputs):
        return None
    later = {stage.output: stage for stage in stages if stage is not summed[-1]}
    return Fused(tuple(func.params), outputs, tuple(func.params[i] for i in numbers), total, later)


def started(view: Fused) -> Fused:
    """The same where the sums start as the bias that is added to them: then ``total`` is the buffer of both. Only a bias of
    the channel, which a tile reads once, is taken in; ``view`` itself where there is none."""
    readers = [stage for stage in view.stages.values() if any(load.source.same_as(view.total) for load in loads_of(list(stage.values)))]
    if len(readers) != 1 or readers[0].output.dtype != view.total.dtype or not _same_shape(readers[0].output, view.total):
        return view
    stage = readers[0]
    value = stage.values[0]
    if not isinstance(value, tirx.Add):
        return view
    for total, other in ((value.a, value.b), (value.b, value.a)):
        if _is_load(total, view.total) and isinstance(other, tvm.ir.TensorLoad) and other.source in view.params:
            spatial = {axis.var for axis in stage.axes[2:-1]}
            if not spatial & {i for i in other.indices if isinstance(i, tirx.Var)}:
                rest = {buffer: s for buffer, s in view.stages.items() if s is not stage}
                return replace(view, total=stage.output, stages=rest, initial=(stage, other))
    return view


def _is_load(expr: Expr, buffer: tirx.Buffer) -> bool:
    return isinstance(expr, tvm.ir.TensorLoad) and expr.source.same_as(buffer)


def _same_shape(a: tirx.Buffer, b: tirx.Buffer) -> bool:
    return bool(structural_equal(list(a.shape), list(b.shape)))


def prim_func(params: Sequence[tirx.Buffer], body: tirx.Stmt, scratch: Sequence[tirx.Buffer] = ()) -> tirx.PrimFunc:
    """A function in the form that schedules give: ``body`` in a root block that allocates ``scratch``."""
    root = s_tir.SBlock([], [], [], "root", body, None, list(scratch))
    attrs = tvm.ir.make_node("ir.DictAttrs", **{"tirx.noalias": True})
    return tirx.PrimFunc(list(params), s_tir.SBlockRealize([], True, root), None, attrs)
