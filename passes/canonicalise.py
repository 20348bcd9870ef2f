"""One form for each thing, so that every later pass needs to know one form only. Each rule is a function named for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aotc import ops
from aotc.ir.dims import Dim
from aotc.ir.expr import Call, Constant, Expr, Function, Module, Parameter, Tuple, TupleGetItem, call
from aotc.ir.types import FLOATS, SIGNED, TensorType
from aotc.ir.visitor import rewrite_module
from aotc.ops.base import broadcast_shapes
from aotc.passes.options import Options
from aotc.passes.weights import Weights, array_of, scalar_of

COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor", "equal", "not_equal"})
LOSSLESS = {
    "float16": ("float32", "float64"),
    "float32": ("float64",),
    "bool": ("int8", "uint8", "int32", "int64", "float16", "float32", "float64"),
}
REDUCTIONS = ("sum", "mean", "prod", "max", "min", "all", "any")

Rule = Callable[[Call, "Weights"], "Expr | None"]


def canonicalise(module: Module, options: Options) -> Module:
    """Calls that do nothing go; chains of reshapes and of transposes become one; constants stand on the right; matrix
    products with a weight become ``dense``; pools over everything become means; ``full`` as an operand becomes a scalar;
    padding before a convolution becomes its own; ``subtract`` of a constant becomes ``add``."""
    weights = Weights(module)
    while True:
        changed = rewrite_module(module, lambda node: _apply(node, weights))
        if changed is module:
            return module
        module = changed


def _apply(node: Expr, weights: Weights) -> Expr | None:
    if isinstance(node, TupleGetItem) and isinstance(node.value, Tuple):
        return node.value.fields[node.index]
    if not isinstance(node, Call) or isinstance(node.op, Function):
        return None
    for rule in RULES.get(node.op.name, ()):
        result = rule(node, weights)
        if result is not None:
            return result
    return None


# Calls that do nothing ----------------------------------------------------------------------------------------------


def same_type(node: Call, weights: Weights) -> Expr | None:
    """Reshapes, broadcasts and casts to what is there already; tiles of one; pads by nothing."""
    return node.args[0] if node.type == node.args[0].type else None


def identity_transpose(node: Call, weights: Weights) -> Expr | None:
    attrs: Any = node.attrs
    if attrs.axes == tuple(range(len(attrs.axes))):
        return node.args[0]
    shape = node.args[0].type.shape  # type: ignore[union-attr]
    if [axis for axis in attrs.axes if shape[axis] != 1] == [axis for axis in range(len(shape)) if shape[axis] != 1]:
        return ops.reshape(node.args[0], shape=node.type.shape, origin=node.origin)  # type: ignore[union-attr]
    return None


def whole_slice(node: Call, weights: Weights) -> Expr | None:
    attrs: Any = node.attrs
    return node.args[0] if node.type == node.args[0].type and all(step == 1 for step in attrs.steps) else None


def single_concat(node: Call, weights: Weights) -> Expr | None:
    """A concat of one, or of what is left without empty operands."""
    attrs: Any = node.attrs
    kept = [arg for arg in node.args if arg.type.shape[attrs.axis] != 0]  # type: ignore[union-attr]
    if len(kept) == 1:
        return kept[0]
    return ops.concat(*kept, axis=attrs.axis, origin=node.origin) if 0 < len(kept) < len(node.args) else None


def unlimited_clip(node: Call, weights: Weights) -> Expr | None:
    attrs: Any = node.attrs
    return node.args[0] if attrs.minimum is None and attrs.maximum is None else None


def empty_reduction(node: Call, weights: Weights) -> Expr | None:
    attrs: Any = node.attrs
    return node.args[0] if not attrs.axes else None


# Chains -------------------------------------------------------------------------------------------------------------


def reshape_of_reshape(node: Call, weights: Weights) -> Expr | None:
    inner = node.args[0]
    return ops.reshape(inner.args[0], shape=node.type.shape, origin=node.origin) if ops.reshape.is_call(inner) else None  # type: ignore[union-attr]


def transpose_of_transpose(node: Call, weights: Weights) -> Expr | None:
    inner: Any = node.args[0]
    if not ops.transpose.is_call(inner):
        return None
    attrs: Any = node.attrs
    return ops.transpose(inner.args[0], axes=tuple(inner.attrs.axes[axis] for axis in attrs.axes), origin=node.origin)


def cast_of_cast(node: Call, weights: Weights) -> Expr | None:
    """The inner cast goes where it loses nothing."""
    inner: Any = node.args[0]
    if not ops.cast.is_call(inner) or inner.type.dtype not in LOSSLESS.get(inner.args[0].type.dtype, ()):
        return None
    return call(node.op, inner.args, node.attrs, node.origin)


def clip_of_clip(node: Call, weights: Weights) -> Expr | None:
    inner: Any = node.args[0]
    outer: Any = node.attrs
    if not ops.clip.is_call(inner) or not (_ordered(outer) and _ordered(inner.attrs)):
        return None

    def limit(bound: float | int | None, default: float) -> float | int | None:
        """The inner bound, clipped by the outer limits."""
        value = default if bound is None else bound
        value = value if outer.minimum is None else max(value, outer.minimum)
        value = value if outer.maximum is None else min(value, outer.maximum)
        return None if math.isinf(value) and bound is None and value == default else value

    low, high = limit(inner.attrs.minimum, -math.inf), limit(inner.attrs.maximum, math.inf)
    return ops.clip(inner.args[0], minimum=low, maximum=high, origin=node.origin)


def _ordered(attrs: Any) -> bool:
    """Limits are plain numbers with the lower one not above the other."""
    low, high = attrs.minimum, attrs.maximum
    return all(limit is None or limit == limit for limit in (low, high)) and (low is None or high is None or low <= high)


# Operands -----------------------------------------------------------------------------------------------------------


def constant_to_the_right(node: Call, weights: Weights) -> Expr | None:
    left, right = node.args
    if array_of(left) is None or array_of(right) is not None:
        return None
    return Call(node.op, (right, left), node.attrs, node.type, node.origin)


def full_to_scalar(node: Call, weights: Weights) -> Expr | None:
    """An operand that is one value everywhere becomes a scalar, where the other operands alone give the result its shape."""
    args = list(node.args)
    for i, arg in enumerate(args):
        value = _uniform(arg)
        others = [other.type.shape for j, other in enumerate(args) if j != i]  # type: ignore[union-attr]
        if value is not None and not _is_scalar(arg) and broadcast_shapes(*others) == node.type.shape:  # type: ignore[union-attr]
            args[i] = Constant(value, arg.origin)
    return None if args == list(node.args) else Call(node.op, tuple(args), node.attrs, node.type, node.origin)


def _is_scalar(arg: Expr) -> bool:
    return isinstance(arg, Constant) and arg.data.shape == ()


def _uniform(arg: Expr) -> np.ndarray | None:
    if ops.full.is_call(arg):
        attrs: Any = arg.attrs  # type: ignore[union-attr]
        return np.asarray(attrs.value).astype(attrs.dtype)
    if ops.broadcast_to.is_call(arg):
        return _uniform(arg.args[0])  # type: ignore[union-attr]
    if isinstance(arg, Constant) and arg.data.size and (arg.data == arg.data.flat[0]).all():
        return np.array(arg.data.flat[0])
    if isinstance(arg, Parameter) and arg.data.size == 1:
        return arg.data.reshape(())
    return None


def broadcast_operand(node: Call, weights: Weights) -> Expr | None:
    """``broadcast_to`` goes where the operator broadcasts by itself."""
    args = [arg.args[0] if ops.broadcast_to.is_call(arg) else arg for arg in node.args]  # type: ignore[union-attr]
    shapes = [arg.type.shape for arg in args]  # type: ignore[union-attr]
    if args == list(node.args) or broadcast_shapes(*shapes) != node.type.shape:  # type: ignore[union-attr]
        return None
    return Call(node.op, tuple(args), node.attrs, node.type, node.origin)


def subtract_constant(node: Call, weights: Weights) -> Expr | None:
    left, right = node.args
    data = array_of(right)
    if data is None or str(data.dtype) not in FLOATS + SIGNED:
        return None
    return ops.add(left, _like(right, -data, "negative", weights), origin=node.origin)


def _like(source: Expr, data: np.ndarray, what: str, weights: Weights) -> Expr:
    """``data`` computed from ``source``, as a weight if that is one."""
    return weights.derive([source], what, lambda: data) if isinstance(source, Parameter) else Constant(data, source.origin)


# Operators ----------------------------------------------------------------------------------------------------------


def matmul_to_dense(node: Call, weights: Weights) -> Expr | None:
    left, right = node.args
    data = array_of(right)
    ranks = left.type.rank, right.type.rank  # type: ignore[union-attr]
    if data is not None and (ranks[1] == 2 or (2 < ranks[1] <= ranks[0] and all(n == 1 for n in data.shape[:-2]))):
        matrix = data.reshape(data.shape[-2:])
        return ops.dense(left, weights.derive([right], "transposed", lambda: matrix.T), origin=node.origin)
    if ranks[1] == 2 and ops.transpose.is_call(right) and array_of(right.args[0]) is not None:  # type: ignore[union-attr]
        return ops.dense(left, right.args[0], origin=node.origin)  # type: ignore[union-attr]
    return None


def power_of_constant(node: Call, weights: Weights) -> Expr | None:
    base, exponent = node.args
    value = scalar_of(exponent)
    if value is None or base.type.dtype not in FLOATS or node.type != base.type:  # type: ignore[union-attr]
        return None
    forms: dict[float, Callable[[], Expr]] = {
        1.0: lambda: base,
        2.0: lambda: ops.multiply(base, base, origin=node.origin),
        -1.0: lambda: ops.reciprocal(base, origin=node.origin),
    }
    return forms[value]() if value in forms else None


def limit_to_clip(node: Call, weights: Weights) -> Expr | None:
    """``maximum`` and ``minimum`` with one number."""
    left, right = node.args
    value = scalar_of(right)
    if value is None or math.isnan(value) or node.type != left.type or node.type.dtype not in FLOATS:  # type: ignore[union-attr]
        return None
    limits = {"minimum": value, "maximum": None} if node.op.name == "maximum" else {"minimum": None, "maximum": value}
    return ops.clip(left, origin=node.origin, **limits)


def clip_to_relu(node: Call, weights: Weights) -> Expr | None:
    attrs: Any = node.attrs
    return ops.relu(node.args[0], origin=node.origin) if attrs.minimum == 0 and attrs.maximum in (None, math.inf) else None


def prelu_of_scalar(node: Call, weights: Weights) -> Expr | None:
    """One slope for all makes a leaky relu."""
    data = array_of(node.args[1])
    if data is None or not data.size or not (data == data.flat[0]).all():
        return None
    return ops.leaky_relu(node.args[0], alpha=float(data.flat[0]), origin=node.origin)


def conv_of_pad(node: Call, weights: Weights) -> Expr | None:
    """Zeros around the spatial axes become the convolution's own padding."""
    inner: Any = node.args[0]
    if not ops.pad.is_call(inner) or inner.attrs.mode != "constant" or inner.attrs.value != 0:
        return None
    before, after = inner.attrs.before, inner.attrs.after
    if any(before[:2]) or any(after[:2]) or not all(isinstance(n, int) for n in (*before, *after)):
        return None
    attrs: Any = node.attrs
    if attrs.channel_block:
        return None
    padding = tuple(p + n for p, n in zip(attrs.padding, (*before[2:], *after[2:]), strict=True))
    return ops.conv(
        inner.args[0],
        node.args[1],
        strides=attrs.strides,
        padding=padding,
        dilation=attrs.dilation,
        groups=attrs.groups,
        origin=node.origin,
    )


def adaptive_to_plain(node: Call, weights: Weights) -> Expr | None:
    """Adaptive pools over everything become reductions; with equal windows, plain pools."""
    attrs: Any = node.attrs
    x = node.args[0]
    spatial: tuple[Dim, ...] = x.type.shape[2:]  # type: ignore[union-attr]
    average = node.op.name == "adaptive_avg_pool"
    if all(size == 1 for size in attrs.output_size):
        return (ops.mean if average else ops.max_)(x, axes=tuple(range(2, 2 + len(spatial))), keepdims=True, origin=node.origin)
    pairs = list(zip(spatial, attrs.output_size, strict=True))
    if not all(isinstance(size, int) and isinstance(out, int) and size % out == 0 for size, out in pairs):
        return None
    windows = tuple(size // out for size, out in pairs)
    pool = ops.avg_pool if average else ops.max_pool
    ones = (1,) * len(windows)
    return pool(x, kernel=windows, strides=windows, padding=(0,) * (2 * len(windows)), dilation=ones, origin=node.origin)


def average_of_everything(node: Call, weights: Weights) -> Expr | None:
    attrs: Any = node.attrs
    x = node.args[0].type
    whole = isinstance(x, TensorType) and not attrs.channel_block and attrs.kernel == x.shape[2:]
    if not whole or any(attrs.padding) or any(d != 1 for d in attrs.dilation) or attrs.divisor_override or attrs.ceil_mode:
        return None
    return ops.mean(node.args[0], axes=tuple(range(2, 2 + len(attrs.kernel))), keepdims=True, origin=node.origin)


BROADCASTING = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "power",
    "maximum",
    "minimum",
    "modulo",
    "atan2",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "where",
]

RULES: dict[str, list[Rule]] = {
    "reshape": [same_type, reshape_of_reshape],
    "broadcast_to": [same_type],
    "cast": [same_type, cast_of_cast],
    "tile": [same_type],
    "pad": [same_type],
    "transpose": [identity_transpose, transpose_of_transpose],
    "slice": [whole_slice],
    "concat": [single_concat],
    "clip": [unlimited_clip, clip_to_relu, clip_of_clip],
    "matmul": [matmul_to_dense],
    "prelu": [prelu_of_scalar],
    "conv": [conv_of_pad],
    "adaptive_avg_pool": [adaptive_to_plain],
    "adaptive_max_pool": [adaptive_to_plain],
    "avg_pool": [average_of_everything],
    **{name: [empty_reduction] for name in REDUCTIONS},
    **{name: [full_to_scalar, broadcast_operand] for name in BROADCASTING},
}
for _name in COMMUTATIVE:
    RULES[_name].insert(0, constant_to_the_right)
RULES["subtract"].append(subtract_constant)
RULES["power"].append(power_of_constant)
for _name in ("maximum", "minimum"):
    RULES[_name].append(limit_to_clip)
