"""Recurrent layers on the GPU: all their forms beside ONNX Runtime, and sizes that cut a block's work differently beside PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import aotc
from aotc import ops, targets
from aotc.ir.expr import Expr, Function, Var
from aotc.ir.types import TensorType
from aotc.lowering.cuda.kernel import NotOnCuda, lower_function
from aotc.lowering.placement import place_devices
from aotc.ops.base import OpDef
from aotc.passes.pipeline import optimise
from aotc.targets.schedules.cuda.recurrent import THREADS
from tests.agreement import assert_agrees
from tests.cuda.corpus import Subject
from tests.cuda.shapes import ShapeCase, normal
from tests.cuda.shapes_run import ORDERS, lowered, outcome
from tests.cuda.software import host_with_gpu, run
from tests.e2e.reference import onnxruntime_outputs
from tests.e2e.test_recurrent import FORMS, model_of
from tests.passes.helpers import module


@pytest.mark.parametrize("op", FORMS)
def test_onnx(op: str, tmp_path: Path) -> None:
    """Steps and rows are known at run time."""
    model, feeds = model_of(FORMS[op], frozen=True)
    report = aotc.compile(model, host_with_gpu(), tmp_path / "model.so", device="cuda")
    on_cpu = {function.name: placed.reason for function, placed in report.placement.items() if not placed.on_device}
    assert not [name for name in on_cpu if op.lower() in name], on_cpu
    wanted = onnxruntime_outputs(model, feeds)
    for order in ORDERS:
        for (name, want), got in zip(wanted.items(), run(report, feeds, tmp_path, order=order), strict=True):
            assert_agrees(got, want, 1e-5, f"{name} of {FORMS[op][int(name[1:].partition('_')[0])]}")


# layer, steps, rows, units, outputs where they are projected, packed in blocks of
SIZES = (
    ("lstm", 3, 1, 128, 0, 128), ("lstm", 2, 32, 24, 0, 24), ("lstm", 2, 64, 16, 0, 16), ("lstm", 2, 1, 530, 0, 530), ("lstm", 3, 2, 40, 0, 16),
    ("lstm", 3, 3, 70, 33, 16), ("lstm", 2, 1, 1, 0, 1), ("gru", 3, 1, 128, 0, 128), ("gru", 2, 32, 33, 0, 8), ("gru", 2, 1, 513, 0, 513), ("rnn", 4, 1, 300, 0, 300),
    ("rnn", 3, 64, 31, 0, 4),
)  # fmt: skip
LAYERS: dict[str, tuple[OpDef, int, type[torch.nn.RNNBase]]] = {
    "lstm": (ops.lstm, 4, torch.nn.LSTM), "gru": (ops.gru, 3, torch.nn.GRU), "rnn": (ops.rnn, 1, torch.nn.RNN)
}  # fmt: skip


def subject(layer: str, steps: int, rows: int, units: int, outputs: int, block: int, reverse: bool = False) -> Subject:
    """What PyTorch calls layers: its projected input is ours, through a weight that changes nothing."""
    op, gates, module = LAYERS[layer]
    wide = outputs or units
    weight = normal(gates, units, wide, seed=1) / np.float32(wide**0.5)
    given = [normal(steps, rows, gates * units), _packed(weight, block), normal(rows, wide, seed=2)]
    given += [normal(rows, units, seed=3)] if layer == "lstm" else []
    projection = normal(1, wide, units, seed=4) / np.float32(units**0.5)
    given += [_packed(projection, min(block, wide))] if outputs else []
    given += [normal(units, seed=5)] if layer == "gru" else []

    def body(*args: Expr) -> Expr:
        attrs = {"projected": bool(outputs)} if layer == "lstm" else {"reset_after": True} if layer == "gru" else {}
        return op(*args, reverse=reverse, **attrs)

    def right(x: Any, _: Any, h: Any, *rest: Any) -> Any:
        cell = module(gates * units, units, proj_size=outputs).double() if outputs else module(gates * units, units).double()
        named = dict(cell.named_parameters())
        with torch.no_grad():
            named["weight_ih_l0"].copy_(torch.eye(gates * units))
            named["weight_hh_l0"].copy_(torch.from_numpy(weight.reshape(gates * units, wide)))
            for bias in ("bias_ih_l0", "bias_hh_l0"):
                named[bias].zero_()
            if layer == "gru":
                named["bias_hh_l0"][2 * units :] = rest[-1]
            if outputs:
                named["weight_hr_l0"].copy_(torch.from_numpy(projection[0]))
            y, last = cell(x.flip(0) if reverse else x, (h[None], rest[0][None]) if layer == "lstm" else h[None])
        return [y.flip(0) if reverse else y, *(state[0] for state in (last if layer == "lstm" else [last]))]

    name = f"{layer} {steps}x{rows} of {units}{f' to {outputs}' if outputs else ''}{' reversed' if reverse else ''}"
    return Subject(name, tuple(given), body, right)


def _packed(weight: np.ndarray, block: int) -> np.ndarray:
    """[gates, units, inputs] in blocks of units, the last of which overlaps the one before it."""
    units = weight.shape[1]
    starts = [min(first, units - block) for first in range(0, units, block)]
    return np.stack([weight[:, start : start + block].transpose(2, 0, 1) for start in starts])


CASES = [
    ShapeCase(subject(*sizes, reverse=bool(number % 2)), ("jetson-orin", "jetson-nano", "jetson-thor")[number % 3])
    for number, sizes in enumerate(SIZES)
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sizes(case: ShapeCase) -> None:
    made = lowered(case)
    assert not isinstance(made, str), made
    (kernel,) = made.kernels
    assert kernel.block[0] <= THREADS  # type: ignore[union-attr]
    assert outcome(case, made) == ""


def test_states_that_shared_memory_does_not_hold() -> None:
    units = 30000
    shapes = ((1, 1, units), (1, units, 1, units), (1, units))
    params = [Var(f"x{i}", TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    made = lower_function(Function(tuple(params), ops.rnn(*params), "layer", primitive=True), targets.get("jetson-orin"))
    assert isinstance(made, NotOnCuda) and "no CUDA schedule" in made.reason


def test_rounded_states_are_the_cpus() -> None:
    x = module(
        "(%g: float32[2, 1, 16], %h: float32[1, 4], %c: float32[1, 4]) {\n %0 = lstm(%g, $w, %h, %c) {quantised=true}\n"
        " %1 = %0[0]\n return %1\n}", {"w": np.zeros((1, 4, 4, 4), np.float32)},
    )  # fmt: skip
    (placed,) = place_devices(optimise(x, targets.get("jetson-orin"))).values()
    assert not placed.on_device and "rounded together" in placed.reason
