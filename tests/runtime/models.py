"""Handwritten plans for the runtime's tests: each with its weights. The kernels are in csrc/kernels.c."""

from __future__ import annotations

import random
import struct

from aotc.ir.dims import Dim, symbol
from aotc.lowering.plan import Buffer, EntryPoint, ExecutionPlan, Kernel, Step, StepKind, Storage, Symbol, TensorSpec, Value
from tests.runtime.kernels import BIAS_RELU, F32, SCALE
from tests.runtime.models_control import CONTROL_MODELS
from tests.runtime.models_cuda import CUDA_MODELS

ROW_SUM, TWICE = Kernel("k_row_sum", 2, 2), Kernel("k_twice", 3, 1)
FAIL, WAIT, NOT = Kernel("k_fail_negative", 2, 0), Kernel("k_wait", 2, 0), Kernel("k_not", 3, 1)
FILL, CHECK, MIX = Kernel("k_fill", 1, 2), Kernel("k_check", 2, 2), Kernel("k_mix", 2, 1)
RELAY = Kernel("k_relay", 2, 1)

WEIGHTS = struct.pack("<16f", *(0.5 * j - 1 for j in range(8)), *(j - 3.0 for j in range(8)))  # w and b, which is at byte 64 below
PADDED_WEIGHTS = WEIGHTS[:32] + bytes(32) + WEIGHTS[32:]


def dense_entry(name: str = "main", rows: Dim = 4) -> EntryPoint:
    """y = relu(x * w + b) over rows of 8, by way of the arena; same = x."""
    values = (
        Value(F32, (rows, 8), Storage.INPUT),
        Value(F32, (8,), Storage.WEIGHT, 0, 0),
        Value(F32, (rows, 8), Storage.ARENA),
        Value(F32, (8,), Storage.WEIGHT, 0, 64),
        Value(F32, (rows, 8), Storage.OUTPUT, 0),
        Value(F32, (rows, 8), Storage.OUTPUT, 1),
    )
    steps = (
        Step(StepKind.KERNEL, (0, 1, 2), 1, 0, (8,), rows, "layer/scale", "multiply", rows * 8),
        Step(StepKind.KERNEL, (2, 3, 4), 1, 1, (8,), rows, "layer/relu", "add+relu", rows * 16),
        Step(StepKind.COPY, (0, 5), 1, source="same", label="copy"),
    )
    size = rows * 32
    fixed = isinstance(size, int)
    return EntryPoint(
        name,
        (TensorSpec("x", F32, (rows, 8)),),
        (TensorSpec("y", F32, (rows, 8)), TensorSpec("same", F32, (rows, 8))),
        values,
        (Buffer(size, 0, 1, 0 if fixed else None),),
        steps,
        size if isinstance(size, int) else None,
        size if isinstance(size, int) else None,
        () if fixed else (Symbol("rows", 0, 64, 0, 0),),
    )


def static() -> ExecutionPlan:
    return ExecutionPlan((dense_entry(),), (SCALE, BIAS_RELU))


def entries() -> ExecutionPlan:
    """The same layer under two names, once for any number of rows."""
    return ExecutionPlan((dense_entry("four"), dense_entry("any", symbol("rows", 0, 64))), (SCALE, BIAS_RELU))


def dynamic() -> ExecutionPlan:
    """x[batch, sequence, 8] and mask[batch, 2 * sequence]: total[batch, 8] = sum of x over sequence; wide[batch, 16] = total twice."""
    b, s = symbol("batch", 1, 64), symbol("sequence", 0, None)
    values = (
        Value(F32, (b, s, 8), Storage.INPUT, 0),
        Value(F32, (b, 8), Storage.ARENA, 0),
        Value(F32, (b, 8), Storage.OUTPUT, 0),
        Value(F32, (b, 8), Storage.ARENA, 1),
        Value(F32, (b, 16), Storage.OUTPUT, 1),
        Value(F32, (b * s, 8), Storage.ARENA, 2),
        Value(F32, (8,), Storage.WEIGHT, 0, 0),
        Value(F32, (b * s, 8), Storage.INPUT, 0),
    )
    steps = (
        Step(StepKind.KERNEL, (7, 6, 5), 1, 0, (8,), b * s, "scale", "multiply", b * s * 8),
        Step(StepKind.KERNEL, (0, 1), 1, 1, (s, 8), b, "sum", "sum", b * s * 8),
        Step(StepKind.COPY, (1, 2), 1, source="total", label="copy"),
        Step(StepKind.KERNEL, (1, 3, 4), 1, 2, (8,), b, "twice", "concat", 0),
    )
    buffers = (Buffer(b * 32, 1, 3), Buffer(b * 32, 3, 3), Buffer(b * s * 32, 0, 0))
    entry = EntryPoint(
        "main",
        (TensorSpec("x", F32, (b, s, 8)), TensorSpec("mask", "bool", (b, 2 * s))),
        (TensorSpec("total", F32, (b, 8)), TensorSpec("wide", F32, (b, 16))),
        values,
        buffers,
        steps,
        None,
        None,
        (Symbol("batch", 1, 64, 0, 0), Symbol("sequence", 0, None, 0, 1)),
    )
    return ExecutionPlan((entry,), (SCALE, ROW_SUM, TWICE))


def failing() -> ExecutionPlan:
    """y = x, where a negative x makes the kernel fail."""
    values = (Value(F32, (6,), Storage.INPUT), Value(F32, (6,), Storage.OUTPUT))
    steps = (Step(StepKind.KERNEL, (0, 1), 1, 0, (), 6, "guard", "identity"),)
    entry = EntryPoint("main", (TensorSpec("x", F32, (6,)),), (TensorSpec("y", F32, (6,)),), values, (), steps, 0, 0)
    return ExecutionPlan((entry,), (FAIL,))


def waiting() -> ExecutionPlan:
    """Runs until the int32 scalar `flag` is not 0."""
    values = (Value("int32", (), Storage.INPUT), Value("int32", (), Storage.OUTPUT))
    steps = (Step(StepKind.KERNEL, (0, 1), 1, 0, (), 1, "wait", "wait"),)
    entry = EntryPoint("main", (TensorSpec("flag", "int32", ()),), (TensorSpec("y", "int32", ()),), values, (), steps, 0, 0)
    return ExecutionPlan((entry,), (WAIT,))


def logic() -> ExecutionPlan:
    """y = not x for bool x[n], which may be empty; count, an int64 scalar."""
    n = symbol("n", 0, None)
    values = (Value("bool", (n,), Storage.INPUT), Value("bool", (n,), Storage.OUTPUT, 0), Value("int64", (), Storage.OUTPUT, 1))
    steps = (Step(StepKind.KERNEL, (0, 1, 2), 2, 0, (n,), 1, "not", "logical_not"),)
    outputs = (TensorSpec("y", "bool", (n,)), TensorSpec("count", "int64", ()))
    entry = EntryPoint("main", (TensorSpec("x", "bool", (n,)),), outputs, values, (), steps, None, None, (Symbol("n", 0, None, 0, 0),))
    return ExecutionPlan((entry,), (NOT,))


def patterns(buffers: int = 120, seed: int = 1) -> ExecutionPlan:
    """Buffers of random sizes and lifetimes, filled where they begin and checked where they end: a planner that lets two of
    them meet makes a kernel fail. Sizes grow with n, the extent of the input."""
    n = symbol("n", 1, 4096)
    source = random.Random(seed)
    words: list[Dim] = [source.choice([n, 2 * n, n + 100, 7, n * source.randint(1, 9) // 3]) for _ in range(buffers)]
    starts = [(source.random() * buffers, k) for k in range(buffers)]
    events = sorted([(at, 0, k) for at, k in starts] + [(at + source.random() ** 3 * 30, 1, k) for at, k in starts])
    first = {k: number for number, (_, kind, k) in enumerate(events) if kind == 0}
    last = {k: number for number, (_, kind, k) in enumerate(events) if kind == 1}
    values = [Value("int32", (words[k],), Storage.ARENA, k) for k in range(buffers)]
    values.append(Value("int32", (), Storage.OUTPUT))
    steps = []
    for _, kind, k in events:
        arguments = (k,) if kind == 0 else (k, buffers)
        steps.append(Step(StepKind.KERNEL, arguments, 1, kind, (words[k], k), 1, f"buffer{k}", "fill" if kind == 0 else "check"))
    arena = tuple(Buffer(4 * words[k], first[k], last[k]) for k in range(buffers))
    entry = EntryPoint(
        "main",
        (TensorSpec("x", "int8", (n,)),),
        (TensorSpec("y", "int32", ()),),
        tuple(values),
        arena,
        tuple(steps),
        None,
        None,
        (Symbol("n", 1, 4096, 0, 0),),
    )
    return ExecutionPlan((entry,), (FILL, CHECK))


def mixing() -> ExecutionPlan:
    """z = mix of the mix of x[rows, 32, 64]: many tasks, and steps that depend on each other."""
    rows = symbol("rows", 1, 4096)
    values = (
        Value(F32, (rows * 32, 64), Storage.INPUT),
        Value(F32, (rows * 32,), Storage.ARENA, 0),
        Value(F32, (rows, 32), Storage.ARENA, 0),
        Value(F32, (rows,), Storage.OUTPUT),
    )
    steps = (
        Step(StepKind.KERNEL, (0, 1), 1, 0, (64,), rows * 32, "inner", "mix"),
        Step(StepKind.KERNEL, (2, 3), 1, 0, (32,), rows, "outer", "mix"),
    )
    entry = EntryPoint(
        "main",
        (TensorSpec("x", F32, (rows, 32, 64)),),
        (TensorSpec("z", F32, (rows,)),),
        values,
        (Buffer(rows * 128, 0, 1),),
        steps,
        None,
        None,
        (Symbol("rows", 1, 4096, 0, 0),),
    )
    return ExecutionPlan((entry,), (MIX,))


def relay() -> ExecutionPlan:
    """y[rounds, 8] of x[8]: each row is made of all of the row before it, in a round of 8 tasks."""
    rounds = symbol("rounds", 1, 4096)
    values = (
        Value("int32", (8,), Storage.INPUT),
        Value("int32", (rounds, 8), Storage.OUTPUT),
        Value("int8", (rounds,), Storage.INPUT, 1),
    )
    step = Step(StepKind.KERNEL, (0, 1), 1, 0, (8,), rounds * 8, "relay", "relay", target=8)
    inputs = (TensorSpec("x", "int32", (8,)), TensorSpec("n", "int8", (rounds,)))
    entry = EntryPoint(
        "main", inputs, (TensorSpec("y", "int32", (rounds, 8)),), values, (), (step,), None, None, (Symbol("rounds", 1, 4096, 1, 0),)
    )
    return ExecutionPlan((entry,), (RELAY,))


MODELS = {
    "static": static,
    "entries": entries,
    "dynamic": dynamic,
    "failing": failing,
    "waiting": waiting,
    "logic": logic,
    "patterns": patterns,
    "mixing": mixing,
    "relay": relay,
    **CONTROL_MODELS,
    **CUDA_MODELS,
}
