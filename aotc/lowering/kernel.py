"""A fused function to machine code: tensor expressions, a schedule, TIR, an object file."""

from __future__ import annotations

import sys
from dataclasses import replace

import tvm
from tvm import s_tir, tirx

from aotc import knobs
from aotc.errors import BuildError
from aotc.ir.dims import bounds
from aotc.ir.expr import Call, Function
from aotc.ir.types import flatten
from aotc.ir.visitor import post_order
from aotc.lowering.bits import over_bits
from aotc.lowering.compiled import TRACE, CompiledFunction, Selection
from aotc.lowering.extremes import with_extremes
from aotc.lowering.identity import function_flops, function_key, function_label
from aotc.lowering.scope import INT32_MAX, DimScope
from aotc.lowering.tensors import tensor_graph, where, without_dims
from aotc.lowering.tir_abi import compile_function
from aotc.ops.base import OpDef
from aotc.targets import Target
from aotc.targets.schedules import DIRECT, DirectWork, Work, rules_for
from aotc.targets.schedules.choices import Choices


def lower_function(function: Function, target: Target, in_place: int | None = None, selection: Selection | None = None) -> CompiledFunction:
    """Machine code for a primitive function.

    Its parameters are tensors; its body is calls of operators over them, tuples of these, and scalar constants. The code
    writes its one result over the parameter numbered ``in_place``, if any, and its schedule takes what ``selection`` says where it
    has a choice. Raises BuildError, which names the function's origin, where it cannot be lowered.
    """
    check_sizes(function)
    symbol = f"{function_label(function)}_{function_key(function, target, in_place, selection)[:16]}"
    scope = DimScope()
    choices = Choices(selection or {})
    scheduled = scheduled_function(over_bits(function), target, scope, choices)
    scheduled = with_extremes(scheduled, target)
    compiled = compile_function(scheduled, len(function.params), scope, target, symbol, function_flops(function), in_place)
    return replace(compiled, choices=tuple(choices.offered.items()))


def check_sizes(function: Function) -> None:
    """Raises BuildError for a tensor of 2^31 elements or more: kernels index with int32. Dims known at run time are
    checked by the session."""
    for expr in post_order(*function.params, function.body):
        for tensor in flatten(expr.type):
            low, _ = bounds(tensor.size)
            if low is not None and low > INT32_MAX:
                raise BuildError(
                    f"{where(function)}: a tensor {tensor} has 2^31 elements or more, and kernels index with 32 bits; make it smaller"
                )


def scheduled_function(function: Function, target: Target, scope: DimScope, choices: Choices | None = None) -> tirx.PrimFunc:
    """The scheduled PrimFunc over the function's inputs, then its outputs; dims become variables of ``scope``. ``choices`` says
    what to choose, and gets what was offered."""
    choices = choices or Choices()
    anchor = anchor_of(function)
    graph = tensor_graph(function, scope)
    if TRACE in choices.selection:
        from aotc.lowering.meta_schedule import replayed

        if (found := replayed(graph.prim_func(with_dims=True), choices.selection[TRACE])) is not None:
            return without_dims(found)
    for direct in DIRECT.get(anchor.op.name, ()):
        written = direct(DirectWork(graph, scope, target, function, anchor, asked := Choices(choices.selection)))
        if written is not None:
            choices.offered.update(asked.offered)  # not what a kernel offered that then did not apply
            return written
    func = graph.prim_func(with_dims=True)
    for rule in rules_for(anchor.op.name):
        sch = s_tir.Schedule(tvm.IRModule({"main": func}), debug_mask="none")
        try:
            scheduled = rule(Work(sch, target, function, anchor))
        except s_tir.ScheduleError as error:
            if knobs.DEBUG.get():
                print(f"{where(function)}: {rule.__module__} does not apply: {error}", file=sys.stderr)
            continue
        if scheduled is not None:
            return without_dims(scheduled.mod["main"])
    raise BuildError(f"{where(function)}: no schedule applies to {function_label(function)}, and the last one should always")


def anchor_of(function: Function) -> Call:
    """The call that a function is built around: the one of the greatest fusion kind, the last of equals."""
    calls = [node for node in post_order(function.body) if isinstance(node, Call)]
    if not calls:
        raise BuildError(f"{where(function)}: a fused function computes nothing")
    return max(reversed(calls), key=lambda call: call.op.fusion if isinstance(call.op, OpDef) else -1)
