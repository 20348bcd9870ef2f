"""A fused function to machine code: tensor expressions, a schedule, TIR, an object file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

import tvm
from tvm import s_tir, te, tirx

from aotc.errors import BuildError
from aotc.ir.dims import bounds
from aotc.ir.expr import Call, Constant, Expr, Function, Parameter, Tuple, TupleGetItem, Var
from aotc.ir.types import TensorType, flatten
from aotc.ir.visitor import post_order
from aotc.lowering.compiled import CompiledFunction
from aotc.lowering.identity import function_flops, function_key, function_label
from aotc.lowering.ops import EXPRESSIONS
from aotc.lowering.scope import INT32_MAX, DimScope
from aotc.lowering.tir_abi import compile_function
from aotc.ops.base import OpDef
from aotc.targets import Target
from aotc.targets.schedules import DIRECT, Work, rules_for


def lower_function(function: Function, target: Target) -> CompiledFunction:
    """Machine code for a primitive function.

    Its parameters are tensors; its body is calls of operators over them, tuples of these, and scalar constants. Raises
    BuildError, which names the function's origin, where it cannot be lowered.
    """
    check_sizes(function)
    symbol = f"{function_label(function)}_{function_key(function, target)[:16]}"
    scope = DimScope()
    scheduled = scheduled_function(function, target, scope)
    return compile_function(scheduled, len(function.params), scope, target, symbol, function_flops(function))


def check_sizes(function: Function) -> None:
    """Raises BuildError for a tensor of 2^31 elements or more: kernels index with int32. Dims known at run time are
    checked by the session."""
    for expr in post_order(*function.params, function.body):
        for tensor in flatten(expr.type):
            low, _ = bounds(tensor.size)
            if low is not None and low > INT32_MAX:
                raise BuildError(
                    f"{_where(function)}: a tensor {tensor} has 2^31 elements or more, and kernels index with 32 bits; make it smaller or split it"
                )


def scheduled_function(function: Function, target: Target, scope: DimScope) -> tirx.PrimFunc:
    """The scheduled PrimFunc over the function's inputs, then its outputs; dims become variables of ``scope``."""
    anchor = anchor_of(function)
    for direct in DIRECT.get(anchor.op.name, ()):
        written = direct(function, target, scope)
        if written is not None:
            return written
    func = tensor_function(function, scope)
    for rule in rules_for(anchor.op.name):
        sch = s_tir.Schedule(tvm.IRModule({"main": func}), debug_mask="none")
        try:
            scheduled = rule(Work(sch, target, function, anchor))
        except s_tir.ScheduleError as error:
            if os.environ.get("AOTC_DEBUG"):
                print(f"{_where(function)}: {rule.__module__} does not apply: {error}", file=sys.stderr)
            continue
        if scheduled is not None:
            return scheduled.mod["main"]
    raise BuildError(f"{_where(function)}: no schedule applies to {function_label(function)}, and the last one should always")


def tensor_function(function: Function, scope: DimScope) -> tirx.PrimFunc:
    """The unscheduled PrimFunc of a function: one block per stage."""
    values: dict[int, list[te.Tensor]] = {}
    names = _names()
    for param in function.params:
        if not isinstance(param.type, TensorType):
            raise BuildError(f"{_where(function)}: the parameter {param.name} of a fused function must be a tensor, not {param.type}")
        values[id(param)] = [te.placeholder(_shape(param.type, scope), param.type.dtype, name=next(names))]
    for expr in post_order(function.body):
        if id(expr) not in values:
            values[id(expr)] = _tensors(expr, values, scope, function)
    inputs = [values[id(param)][0] for param in function.params]
    outputs = _distinct(values[id(function.body)], inputs)
    return te.create_prim_func([*inputs, *outputs])


def anchor_of(function: Function) -> Call:
    """The call that a function is built around: the one of the greatest fusion kind, the last of equals."""
    calls = [node for node in post_order(function.body) if isinstance(node, Call)]
    if not calls:
        raise BuildError(f"{_where(function)}: a fused function computes nothing")
    return max(reversed(calls), key=lambda call: call.op.fusion if isinstance(call.op, OpDef) else -1)


def _tensors(expr: Expr, values: dict[int, list[te.Tensor]], scope: DimScope, function: Function) -> list[te.Tensor]:
    if isinstance(expr, Tuple):
        return [tensor for field in expr.fields for tensor in values[id(field)]]
    if isinstance(expr, TupleGetItem):
        return [values[id(expr.value)][expr.index]]
    if isinstance(expr, (Constant, Parameter)):
        return [_scalar(expr, function)]
    if not isinstance(expr, Call) or isinstance(expr.op, (Var, Function)):
        raise BuildError(f"{_where(function)}: a fused function holds calls of operators only, not {type(expr).__name__}")
    if expr.op.name not in EXPRESSIONS:
        raise BuildError(f"{expr.origin or _where(function)}: the operator {expr.op.name} has no tensor expression")
    inputs = [tensor for arg in expr.args for tensor in values[id(arg)]]
    results = list(flatten(expr.type))
    tensors = list(EXPRESSIONS[expr.op.name](expr.attrs, inputs, results, scope))
    for tensor, result in zip(tensors, results, strict=True):
        if str(tensor.dtype) != result.dtype or len(tensor.shape) != result.rank:
            raise BuildError(
                f"{expr.origin or _where(function)}: the expression of {expr.op.name} gives {tensor.dtype} of rank {len(tensor.shape)}, not {result}"
            )
    return tensors


def _scalar(expr: Constant | Parameter, function: Function) -> te.Tensor:
    data = expr.data
    if data.size != 1:
        raise BuildError(
            f"{_where(function)}: a constant {expr.type} stands inside a fused function; only single elements may, the rest are parameters"
        )
    value = data.reshape(()).item()
    return te.compute(data.shape, lambda *_: tirx.const(value, str(data.dtype)), name="constant")


def _shape(tensor: TensorType, scope: DimScope) -> tuple[object, ...]:
    return tuple(scope.expr(dim) for dim in tensor.shape)


def _names() -> Iterator[str]:
    number = 0
    while True:
        yield f"p{number}"
        number += 1


def _distinct(outputs: Sequence[te.Tensor], inputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Outputs that are computed, each its own: copies of those that are inputs, or that come twice or feed others."""
    seen: list[te.Tensor] = list(inputs)
    result = []
    for output in outputs:
        if any(output.same_as(other) for other in seen):
            source = output
            output = te.compute(source.shape, lambda *i, source=source: source(*i), name="copy")
        seen.append(output)
        result.append(output)
    return result


def _where(function: Function) -> str:
    return function.origin or function.name or "fused function"
