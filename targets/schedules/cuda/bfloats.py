"""Products of bfloat16: kernels see its bits, which they widen to float32 to compute with; tensor cores take the bits themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_equal

from aotc.lowering.ops.small import decoded_bfloat
from aotc.targets.schedules.cuda.contraction import Contraction
from aotc.targets.schedules.rewrite import IF_THEN_ELSE
from aotc.targets.schedules.stages import loads_of

Expr = Any

BITS = "uint16"


def over_bits(problem: Contraction) -> Contraction:
    """The same with bits as factors, where both are widened ones."""
    left, right = _bits(problem.left), _bits(problem.right)
    return problem if left is None or right is None else replace(problem, left=left, right=right)


def _bits(value: Expr) -> Expr | None:
    if isinstance(value, tvm.ir.Call) and value.op.same_as(IF_THEN_ELSE):
        condition, inside, outside = value.args
        bits = _bits(inside)
        zero = isinstance(outside, tirx.FloatImm) and float(outside.value) == 0
        return tirx.if_then_else(condition, bits, tirx.const(0, BITS)) if bits is not None and zero else None
    loads = loads_of(value)
    if not loads or str(loads[0].source.dtype) != BITS:
        return None
    return loads[0] if structural_equal(value, decoded_bfloat(loads[0])) else None
