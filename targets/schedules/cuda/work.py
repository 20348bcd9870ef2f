"""What a CUDA schedule gets, and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aotc.ir.expr import Call, Function
from aotc.targets.base import Gpu, Target
from aotc.targets.schedules.choices import Choices
from aotc.targets.schedules.cuda.launch import Launch
from aotc.targets.schedules.program import Program

if TYPE_CHECKING:  # as in targets/schedules/base.py
    from aotc.lowering.scope import DimScope
    from aotc.lowering.tensors import TensorGraph


@dataclass(frozen=True, slots=True)
class Work:
    """A fused function: its tensor expressions, the call that it is built around, the GPU. A schedule asks ``choices`` where it
    could do one thing or another."""

    graph: TensorGraph
    scope: DimScope
    target: Target
    gpu: Gpu
    function: Function
    anchor: Call
    choices: Choices = field(default_factory=Choices)


Schedule = Callable[[Work, Program], "list[Launch] | None"]
"""The launches of a function over the buffers of its program, or ``None`` where the schedule does not apply."""
