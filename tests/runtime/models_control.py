"""Handwritten plans with loops, branches, sizes that follow from data, and states. The kernels are in csrc/kernels.c."""

from __future__ import annotations

from aotc.ir.dims import Dim, maximum, symbol
from aotc.lowering.plan import (
    DYNAMIC,
    Buffer,
    EntryPoint,
    ExecutionPlan,
    Kernel,
    State,
    Step,
    StepKind,
    Storage,
    Symbol,
    TensorSpec,
    Value,
)
from tests.runtime.kernels import BIAS_RELU, F32, I32, I64, SCALE

MORE, COLLATZ = Kernel("k_more", 2, 0), Kernel("k_collatz", 2, 0)
POSITIVE, ACCUMULATE = Kernel("k_positive", 3, 1), Kernel("k_accumulate", 2, 0)


def copy(source: int, target: int, name: str = "") -> Step:
    return Step(StepKind.COPY, (source, target), 1, source=name, label="copy")


def set_symbol(number: int, dim: Dim, *argument: int, name: str = "") -> Step:
    return Step(StepKind.SHAPE, argument, 0, dims=(dim,), source=name, label="size", target=number)


def jump(target: int) -> Step:
    return Step(StepKind.JUMP, (), 0, source="loop", label="jump", target=target)


def branch(target: int, dims: tuple[Dim, ...] = (), argument: int | None = None) -> Step:
    arguments = () if argument is None else (argument,)
    return Step(StepKind.BRANCH, arguments, 0, dims=dims, source="loop", label="branch", target=target)


def collatz() -> ExecutionPlan:
    """A loop whose number of turns the data tell: `path` holds the numbers of Collatz's sequence from n on, without the final 1;
    `last` is 1. Its buffer grows with the turns."""
    i, trips = symbol("i", 0, None), symbol("trips", 0, None)
    values = (
        Value(I64, (), Storage.INPUT),
        Value(I64, (), Storage.ARENA, 0),
        Value("bool", (), Storage.ARENA, 1),
        Value(I64, (), Storage.ARENA, 2, i * 8),
        Value(I64, (), Storage.ARENA, 3),
        Value(I64, (trips,), Storage.ARENA, 2),
        Value(I64, (trips,), Storage.OUTPUT, 0),
        Value(I64, (), Storage.OUTPUT, 1),
    )
    steps = (
        copy(0, 1, "n"),
        set_symbol(0, 0),
        Step(StepKind.KERNEL, (1, 2), 1, 0, source="loop/more", label="not_equal"),
        branch(9, argument=2),
        copy(1, 3, "loop/stack"),
        Step(StepKind.KERNEL, (1, 4), 1, 1, source="loop/next", label="collatz"),
        copy(4, 1),
        set_symbol(0, i + 1),
        jump(2),
        set_symbol(1, i),
        copy(5, 6, "path"),
        copy(1, 7, "last"),
    )
    buffers = (Buffer(8, 0, 11, 0), Buffer(1, 2, 8, 64), Buffer((i + 1) * 8, 2, 10), Buffer(8, 2, 8, 128))
    entry = EntryPoint(
        "main",
        (TensorSpec("n", I64, ()),),
        (TensorSpec("path", I64, (trips,)), TensorSpec("last", I64, ())),
        values,
        buffers,
        steps,
        192,
        192,
        (Symbol("i", 0, None, DYNAMIC, 0), Symbol("trips", 0, None, DYNAMIC, 0)),
    )
    return ExecutionPlan((entry,), (MORE, COLLATZ))


def positive() -> ExecutionPlan:
    """found[count] = the positive ones of x[n], at most 16; halves = half of each, by way of a buffer of that size. The extent of
    `like` must be the count."""
    n, m, count = symbol("n", 0, None), symbol("m", 0, None), symbol("count", 0, 16)
    values = (
        Value(F32, (n,), Storage.INPUT, 0),
        Value(F32, (n,), Storage.ARENA, 0),
        Value(I64, (), Storage.ARENA, 1),
        Value(F32, (count,), Storage.ARENA, 0),
        Value(F32, (count,), Storage.OUTPUT, 0),
        Value(F32, (count, 1), Storage.ARENA, 2),
        Value(F32, (count, 1), Storage.OUTPUT, 0),
        Value(F32, (1,), Storage.WEIGHT, 0, 12),
        Value(F32, (count, 1), Storage.OUTPUT, 1),
    )
    steps = (
        Step(StepKind.KERNEL, (0, 1, 2), 2, 0, (n,), 1, "where", "nonzero"),
        set_symbol(2, 0, 2, name="where"),
        Step(StepKind.CHECK, (), 0, dims=(count, m), source="like", label="same size"),
        copy(3, 4, "found"),
        Step(StepKind.KERNEL, (6, 7, 5), 1, 1, (1,), count, "half", "multiply", count),
        copy(5, 8, "halves"),
    )
    buffers = (Buffer(n * 4, 0, 3), Buffer(8, 0, 1), Buffer(count * 4, 4, 5))
    entry = EntryPoint(
        "main",
        (TensorSpec("x", F32, (n,)), TensorSpec("like", "bool", (m,))),
        (TensorSpec("found", F32, (count,)), TensorSpec("halves", F32, (count, 1))),
        values,
        buffers,
        steps,
        None,
        None,
        (Symbol("n", 0, None, 0, 0), Symbol("m", 0, None, 1, 0), Symbol("count", 0, 16, DYNAMIC, 0)),
    )
    return ExecutionPlan((entry,), (POSITIVE, SCALE))


def branches() -> ExecutionPlan:
    """y[n, 8] = x * w if `scaled`, else relu(x + b); tail = x from row 4 on, by way of a buffer whose size is negative where n < 4."""
    n = symbol("n", 0, 64)
    rest = maximum(n - 4, 0)
    values = (
        Value(F32, (n, 8), Storage.INPUT, 0),
        Value("bool", (), Storage.INPUT, 1),
        Value(F32, (8,), Storage.WEIGHT, 0, 0),
        Value(F32, (8,), Storage.WEIGHT, 0, 64),
        Value(F32, (n, 8), Storage.OUTPUT, 0),
        Value(F32, (n - 4, 8), Storage.INPUT, 0, 128),
        Value(F32, (n - 4, 8), Storage.ARENA, 0),
        Value(F32, (n - 4, 8), Storage.OUTPUT, 1),
    )
    steps = (
        branch(3, argument=1),
        Step(StepKind.KERNEL, (0, 2, 4), 1, 0, (8,), n, "then", "multiply"),
        jump(4),
        Step(StepKind.KERNEL, (0, 3, 4), 1, 1, (8,), n, "else", "add+relu"),
        branch(7, (4, n)),
        copy(5, 6, "tail"),
        copy(6, 7, "tail"),
    )
    entry = EntryPoint(
        "main",
        (TensorSpec("x", F32, (n, 8)), TensorSpec("scaled", "bool", ())),
        (TensorSpec("y", F32, (n, 8)), TensorSpec("tail", F32, (rest, 8))),
        values,
        (Buffer((n - 4) * 32, 5, 6),),
        steps,
        None,
        None,
        (Symbol("n", 0, 64, 0, 0),),
    )
    return ExecutionPlan((entry,), (SCALE, BIAS_RELU))


def triangle() -> ExecutionPlan:
    """Nested loops over an output of known size: y[i, j] = x[min(i, j)]."""
    n, i, j = symbol("n", 0, 1000), symbol("i", 0, None), symbol("j", 0, None)
    values = (
        Value(I32, (), Storage.INPUT, 0, i * 4),
        Value(I32, (), Storage.INPUT, 0, j * 4),
        Value(I32, (), Storage.OUTPUT, 0, (i * n + j) * 4),
    )
    steps = (
        set_symbol(1, 0),
        branch(12, (i, n)),
        set_symbol(2, 0),
        branch(10, (j, n)),
        branch(7, (j, i)),
        copy(1, 2, "left"),
        jump(8),
        copy(0, 2, "right"),
        set_symbol(2, j + 1),
        jump(3),
        set_symbol(1, i + 1),
        jump(1),
    )
    entry = EntryPoint(
        "main",
        (TensorSpec("x", I32, (n,)),),
        (TensorSpec("y", I32, (n, n)),),
        values,
        (),
        steps,
        0,
        0,
        (Symbol("n", 0, 1000, 0, 0), Symbol("i", 0, None, DYNAMIC, 0), Symbol("j", 0, None, DYNAMIC, 0)),
    )
    return ExecutionPlan((entry,), ())


def states() -> ExecutionPlan:
    """Entry point `add` adds x to each element of the state `total`, which begins as the weights' b, and counts up the state `turn`
    that `read` gives, too."""
    total = (State("total", F32, (8,), 64), State("turn", F32, (), None))
    values = (
        Value(F32, (), Storage.INPUT),
        Value(F32, (8,), Storage.STATE, 0),
        Value(F32, (), Storage.STATE, 1),
        Value(F32, (), Storage.WEIGHT, 0, 16),
        Value(F32, (8,), Storage.OUTPUT, 0),
    )
    steps = (
        Step(StepKind.KERNEL, (0, 1), 1, 0, (), 8, "add", "accumulate"),
        Step(StepKind.KERNEL, (3, 2), 1, 0, (), 1, "turn", "accumulate"),
        copy(1, 4, "sum"),
    )
    add = EntryPoint("add", (TensorSpec("x", F32, ()),), (TensorSpec("sum", F32, (8,)),), values, (), steps, 0, 0)
    values = (
        Value(F32, (8,), Storage.STATE, 0),
        Value(F32, (), Storage.STATE, 1),
        Value(F32, (8,), Storage.OUTPUT, 0),
        Value(F32, (), Storage.OUTPUT, 1),
    )
    outputs = (TensorSpec("sum", F32, (8,)), TensorSpec("turns", F32, ()))
    read = EntryPoint("read", (), outputs, values, (), (copy(0, 2), copy(1, 3)), 0, 0)
    return ExecutionPlan((add, read), (ACCUMULATE,), total)


def endless() -> ExecutionPlan:
    """y = x, over and over."""
    values = (Value(F32, (), Storage.INPUT), Value(F32, (), Storage.OUTPUT))
    entry = EntryPoint("main", (TensorSpec("x", F32, ()),), (TensorSpec("y", F32, ()),), values, (), (copy(0, 1, "again"), jump(0)), 0, 0)
    return ExecutionPlan((entry,), ())


CONTROL_MODELS = {
    "collatz": collatz,
    "positive": positive,
    "branches": branches,
    "triangle": triangle,
    "states": states,
    "endless": endless,
}
