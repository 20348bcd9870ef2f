"""What becomes of each operator over quantised values. A rule returns a ``Quantised``, a plain expression, or ``None`` where the
operator stays as it is, over real values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np

from aotc import ops
from aotc.ir.dims import Dim, product
from aotc.ir.expr import Call, Constant, Expr, Parameter, call, with_children
from aotc.ir.types import TensorType
from aotc.ops.base import attribute_values
from aotc.ops.quantise import IntegerConvAttributes, limits
from aotc.passes.raise_integers_up import MOVING, moves_bytes
from aotc.passes.raise_integers_values import LARGEST_OFFSET, Quantised, along_axis, compact, parameters_of
from aotc.passes.weights import Weights, array_of


class Raising(Protocol):
    """What rules see of the pass. ``quantised`` holds nodes of the module before, ``real`` gives the new form of one."""

    weights: Weights
    quantised: dict[Expr, Quantised]

    def real(self, node: Expr) -> Expr: ...


Rule = Callable[[Raising, Call], "Quantised | Expr | None"]


# Into integers and out of them --------------------------------------------------------------------------------------


def dequantise(work: Raising, node: Call) -> Quantised | Expr:
    parameters, source = parameters_of(node), _with_numbers(work, node)
    integers = source.args[0]
    if parameters is None or integers.type.dtype not in ("int8", "uint8", "int32"):  # type: ignore[union-attr]
        return source
    return Quantised(integers, *parameters, node.origin, source)


def _with_numbers(work: Raising, node: Call) -> Call:
    """``node`` over its new operand. Numbers among its parameters are constants, which stand in the code of kernels."""
    args = [Constant(arg.data, arg.origin) if isinstance(arg, Parameter) and arg.data.size == 1 else arg for arg in node.args[1:]]
    return cast(Call, with_children(node, [work.real(node.args[0]), *args]))


def quantise(work: Raising, node: Call) -> Expr:
    """Of a sum it is one scale; of bytes of the same scale and zero point at most limits."""
    x, parameters = work.quantised.get(node.args[0]), parameters_of(node)
    if x is None or parameters is None:
        return _with_numbers(work, node)
    attrs: Any = node.attrs
    if x.is_sum and x.data() is None:
        scale = Constant(compact((x.scale / parameters[0]).astype("float32")), node.origin)
        return call(ops.requantise, [x.sums(), scale, *_with_numbers(work, node).args[2:]], attrs, node.origin)
    if attrs.dtype != x.dtype or not x.alike(Quantised(x.integers, *parameters, x.origin)):
        return _with_numbers(work, node)
    low, high = limits(attrs)
    return x.integers if attrs.low == attrs.high else ops.clip(x.integers, minimum=low, maximum=high, origin=node.origin)


# Sums of products ---------------------------------------------------------------------------------------------------


def conv(work: Raising, node: Call) -> Quantised | None:
    x, w = work.quantised.get(node.args[0]), _weight(work, node.args[1], 0)
    if x is None or w is None or not x.is_single_byte or not _fits(w.data[0].size):
        return None
    along = (-1, *[1] * (x.rank - 2))
    integers = ops.integer_conv(x.integers, w.expr, pad_value=x.one_zero, origin=node.origin, **attribute_values(node.attrs))
    offset = _sums(w.data, tuple(range(1, x.rank))) * np.int32(x.one_zero)
    scale = _multiplied(x.scale, w.scale)
    return Quantised(integers, scale.reshape(along) if scale.ndim else scale, offset.reshape(along), node.origin)


def dense(work: Raising, node: Call) -> Quantised | None:
    w = _weight(work, node.args[1], 0)
    if w is None:
        return None
    turned = work.weights.derive([w.expr], "transposed", lambda: w.data.T)
    return _layer(work, node, _Weight(turned, w.data.T, w.scale))


def matmul(work: Raising, node: Call) -> Quantised | None:
    rank = node.args[1].type.rank  # type: ignore[union-attr]
    w = _weight(work, node.args[1], 1) if rank == 2 else None
    return _product(work, node) if w is None else _layer(work, node, w)


def _layer(work: Raising, node: Call, w: _Weight) -> Quantised | None:
    """x[..., K] by w[K, N]."""
    x = work.quantised.get(node.args[0])
    if x is None or not x.is_single_byte or not _fits(len(w.data)):
        return None
    integers = ops.integer_matmul(x.integers, w.expr, origin=node.origin)
    return Quantised(integers, _multiplied(x.scale, w.scale), _sums(w.data, (0,)) * np.int32(x.one_zero), node.origin)


def _product(work: Raising, node: Call) -> Quantised | None:
    """Two activations: (a - a0)(b - b0) is ab less a0 times the sums of b's columns, less b0 times the sums of the rows of a - a0."""
    a, b = (work.quantised.get(arg) for arg in node.args)
    if a is None or b is None or not all(each.is_single_byte and each.rank >= 2 for each in (a, b)):
        return None
    depth = a.integers.type.shape[-1]  # type: ignore[union-attr]
    if isinstance(depth, int) and not _fits(depth):
        return None
    sums: Expr = ops.integer_matmul(a.integers, b.integers, origin=node.origin)
    if a.one_zero:
        columns = ops.integer_sum(b.integers, axes=(b.rank - 2,), keepdims=True, origin=node.origin)
        sums = ops.add(sums, ops.multiply(columns, _int32(-a.one_zero), origin=node.origin), origin=node.origin)
    if b.one_zero:
        rows = _sums_of_rows(a, depth, node.origin)
        sums = ops.add(sums, ops.multiply(rows, _int32(-b.one_zero), origin=node.origin), origin=node.origin)
    return Quantised(sums, _multiplied(a.scale, b.scale), np.zeros((), "int32"), node.origin)


def _sums_of_rows(a: Quantised, depth: Dim, origin: str) -> Expr:
    """Without the zero point, ``depth`` times of which is known only where that is."""
    how: dict[str, Any] = {"axes": (a.rank - 1,), "keepdims": True, "origin": origin}
    if not a.one_zero:
        return ops.integer_sum(a.integers, **how)
    if not isinstance(depth, int):
        return ops.integer_sum(a.sums(), **how)
    return ops.add(ops.integer_sum(a.integers, **how), _int32(-a.one_zero * depth), origin=origin)


def _int32(value: int) -> Constant:
    return Constant(np.asarray(value, "int32"))


def narrowed(work: Raising, node: Call) -> Expr | None:
    """Sums of an imported quantised operator: its weights less their zero point, in int16, are bytes again where they fit."""
    weight = work.real(node.args[1])
    data = array_of(weight)
    if data is None or data.dtype != np.int16 or not _is_bytes(data):
        return None
    small = work.weights.derive([weight], "bytes", lambda: data.astype("int8"))
    return call(node.op, [work.real(node.args[0]), small], node.attrs, node.origin)


def _is_bytes(data: np.ndarray) -> bool:
    return bool(data.size and data.min() >= -128 and data.max() <= 127)


@dataclass(frozen=True)
class _Weight:
    """A constant without zero point; ``scale`` is one number or one per output."""

    expr: Expr
    data: np.ndarray
    scale: np.ndarray


def _weight(work: Raising, node: Expr, outputs: int) -> _Weight | None:
    """A constant of bytes whose axis ``outputs`` counts what it gives, in int8 where it fits less its zero point, else in int16."""
    w = work.quantised.get(node)
    data = None if w is None else w.data()
    if w is None or data is None or not w.is_byte:
        return None
    scale, zero = (along_axis(each, w.rank, outputs) for each in (w.scale, w.zero))
    if scale is None or zero is None:
        return None
    if w.dtype == "int8" and not zero.any():
        return _Weight(w.integers, data, scale)
    centred = data.astype("int16") - w.zero.astype("int16")
    if _is_bytes(centred):
        centred = centred.astype("int8")
    return _Weight(work.weights.derive([w.integers], "centred", lambda: centred, w.zero.tolist()), centred, scale)


def _sums(data: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.asarray(data.sum(axis=axes, dtype="int64")).astype("int32")


def _multiplied(*scales: np.ndarray) -> np.ndarray:
    first, second = (compact(scale) for scale in scales)
    return np.asarray(first * second, "float32")


def _fits(depth: int) -> bool:
    """Whether so many products of two bytes, an offset and a bias fit int32."""
    return depth * 255 * 128 < LARGEST_OFFSET


# Averages -----------------------------------------------------------------------------------------------------------


def mean(work: Raising, node: Call) -> Quantised | None:
    """``mean`` and ``sum``: the sum of the bytes."""
    x, attrs = work.quantised.get(node.args[0]), node.attrs
    if x is None or not x.is_single_byte or not attrs.axes:  # type: ignore[attr-defined]
        return None
    count = product(x.integers.type.shape[axis] for axis in attrs.axes)  # type: ignore[union-attr, attr-defined]
    if not isinstance(count, int) or not 0 < count < LARGEST_OFFSET // 255:
        return None
    integers = call(ops.integer_sum, [x.integers], attrs, node.origin)
    divisor = np.float32(count if node.op.name == "mean" else 1)
    return Quantised(integers, np.asarray(x.scale.reshape(()) / divisor), np.asarray(x.one_zero * count, "int32"), node.origin)


def avg_pool(work: Raising, node: Call) -> Quantised | None:
    """The sum of a window is a convolution of each channel with ones."""
    x = work.quantised.get(node.args[0])
    attrs: Any = node.attrs
    if x is None or not x.is_single_byte or attrs.ceil_mode or attrs.channel_block:
        return None
    type_ = cast(TensorType, x.integers.type)
    divisor, channels = _divisor(attrs, type_), type_.shape[1]
    if divisor is None or not isinstance(channels, int):
        return None
    window = {name: getattr(attrs, name) for name in ("strides", "padding", "dilation")}
    ones = Constant(np.ones((channels, 1, *attrs.kernel), "int8"), node.origin)
    integers = ops.integer_conv(x.integers, ones, groups=channels, pad_value=x.one_zero, origin=node.origin, **window)
    offset = np.asarray(x.one_zero * ones.data[0].size, "int32")
    return Quantised(integers, np.asarray(x.scale.reshape(()) / divisor, "float32"), offset, node.origin)


def _divisor(attrs: Any, x: TensorType) -> np.ndarray | None:
    """How many elements each window's average counts: one number, or an array [1, 1, *spatial] where padding does not count."""
    if attrs.divisor_override:
        return np.asarray(attrs.divisor_override, "float32") if attrs.divisor_override > 0 else None
    if attrs.count_include_pad or not any(attrs.padding):
        return np.asarray(math.prod(attrs.kernel), "float32")
    spatial = [extent for extent in x.shape[2:] if isinstance(extent, int)]
    if len(spatial) < len(attrs.kernel):
        return None
    inside = np.ones((1, 1, *spatial), "int32")
    names = ("strides", "padding", "dilation")
    counted = ops.integer_conv.reference(
        IntegerConvAttributes(**{name: getattr(attrs, name) for name in names}), inside, np.ones((1, 1, *attrs.kernel), "int32")
    )
    return np.asarray(counted, "float32")


# Elementwise --------------------------------------------------------------------------------------------------------


def add(work: Raising, node: Call) -> Quantised | None:
    """A constant behind a sum is a bias: it joins the zero point."""
    for this, other in (node.args, node.args[::-1]):
        x, number = work.quantised.get(this), _number(work, other)
        if x is None or number is None or not x.is_sum or x.data() is not None or node.type != this.type:
            continue
        steps = np.rint(number / x.scale.astype("float64"))
        if np.isfinite(steps).all() and np.abs(steps).max(initial=0) + np.abs(x.zero.astype("int64")).max(initial=0) < LARGEST_OFFSET:
            return replace(x, zero=x.zero - steps.astype("int32"), source=None, origin=node.origin or x.origin)
    return None


def multiply(work: Raising, node: Call) -> Quantised | None:
    """A positive number is part of the scale."""
    for this, other in (node.args, node.args[::-1]):
        x, number = work.quantised.get(this), _number(work, other)
        if x is None or number is None or number.size != 1 or x.data() is not None or node.type != this.type:
            continue
        scale = (x.scale.astype("float64") * number.reshape(())).astype("float32")
        if (scale > 0).all() and np.isfinite(scale).all():
            return replace(x, scale=scale, source=None)
    return None


def _number(work: Raising, node: Expr) -> np.ndarray | None:
    """The value of a constant in float64."""
    if node in work.quantised:
        return work.quantised[node].number()
    data = array_of(work.real(node))
    return None if data is None else data.astype("float64")


def clip(work: Raising, node: Call) -> Quantised | None:
    """``relu`` and ``clip`` whose limits are steps of the bytes, or lie beyond them."""
    x = work.quantised.get(node.args[0])
    if x is None or not x.is_single_byte:
        return None
    attrs: Any = node.attrs
    ends = (0.0, None) if node.op.name == "relu" else (attrs.minimum, attrs.maximum)
    info = np.iinfo(x.dtype)
    steps = [None if end is None else x.step_of(end) for end in ends]
    low, high = (None if step is None or math.isinf(step) else step for step in steps)
    if any(step is not None and math.isnan(step) for step in steps):
        return None
    low, high = (None if low is None or low <= info.min else int(low)), (None if high is None or high >= info.max else int(high))
    held = x.integers if low is None and high is None else ops.clip(x.integers, minimum=low, maximum=high, origin=node.origin)
    return replace(x, integers=held, source=None)


# What moves bytes ---------------------------------------------------------------------------------------------------


def moved(work: Raising, node: Call) -> Quantised | None:
    x = work.quantised.get(node.args[0])
    if x is None or not moves_bytes(node):
        return None
    if x.data() is not None:
        return _moved_constant(work, node, x)
    if not x.is_single_byte:
        return None
    attrs: Any = node.attrs
    if node.op.name == "pad" and attrs.mode == "constant":
        step = x.step_of(attrs.value)
        if not np.iinfo(x.dtype).min <= step <= np.iinfo(x.dtype).max:
            return None
        attrs = replace(attrs, value=int(step))
    integers = call(node.op, [x.integers, *(work.real(arg) for arg in node.args[1:])], attrs, node.origin)
    return Quantised(integers, x.scale, x.zero, node.origin)


def _moved_constant(work: Raising, node: Call, x: Quantised) -> Quantised | None:
    """A weight that is turned before a layer reads it; its scales turn with it."""
    data = x.data()
    if node.op.name not in ("reshape", "transpose") or data is None or not node.type.is_static:  # type: ignore[union-attr]
        return None

    def turned(array: np.ndarray) -> np.ndarray:
        whole = np.broadcast_to(array, data.shape)
        return array if array.size == 1 else np.asarray(node.op.reference(node.attrs, whole))  # type: ignore[union-attr]

    integers = work.weights.derive([x.integers], node.op.name, lambda: np.asarray(node.op.reference(node.attrs, data)), node.attrs)  # type: ignore[union-attr]
    return Quantised(integers, turned(x.scale), turned(x.zero), node.origin)


def concat(work: Raising, node: Call) -> Quantised | None:
    found = [work.quantised.get(arg) for arg in node.args]
    first = found[0]
    if first is None or not first.is_byte or not all(each is not None and first.alike(each) for each in found):
        return None
    integers = call(node.op, [each.integers for each in found if each is not None], node.attrs, node.origin)
    return Quantised(integers, first.scale, first.zero, node.origin)


RULES: dict[str, Rule] = {
    "dequantise": dequantise,
    "quantise": quantise,
    "conv": conv,
    "dense": dense,
    "matmul": matmul,
    "integer_conv": narrowed,
    "integer_matmul": narrowed,
    "mean": mean,
    "sum": mean,
    "avg_pool": avg_pool,
    "add": add,
    "multiply": multiply,
    "relu": clip,
    "clip": clip,
    "concat": concat,
    **dict.fromkeys(MOVING - {"concat"}, moved),
    "resize": moved,
}
