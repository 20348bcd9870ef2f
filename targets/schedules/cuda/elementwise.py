"""Stages that compute each element on its own: a thread takes a vector of up to 16 bytes along the last axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import StructuralKey

from aotc.targets.schedules.address import stride, unravel
from aotc.targets.schedules.cuda.launch import Launch, address, allocated, call, itemsize, threads_over, unrolled
from aotc.targets.schedules.loops import const, known
from aotc.targets.schedules.program import StageCode
from aotc.targets.schedules.rewrite import IF_THEN_ELSE, Computation, Rewriter, local_buffer, substitute, write
from aotc.targets.schedules.stages import Axis, loads_of

Expr = Any
VECTOR_BYTES = 16


def stage(code: StageCode) -> Launch:
    """A launch that computes a stage without reduction."""
    vector = Vectors(code)
    axes = [*code.axes[:-1], Axis(vector.unit, vector.units)] if code.axes else []
    written = tuple(code.program.place(output).buffer for output in code.stage.outputs)
    return replace(threads_over(size(axes), lambda at: vector.at(unravel(at, axes))), written=written)


def size(axes: Sequence[Axis]) -> Expr:
    total: Expr = const(1)
    for axis in axes:
        total = total * axis.extent
    return total


class Vectors:
    """The elements of a stage in vectors along its last axis: vector number ``unit`` of ``units`` has ``lanes`` of them."""

    def __init__(self, code: StageCode) -> None:
        self.code = code
        self.inner = code.axes[-1] if code.axes else Axis(tirx.Var("one", "int32"), const(1))
        self.unit = tirx.Var("unit", "int32")
        self.lanes = self._lanes()
        self.units = tirx.floordiv(self.inner.extent, const(self.lanes)) if self.lanes > 1 else self.inner.extent
        if (whole := known(self.inner.extent)) is not None:
            self.units = const(whole // self.lanes)

    def _lanes(self) -> int:
        """As many as fill 16 bytes of the widest tensor that steps along the last axis, if all those that step allow it."""
        extent = known(self.inner.extent)
        if extent is None or not self.code.axes:
            return 1
        stored = [self.code.stored(i) for i in range(len(self.code.stage.outputs))]
        moving = [
            load for value in (*self.code.values, *stored) for load in loads_of(value) if stride(load.indices[0], self.inner.var) != 0
        ]
        lanes = min((VECTOR_BYTES // itemsize(str(load.source.dtype)) for load in moving), default=1)
        while lanes > 1 and (extent % lanes or not all(aligned(load, self.inner.var, lanes) for load in stored)):
            lanes //= 2
        return lanes

    def at(self, env: Mapping[tirx.Var, Expr]) -> tirx.Stmt:
        """Computes and stores the vector at ``env``, in which ``unit`` is the number of the vector in its row."""
        if self.lanes == 1:
            moved = {**env, self.inner.var: env.get(self.unit, const(0))}
            return self.code.store_all(moved)
        start = {**env, self.inner.var: env[self.unit] * const(self.lanes)}
        loader = VectorLoads(self.inner.var, self.lanes, start)
        values = [loader.expression(value, {}) for value in self.code.values]
        computation = Computation(values)
        parts = computation.temporaries(1)
        results = [local_buffer(str(out.dtype), self.lanes, f"result{i}") for i, out in enumerate(self.code.stage.outputs)]

        def lane(at: Expr) -> tirx.Stmt:
            here = {**start, self.inner.var: start[self.inner.var] + at, loader.lane: at}
            statements, found = computation.emit(here, parts, const(0))
            return allocated(parts, *statements, *(write(result, at, value) for result, value in zip(results, found, strict=True)))

        stores = []
        for i, result in enumerate(results):
            place = self.code.stored(i)
            target = address(place.source, substitute(place.indices[0], start))
            stores.append(call(move(str(result.dtype), self.lanes), target, address(result, const(0))))
        return allocated([*loader.buffers, *results], *loader.statements, unrolled(self.lanes, lane, "lane"), *stores)


def move(dtype: str, lanes: int) -> str:
    return f"aotc_move<{itemsize(dtype) * lanes}>"


def steps(load: tvm.ir.TensorLoad, var: tirx.Var) -> int | None:
    """How far a flat load moves for a step of ``var``; ``None`` where that is not a constant."""
    return stride(load.indices[0], var)


def aligned(load: tvm.ir.TensorLoad, var: tirx.Var, lanes: int) -> bool:
    """Whether ``lanes`` elements from each multiple of ``lanes`` of ``var`` on are one vector."""
    if stride(load.indices[0], var) != 1:
        return False
    base = substitute(load.indices[0], {var: const(0)})
    return is_multiple(base, lanes)


def is_multiple(expr: Expr, factor: int) -> bool:
    """Whether an index is surely a multiple of ``factor``."""
    rest = Analyzer().simplify(tirx.floormod(expr, const(factor)))
    return known(rest) == 0


class VectorLoads(Rewriter):
    """Takes loads that step along ``var`` by one out of expressions: whole vectors in local buffers. What only a branch needs,
    and what does not fit, is loaded element by element."""

    def __init__(self, var: tirx.Var, lanes: int, start: Mapping[tirx.Var, Expr]) -> None:
        super().__init__(self._vector)
        self.var, self.lanes, self.start = var, lanes, start
        self.lane = tirx.Var("lane", "int32")
        self.buffers: list[tirx.Buffer] = []
        self.statements: list[tirx.Stmt] = []
        self.branches = 0
        self.names: set[tirx.Var] = set()
        self.known: dict[StructuralKey, tirx.Buffer] = {}

    def _vector(self, buffer: tirx.Buffer, indices: list[Expr]) -> Expr:
        load = tirx.BufferLoad(buffer, indices)
        if self.branches or not aligned(load, self.var, self.lanes) or self._bound(indices[0]):
            return load
        key = StructuralKey([buffer, *indices])  # type: ignore[call-arg]
        if key not in self.known:
            self.known[key] = local = tirx.decl_buffer([self.lanes], buffer.dtype, f"v{len(self.buffers)}")
            self.buffers.append(local)
            source = address(buffer, substitute(indices[0], self.start))
            self.statements.append(call(move(str(buffer.dtype), self.lanes), address(local, const(0)), source))
        return tirx.BufferLoad(self.known[key], [self.lane])

    def _bound(self, index: Expr) -> bool:
        """Whether an index needs names that the expression around it binds, or differs from lane to lane in a way of its own."""
        return any(var in self.names or var.same_as(self.lane) for var in tirx.analysis.undefined_vars(tirx.Evaluate(index), []))

    def _visit(self, expr: Expr, env: Mapping[tirx.Var, Expr]) -> Expr:
        if not isinstance(expr, tirx.Let):
            return super()._visit(expr, env)
        name = tirx.Var(expr.var.name, str(expr.var.ty))
        self.names.add(name)
        return tirx.Let(name, self._visit(expr.value, env), self.expression(expr.body, {**env, expr.var: name}))

    def _call(self, expr: tvm.ir.Call, env: Mapping[tirx.Var, Expr]) -> Expr:
        if not expr.op.same_as(IF_THEN_ELSE):
            return super()._call(expr, env)
        if not self.branches and (guarded := self._guarded(expr, env)) is not None:
            return guarded
        self.branches += 1
        result = super()._call(expr, env)
        self.branches -= 1
        return result

    def _guarded(self, expr: tvm.ir.Call, env: Mapping[tirx.Var, Expr]) -> Expr | None:
        """A load under a condition that holds for a whole vector or for nothing of it: zeros are loaded instead."""
        condition, load, otherwise = expr.args[0], expr.args[1], expr.args[2]
        while isinstance(load, tirx.Cast):
            load = load.value
        if not isinstance(load, tvm.ir.TensorLoad) or not isinstance(otherwise, (tirx.FloatImm, tirx.IntImm)):
            return None
        condition, index = self._visit(condition, env), self._visit(load.indices[0], env)
        plain = tirx.BufferLoad(load.source, [index])
        if not aligned(plain, self.var, self.lanes) or self._bound(index) or self._bound(condition) or self._moves(condition):
            return None
        local = tirx.decl_buffer([self.lanes], load.source.dtype, f"v{len(self.buffers)}")
        self.buffers.append(local)
        wanted, source = substitute(condition, self.start), address(load.source, substitute(index, self.start))
        fetch = f"aotc_fetch<{itemsize(str(load.source.dtype)) * self.lanes}>"
        self.statements.append(call(fetch, address(local, const(0)), source, wanted))
        value: Expr = tirx.BufferLoad(local, [self.lane])
        value = tirx.Cast(str(expr.ty), value) if str(expr.ty) != str(local.dtype) else value
        return value if float(otherwise.value) == 0 else tirx.if_then_else(condition, value, otherwise)

    def _moves(self, condition: Expr) -> bool:
        return any(var.same_as(self.var) for var in tirx.analysis.undefined_vars(tirx.Evaluate(condition), []))
