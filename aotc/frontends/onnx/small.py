"""Types of 16 bits and fewer in ONNX: stored as they are, computed in float32 or int32.

Operators that only move elements work on them as they come. For every other operator the inputs become wide, and those outputs
that ONNX's schema gives the type of such an input become small again.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from aotc import ops
from aotc.frontends.onnx.functions import domain_of, schema_of
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.ir.expr import Expr
from aotc.ir.types import SMALL, TensorType
from aotc.ops.small import wide_dtype

MOVING = frozenset([
    "BitCast", "Cast", "CastLike", "Concat", "DepthToSpace", "DequantizeLinear", "Dropout", "EyeLike", "Expand", "Flatten",
    "Gather", "GatherElements", "GatherND", "Identity", "If", "Loop", "OneHot", "Pad", "QLinearMatMul", "QuantizeLinear",
    "Reshape", "ReverseSequence", "Scan", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose",
    "Trilu", "Unsqueeze", "Where", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceAt", "SequenceMap",
    "SequenceLength", "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement",
])  # fmt: skip
"""Operators whose handlers take every type as it is."""


def apply(handler: Handler, node: Node) -> Results:
    """What ``handler`` builds for ``node``."""
    small = [is_small(expr) for expr in node.inputs]
    moves = domain_of(node.proto.domain) == "" and node.proto.op_type in MOVING
    if moves or not any(small):
        return handler(node)
    before = [node.dtype(expr) if expr is not None and found else "" for expr, found in zip(node.inputs, small, strict=True)]
    node.inputs = [
        node.call(ops.cast, expr, dtype=wide_dtype(dtype)) if dtype and expr else expr for expr, dtype in zip(node.inputs, before)
    ]
    results = handler(node)
    made = list(results) if isinstance(results, (list, tuple)) else [results]
    dtypes = _output_dtypes(node, before, len(made))
    return [_narrowed(node, expr, dtype) for expr, dtype in zip(made, dtypes, strict=True)]  # type: ignore[arg-type]


def is_small(expr: Expr | None) -> bool:
    return expr is not None and isinstance(expr.type, TensorType) and expr.type.dtype in SMALL


def _narrowed(node: Node, expr: Expr | None, dtype: str) -> Expr | None:
    if expr is None or not dtype or not isinstance(expr.type, TensorType) or expr.type.dtype != wide_dtype(dtype):
        return expr
    return node.call(ops.cast, expr, dtype=dtype)


def _output_dtypes(node: Node, inputs: list[str], count: int) -> list[str]:
    """Per output the small dtype that it has to be of, '' for none. Without a schema, that of the first small input."""
    schema = schema_of(node.proto, node.opset)
    if schema is None:
        return [next(filter(None, inputs), "")] * count
    bound = _bound(schema, inputs)
    return [bound.get(_formal(schema.outputs, i), "") for i in range(count)]


def _bound(schema: onnx.defs.OpSchema, inputs: list[str]) -> Mapping[str, str]:
    """The small dtypes by the schema's name for the type."""
    return {_formal(schema.inputs, i): dtype for i, dtype in reversed(list(enumerate(inputs))) if dtype}


def _formal(formals: list[onnx.defs.OpSchema.FormalParameter], index: int) -> str:
    """The name of the type of a parameter; a variadic last one stands for all that follow."""
    return str(formals[min(index, len(formals) - 1)].type_str) if formals else ""
