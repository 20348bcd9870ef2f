"""Convolutions over blocked channels: [N, C, *S] becomes [N, ceil(C / b), *S, b], where a vector holds b channels of a pixel.

The layout spreads from each convolution over what follows it for as long as that is at home in it: elementwise calls,
residual sums, pools, concatenations of whole blocks, means over space. It is left again only where something needs the
plain layout, and each value is converted at most once each way. Channel counts that are no multiple of b are filled up;
the filling holds finite values, zero at first, and the weights that meet it are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from aotc import ops
from aotc.ir.dims import Dim, ceildiv
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, call, children, with_children
from aotc.ir.types import FLOATS, TensorType
from aotc.ir.visitor import map_functions, post_order, with_body
from aotc.ops.base import Fusion, OpDef
from aotc.ops.byte_products import BLOCK
from aotc.passes.byte_layout import blocked_conv, input_block, is_byte_conv, is_depthwise
from aotc.passes.options import Options
from aotc.passes.weights import Weights, array_of

FINITE_FROM_FINITE = frozenset([
    "add", "subtract", "multiply", "maximum", "minimum", "negative", "abs", "sign", "relu", "sigmoid", "tanh", "silu",
    "hard_swish", "mish", "gelu", "elu", "selu", "celu", "leaky_relu", "hard_sigmoid", "thresholded_relu", "softplus",
    "softsign", "clip", "erf", "sin", "cos", "atan", "floor", "ceil", "round", "trunc", "prelu", "where", "cast",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_not",
    "logical_xor", "quantise", "dequantise", "requantise", "look_up",
])  # fmt: skip
"""Calls that make no infinity of zeros: only these may run over filling. (log, reciprocal and the like may not.)"""


FEW_OUTPUTS = 8
"""Output channels are few where a block has room for so many times as many."""
LEAST_INPUTS = 4
"""A block of inputs of a convolution to few outputs is full to one part of so many at least."""


@dataclass(frozen=True)
class Blocked:
    """A value in blocks: ``expr`` has the shape [N, ceil(channels / block), *S, block]."""

    expr: Expr
    channels: int
    block: int

    @property
    def filled(self) -> bool:
        return self.channels % self.block != 0


def convert_layout(module: Module, options: Options) -> Module:
    """Convolutions with static channels and constant weights, of one group or of one group a channel, become blocked."""
    if not options.channel_block:
        return module
    weights = Weights(module)
    return map_functions(module, lambda function: _convert(function, options, weights))


def _convert(function: Function, options: Options, weights: Weights) -> Function:
    order = post_order(function.body)
    if not any(_is_convertible(node) or is_byte_conv(node, options.target) for node in order):
        return function
    converter = _Converter(options, weights)
    for node in order:
        converter.visit(node)
    return with_body(function, converter.plain(function.body))


def _is_convertible(node: Expr) -> bool:
    if not ops.conv.is_call(node) or node.type.dtype not in FLOATS:  # type: ignore[union-attr]
        return False
    conv = cast(Call, node)
    attrs: Any = conv.attrs
    weight = array_of(conv.args[1])
    if attrs.channel_block or weight is None or not weight.size:
        return False
    return attrs.groups == 1 or _is_depthwise(conv)


def _is_depthwise(conv: Call) -> bool:
    weight = cast(np.ndarray, array_of(conv.args[1]))
    groups = conv.attrs.groups  # type: ignore[attr-defined]
    return bool(groups > 1 and groups == weight.shape[0] and weight.shape[1] == 1)


class _Converter:
    """Holds each value of the old graph in the plain layout, in blocks, or both."""

    def __init__(self, options: Options, weights: Weights) -> None:
        self.options = options
        self.block, self.panel, self.fill_input = options.channel_block, options.panel, options.fill_input
        target = options.target
        self.planes = target is not None and target.gpu is None
        self.weights = weights
        self.plains: dict[Expr, Expr] = {}
        self.blocks: dict[Expr, Blocked] = {}
        self.entered: dict[tuple[Expr, int], Blocked] = {}

    def visit(self, node: Expr) -> None:
        blocked = self.in_blocks(node)
        if isinstance(blocked, Blocked):
            self.blocks[node] = blocked
        else:
            self.plains[node] = blocked or with_children(node, [self.plain(child) for child in children(node)])

    def in_blocks(self, node: Expr) -> Blocked | Expr | None:
        """``node`` in blocks; or in the plain layout, from operands in blocks; ``None`` where neither is to be had."""
        if not isinstance(node, Call) or isinstance(node.op, Function) or not isinstance(node.type, TensorType):
            return None
        if _is_convertible(node):
            return self.conv(node)
        if is_byte_conv(node, self.options.target):
            return self.byte_conv(node)
        if not any(arg in self.blocks for arg in node.args):
            return None
        if node.op.name in SPATIAL:
            return SPATIAL[node.op.name](node, self.blocks[node.args[0]]) if node.args[0] in self.blocks else None
        if node.op.name == "concat":
            return self.concat(node)
        return self.elementwise(node) if cast(OpDef, node.op).fusion <= Fusion.BROADCAST else None

    def plain(self, node: Expr) -> Expr:
        """The value of ``node`` in the plain layout."""
        if node not in self.plains:
            blocked = self.blocks[node]
            type_ = cast(TensorType, node.type)
            if blocked.block == 1 or (not blocked.filled and all(dim == 1 for dim in type_.shape[2:])):
                self.plains[node] = ops.reshape(blocked.expr, shape=type_.shape, origin=node.origin)
            else:
                self.plains[node] = ops.layout_transform(
                    blocked.expr, block=blocked.block, channels=blocked.channels, inverse=True, origin=node.origin
                )
        return self.plains[node]

    def enter(self, node: Expr, block: int) -> Blocked:
        """The value of ``node`` in blocks: those it has already, else of ``block`` channels."""
        if node in self.blocks:
            return self.blocks[node]
        return self.entered_anew(node, block)

    def entered_anew(self, node: Expr, block: int) -> Blocked:
        """The value of ``node`` in blocks of ``block`` channels, from its plain layout."""
        if (node, block) not in self.entered:
            plain = self.plain(node)
            shape = cast(TensorType, plain.type).shape
            channels = int(cast(int, shape[1]))
            if block == 1 or (channels % block == 0 and all(dim == 1 for dim in shape[2:])):
                changed: Call = ops.reshape(plain, shape=(shape[0], channels // block, *shape[2:], block), origin=node.origin)
            else:
                changed = ops.layout_transform(plain, block=block, channels=channels, origin=node.origin)
            self.entered[node, block] = Blocked(changed, channels, block)
        return self.entered[node, block]

    # Operators ------------------------------------------------------------------------------------------------------

    def conv(self, node: Call) -> Blocked:
        """The input of a first layer, of three channels, say, makes one block of three: no filling is computed, unless that makes
        accesses of a power of two. For a CPU it stays as it is, in blocks of one."""
        x, weight = node.args
        data = cast(np.ndarray, array_of(weight))
        depthwise = _is_depthwise(node)
        channels, outputs = data.shape[0] if depthwise else data.shape[1], data.shape[0]
        block = self.block
        entered = x not in self.blocks or self.blocks[x].block == block
        if not depthwise and entered and FEW_OUTPUTS * outputs <= block <= LEAST_INPUTS * channels:
            return self.conv_of_few_outputs(node, channels, outputs)
        few = 1 if self.planes else min(block, 1 << (channels - 1).bit_length()) if self.fill_input else channels
        source = self.enter(x, block if depthwise or channels >= block else few)
        if depthwise:
            changed = self.weights.derive([weight], f"blocked{block}", lambda: _depthwise_weight(data, block))
        else:
            wide = block * next(n for n in range(self.panel, 0, -1) if -(-outputs // block) % n == 0)
            changed = self.weights.derive([weight], f"blocked{source.block}x{wide}", lambda: _weight(data, source.block, wide))
        attrs = _with(node, channel_block=block, out_channels=outputs, in_channels=channels if source.filled and not depthwise else 0)
        return Blocked(ops.conv(source.expr, changed, origin=node.origin, **attrs), outputs, block)

    def conv_of_few_outputs(self, node: Call, channels: int, outputs: int) -> Blocked:
        """Whose vectors hold input channels: those of the outputs would be filling, most of them."""
        x, weight = node.args
        data = cast(np.ndarray, array_of(weight))
        source = self.enter(x, self.block)
        changed = self.weights.derive([weight], f"blocked{source.block}x1", lambda: _weight(data, source.block, 1))
        attrs = _with(node, channel_block=1, out_channels=outputs, in_channels=channels if source.filled else 0)
        return Blocked(ops.conv(source.expr, changed, origin=node.origin, **attrs), outputs, 1)

    def byte_conv(self, node: Call) -> Blocked:
        x, channels, outputs = node.args[0], cast(int, _channels(node.args[0])), cast(int, _channels(node))
        block = BLOCK if is_depthwise(node) or channels >= BLOCK else input_block(channels)
        source = self.enter(x, block)
        if source.block % 4 or (is_depthwise(node) and source.block != BLOCK):
            source = self.entered_anew(x, block)
        return Blocked(blocked_conv(node, source.expr, channels, source.block, self.options, self.weights), outputs, BLOCK)

    def concat(self, node: Call) -> Blocked | None:
        """Along channels only whole blocks can be joined; the last operand may end in filling."""
        axis = node.attrs.axis % cast(TensorType, node.type).rank  # type: ignore[attr-defined]
        if not self.mostly_blocked(node):
            return None
        block = next(self.blocks[arg].block for arg in node.args if arg in self.blocks)
        if axis == 1 and any(_channels(arg) is None or cast(int, _channels(arg)) % block for arg in node.args[:-1]):
            return None
        if any(_channels(arg) is None for arg in node.args):
            return None
        parts = [self.enter(arg, block) for arg in node.args]
        if any(part.block != block for part in parts):
            return None
        channels = sum(part.channels for part in parts) if axis == 1 else parts[0].channels
        return Blocked(ops.concat(*(part.expr for part in parts), axis=axis, origin=node.origin), channels, block)

    def mostly_blocked(self, node: Call) -> bool:
        """Whether at least half of the large operands are in blocks: the others must be converted."""
        large = [arg for arg in node.args if array_of(arg) is None and _size(arg) == max(map(_size, node.args))]
        return 2 * sum(arg in self.blocks for arg in large) >= len(large) > 0 and any(arg in self.blocks for arg in large)

    def elementwise(self, node: Call) -> Blocked | None:
        type_ = cast(TensorType, node.type)
        found = {self.blocks[arg].channels for arg in node.args if arg in self.blocks and _channels(arg) != 1}
        sizes = {self.blocks[arg].block for arg in node.args if arg in self.blocks}
        if len(found) != 1 or len(sizes) != 1 or type_.rank < 3 or not self.mostly_blocked(node):
            return None
        channels, block = found.pop(), sizes.pop()
        name = cast(OpDef, node.op).name
        if name in ("broadcast_to", "batch_norm") or type_.shape[1] != channels:
            return None
        if channels % block and not _keeps_filling_finite(node):
            return None
        filling = 1 if name in ("divide", "quantise") else 0
        args = [self.operand(arg, type_.rank, channels, block, filling) for arg in node.args[: 1 if name == "look_up" else None]]
        args += map(self.plain, node.args[len(args) :])  # a table is no operand by element
        if any(arg is None for arg in args):
            return None
        return Blocked(call(node.op, cast("list[Expr]", args), node.attrs, node.origin), channels, block)

    def operand(self, arg: Expr, rank: int, channels: int, block: int, filling: float) -> Expr | None:
        """An operand of an elementwise call of blocked values, which may broadcast against them."""
        shape = cast(TensorType, arg.type).shape
        aligned: tuple[Dim, ...] = (1,) * (rank - len(shape)) + shape
        if all(dim == 1 for dim in shape):
            return self.reshaped(arg, ()) if shape else self.plain(arg)
        if aligned[1] == 1:
            return self.reshaped(arg, (*shape, 1))
        if aligned[1] != channels:
            return None
        data = array_of(arg)
        if data is not None:
            changed = _blocked_array(data.reshape([int(cast(int, dim)) for dim in aligned]), block, filling)
            if isinstance(arg, Constant):
                return Constant(changed, arg.origin)
            return self.weights.derive([arg], f"blocked{block}", lambda: changed, (rank, filling))
        if arg not in self.blocks and len(shape) < rank:
            widened = self.reshaped(arg, aligned)
            return ops.layout_transform(widened, block=block, channels=channels, origin=arg.origin)
        entered = self.enter(arg, block)
        return entered.expr if entered.block == block else None

    def reshaped(self, arg: Expr, shape: tuple[Dim, ...]) -> Expr:
        plain = self.plain(arg)
        if isinstance(plain, Constant):
            return Constant(plain.data.reshape([int(cast(int, dim)) for dim in shape]), plain.origin)
        if isinstance(plain, Parameter):
            sizes = [int(cast(int, dim)) for dim in shape]
            return self.weights.derive([plain], "reshape", lambda: plain.data.reshape(sizes), shape)
        return ops.reshape(plain, shape=shape, origin=arg.origin)


def _keeps_filling_finite(node: Call) -> bool:
    arrays = [array_of(arg) for arg in node.args]
    if not all(array is None or np.isfinite(array).all() for array in arrays):
        return False
    name = cast(OpDef, node.op).name
    return name in FINITE_FROM_FINITE or (name == "divide" and arrays[1] is not None and bool(arrays[1].all()))


# Calls of one operand that work on space ------------------------------------------------------------------------------


def _pool(node: Call, x: Blocked) -> Blocked:
    return _over(node, x, channel_block=x.block)


def _over(node: Call, x: Blocked, channels: int | None = None, **changes: Any) -> Blocked:
    new = cast(OpDef, node.op)(x.expr, origin=node.origin, **_with(node, **changes))
    return Blocked(new, x.channels if channels is None else channels, x.block)


def _reduction(node: Call, x: Blocked) -> Blocked | Expr | None:
    """Reductions over space only. Without ``keepdims`` what is left is plain again: one pixel's channels are in order."""
    type_ = cast(TensorType, node.args[0].type)
    attrs: Any = node.attrs
    axes = tuple(axis % type_.rank for axis in attrs.axes)
    if any(axis < 2 for axis in axes):
        return None
    if attrs.keepdims:
        return _over(node, x, axes=axes)
    if set(axes) != set(range(2, type_.rank)):
        return None
    reduced = cast(OpDef, node.op)(x.expr, axes=axes, keepdims=False, origin=node.origin)
    batch, channels = cast(TensorType, node.type).shape
    lanes = ceildiv(x.channels, x.block) * x.block
    row = ops.reshape(reduced, shape=(batch, lanes), origin=node.origin)
    return ops.slice_(row, begins=(0, 0), ends=(batch, channels), steps=(1, 1), origin=node.origin) if x.filled else row


def _resize(node: Call, x: Blocked) -> Blocked | None:
    type_ = cast(TensorType, node.type)
    attrs: Any = node.attrs
    if attrs.roi is not None or type_.shape[1] != x.channels or attrs.scales[1] not in (None, 1.0):
        return None
    shape = (type_.shape[0], ceildiv(x.channels, x.block), *type_.shape[2:], x.block)
    return _over(node, x, shape=shape, scales=(attrs.scales[0], None, *attrs.scales[2:], None))


def _pad(node: Call, x: Blocked) -> Blocked | None:
    attrs: Any = node.attrs
    if attrs.before[1] != 0 or attrs.after[1] != 0 or not np.isfinite(attrs.value):
        return None
    return _over(node, x, before=(*attrs.before, 0), after=(*attrs.after, 0))


def _slice(node: Call, x: Blocked) -> Blocked | None:
    """Of the channels whole blocks can be taken, up to the end with its filling."""
    attrs: Any = node.attrs
    begin, end, step = attrs.begins[1], attrs.ends[1], attrs.steps[1]
    if not isinstance(begin, int) or not isinstance(end, int) or step != 1:
        return None
    if begin % x.block or (end % x.block and end != x.channels) or end <= begin:
        return None
    begins = (attrs.begins[0], begin // x.block, *attrs.begins[2:], 0)
    ends = (attrs.ends[0], -(-end // x.block), *attrs.ends[2:], x.block)
    return _over(node, x, channels=end - begin, begins=begins, ends=ends, steps=(*attrs.steps, 1))


SPATIAL: dict[str, Callable[[Call, Blocked], Blocked | Expr | None]] = {
    "max_pool": _pool,
    "avg_pool": _pool,
    "mean": _reduction,
    "sum": _reduction,
    "integer_sum": _reduction,
    "max": _reduction,
    "min": _reduction,
    "resize": _resize,
    "pad": _pad,
    "slice": _slice,
}


# Weights ------------------------------------------------------------------------------------------------------------


def _weight(data: np.ndarray, block_in: int, block_out: int) -> np.ndarray:
    """w[O, C, *k] as [ceil(O / bo), ceil(C / bi), *k, bi, bo], zero where filled."""
    filled = _filled(_filled(data, 0, block_out, 0), 1, block_in, 0)
    outputs, inputs, *kernel = filled.shape
    split = filled.reshape(outputs // block_out, block_out, inputs // block_in, block_in, *kernel)
    return np.moveaxis(split, (3, 1), (-2, -1))


def _depthwise_weight(data: np.ndarray, block: int) -> np.ndarray:
    """w[C, 1, *k] as [ceil(C / b), *k, b]."""
    filled = _filled(data[:, 0], 0, block, 0)
    return np.moveaxis(filled.reshape(filled.shape[0] // block, block, *filled.shape[1:]), 1, -1)


def _blocked_array(data: np.ndarray, block: int, filling: float) -> np.ndarray:
    """[N, C, *S] as [N, ceil(C / b), *S, b]."""
    filled = _filled(data, 1, block, filling)
    return np.ascontiguousarray(np.moveaxis(filled.reshape(data.shape[0], -1, block, *data.shape[2:]), 2, -1))


def _filled(data: np.ndarray, axis: int, block: int, filling: float) -> np.ndarray:
    widths = [(0, 0)] * data.ndim
    widths[axis] = (0, -data.shape[axis] % block)
    return np.pad(data, widths, constant_values=filling)


def _with(node: Call, **changes: Any) -> dict[str, Any]:
    attrs: Any = node.attrs
    return {**{field.name: getattr(attrs, field.name) for field in fields(attrs)}, **changes}


def _channels(expr: Expr) -> int | None:
    shape = expr.type.shape if isinstance(expr.type, TensorType) else ()
    return shape[1] if len(shape) > 2 and isinstance(shape[1], int) else None


def _size(expr: Expr) -> int:
    """The number of elements, symbols counted as 1000: only for comparisons."""
    size = 1
    for dim in expr.type.shape if isinstance(expr.type, TensorType) else ():
        size *= dim if isinstance(dim, int) else 1000
    return size
