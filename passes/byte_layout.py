"""Integer convolutions and products as kernels compute them: channels in blocks of bytes, weights in units."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Expr
from aotc.ops.byte_products import BLOCK
from aotc.passes.options import Options
from aotc.passes.weights import Weights, array_of
from aotc.targets.base import Target


def is_byte_conv(node: Expr, target: Target | None) -> bool:
    """Whether ``node`` is a convolution of bytes that ``target`` has a kernel for: of one group, or of one a channel in two axes."""
    if target is None or not ops.integer_conv.is_call(node):
        return False
    if target.gpu is not None and "int8" not in target.gpu.tensor_types:
        return False
    x, weight = cast(Call, node).args
    data = array_of(weight)
    if data is None or not data.size or not takes_bytes(x, data, target):
        return False
    return cast(Any, node).attrs.groups == 1 or (is_depthwise(cast(Call, node)) and data.ndim == 4)


def takes_bytes(x: Expr, weight: np.ndarray, target: Target) -> bool:
    """Whether kernels multiply x by these weights. Two products of -128 would not fit 16 bits, where these have to hold them."""
    kinds = ("int8", "uint8") if target.gpu is not None else (target.byte_factor,)
    if x.type.dtype not in kinds or weight.dtype != np.int8:  # type: ignore[union-attr]
        return False
    return target.gpu is not None or target.adds_byte_products or target.byte_factor == "uint8" or int(weight.min(initial=0)) > -128


def is_depthwise(conv: Call) -> bool:
    weight, groups = cast(np.ndarray, array_of(conv.args[1])), cast(Any, conv).attrs.groups
    return bool(groups > 1 and groups == weight.shape[0] and weight.shape[1] == 1)


def input_block(channels: int) -> int:
    """How many channels of a pixel stand together: of a first layer's few, as many as a unit has."""
    return 4 if channels <= 4 else 8 if channels <= 8 else BLOCK


def unit_of(target: Target) -> int:
    """How many bytes a product takes."""
    return 4 if target.adds_byte_products else 2


def panel_of(options: Options, outputs: int) -> int:
    """How many blocks of outputs stand together in weights."""
    most = 1 if options.target is None or options.target.gpu is not None else max(1, options.panel * options.target.lanes("int32") // BLOCK)
    return next(size for size in range(most, 0, -1) if -(-outputs // BLOCK) % size == 0)


def blocked_conv(node: Call, x: Expr, channels: int, block: int, options: Options, weights: Weights) -> Call:
    """``node`` over x in blocks of ``block``, of ``channels`` in all."""
    data, attrs = cast(np.ndarray, array_of(node.args[1])), cast(Any, node).attrs
    target = cast(Target, options.target)
    outputs, unit = data.shape[0], block if target.gpu is not None else unit_of(target)  # a GPU's threads move whole blocks
    window = {name: getattr(attrs, name) for name in ("strides", "padding", "dilation", "pad_value")}
    if is_depthwise(node):
        rows = 4 if unit == 4 else 1
        packed = weights.derive([node.args[1]], f"rows{rows}", lambda: depthwise_weight(data, rows))
        return ops.byte_depthwise_conv(x, packed, kernel=data.shape[2:], out_channels=outputs, origin=node.origin, **window)
    panel = panel_of(options, outputs)
    packed = weights.derive([node.args[1]], f"units{block}x{unit}x{panel}", lambda: conv_weight(data, block, unit, panel))
    return ops.byte_conv(x, packed, out_channels=outputs, in_channels=channels, origin=node.origin, **window)


def packed_matmul(node: Expr, options: Options, weights: Weights) -> Call | None:
    """``integer_matmul`` of bytes by a constant matrix, which is packed; ``None`` for anything else."""
    target = options.target
    if target is None or not ops.integer_matmul.is_call(node):
        return None
    x, weight = cast(Call, node).args
    data = array_of(weight)
    if data is None or data.ndim != 2 or not data.size or not takes_bytes(x, data, target):
        return None
    unit = unit_of(target)
    packed = weights.derive([weight], f"units{unit}", lambda: matmul_weight(data, unit))
    return ops.byte_matmul(x, packed, columns=data.shape[1], origin=node.origin)


def matmul_weight(data: np.ndarray, unit: int) -> np.ndarray:
    """w[K, N] as [ceil(N / 16), ceil(K / unit), 16, unit], zero where filled."""
    filled = _filled(_filled(data, 0, unit), 1, BLOCK)
    depth, columns = filled.shape
    return np.ascontiguousarray(filled.reshape(depth // unit, unit, columns // BLOCK, BLOCK).transpose(2, 0, 3, 1))


def conv_weight(data: np.ndarray, block: int, unit: int, panel: int) -> np.ndarray:
    """w[O, C, *k] as [ceil(O / 16) / panel, ceil(C / block), *k, block / unit, panel * 16, unit], zero where filled."""
    filled = _filled(_filled(data, 0, 16), 1, block)
    outputs, inputs, *kernel = filled.shape
    split = filled.reshape(outputs // (16 * panel), 16 * panel, inputs // block, block // unit, unit, *kernel)
    return np.ascontiguousarray(np.moveaxis(split, (3, 1, 4), (-3, -2, -1)))


def depthwise_weight(data: np.ndarray, unit: int) -> np.ndarray:
    """w[C, 1, kh, kw] as [ceil(C / 16), ceil(kh / unit), kw, 16, unit], zero where filled."""
    filled = _filled(_filled(data[:, 0], 0, BLOCK), 1, unit)
    channels, rows, columns = filled.shape
    return np.ascontiguousarray(filled.reshape(channels // BLOCK, BLOCK, rows // unit, unit, columns).transpose(0, 2, 4, 1, 3))


def blocked_bytes(data: np.ndarray, block: int) -> np.ndarray:
    """[N, C, *S] as [N, ceil(C / block), *S, block], zero where filled."""
    filled = _filled(data, 1, block)
    return np.ascontiguousarray(np.moveaxis(filled.reshape(data.shape[0], -1, block, *data.shape[2:]), 2, -1))


def _filled(data: np.ndarray, axis: int, block: int) -> np.ndarray:
    widths = [(0, 0)] * data.ndim
    widths[axis] = (0, -data.shape[axis] % block)
    return np.pad(data, widths)
