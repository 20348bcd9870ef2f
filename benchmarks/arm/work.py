"""Multiply-accumulates of the algorithms that a build chose: Winograd's tiles need fewer than the model's definition says."""

from __future__ import annotations

import math
from typing import Any

from aotc.ir.expr import Call, Function, Module
from aotc.ir.types import TensorType
from aotc.ir.visitor import all_functions, post_order
from aotc.ops.winograd import KERNEL


def saved_by_winograd(module: Module) -> int:
    """How many fewer a module after the pipeline computes, of fixed shapes, each fused function counted as often as it is called."""
    calls = [node for function in all_functions(module) for node in post_order(function.body) if isinstance(node, Call)]
    fused = [node.op for node in calls if isinstance(node.op, Function)]
    inner = [node for function in fused for node in post_order(function.body) if isinstance(node, Call)]
    return sum(_saved(call) for call in inner if not isinstance(call.op, Function) and call.op.name == "winograd_conv")


def _saved(call: Call) -> int:
    attrs: Any = call.attrs
    result, weight = call.type, call.args[1].type
    assert isinstance(result, TensorType)
    assert isinstance(weight, TensorType)
    batch, _, *extents, _ = result.shape
    products = math.prod(_products(int(extent), attrs.tile) for extent in extents)  # type: ignore[arg-type]
    channels = weight.shape[2]
    return batch * channels * attrs.out_channels * (KERNEL**2 * math.prod(extents) - products)  # type: ignore[operator, arg-type, no-any-return]


def _products(extent: int, tile: int) -> int:
    """Along one axis: those of whole tiles, and of a shorter one at the end."""
    whole, rest = divmod(extent, tile)
    return whole * (tile + KERNEL - 1) + (rest + KERNEL - 1 if rest else 0)
