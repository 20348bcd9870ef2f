"""Users' own operators that are tensor expressions: their tensors, their identity, and whether they are what they say they are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from tvm import s_tir, te, tirx
from tvm_ffi.structural import structural_walk

from aotc.errors import AotcError, BuildError
from aotc.ir.dims import DimExpr
from aotc.ir.expr import Call
from aotc.ir.types import TensorType, flatten
from aotc.lowering.scope import DimScope
from aotc.ops.base import Fusion
from aotc.ops.custom import CustomOpDef


def expression_tensors(op: CustomOpDef, node: Call, inputs: Sequence[te.Tensor], scope: DimScope) -> list[te.Tensor]:
    """The tensors that the user's expression makes. Raises BuildError where it fails or does not give what the shape rule says."""
    definition, where = op.definition, node.origin or op.name
    assert definition is not None and definition.expression is not None
    attributes: Any = node.attrs
    values = {name: _value(value, scope) for name, value in attributes.values}
    try:
        made = definition.expression(*inputs, **values)
    except AotcError:
        raise
    except Exception as error:  # the user's own function may raise anything
        raise BuildError(f"{where}: the expression of {op.name} failed: {type(error).__name__}: {error}") from error
    tensors = list(made) if isinstance(made, (list, tuple)) else [made]
    results = list(flatten(node.type))
    if len(tensors) != len(results) or not all(isinstance(tensor, te.Tensor) for tensor in tensors):
        raise BuildError(f"{where}: the expression of {op.name} must return {len(results)} tensors (te.compute), and returned {made!r}")
    for tensor, result in zip(tensors, results, strict=True):
        _check_type(tensor, result, scope, f"{where}: the expression of {op.name}")
    return tensors


def expression_digest(op: CustomOpDef, node: Call) -> str:
    """A digest of what the expression computes for this call: of the TIR, so that whatever it is made of counts.

    Raises BuildError as ``expression_tensors``, and where the operator's fusion kind is not true.
    """
    scope = DimScope()
    types = [tensor for arg in node.args for tensor in flatten(arg.type)]
    inputs = [te.placeholder(tuple(scope.expr(dim) for dim in t.shape), t.dtype, name=f"p{i}") for i, t in enumerate(types)]
    tensors = expression_tensors(op, node, inputs, scope)
    outputs = [each for each in tensors if not any(each.same_as(source) for source in inputs)]
    if not outputs:
        return "copy"
    func = te.create_prim_func([*inputs, *outputs, *scope.vars])
    _check_fusion(op, node, func)
    return hashlib.sha256(func.script().encode()).hexdigest()


def _value(value: Any, scope: DimScope) -> Any:
    if isinstance(value, DimExpr):
        return scope.expr(value)
    return tuple(_value(each, scope) for each in value) if isinstance(value, tuple) else value


def _check_type(tensor: te.Tensor, result: TensorType, scope: DimScope, what: str) -> None:
    try:
        shape: Any = tuple(scope.dim(extent) for extent in tensor.shape)
    except ValueError:
        shape = tuple(tensor.shape)
    if shape != result.shape or str(tensor.dtype) != result.dtype:
        found = f"{tensor.dtype}[{', '.join(map(str, shape))}]"
        raise BuildError(f"{what} gives {found}, and its shape rule says {result}; make them agree")


def _check_fusion(op: CustomOpDef, node: Call, func: tirx.PrimFunc) -> None:
    """Fusion and in-place results stand on what the operator says it is."""
    blocks: list[Any] = []
    structural_walk(func.body, (s_tir.SBlock, blocks.append))
    stages = [block for block in blocks if len(block.writes)]
    reduces = any(int(var.iter_type) != tirx.IterVar.DataPar for block in stages for var in block.iter_vars)
    moves = not all(_reads_in_place(block, op.fusion is Fusion.BROADCAST) for block in stages)
    if (reduces and op.fusion < Fusion.REDUCTION) or (moves and op.fusion <= Fusion.BROADCAST):
        what = "sums over elements" if reduces else "reads elements at other places than the one it writes"
        raise BuildError(
            f"{node.origin or op.name}: the operator {op.name} says that it is {op.fusion.name.lower()}, and its expression {what}; "
            "say another fusion, or 'opaque'"
        )


def _reads_in_place(block: Any, broadcasts: bool) -> bool:
    """Whether every element read stands where the one element written stands, counted from the last axis."""
    written = [each.min for each in block.writes[0].region]
    for read in block.reads:
        rank = len(read.region)
        if rank > len(written) or (rank != len(written) and not broadcasts and rank):
            return False
        for here, there, extent in zip(read.region, written[len(written) - rank :], read.source.shape, strict=True):
            if not (here.min.same_as(there) and _is_one(here.extent)) and not _is_one(extent):
                return False
    return True


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1
