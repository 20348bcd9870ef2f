"""The greater and the lesser of two floats as single instructions, on machines whose instructions keep a NaN.

TIR has them as comparisons and selections (``ops.common.maximum`` and its kin): LLVM finds x86's maxps in the simple ones, but
Arm's fmax, which differs in the sign of a zero, only where it is asked for.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm_ffi.structural import structural_equal, structural_map

from aotc.lowering.ops import common
from aotc.targets import Target

Expr = Any
DTYPES = ("float32", "float64")


def with_extremes(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """``func`` with LLVM's maximum and minimum, which are NaN where either operand is, in place of selections that mean them."""
    if not target.extremes_keep_nan:
        return func
    return func.with_body(structural_map(func.body, (tirx.Select, _extreme)))


def _extreme(select: tirx.Select) -> Expr:
    """``select`` or, where it is of the form ``a > b ? a : b`` and is NaN where a or b is, LLVM's own operation."""
    condition, a, b = select.condition, select.true_value, select.false_value
    if str(select.ty) not in DTYPES:
        return select
    if isinstance(a, tirx.FloatImm) and not math.isnan(a.value):
        comparison = condition  # false beside a NaN, so that b stays
    elif isinstance(condition, tirx.Or) and structural_equal(_sides(condition.b), _sides(common.is_nan(a))):
        comparison = condition.a
    else:
        return select
    sides = _sides(comparison)
    if structural_equal(sides, [a, b]):
        name = "llvm.minimum"
    elif structural_equal(sides, [b, a]):
        name = "llvm.maximum"
    else:
        return select
    return tirx.call_llvm_pure_intrin(str(select.ty), name, a, b)


def _sides(comparison: Expr) -> list[Expr]:
    """The lesser and the greater side of a comparison, nothing of anything else."""
    if isinstance(comparison, tirx.LT):
        return [comparison.a, comparison.b]
    return [comparison.b, comparison.a] if isinstance(comparison, tirx.GT) else []
