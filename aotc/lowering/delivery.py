"""Results get to their places: the outputs and states of an entry point, what a branch or an iteration leaves."""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.types import TensorType
from aotc.lowering import plan
from aotc.lowering.plan import StepKind, Storage
from aotc.lowering.recorder import Place
from aotc.lowering.residence import DEVICE, HOST, Residence


def deliver(residence: Residence, wanted: Sequence[tuple[int, Place]], origins: Sequence[str]) -> list[int]:
    """Copies values to their places where they were not computed there; the values that lie there then. No place is written while
    a value that is still to be copied lies in it: such a value moves to a buffer first."""
    recorder = residence.recorder
    delivered = [value for value, _ in wanted]
    pending = [number for number, (value, place) in enumerate(wanted) if recorder.place(value) != place]
    targets = {(wanted[number][1].storage, wanted[number][1].index) for number in pending}
    for number in pending:
        held = recorder.values[delivered[number]]
        if (held.storage, held.index) in targets:
            moved = recorder.buffer(TensorType(held.shape, held.dtype))
            delivered[number] = copied(residence, delivered[number], moved, origins[number])
    for number in pending:
        held = recorder.values[delivered[number]]
        target = recorder.value(TensorType(held.shape, held.dtype), wanted[number][1])
        delivered[number] = copied(residence, delivered[number], target, origins[number])
    return delivered


def copied(residence: Residence, value: int, target: int, origin: str) -> int:
    """``target`` with the content of ``value``, copied where that is if both are there."""
    recorder = residence.recorder
    where = residence.only_on_device(value) and not recorder.is_growing(target)
    residence.require([value], where, origin)
    recorder.copy(value, target, origin, where)
    residence.made(target, where)
    return target


def hand_over(residence: Residence, delivered: Sequence[int]) -> None:
    """Outputs get to the caller's memory, wherever that is, and states to the host."""
    recorder = residence.recorder
    states = [value for value in delivered if recorder.values[value].storage is Storage.STATE]
    residence.require(states, HOST, "")
    for where in (DEVICE, HOST):
        outputs = [
            value
            for value in delivered
            if recorder.values[value].storage is Storage.OUTPUT
            and residence.only_on_device(value) is where
            and not recorder.is_growing(value)
        ]
        if outputs:
            recorder.step(plan.Step(StepKind.DELIVER, tuple(outputs), 0, label="deliver", target=int(where)))
