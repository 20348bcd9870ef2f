"""Compiled recurrent layers: block widths that leave tails, rows that share weights, lengths, symbolic steps and rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aotc import ops, targets
from aotc.ir.dims import symbol
from aotc.lowering.kernel import lower_function
from aotc.ops.base import OpDef
from aotc.ops.recurrent import ACTIVATIONS, ARGUMENTS, GATES, block_starts
from aotc.targets import schedules
from tests.lowering.batch import Case, check

STEPS, ROWS = symbol("t", 0), symbol("b", 0)


def packed(weight: np.ndarray, block: int) -> np.ndarray:
    """[gates, units, inputs] as kernels read it."""
    return np.stack([weight[:, start : start + block].transpose(2, 0, 1) for start in block_starts(weight.shape[1], block)])


def case(
    op: OpDef,
    steps: int,
    rows: int,
    units: int,
    block: int,
    dynamic: bool = False,
    outputs: int = 0,
    dtype: str = "float32",
    steps_only: bool = False,
    **attrs: Any,
) -> Case:
    random, gates = np.random.default_rng(units), GATES[op]
    inputs = outputs or units

    def normal(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.5).astype(dtype)

    arrays = {
        "gates": normal(steps, rows, gates * units), "h": normal(rows, inputs),
        "recurrent": packed(normal(gates, units, inputs) * np.dtype(dtype).type(min(1, 6 / inputs**0.5)), block),
        "c": normal(rows, units), "peepholes": normal(3, units), "projected": packed(normal(1, inputs, units), 4 if inputs >= 4 else 1),
        "reset_bias": normal(units), "lengths": random.integers(0, steps + 1, rows).astype("int32"),
    }  # fmt: skip
    names = ARGUMENTS[op](op.attributes(**attrs))
    symbolic = {"gates": (STEPS, ROWS), "h": (ROWS,), "c": (ROWS,), "lengths": (ROWS,)} if dynamic else {"gates": (STEPS,)}
    shapes = (
        [(*symbolic.get(name, ()), *arrays[name].shape[len(symbolic.get(name, ())) :]) for name in names] if dynamic or steps_only else None
    )
    return Case(op, [arrays[name] for name in names], attrs, shapes, {"t": steps, "b": rows} if dynamic else {"t": steps}, scale=20)


TABLE = [
    case(ops.lstm, 5, 1, 40, 16), case(ops.lstm, 5, 3, 40, 40), case(ops.lstm, 4, 9, 16, 8), case(ops.lstm, 4, 9, 20, 8, dynamic=True),
    case(ops.lstm, 3, 2, 5, 4, peepholes=True, clip=0.3), case(ops.lstm, 3, 2, 3, 2, input_forget=True, reverse=True),
    case(ops.lstm, 6, 4, 20, 16, lengths=True, reverse=True), case(ops.lstm, 6, 4, 20, 16, outputs=7, projected=True),
    case(ops.lstm, 6, 17, 20, 16, outputs=3, projected=True, dynamic=True), case(ops.lstm, 4, 5, 40, 16, dtype="float64"),
    case(ops.lstm, 0, 2, 8, 8, dynamic=True), case(ops.lstm, 2, 0, 8, 8, dynamic=True), case(ops.lstm, 1, 1, 1, 1),
    case(ops.gru, 5, 1, 40, 16), case(ops.gru, 5, 9, 33, 16, dynamic=True), case(ops.gru, 5, 5, 7, 4, reset_after=True),
    case(ops.gru, 5, 5, 33, 16, dynamic=True, reset_after=True, lengths=True, clip=0.5), case(ops.gru, 5, 33, 24, 8, reset_after=True),
    case(ops.rnn, 5, 5, 33, 16), case(ops.rnn, 5, 2, 1, 1, activations=("relu",)),
    *(case(ops.rnn, 3, 2, 9, 8, activations=(name,), alphas=(0.7,), betas=(0.4,)) for name in ACTIVATIONS),
]  # fmt: skip


SHARED = [
    case(ops.lstm, 5, 1, 160, 16), case(ops.lstm, 4, 3, 136, 16, reverse=True, peepholes=True), case(ops.lstm, 0, 1, 136, 8, steps_only=True),
    case(ops.lstm, 3, 1, 136, 8, steps_only=True), case(ops.gru, 5, 1, 152, 16, reset_after=True), case(ops.rnn, 4, 2, 260, 16),
]  # fmt: skip
"""Layers of few rows and so many units that threads share each step."""


def test_layers() -> None:
    check(TABLE)


def test_units_of_a_step_are_tasks() -> None:
    check(SHARED)
    for each in SHARED:
        lowered = lower_function(each.function(), targets.get("host"))
        assert [kernel.round > 1 for kernel in lowered.kernels] == [True]


def test_the_expressions_alone_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tiles that targets choose."""
    for op in GATES:
        monkeypatch.delitem(schedules.DIRECT, op.name)
    check([TABLE[i] for i in (1, 3, 4, 6, 8, 14, 16, 18)])


def test_short_vectors_multiplied_by_one_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of several vectors; elements of the state come as vectors."""
    host = targets.get("host")
    monkeypatch.setattr(schedules.recurrent, "by_element", lambda target, dtype: dtype == "float32")
    monkeypatch.setattr(targets, "get", lambda name: replace(host, vector_bits=128, vector_registers=32))
    check([TABLE[i] for i in (0, 3, 6, 14, 16, 18)])


def test_a_state_rounded_to_8_bits() -> None:
    """Values on the border of two steps may round either way, so that one run in thousands differs; these do not."""
    check([case(ops.lstm, 4, rows, 20, 16, quantised=True) for rows in (1, 3)])
