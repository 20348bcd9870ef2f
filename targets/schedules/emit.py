"""Short names for the TIR that kernels are written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.stmt import ForKind

Expr = Any
IN_REGISTERS = "disable_lower_builtin"
"""TVM's annotation for an allocation that no size turns into a workspace call."""

ROUND = "tasks_of_a_round"
"""The annotation of a parallel loop whose tasks come in rounds: how many each has."""

FIRST_TASK = tirx.Var("begin", "int32")
"""The first task of the range that a call of the kernel runs. No two calls that run at a time have the same: with it tasks
of one call share a piece of scratch memory, which so stays in the cache."""

Body = Callable[[Any], tirx.Stmt]


def const(value: int) -> Expr:
    return tirx.IntImm("int32", value)


def opaque(value: int) -> Expr:
    """``value``, which LLVM does not see to be constant unless it is 0: an address at so many strides is then kept in a register.
    Else, where the stride exceeds what an instruction holds as an offset, LLVM adds it up anew for every access."""
    if value <= 0:
        return tirx.min(const(value), FIRST_TASK) if value else const(0)
    return tirx.max(const(value), const(0) - FIRST_TASK)


def hidden_zero(number: int) -> Expr:
    """0, which LLVM does not see, nor that those of other numbers (from 0 on) are the same."""
    return tirx.max(const(0), const(-number) - FIRST_TASK)


def ask_for(load: Expr) -> tirx.Stmt:
    """Has the memory that ``load`` reads brought into the second cache."""
    near, data = 2, 1
    op = tvm.ir.Op.get("tirx.prefetch")
    return tirx.Evaluate(tirx.call_intrin("void", op, tirx.address_of(load), const(0), const(near), const(data)))


def apart(load: Expr) -> tirx.Stmt:
    """No load moves from one side of it to the other: LLVM would have values wait in registers that there are not. It takes no
    instruction where the address of ``load`` is in a register."""
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.fake.use", tirx.address_of(load)))


def clamped(index: Expr, extent: Expr | int) -> Expr:
    """The place in [0, extent) nearest to ``index``, for a load under a ``Select``, which reads on both sides. Simplifiers know in
    there what the condition says and would take a plain clamp away: the load would then leave the buffer."""
    return tirx.min(tirx.max(index, hidden_zero(0)), hidden_zero(0) + (extent - 1))


def known(expr: Expr) -> int | None:
    """The integer that an expression is, if it is one."""
    if isinstance(expr, int):
        return expr
    return int(expr.value) if isinstance(expr, tirx.IntImm) else None


def loop(kind: ForKind, extent: Expr, body: Body, name: str, first: Expr = 0) -> tirx.Stmt:
    """A loop over [first, first + extent); none where the extent is 1."""
    if known(extent) == 1 and kind != ForKind.PARALLEL:
        return body(const(first) if isinstance(first, int) else first)
    var = tirx.Var(name, "int32")
    return tirx.For(var, _expr(first), _expr(extent), kind, body(var))


def serial(extent: Expr, body: Body, name: str = "i", first: Expr = 0) -> tirx.Stmt:
    return loop(ForKind.SERIAL, extent, body, name, first)


def unrolled(extent: Expr, body: Body, name: str = "u", first: Expr = 0) -> tirx.Stmt:
    return loop(ForKind.UNROLLED, extent, body, name, first)


def vectorized(extent: int, body: Body, name: str = "v") -> tirx.Stmt:
    return loop(ForKind.VECTORIZED, extent, body, name)


def parallel(extent: Expr, body: Body, name: str = "task") -> tirx.Stmt:
    return loop(ForKind.PARALLEL, extent, body, name)


def rounds(count: Expr, tasks: int, body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
    """``body(round, task)`` for all ``tasks`` of one round after the other: those of a round may run at the same time."""
    task = tirx.Var("task", "int32")
    inner = body(tirx.truncdiv(task, const(tasks)), tirx.truncmod(task, const(tasks)))
    return tirx.For(task, const(0), count * const(tasks), ForKind.PARALLEL, inner, None, {ROUND: const(tasks)})


def sequence(*stmts: tirx.Stmt) -> tirx.Stmt:
    return tirx.SeqStmt(list(stmts)) if len(stmts) > 1 else stmts[0]


def registers(buffer: tirx.Buffer) -> tirx.Stmt:
    """Allocates a buffer that is to live in registers: all its indices are constants once loops are unrolled."""
    return tirx.AllocBuffer(buffer, {IN_REGISTERS: tirx.IntImm("bool", 1)})


def unravel(index: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """The indices of a row-major offset; the first takes what is left.

    TVM puts them together again where all of them index one buffer of these extents: then no division is left.
    """
    return _unravelled(index, extents, tirx.floordiv, tirx.floormod)


def task_indices(index: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """As ``unravel``, for indices that stay apart. Neither index nor extents are negative, but TVM cannot know: a floordiv by
    an extent known only at run time would check, at great length for LLVM."""
    return _unravelled(index, extents, tirx.truncdiv, tirx.truncmod)


def _unravelled(index: Expr, extents: Sequence[Expr], div: Callable[..., Expr], mod: Callable[..., Expr]) -> list[Expr]:
    indices: list[Expr] = []
    for extent in reversed(extents[1:]):
        one = known(extent) == 1
        indices.append(const(0) if one else mod(index, extent))
        index = index if one else div(index, extent)
    return [index, *reversed(indices)] if extents else []


def product(extents: Sequence[Expr]) -> Expr:
    result: Expr = const(1)
    for extent in extents:
        result = extent if known(result) == 1 else (result if known(extent) == 1 else result * extent)
    return result


def _expr(value: Expr) -> Expr:
    return const(value) if isinstance(value, int) else value
