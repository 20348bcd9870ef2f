"""Loops as statements: tasks, serial, unrolled and vector loops with peeled tails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.stmt import ForKind

Expr = Any
Body = Callable[[Expr], tirx.Stmt]

TASK_WORK = 16384
"""Element operations that a task does at least, where there are as many: waking a thread costs some microseconds."""


def const(value: int) -> Expr:
    return tirx.const(value, "int32")


def known(extent: Expr) -> int | None:
    if isinstance(extent, int):
        return extent
    return int(extent.value) if isinstance(extent, tirx.IntImm) else None


def loop(extent: Expr, body: Body, kind: ForKind = ForKind.SERIAL, name: str = "i") -> tirx.Stmt:
    """A loop from 0; none at all for an extent of 1 (a parallel loop stays: it is the task range)."""
    if known(extent) == 1 and kind != ForKind.PARALLEL:
        return body(const(0))
    var = tirx.Var(name, "int32")
    return tirx.For(var, const(0), const(extent) if isinstance(extent, int) else extent, kind, body(var))


def nest(extents: Sequence[Expr], body: Callable[[list[Expr]], tirx.Stmt]) -> tirx.Stmt:
    """Serial loops, the last innermost."""
    if not extents:
        return body([])
    return loop(extents[0], lambda i: nest(extents[1:], lambda rest: body([i, *rest])))


def sequence(parts: Sequence[tirx.Stmt]) -> tirx.Stmt:
    flat = [inner for part in parts for inner in (part.seq if isinstance(part, tirx.SeqStmt) else [part])]
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def ceildiv(a: Expr, b: int) -> Expr:
    size = known(a)
    return const(-(-size // b)) if size is not None else tirx.floordiv(a + const(b - 1), const(b))


def vector_range(low: Expr, extent: Expr, lanes: int, vector: Body, scalar: Body) -> tirx.Stmt:
    """Covers [low, low + extent): ``vector(start)`` for each whole vector, ``scalar(index)`` for what is left."""
    size = known(extent)
    if lanes == 1 or (size is not None and size < lanes):
        return loop(extent, lambda i: scalar(low + i))
    whole = tirx.floordiv(extent, const(lanes)) if size is None else const(size // lanes)
    parts = [loop(whole, lambda v: vector(low + v * const(lanes)), name="v")]
    rest = extent - whole * const(lanes) if size is None else const(size % lanes)
    if known(rest) != 0:
        start = low + whole * const(lanes)
        parts.append(loop(rest, lambda t: scalar(start + t), name="t"))
    return sequence(parts)


def lanes_loop(lanes: int, body: Body) -> tirx.Stmt:
    return loop(lanes, body, ForKind.VECTORIZED, "lane")


def tasks_over(rows: Expr, work: float, body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
    """The task loop over ``rows`` of about ``work`` element operations: ``body(task, row)``. Several rows make a task where
    each is small."""
    per_task = max(1, int(TASK_WORK // max(work, 1)))
    size = known(rows)
    if size is not None and size > 0:
        per_task = -(-size // -(-size // per_task))  # even shares
    if per_task == 1:
        return loop(rows, lambda task: body(task, task), ForKind.PARALLEL, "task")

    def one(task: Expr) -> tirx.Stmt:
        first = task * const(per_task)
        count = const(per_task) if size is not None and size % per_task == 0 else tirx.min(const(per_task), rows - first)
        return loop(count, lambda row: body(task, first + row), name="row")

    return loop(ceildiv(rows, per_task), one, ForKind.PARALLEL, "task")


def rows_in_task(rows: Expr, work: float) -> Expr:
    """The number of tasks that ``tasks_over`` makes."""
    per_task = max(1, int(TASK_WORK // max(work, 1)))
    size = known(rows)
    if size is not None and size > 0:
        per_task = -(-size // -(-size // per_task))
    return ceildiv(rows, per_task)


def fitting(lanes: int, extent: Expr) -> int:
    """``lanes``, or the largest power of two that a shorter axis fills."""
    size = known(extent)
    while size is not None and lanes > max(size, 1):
        lanes //= 2
    return lanes
