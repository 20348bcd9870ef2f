"""What becomes of a contraction's sums: everything fused behind it, in vectors along the columns where the results allow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tvm import tirx

from aotc.targets.schedules.cuda.blocks import Grid
from aotc.targets.schedules.cuda.contraction import Contraction
from aotc.targets.schedules.cuda.elementwise import VECTOR_BYTES, VectorLoads, aligned, move, size
from aotc.targets.schedules.cuda.launch import Launch, address, allocated, call, itemsize, threads_over, unrolled
from aotc.targets.schedules.cuda.operand import decoded
from aotc.targets.schedules.loops import const, known, loop, sequence
from aotc.targets.schedules.program import Program
from aotc.targets.schedules.rewrite import Computation, local_buffer, substitute, write
from aotc.targets.schedules.stages import Axis

Expr = Any
Env = Mapping[tirx.Var, Expr]


def vector_lanes(problem: Contraction, most: int) -> int:
    """How many neighbouring columns, of at most ``most``, are one vector in every result."""
    inner = problem.columns[-1] if problem.columns else None
    extent = known(inner.extent) if inner is not None else None
    if inner is None or extent is None:
        return 1
    lanes = most
    while lanes > 1 and not all(_fits(buffer, offset, inner, extent, lanes) for buffer, offset, _ in problem.results):
        lanes //= 2
    return lanes


def _fits(buffer: tirx.Buffer, offset: Expr, inner: Axis, extent: int, lanes: int) -> bool:
    narrow = lanes * itemsize(str(buffer.dtype)) <= VECTOR_BYTES
    return narrow and extent % lanes == 0 and aligned(tirx.BufferLoad(buffer, [offset]), inner.var, lanes)


def store(problem: Contraction, env: Env, column: Expr, lanes: int, total: Callable[[Expr], Expr]) -> tirx.Stmt:
    """Stores the results of ``lanes`` columns from ``column`` on, whose sums are ``total(lane)``; ``env`` has the batch and the row."""
    here = {**env, **decoded(column, problem.columns)}
    values = [value for _, _, value in problem.results]
    if lanes == 1:
        computation = Computation(values)
        parts = computation.temporaries(1)
        statements, found = computation.emit({**here, problem.total: total(const(0))}, parts, const(0))
        stores = [write(b, substitute(at, here), value) for (b, at, _), value in zip(problem.results, found, strict=True)]
        return allocated(parts, *statements, *stores)
    inner = problem.columns[-1].var
    loader = VectorLoads(inner, lanes, here)
    computation = Computation([loader.expression(value, {}) for value in values])
    parts = computation.temporaries(1)
    held = [local_buffer(str(buffer.dtype), lanes, f"result{i}") for i, (buffer, _, _) in enumerate(problem.results)]

    def lane(at: Expr) -> tirx.Stmt:
        env = {**here, inner: here[inner] + at, loader.lane: at, problem.total: total(at)}
        statements, found = computation.emit(env, parts, const(0))
        return allocated(parts, *statements, *(write(result, at, value) for result, value in zip(held, found, strict=True)))

    stores = []
    for (buffer, offset, _), result in zip(problem.results, held, strict=True):
        target = address(buffer, substitute(offset, here))
        stores.append(call(move(str(result.dtype), lanes), target, address(result, const(0))))
    return allocated([*loader.buffers, *held], *loader.statements, unrolled(lanes, lane, "lane"), *stores)


def written(problem: Contraction) -> tuple[tirx.Buffer, ...]:
    return tuple(buffer for buffer, _, _ in problem.results)


class Tiling(Protocol):
    """The tile of a block, and into how many parts the depth is cut."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def split(self) -> int: ...


def launches(problem: Contraction, program: Program, tiling: Tiling, product: Callable[[Contraction, Grid], Launch]) -> list[Launch]:
    """``product`` of all tiles; where the depth is cut, of its parts, and the launch that adds these up."""
    grid = Grid(problem, tiling.rows, tiling.columns, tiling.depth, tiling.split)
    if tiling.split == 1:
        return [product(problem, grid)]
    partial, rest = in_parts(problem, program, tiling.split, grid.part)
    return [product(partial, grid), rest]


def in_parts(problem: Contraction, program: Program, parts: int, part: Expr) -> tuple[Contraction, Launch]:
    """A contraction whose depth is cut into ``parts``: one that stores the sums of the part numbered ``part`` to scratch, and the
    launch that adds them up and does the rest."""
    dtype = str(problem.total.ty)
    axes = [*problem.batch, *problem.rows, *problem.columns]
    elements = size(axes)
    scratch = program.scratch(const(parts) * elements, tirx.decl_buffer([1], dtype, "sums"))
    flat = _flat(axes)
    partial = replace(problem, results=((scratch, part * elements + flat, problem.total),))
    lanes = vector_lanes(problem, 4)
    inner = known(problem.columns[-1].extent) if problem.columns else None
    lanes = lanes if inner is not None and inner % lanes == 0 else 1
    rows, columns = size([*problem.batch, *problem.rows]), size(problem.columns)
    row_columns = const(known(columns) // lanes) if known(columns) is not None else tirx.truncdiv(columns, const(lanes))  # type: ignore[operator]

    def finish(at: Expr) -> tirx.Stmt:
        row, column = tirx.truncdiv(at, row_columns), tirx.truncmod(at, row_columns) * const(lanes)
        env = decoded(row, [*problem.batch, *problem.rows])
        sums, more = local_buffer(dtype, lanes, "sum"), local_buffer(dtype, lanes, "more")
        first = row * columns + column

        def added(i: Expr) -> tirx.Stmt:
            fetch = call(move(dtype, lanes), address(more, const(0)), address(scratch, (i + const(1)) * elements + first))
            add = unrolled(lanes, lambda j: write(sums, j, tirx.BufferLoad(sums, [j]) + tirx.BufferLoad(more, [j])))
            return sequence([fetch, add])

        start = call(move(dtype, lanes), address(sums, const(0)), address(scratch, first))
        done = store(problem, env, column, lanes, lambda lane: tirx.BufferLoad(sums, [lane]))
        return allocated([sums, more], start, loop(parts - 1, added), done)

    return partial, replace(threads_over(rows * row_columns, finish, 128), written=written(problem))


def _flat(axes: Sequence[Axis]) -> Expr:
    offset: Expr = const(0)
    for axis in axes:
        offset = offset * axis.extent + axis.var
    return offset
