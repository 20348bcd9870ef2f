"""``quantized_decomposed``: what PyTorch's export quantisation (pt2e), training for it included, writes into programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram

from aotc import ops
from aotc.frontends.torch.builder import Builder, Operand, Recipe, dtype_name, dtype_of, shape_of
from aotc.ir.expr import Expr
from aotc.ir.types import INTEGERS
from aotc.ops.quantise import QUANTISED

NAMESPACE = "quantized_decomposed"


def quantised_recipes(program: ExportedProgram) -> dict[Any, Recipe]:
    """The recipes of the quantising operators in ``program``. By name: the library that registers them is not always there."""
    found: dict[Any, Recipe] = {}
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.startswith(f"{NAMESPACE}::"):
                name = node.target._schema.name.partition("::")[2]
                if name in NAMED:
                    found[node.target] = NAMED[name]
    return found


def quantize_per_tensor(b: Builder, x: Expr, scale: Operand, zero: Operand, low: int, high: int, dtype: torch.dtype) -> Expr:
    return _quantised(b, x, scale, zero, (low, high), dtype)


def quantize_per_channel(b: Builder, x: Expr, scales: Expr, zeros: Expr, axis: int, low: int, high: int, dtype: torch.dtype) -> Expr:
    return _quantised(b, x, _along(b, scales, x, axis), _along(b, zeros, x, axis), (low, high), dtype)


def _quantised(b: Builder, x: Expr, scale: Operand, zero: Operand, limits: tuple[int, int], dtype: torch.dtype) -> Expr:
    name = dtype_name(dtype)
    if name not in QUANTISED:
        raise b.unsupported(f"quantising to {name}; aotc has {', '.join(QUANTISED)}")
    info = torch.iinfo(dtype)
    low, high = (0, 0) if limits == (info.min, info.max) else limits
    x = b.cast(x, "float32")
    return b.emit(ops.quantise, x, b.tensor(scale, "float32"), b.tensor(zero, name), dtype=name, low=low, high=high)


def dequantize_per_tensor(b: Builder, x: Expr, scale: Operand, zero: Operand, *rest: Any, **options: Any) -> Expr:
    return _dequantised(b, x, scale, zero)


def dequantize_per_channel(b: Builder, x: Expr, scales: Expr, zeros: Expr | None, axis: int, *rest: Any, **options: Any) -> Expr:
    return _dequantised(b, x, _along(b, scales, x, axis), None if zeros is None else _along(b, zeros, x, axis))


def _dequantised(b: Builder, x: Expr, scale: Operand, zero: Operand | None) -> Expr:
    dtype = dtype_of(x)
    if dtype not in INTEGERS:
        raise b.unsupported(f"dequantising {dtype}")
    zeros = [] if zero is None else [b.tensor(zero, dtype)]
    return b.cast(b.emit(ops.dequantise, x, b.tensor(scale, "float32"), *zeros), b.dtype)


def _along(b: Builder, vector: Expr, x: Expr, axis: int) -> Expr:
    """One value for each index of ``axis`` in a shape that broadcasts to ``x``."""
    rank = len(shape_of(x))
    return b.reshape(vector, [*[1] * (axis % rank), shape_of(vector)[0], *[1] * (rank - axis % rank - 1)])


NAMED: dict[str, Callable[..., Any]] = {
    "quantize_per_tensor": quantize_per_tensor,
    "quantize_per_channel": quantize_per_channel,
    "dequantize_per_tensor": dequantize_per_tensor,
    "dequantize_per_channel": dequantize_per_channel,
}
