"""Matrix products and convolutions seen as one thing: sums over depth of a left value times a right value.

A fused function around one sum of products is read as ``total[batch, row, column] = sum over depth of left[batch, row, depth] *
right[batch, column, depth]``, each of the four a list of axes: a convolution's rows or columns are its pixels, its depth channels and
taps. Padding, strides, dilation, groups and transposed convolutions are in how ``left`` and ``right`` address their tensors, so what
multiplies matrices does convolutions (implicit GEMM).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_equal, structural_walk

from aotc.targets.schedules.address import collapsed, is_unit, merged
from aotc.targets.schedules.loops import const, known
from aotc.targets.schedules.program import Program
from aotc.targets.schedules.reduction import combiner_of
from aotc.targets.schedules.rewrite import IF_THEN_ELSE, Rewriter, flat_index, read, substitute
from aotc.targets.schedules.stages import Axis, Stage

Expr = Any


@dataclass(frozen=True)
class Contraction:
    """``left`` is over ``batch``, ``rows`` and ``depth``, ``right`` over ``batch``, ``columns`` and ``depth``; both in the type that
    they have in memory. ``results`` are what becomes of ``total``: a flat buffer, the offset in it and the value. The last axis of
    the results is a column wherever it is a row or a column."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    left: Expr
    right: Expr
    total: tirx.Var
    results: tuple[tuple[tirx.Buffer, Expr, Expr], ...]


def contraction(program: Program) -> Contraction | None:
    """A whole function as one contraction; ``None`` for one that is not one sum of products with an elementwise rest."""
    sums = [stage for stage in program.stages if stage.reduction]
    if len(sums) != 1 or any(stage.opaque is not None or len(stage.outputs) != 1 for stage in program.stages):
        return None
    (stage,) = sums
    others = {other.output: other for other in program.stages if other is not stage}
    outputs = program.buffers[len(program.buffers) - _count_outputs(program) :]
    return _of_stage(program, stage, others, outputs)


def stage_contraction(program: Program, stage: Stage, follower: Stage | None) -> Contraction | None:
    """One kept stage of several, and the kept stage ``follower`` that alone reads it, if there is one that does so element by element."""
    if stage.opaque is not None or len(stage.outputs) != 1 or not stage.reduction:
        return None
    if follower is None:
        return _of_stage(program, stage, program.inlined, [stage.output])
    others = {**program.inlined, follower.output: follower}
    return _of_stage(program, stage, others, [follower.output])


def _of_stage(program: Program, stage: Stage, others: Mapping[tirx.Buffer, Stage], outputs: Sequence[tirx.Buffer]) -> Contraction | None:
    combiner = combiner_of(stage)
    if combiner is None or not isinstance(combiner.template, tirx.Add) or not _is_zero(stage.inits[0]):
        return None
    factors = _factors(_inlined(combiner.source, others))
    finish = _finish(stage, others, outputs)
    return _arranged(program, stage, *factors, *finish) if factors and finish else None


class _Inliner(Rewriter):
    """Puts values in place of the names that stand for them."""

    def _visit(self, expr: Expr, env: Mapping[tirx.Var, Expr]) -> Expr:
        if isinstance(expr, tirx.Let):
            return self._visit(expr.body, {**env, expr.var: self._visit(expr.value, env)})
        return super()._visit(expr, env)


def _inlined(expr: Expr, stages: Mapping[tirx.Buffer, Stage]) -> Expr:
    return _Inliner(tirx.BufferLoad).expression(Rewriter(tirx.BufferLoad, stages).expression(expr, {}), {})


def _factors(expr: Expr) -> tuple[Expr, Expr] | None:
    """The two factors of a product; a condition on it becomes one on the factor whose variables it has."""
    if isinstance(expr, tirx.Mul):
        return _narrow(expr.a), _narrow(expr.b)
    if not (isinstance(expr, tvm.ir.Call) and expr.op.same_as(IF_THEN_ELSE) and _is_zero(expr.args[2])):
        return None
    factors = _factors(expr.args[1])
    if factors is None:
        return None
    condition = expr.args[0]
    if not _vars(condition) <= _vars(factors[0]):
        return None
    return tirx.if_then_else(condition, factors[0], tirx.const(0, str(factors[0].ty))), factors[1]


_NARROW = ("float16", "int8", "uint8")


def _narrow(expr: Expr) -> Expr:
    """A factor before it was widened for the product."""
    if isinstance(expr, tirx.Cast) and str(expr.value.ty) in _NARROW:
        return expr.value
    return expr


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, (tirx.IntImm, tirx.FloatImm)) and float(expr.value) == 0


def _vars(expr: Expr) -> set[tirx.Var]:
    found: set[tirx.Var] = set()
    structural_walk(expr, (tirx.Var, found.add))
    return found


def _finish(
    stage: Stage, others: Mapping[tirx.Buffer, Stage], outputs: Sequence[tirx.Buffer]
) -> tuple[tirx.Var, list[tuple[tirx.Buffer, Expr]]] | None:
    """The outputs as values over the axes of ``stage`` and a name for its total; ``None`` where one reads it at another place."""
    total = tirx.Var("total", str(stage.output.dtype))
    results: list[tuple[tirx.Buffer, Expr]] = []
    for output in outputs:
        if output.same_as(stage.output):
            results.append((output, total))
            continue
        last = others[output]
        if not structural_equal([axis.extent for axis in last.axes], [axis.extent for axis in stage.axes]):
            return None
        here = [axis.var for axis in last.axes]
        moved: list[bool] = []

        def load(buffer: tirx.Buffer, at: list[Expr], here: Sequence[Expr] = here, moved: list[bool] = moved) -> Expr:
            if not buffer.same_as(stage.output):
                return tirx.BufferLoad(buffer, at)
            moved.extend(not (var.same_as(index) or is_unit(axis.extent)) for index, var, axis in zip(at, here, stage.axes, strict=True))
            return total

        inner = {buffer: other for buffer, other in others.items() if not buffer.same_as(output)}
        value = Rewriter(load, inner).expression(last.values[0], {})
        if any(moved):
            return None
        results.append((output, substitute(value, dict(zip(here, (axis.var for axis in stage.axes), strict=True)))))
    return total, results


def _count_outputs(program: Program) -> int:
    written = {output for stage in program.stages for output in stage.outputs}
    return sum(buffer in written for buffer in program.buffers)


def _arranged(
    program: Program, stage: Stage, left: Expr, right: Expr, total: tirx.Var, results: Sequence[tuple[tirx.Buffer, Expr]]
) -> Contraction | None:
    """Sorts the axes of the result by who uses them, split where a side uses only a quotient of one (groups)."""
    at: dict[tirx.Var, Expr] = {axis.var: const(0) if is_unit(axis.extent) else axis.var for axis in (*stage.axes, *stage.reduction)}
    spatial = [axis for axis in stage.axes if not is_unit(axis.extent)]
    depth = [axis for axis in stage.reduction if not is_unit(axis.extent)]
    left, right = (_simplified(expr, at, [*spatial, *depth]) for expr in (left, right))
    for axis in list(spatial):
        parts = _split(axis, left, right)
        if parts is not None:
            which = spatial.index(axis)
            spatial[which : which + 1] = parts
            at[axis.var] = parts[0].var * parts[1].extent + parts[1].var
            left, right = (_simplified(expr, {axis.var: at[axis.var]}, parts) for expr in (left, right))
    uses = _vars(left), _vars(right)
    both = [axis for axis in spatial if axis.var in uses[0] and axis.var in uses[1]]
    rows = [axis for axis in spatial if axis.var not in uses[1]]
    columns = [axis for axis in spatial if axis.var not in uses[0] and axis.var in uses[1]]
    last = spatial[-1] if spatial else None
    if last is not None and last in rows:
        rows, columns, left, right = columns, rows, right, left
    indices = [at[axis.var] for axis in stage.axes]
    stores = [tirx.BufferLoad(output, indices) for output, _ in results]
    values = [substitute(value, at) for _, value in results]
    return _flattened(program, both, rows, columns, depth, left, right, total, stores, values)


def _split(axis: Axis, left: Expr, right: Expr) -> list[Axis] | None:
    """An axis as quotient and remainder, where both sides use it and one of them only its quotient by a constant."""
    if not (axis.var in _vars(left) and axis.var in _vars(right)) or known(axis.extent) is None:
        return None
    divisors: set[int] = set()

    def visit(node: Any) -> None:
        if isinstance(node.a, tirx.Var) and node.a.same_as(axis.var) and known(node.b):
            divisors.add(int(node.b.value))

    structural_walk([left, right], (tirx.FloorDiv, visit))
    for divisor in sorted(divisors):
        if divisor > 1 and int(axis.extent.value) % divisor == 0:
            parts = [Axis(tirx.Var(f"{axis.var.name}_group", "int32"), const(int(axis.extent.value) // divisor))]
            parts.append(Axis(tirx.Var(f"{axis.var.name}_in", "int32"), const(divisor)))
            env = {axis.var: parts[0].var * const(divisor) + parts[1].var}
            if any(parts[1].var not in _vars(_simplified(expr, env, parts)) for expr in (left, right)):
                return parts
    return None


def _simplified(expr: Expr, env: Mapping[tirx.Var, Expr], parts: Sequence[Axis]) -> Expr:
    analyzer = Analyzer()
    for part in parts:
        analyzer.bind(part.var, tvm.ir.Range(0, part.extent))
    return _Simplifier(analyzer).expression(substitute(expr, env), {})


class _Simplifier(Rewriter):
    """Simplifies the indices of loads."""

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__(lambda buffer, at: tirx.BufferLoad(buffer, [analyzer.simplify(index) for index in at]))


def _flattened(
    program: Program,
    both: list[Axis],
    rows: list[Axis],
    columns: list[Axis],
    depth: list[Axis],
    left: Expr,
    right: Expr,
    total: tirx.Var,
    stores: Sequence[tvm.ir.TensorLoad],
    values: Sequence[Expr],
) -> Contraction:
    """Neighbouring axes that all accesses walk together become one; all addresses are flat."""
    exprs = [left, right, *stores, *values]
    merges = [merged(axes, exprs) for axes in (both, rows, columns, depth)]
    runs = {var: run for _, mapping in merges for var, run in mapping.items()}

    def offset(buffer: tirx.Buffer, at: Sequence[Expr]) -> Expr:
        return flat_index(*collapsed(at, buffer.shape, runs))

    def load(buffer: tirx.Buffer, at: list[Expr]) -> Expr:
        return read(program.place(buffer).buffer, offset(buffer, at), str(buffer.dtype))

    def flat(expr: Expr) -> Expr:
        return Rewriter(load).expression(expr, {})

    results = tuple(
        (program.place(store.source).buffer, offset(store.source, store.indices), flat(value))
        for store, value in zip(stores, values, strict=True)
    )
    axes = [tuple(found) for found, _ in merges]
    return Contraction(axes[0], axes[1], axes[2], axes[3], flat(left), flat(right), total, results)
