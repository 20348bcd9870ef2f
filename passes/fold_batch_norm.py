"""Batch norms and per-channel scales become part of the weights of a convolution or dense layer beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from aotc import ops
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter
from aotc.ir.types import FLOATS, TensorType
from aotc.ir.visitor import map_functions, rewrite_with_uses, with_body
from aotc.passes.options import Options
from aotc.passes.weights import Weights, array_of

LINEAR = ("conv", "conv_transpose", "dense")
Uses = Callable[[Expr], int]


def fold_batch_norm(module: Module, options: Options) -> Module:
    """Scales behind a linear layer go into its weights, shifts behind it add up to one bias, scales before it go into its
    weights too. What is left of a batch norm becomes a product and a sum.

    A scale before a convolution is exact whatever its padding, since zero scaled is zero; a shift before one is not, and
    stays. Only layers with a single use are changed: nobody else sees their unscaled result.
    """
    weights = Weights(module)
    while True:
        changed = map_functions(module, lambda function: _fold(function, weights))
        if changed is module:
            return module
        module = changed


def _fold(function: Function, weights: Weights) -> Function:
    body = rewrite_with_uses(function.body, lambda node, uses: _apply(node, uses, weights))
    return function if body is function.body else with_body(function, body)


def _apply(node: Expr, uses: Uses, weights: Weights) -> Expr | None:
    if not isinstance(node, Call) or isinstance(node.op, Function):
        return None
    if not isinstance(node.type, TensorType) or node.type.dtype not in FLOATS:
        return None
    match node.op.name:
        case "batch_norm":
            return _batch_norm(node, uses, weights)
        case "multiply" | "divide":
            return _scale(node, uses, weights) or _scale_of_affine(node, uses, weights)
        case "add":
            return _shift(node, uses, weights)
        case "negative" if _scalable(node.args[0], uses):
            minus = Constant(np.array(-1, node.type.dtype))
            return ops.multiply(node.args[0], minus, origin=node.origin)
        case "conv" | "conv_transpose" | "dense":
            return _scale_before(node, uses, weights)
        case _:
            return None


def _batch_norm(node: Call, uses: Uses, weights: Weights) -> Expr | None:
    """x * scale + shift. In float16 only where the scale disappears into weights: its rounding would show otherwise."""
    x, *sources = node.args
    arrays = [array_of(source) for source in sources]
    if any(array is None for array in arrays) or (node.type.dtype == "float16" and not _scalable(x, uses)):  # type: ignore[union-attr]
        return None
    gamma, beta, mean, var = (cast(np.ndarray, array).astype("float64") for array in arrays)
    attrs: Any = node.attrs
    dtype, shape = node.type.dtype, (-1, *[1] * (node.type.rank - 2))  # type: ignore[union-attr]
    scale = gamma / np.sqrt(var + attrs.epsilon)
    values = scale.reshape(shape).astype(dtype), (beta - mean * scale).reshape(shape).astype(dtype)
    if not all(np.isfinite(value).all() for value in values):
        return None
    details = (attrs.epsilon, shape)
    product = ops.multiply(x, weights.derive(sources, "scale", lambda: values[0], details), origin=node.origin)
    return ops.add(product, weights.derive(sources, "shift", lambda: values[1], details), origin=node.origin)


def _scale(node: Call, uses: Uses, weights: Weights) -> Expr | None:
    """A product behind a linear layer, with or without a bias between."""
    y, factor = node.args
    if not _scalable(y, uses) or node.type != y.type:
        return None
    layer = cast(Call, cast(Call, y).args[0]) if ops.add.is_call(y) else cast(Call, y)
    scale = _per_channel(factor, layer)
    if scale is None:
        return None
    if node.op.name == "divide":
        if not (scale != 0).all():
            return None
        scale = 1 / scale
    what = "inverse" if node.op.name == "divide" else "scaled"
    if ops.add.is_call(y):
        bias = cast(Call, y).args[1]
        shift = _per_channel(bias, layer)
        assert shift is not None
        scaled = _scaled_layer(layer, factor, scale, what, weights)
        moved = None if scaled is None else _bias([bias, factor], shift * scale, what, scaled, weights)
        return None if scaled is None or moved is None else ops.add(scaled, moved, origin=y.origin or node.origin)
    return _scaled_layer(layer, factor, scale, what, weights)


def _shift(node: Call, uses: Uses, weights: Weights) -> Expr | None:
    """Two sums behind a linear layer, or behind another scale, become one."""
    inner, second = node.args
    if not ops.add.is_call(inner) or uses(inner) != 1 or node.type != inner.type:
        return None
    layer, first = cast(Call, inner).args
    if not (_is_linear(layer) or ops.multiply.is_call(layer)) or layer.type != node.type:
        return None
    shifts = _per_channel(first, layer), _per_channel(second, layer)
    if shifts[0] is None or shifts[1] is None:
        return None
    bias = _bias([first, second], shifts[0] + shifts[1], "sum", cast(Call, layer), weights)
    return None if bias is None else ops.add(layer, bias, origin=inner.origin or node.origin)


def _scale_of_affine(node: Call, uses: Uses, weights: Weights) -> Expr | None:
    """(x * a + b) * c, or x * a * c, with one number per channel each: the scales become one."""
    y, factor = node.args
    shifted = ops.add.is_call(y)
    product, bias = cast(Call, y).args if shifted else (y, None)
    if not ops.multiply.is_call(product) or node.op.name != "multiply" or uses(y) != 1 or uses(product) != 1:
        return None
    x, inner = cast(Call, product).args
    if not x.type == product.type == y.type == node.type or node.type.rank < 2:  # type: ignore[union-attr]
        return None
    channels = x.type.shape[1]  # type: ignore[union-attr]
    if not isinstance(channels, int):
        return None
    vectors = [_per_channel(each, x, channels, 1) for each in (inner, factor, *((bias,) if bias is not None else ()))]
    if any(vector is None for vector in vectors) or any(array_of(each).size == 1 for each in (inner, factor)):  # type: ignore[union-attr]
        return None
    scale = _bias([inner, factor], vectors[0] * vectors[1], "scaled", product, weights)  # type: ignore[operator, arg-type]
    if scale is None:
        return None
    scaled = ops.multiply(x, scale, origin=product.origin or node.origin)
    if bias is None:
        return scaled
    moved = _bias([bias, factor], vectors[2] * vectors[1], "scaled", product, weights)  # type: ignore[operator, arg-type]
    return None if moved is None else ops.add(scaled, moved, origin=y.origin or node.origin)


def _scale_before(node: Call, uses: Uses, weights: Weights) -> Expr | None:
    product, weight = node.args
    data = array_of(weight)
    if data is None or not ops.multiply.is_call(product) or uses(product) != 1:
        return None
    x, factor = cast(Call, product).args
    if x.type != product.type:
        return None
    channels = data.shape[0] if node.op.name == "conv_transpose" else data.shape[1] * _groups(node)
    scale = _per_channel(factor, x, channels, _channel_axis(node))
    if scale is None:
        return None
    groups = _groups(node)
    if node.op.name == "conv":
        grouped = data.astype("float64").reshape(groups, data.shape[0] // groups, *data.shape[1:])
        scaled = (grouped * scale.reshape(groups, 1, -1, *[1] * (data.ndim - 2))).reshape(data.shape)
    else:
        axis = 1 if node.op.name == "dense" else 0
        scaled = data * scale.reshape([-1 if i == axis else 1 for i in range(data.ndim)])
    return _with_weight(node, x, [weight, factor], scaled, "prescaled", weights)


def _scaled_layer(layer: Call, factor: Expr, scale: np.ndarray, what: str, weights: Weights) -> Call | None:
    """``layer`` with its output channels scaled."""
    weight = layer.args[1]
    data = cast(np.ndarray, array_of(weight)).astype("float64")
    if ops.conv_transpose.is_call(layer):
        groups = _groups(layer)
        grouped = data.reshape(groups, data.shape[0] // groups, *data.shape[1:])
        scaled = (grouped * scale.reshape(groups, 1, data.shape[1], *[1] * (data.ndim - 2))).reshape(data.shape)
    else:
        scaled = data * scale.reshape(-1, *[1] * (data.ndim - 1))
    return _with_weight(layer, layer.args[0], [weight, factor], scaled, what, weights)


def _with_weight(layer: Call, x: Expr, sources: list[Expr], data: np.ndarray, what: str, weights: Weights) -> Call | None:
    dtype = layer.type.dtype  # type: ignore[union-attr]
    with np.errstate(over="ignore"):
        rounded = data.astype(dtype)
    if not np.isfinite(rounded).all():
        return None
    weight = weights.derive(sources, what, lambda: rounded, (layer.op.name, _groups(layer)))
    return Call(layer.op, (x, weight), layer.attrs, layer.type, layer.origin)


def _bias(sources: list[Expr], vector: np.ndarray, what: str, layer: Call, weights: Weights) -> Expr | None:
    shape = (-1,) if ops.dense.is_call(layer) else (-1, *[1] * (layer.type.rank - 2))  # type: ignore[union-attr]
    with np.errstate(over="ignore"):
        rounded = vector.reshape(shape).astype(layer.type.dtype)  # type: ignore[union-attr]
    if not np.isfinite(rounded).all():
        return None
    if not any(isinstance(source, Parameter) for source in sources):
        return Constant(rounded, sources[0].origin)
    return weights.derive(sources, what, lambda: rounded, shape)


def _scalable(y: Expr, uses: Uses) -> bool:
    """Whether ``y`` is a linear layer with constant weights, perhaps with a constant bias, that nobody else uses."""
    if uses(y) != 1:
        return False
    if ops.add.is_call(y):
        layer, bias = cast(Call, y).args
        return _is_linear(layer) and uses(layer) == 1 and layer.type == y.type and _per_channel(bias, layer) is not None
    return _is_linear(y)


def _is_linear(expr: Expr) -> bool:
    if not isinstance(expr, Call) or isinstance(expr.op, Function) or expr.op.name not in LINEAR:
        return False
    return array_of(expr.args[1]) is not None and not getattr(expr.attrs, "channel_block", 0)


def _per_channel(vector: Expr, y: Expr, channels: int | None = None, axis: int | None = None) -> np.ndarray | None:
    """A constant that is one number per channel of ``y``, in float64; ``None`` for anything else."""
    data = array_of(vector)
    if data is None or not isinstance(y.type, TensorType) or data.ndim > y.type.rank or not np.isfinite(data).all():
        return None
    axis = _channel_axis(cast(Call, y)) if axis is None else axis
    if channels is None:
        size = y.type.shape[axis]
        if not isinstance(size, int):
            return None
        channels = size
    padded = data.reshape((1,) * (y.type.rank - data.ndim) + data.shape)
    others = [n for i, n in enumerate(padded.shape) if i != axis % padded.ndim]
    if any(n != 1 for n in others) or padded.shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(padded.reshape(-1).astype("float64"), (channels,))


def _channel_axis(layer: Call) -> int:
    return -1 if ops.dense.is_call(layer) else 1


def _groups(layer: Call) -> int:
    return int(getattr(layer.attrs, "groups", 1))
