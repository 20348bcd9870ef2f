"""Products of bfloat16 that a GPU's tensor cores multiply: each reads its operands as they are, and widens them itself.

Networks in bfloat16 compute in float32 between casts. Operands of a product that are such casts, and weights that are bfloat16s widened
beforehand, become casts of its own, which ``fuse_operators`` puts into its kernel.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Expr, Module, with_children
from aotc.ir.types import TensorType
from aotc.ir.visitor import rewrite_module
from aotc.passes.options import Options
from aotc.passes.weights import Weights, array_of

PRODUCTS = frozenset({"conv", "dense", "matmul"})
MOVES = frozenset({"reshape", "transpose", "layout_transform"})
"""What casts may stand behind as well as before."""


def join_bfloats(module: Module, options: Options) -> Module:
    """Where ``options.target`` has a GPU that multiplies bfloat16."""
    target = options.target
    if target is None or target.gpu is None or "bfloat16" not in target.gpu.tensor_types:
        return module
    weights = Weights(module)
    return rewrite_module(module, lambda node: _joined(node, weights))


def is_widened(node: Expr) -> bool:
    """Whether ``node`` is a cast of bfloat16 to float32."""
    return ops.cast.is_call(node) and _dtype(node) == "float32" and _dtype(cast(Call, node).args[0]) == "bfloat16"


def _dtype(node: Expr) -> str:
    return node.type.dtype if isinstance(node.type, TensorType) else ""


def _joined(node: Expr, weights: Weights) -> Expr | None:
    if not isinstance(node, Call) or getattr(node.op, "name", "") not in PRODUCTS or _dtype(node) != "float32":
        return None
    narrow = [_narrow(arg, weights) for arg in node.args]
    if None in narrow or all(is_widened(arg) for arg in node.args):
        return None
    return with_children(node, [ops.cast(each, dtype="float32", origin=node.origin) for each in cast("list[Expr]", narrow)])


def _narrow(operand: Expr, weights: Weights) -> Expr | None:
    """The bfloat16s that an operand is made of; ``None`` where it is not."""
    if is_widened(operand):
        return cast(Call, operand).args[0]
    if isinstance(operand, Call) and getattr(operand.op, "name", "") in MOVES:
        source = _narrow(operand.args[0], weights)
        return None if source is None else with_children(operand, [source])
    data = array_of(operand)
    if data is None or data.dtype != np.float32 or (data.view(np.uint32) & 0xFFFF).any():
        return None
    return weights.derive([operand], "bfloat", lambda: data.astype("bfloat16"))
