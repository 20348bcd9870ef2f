"""What a schedule is: a rule that arranges the loops of a fused function, or says that it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tvm import s_tir, tirx

from aotc.ir.expr import Call, Function
from aotc.targets.base import Target
from aotc.targets.schedules.choices import Choices

if TYPE_CHECKING:  # expressions of operators that are written as loops use what schedules are written with
    from aotc.lowering.scope import DimScope
    from aotc.lowering.tensors import TensorGraph

SCRATCH = "scratch_"
"""A buffer allocated at the root whose name begins so is a scratch parameter, whatever its size and use."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a rule gets. ``schedule`` is fresh and the rule may change it, even where it then gives up.

    ``anchor`` is the call that the function is built around: the one of the greatest fusion kind, the last of equals.
    ``function`` is the whole fused function. The PrimFunc in the schedule is named ``main``; its root block holds one block
    per stage in the order of computation. After scheduling, each loop nest at the root becomes a kernel of its own whose
    outermost parallel loop is the task range; a nest without one runs as a single task. Tensors that pass between nests
    become scratch. Only the outermost loop of a nest may be parallel. A local buffer that does not fit the stack
    (``tir_abi.STACK_LIMIT``) becomes full-size scratch too: tasks must then write disjoint parts of it.
    """

    schedule: s_tir.Schedule
    target: Target
    function: Function
    anchor: Call


Rule = Callable[[Work], s_tir.Schedule | None]
"""Returns the schedule, or ``None`` where the rule does not apply: the next one is then tried on a fresh schedule."""


@dataclass(frozen=True, slots=True)
class DirectWork:
    """What a kernel written as TIR is made from: the tensor expressions by node, and the dims of ``scope`` as variables.
    What it chooses between, it asks ``choices``."""

    graph: TensorGraph
    scope: DimScope
    target: Target
    function: Function
    anchor: Call
    choices: Choices = field(default_factory=Choices)


Direct = Callable[[DirectWork], "tirx.PrimFunc | None"]
"""Writes a whole kernel as TIR, or returns ``None`` where it does not apply. The PrimFunc (``s_tir`` form, with a root block)
has the function's inputs and then its outputs as buffers; its root loop nests follow the rules of ``Work``."""
