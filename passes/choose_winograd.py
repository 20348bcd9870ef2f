"""Convolutions of 3x3 windows become Winograd's where that is estimated to be faster.

The estimate is in processor cycles of one core and counts what the machine must do: multiply-adds at the rate of its vectors,
loads, stores and additions of the transforms, and weights that come from memory, of which Winograd has more (4 times as many
with tiles of 4). So few channels and small maps stay as they are: there transforms or weights cost more than is saved.
``options.pick`` may choose otherwise, as tuning does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Expr, Function, Module, Parameter, Var
from aotc.ir.types import TensorType
from aotc.ir.visitor import all_functions, calls_of, post_order, rewrite_module
from aotc.ops.winograd import KERNEL, TILES, transform_weight
from aotc.passes.options import Options
from aotc.passes.weights import Weights, array_of
from aotc.targets.base import Target

EFFICIENCY = 0.85
"""Share of the peak rate of multiply-adds that kernels reach."""
TRANSFORM_INSTRUCTIONS = {2: (90, 80), 4: (270, 240)}
"""Instructions for a vector of channels of an input tile and of an output tile, by tile; as many as two of them run in a cycle."""
FEW_TILES = 6
"""Fewer tiles of an image than a register tile usually has."""
MARGIN = 0.9
"""Winograd's estimate must be less than this part of the direct one."""
DIRECT = "direct"
WINOGRAD = {f"winograd {tile}": tile for tile in TILES}
"""The tile of each of Winograd's algorithms by its name."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What the estimate depends on: the sizes of the result, channels with their filling, products of the batch."""

    rows: int
    columns: int
    channels: int
    outputs: int
    batch: int


def choose_winograd(module: Module, options: Options) -> Module:
    """Blocked float32 convolutions of one group with constant weights of 3x3, stride 1, no dilation and known sizes. Those that
    share weights change together or not at all, so that the weights stay shared."""
    if options.target is None:
        return module
    uses: dict[Expr, list[Call]] = {}
    for node in post_order(*(function.body for function in all_functions(module))):
        if ops.conv.is_call(node):
            uses.setdefault(cast(Call, node).args[1], []).append(cast(Call, node))
    offered = {weight: algorithms([_layer(call) for call in calls], options.target) for weight, calls in uses.items()}
    tiles = {weight: WINOGRAD.get(options.pick(uses[weight][0], names)) for weight, names in offered.items() if names}
    target, weights = options.target, Weights(module)
    return rewrite_module(module, lambda node: _chosen(node, tiles, target, weights))


def _chosen(node: Expr, tiles: Mapping[Expr, int | None], target: Target, weights: Weights) -> Expr | None:
    tile = tiles.get(cast(Call, node).args[1]) if ops.conv.is_call(node) else None
    layer = _layer(node)
    if tile is None or layer is None:
        return None
    conv = cast(Call, node)
    attrs: Any = conv.attrs
    x, weight = conv.args
    blocked = cast(np.ndarray, array_of(weight))
    block = attrs.channel_block
    panel = block * _panel(layer, tile, layer.outputs // block, max(1, block // target.lanes("float32")))
    what = f"winograd{tile}x{panel}"
    changed = weights.derive([weight], what, lambda: transform_weight(_plain(blocked), tile, panel))
    kept = {"padding": attrs.padding, "channel_block": block, "out_channels": attrs.out_channels}
    return ops.winograd_conv(x, changed, tile=tile, origin=node.origin, **kept)


def _panel(layer: Layer, tile: int, blocks: int, vectors: int) -> int:
    """Output blocks whose weights stand together: those that a kernel multiplies at a time. With few tiles in an image that is
    more of them."""
    few = -(-layer.rows // tile) * -(-layer.columns // tile) < FEW_TILES
    return next(n for n in range(max(1, (4 if few else 2) // vectors), 0, -1) if blocks % n == 0)


def _layer(node: Expr) -> Layer | None:
    if not ops.conv.is_call(node):
        return None
    conv = cast(Call, node)
    attrs: Any = conv.attrs
    x, result = (cast(TensorType, expr.type) for expr in (conv.args[0], conv))
    weight = array_of(conv.args[1])
    if attrs.channel_block < 2 or weight is None or weight.ndim != 6 or x.dtype != "float32":
        return None
    if weight.shape[2:4] != (KERNEL, KERNEL) or attrs.strides != (1, 1) or attrs.dilation != (1, 1) or max(attrs.padding) >= KERNEL:
        return None
    rows, columns = result.shape[2:4]
    if not isinstance(rows, int) or not isinstance(columns, int) or weight.shape[4] < attrs.channel_block:
        return None
    batch = result.shape[0] if isinstance(result.shape[0], int) else 1
    return Layer(rows, columns, weight.shape[1] * weight.shape[4], weight.shape[0] * weight.shape[5], batch)


def algorithms(uses: Sequence[Layer | None], target: Target) -> list[str]:
    """What can compute the layers that use one weight, in the order of estimated time; nothing where a use has no Winograd form."""
    layers = [layer for layer in uses if layer is not None and min(layer.rows, layer.columns, layer.batch) > 0]
    if not layers or len(layers) < len(uses):
        return []
    found = {DIRECT: MARGIN * sum(direct_cycles(layer, target) for layer in layers)}
    found |= {name: sum(winograd_cycles(layer, tile, target) for layer in layers) for name, tile in WINOGRAD.items()}
    return sorted(found, key=found.__getitem__)


def direct_cycles(layer: Layer, target: Target) -> float:
    weights = KERNEL**2 * layer.channels * layer.outputs
    return max(_products(weights, layer.batch * layer.rows * layer.columns, target), 4 * weights / target.memory_bytes)


def winograd_cycles(layer: Layer, tile: int, target: Target) -> float:
    tiles = layer.batch * -(-layer.rows // tile) * -(-layer.columns // tile)
    weights = (tile + 2) ** 2 * layer.channels * layer.outputs
    vectors = tiles / target.lanes("float32")
    into, out = TRANSFORM_INSTRUCTIONS[tile]
    transforms = vectors * (into * layer.channels + out * layer.outputs) / 2
    return transforms + max(_products(weights, tiles, target), 4 * weights / target.memory_bytes)


def _products(weights: int, uses: int, target: Target) -> float:
    """Each weight is multiplied ``uses`` times. A vector of them is loaded once for a few uses, so with one or two uses loads
    take longer than multiplying."""
    return weights / target.lanes("float32") * max(uses / (EFFICIENCY * target.multiply_adds), 1.0)


def _plain(w: np.ndarray) -> np.ndarray:
    """[O / b, C / b', 3, 3, b', b] as [O, C, 3, 3], filling included."""
    moved = np.moveaxis(w, (5, 4), (1, 3))
    return moved.reshape(moved.shape[0] * moved.shape[1], moved.shape[2] * moved.shape[3], *moved.shape[4:])


def winograd_growth(module: Module) -> dict[str, int]:
    """By layer, the bytes by which Winograd's weights make the weights of a fused module larger. Those that several layers
    share count for the first."""
    found: dict[str, int] = {}
    seen: set[Expr] = set()
    for layer, weight in _winograd_weights([function.body for function in all_functions(module)]):
        if weight not in seen:
            seen.add(weight)
            size = weight.data.nbytes
            found[layer] = found.get(layer, 0) + size - size // weight.data.shape[1] * KERNEL**2
    return found


def _winograd_weights(bodies: Sequence[Expr]) -> Iterator[tuple[str, Parameter]]:
    for node in post_order(*bodies):
        if not isinstance(node, Call) or not isinstance(node.op, Function):
            continue
        for conv in calls_of(node.op.body, ["winograd_conv"]):
            weight = node.args[node.op.params.index(cast(Var, conv.args[1]))]
            if isinstance(weight, Parameter):
                yield conv.origin or weight.name, weight
