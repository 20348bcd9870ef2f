"""Loops for reductions: vector accumulators along the last axis of the result, or along the innermost reduced axis.

The order of a sum depends on shapes and the target alone, never on how tasks are shared out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.stmt import ForKind
from tvm_ffi import structural_equal

from aotc.targets.schedules.address import stride
from aotc.targets.schedules.loops import const, fitting, known, lanes_loop, loop, nest, sequence, vector_range
from aotc.targets.schedules.program import StageCode
from aotc.targets.schedules.rewrite import Computation, Rewriter, local_buffer, read, substitute, write
from aotc.targets.schedules.stages import Stage, loads_of

Expr = Any
Env = Mapping[tirx.Var, Expr]

UNROLL = 4
"""Accumulators in flight, so that an addition need not wait for the one before it."""
LEAST_LANES = 4
"""Below this a vector is not worth its set-up."""


@dataclass(frozen=True)
class Combiner:
    """A reduction as ``combine(a, b)`` and what is reduced, both taken from the stage's own expression."""

    template: Expr
    left: tirx.Var
    right: tirx.Var
    source: Expr

    def __call__(self, a: Expr, b: Expr) -> Expr:
        """A maximum names ``b`` twice: with names inside, it is given one itself, since a name may be bound once only."""
        if not isinstance(self.template, tirx.Select) or isinstance(b, (tirx.Var, tvm.ir.TensorLoad)):
            return substitute(self.template, {self.left: a, self.right: b})
        name = tirx.Var("b", str(b.ty))
        return tirx.Let(name, b, substitute(self.template, {self.left: a, self.right: name}))


def combiner_of(stage: Stage) -> Combiner | None:
    """The combiner of a reduction with one output; ``None`` for one of another form (it can still run in order)."""
    if len(stage.outputs) != 1:
        return None
    value = stage.values[0]
    source = value.false_value if isinstance(value, tirx.Select) else getattr(value, "b", None)
    if source is None or _reads(source, stage.output) or not _reads(value, stage.output):
        return None
    dtype = str(stage.output.dtype)
    left, right = tirx.Var("a", dtype), tirx.Var("b", dtype)

    def template(expr: Expr) -> Expr:
        if structural_equal(expr, source):
            return right
        if isinstance(expr, tvm.ir.TensorLoad) and expr.source.same_as(stage.output):
            return left
        return None

    return Combiner(_replaced(value, template), left, right, source)


def _reads(expr: Expr, buffer: tirx.Buffer) -> bool:
    return any(load.source.same_as(buffer) for load in loads_of(expr))


def _replaced(expr: Expr, choose: Any) -> Expr:
    """``expr`` with every part for which ``choose`` gives a replacement replaced."""

    class Replacer(Rewriter):
        def _visit(self, expr: Expr, env: Env) -> Expr:
            chosen = choose(expr)
            return super()._visit(expr, env) if chosen is None else chosen

    return Replacer(tirx.BufferLoad).expression(expr, {})


class ReductionCode:
    """A reduction's loops. ``vector_axis`` is "spatial", "reduced" or "none"."""

    def __init__(self, code: StageCode) -> None:
        self.code, self.stage = code, code.stage
        self.combiner = combiner_of(code.stage)
        self.source = code.flat_source(self.combiner.source) if self.combiner else None
        self.steps = Computation([self.source] if self.combiner else code.values)
        self.vector_axis, self.lanes = self._choose()

    def _choose(self) -> tuple[str, int]:
        code = self.code
        choices = {"spatial": code.axes, "reduced": code.reduction if self.combiner else []}
        for name, axes in choices.items():
            lanes = fitting(code.lanes, axes[-1].extent) if axes else 1
            if lanes >= LEAST_LANES and self._contiguous(axes[-1]):
                return name, lanes
        return "none", 1

    def _contiguous(self, axis: Any) -> bool:
        """Whether each load steps by one element, or stays, along an axis."""
        steps = [stride(load.indices[0], axis.var) for value in self.code.values for load in loads_of(value)]
        return all(step in (0, 1) for step in steps) and any(step == 1 for step in steps)

    def row(self, env: Env) -> tirx.Stmt:
        """All elements of the stage over its axes that ``env`` does not fix."""
        axes = self.code.axes
        if self.vector_axis == "spatial":
            outer, inner = axes[:-1], axes[-1]
            return nest([a.extent for a in outer], lambda i: self.range(_with(env, outer, i), const(0), inner.extent))
        return nest([a.extent for a in axes], lambda i: self.element(_with(env, axes, i)))

    def element(self, env: Env) -> tirx.Stmt:
        """One element of the result."""
        return self._along_reduced(env) if self.vector_axis == "reduced" else self.in_order(env)

    def range(self, env: Env, low: Expr, extent: Expr) -> tirx.Stmt:
        """Elements [low, low + extent) of the last axis: blocks of vectors, vectors, elements."""
        inner, lanes = self.code.axes[-1].var, self.lanes
        block = lanes * UNROLL

        def vectors(start: Expr, count: int) -> tirx.Stmt:
            return self._vectors({**env, inner: start}, inner, start, count)

        def rest(start: Expr) -> Expr:
            return self.in_order({**env, inner: start})

        size = known(extent)
        if size is not None and size < block:
            return vector_range(low, extent, lanes, lambda s: vectors(s, 1), rest)
        whole = tirx.floordiv(extent, const(block)) if size is None else const(size // block)
        main = loop(whole, lambda v: vectors(low + v * const(block), UNROLL), name="v")
        done = whole * const(block)
        left = extent - done if size is None else const(size % block)
        if known(left) == 0:
            return main
        return sequence([main, vector_range(low + done, left, lanes, lambda s: vectors(s, 1), rest)])

    def _vectors(self, env: Env, inner: tirx.Var, start: Expr, count: int) -> tirx.Stmt:
        """``count`` vectors of results side by side, in registers over the whole reduction."""
        if count == 1 and self._splits():
            return self._split_vector(env, inner, start)
        lanes = self.lanes
        held = [_local(str(out.dtype), lanes * count) for out in self.stage.outputs]
        parts = self.steps.temporaries(lanes * count)

        def lanewise(body: Any) -> tirx.Stmt:
            return loop(count, lambda u: lanes_loop(lanes, lambda lane: body(u * const(lanes) + lane)), ForKind.UNROLLED, "u")

        def step(reduced: list[Expr]) -> tirx.Stmt:
            at = _with(env, self.code.reduction, reduced)
            return lanewise(lambda j: self.update(held, parts, j, {**at, inner: start + j}))

        return sequence(
            [
                *map(tirx.AllocBuffer, [*held, *parts]),
                lanewise(lambda j: self.initial(held, j)),
                nest([axis.extent for axis in self.code.reduction], step),
                lanewise(lambda j: self.finish(held, j, {**env, inner: start + j})),
            ]
        )

    def _splits(self) -> bool:
        """Whether the steps of a vector's reduction are shared among several accumulators: it would wait for itself else."""
        size = known(self.code.reduction[-1].extent) if self.code.reduction else None
        return self.combiner is not None and size is not None and size >= 2 * UNROLL

    def _split_vector(self, env: Env, inner: tirx.Var, start: Expr) -> tirx.Stmt:
        """One vector of results, of as many partial ones as can be in flight: each takes every ``UNROLL``th step of the last axis."""
        lanes = self.lanes
        *outer, last = self.code.reduction
        size = int(known(last.extent) or 0)
        held = _local(str(self.stage.output.dtype), lanes * UNROLL)
        parts = self.steps.temporaries(lanes * UNROLL)

        def lanewise(count: int, body: Any) -> tirx.Stmt:
            return loop(count, lambda u: lanes_loop(lanes, lambda lane: body(u, lane, u * const(lanes) + lane)), ForKind.UNROLLED, "u")

        def steps(at: Env, first: Expr, count: int) -> tirx.Stmt:
            return lanewise(count, lambda u, lane, j: self.update([held], parts, j, {**at, last.var: first + u, inner: start + lane}))

        def along(reduced: list[Expr]) -> tirx.Stmt:
            at = _with(env, outer, reduced)
            whole = loop(size // UNROLL, lambda k: steps(at, k * const(UNROLL), UNROLL), name="k")
            return sequence([whole, steps(at, const(size // UNROLL * UNROLL), size % UNROLL)]) if size % UNROLL else whole

        return sequence(
            [
                *map(tirx.AllocBuffer, [held, *parts]),
                lanewise(UNROLL, lambda u, lane, j: self.initial([held], j)),
                nest([axis.extent for axis in outer], along),
                *self._folded(held, lanes * UNROLL, UNROLL),
                lanes_loop(lanes, lambda lane: self.finish([held], lane, {**env, inner: start + lane})),
            ]
        )

    def in_order(self, env: Env) -> tirx.Stmt:
        held, parts, first = [_local(str(out.dtype), 1) for out in self.stage.outputs], self.steps.temporaries(1), const(0)
        reduced = self.code.reduction
        body = nest([axis.extent for axis in reduced], lambda k: self.update(held, parts, first, _with(env, reduced, k)))
        return sequence([*map(tirx.AllocBuffer, [*held, *parts]), self.initial(held, first), body, self.finish(held, first, env)])

    def held(self, buffer: tirx.Buffer, at: Expr, which: int = 0) -> Expr:
        return read(buffer, at, str(self.stage.outputs[which].dtype))

    def initial(self, held: Sequence[tirx.Buffer], at: Expr) -> tirx.Stmt:
        return sequence([write(buffer, at, init) for buffer, init in zip(held, self.stage.inits, strict=True)])

    def update(self, held: Sequence[tirx.Buffer], parts: Sequence[tirx.Buffer], at: Expr, env: Env) -> tirx.Stmt:
        """Applies one step. With several outputs all new values are computed before any is stored."""
        current = [self.held(buffer, at, i) for i, buffer in enumerate(held)]
        known = {**env, **dict(zip(self.code.accumulators, current, strict=True))}
        statements, values = self.steps.emit(known, parts, at)
        if self.combiner:
            return sequence([*statements, write(held[0], at, self.combiner(current[0], values[0]))])
        names = [tirx.Var(f"new{i}", str(out.dtype)) for i, out in enumerate(self.stage.outputs)]
        bindings = [tirx.stmt.Bind(name, value) for name, value in zip(names, values, strict=True)]
        stores = [write(b, at, name) for b, name in zip(held, names, strict=True)]
        return sequence([*statements, *bindings, *stores])

    def finish(self, held: Sequence[tirx.Buffer], at: Expr, env: Env) -> tirx.Stmt:
        return sequence([self.code.store(i, env, self.held(buffer, at, i)) for i, buffer in enumerate(held)])

    def _along_reduced(self, env: Env) -> tirx.Stmt:
        """Partial results in the lanes of vectors, and one for the tail; combined at the end in a fixed order."""
        assert self.combiner is not None
        combine, code = self.combiner, self.code
        *outer, inner = code.reduction
        size = known(inner.extent)
        count = UNROLL if size is None or size >= 2 * UNROLL * self.lanes else 1
        width = self.lanes * count
        wide, last = _local(str(self.stage.output.dtype), width), _local(str(self.stage.output.dtype), 1)
        wide_parts, last_parts = self.steps.temporaries(width), self.steps.temporaries(1)

        def lanewise(body: Any) -> tirx.Stmt:
            return loop(count, lambda u: lanes_loop(self.lanes, lambda lane: body(u * const(self.lanes) + lane)), ForKind.UNROLLED, "u")

        def along(reduced: list[Expr]) -> tirx.Stmt:
            at = _with(env, outer, reduced)
            return vector_range(
                const(0), inner.extent, width,
                lambda s: lanewise(lambda j: self.update([wide], wide_parts, j, {**at, inner.var: s + j})),
                lambda i: self.update([last], last_parts, const(0), {**at, inner.var: i}),
            )  # fmt: skip

        def fold(lane: Expr) -> tirx.Stmt:
            return write(last, const(0), combine(self.held(last, const(0)), self.held(wide, lane)))

        return sequence(
            [
                *map(tirx.AllocBuffer, [wide, last, *wide_parts, *last_parts]),
                lanewise(lambda j: self.initial([wide], j)),
                self.initial([last], const(0)),
                nest([axis.extent for axis in outer], along),
                *self._folded(wide, width, count),
                loop(self.lanes, fold, ForKind.UNROLLED, "lane"),
                self.finish([last], const(0), env),
            ]
        )

    def _folded(self, wide: tirx.Buffer, width: int, count: int) -> list[tirx.Stmt]:
        """The vectors added up into the first one."""
        assert self.combiner is not None
        combine, lanes = self.combiner, self.lanes

        def add(u: int, lane: Expr) -> tirx.Stmt:
            return write(wide, lane, combine(self.held(wide, lane), self.held(wide, lane + const(u * lanes))))

        return [lanes_loop(lanes, partial(add, u)) for u in range(1, count)]


def _with(env: Env, axes: Sequence[Any], indices: Sequence[Expr]) -> dict[tirx.Var, Expr]:
    return {**env, **{axis.var: index for axis, index in zip(axes, indices, strict=True)}}


def _local(dtype: str, size: int) -> tirx.Buffer:
    return local_buffer(dtype, size, "held")
