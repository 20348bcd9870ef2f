"""Elementwise operators, comparisons, logic, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotc import ops
from aotc.frontends.onnx.node import Handler, Node, Results
from aotc.frontends.onnx.operators.random import dropped
from aotc.frontends.onnx.tensors import dtype_of
from aotc.ir.expr import Expr
from aotc.ir.types import FLOATS
from aotc.ops.base import OpDef


def _same(operator: OpDef, **attributes: Callable[[Node], Any]) -> Handler:
    """The operator of the same meaning; each attribute computed from the node."""

    def handler(node: Node) -> Results:
        values = {name: read(node) for name, read in attributes.items()}
        return node.call(operator, *node.given(), **values)

    return handler


def _number(name: str, default: float) -> Callable[[Node], float]:
    return lambda node: node.number(name, default)


def _variadic(operator: OpDef) -> Handler:
    def handler(node: Node) -> Results:
        first, *rest = node.given()
        for each in rest:
            first = node.call(operator, first, each)
        return first

    return handler


def _mean(node: Node) -> Results:
    total: Any = _variadic(ops.add)(node)
    count = len(node.given())
    return total if count == 1 else node.call(ops.divide, total, node.constant(count, node.dtype(total)))


def _clip(node: Node) -> Results:
    """Limits are attributes before opset 11, and inputs, which may be left out or computed, after."""
    x = node.input(0)
    if node.opset < 11:
        low, high = (node.number(name) if node.has(name) else None for name in ("min", "max"))
        return node.call(ops.clip, x, minimum=low, maximum=high)
    limits = [node.optional(index) for index in (1, 2)]
    values = [None if limit is None else _number_of(node, limit) for limit in limits]
    if all(limit is None or value is not None for limit, value in zip(limits, values, strict=True)):
        return x if values == [None, None] else node.call(ops.clip, x, minimum=values[0], maximum=values[1])
    for operator, limit in zip((ops.maximum, ops.minimum), limits, strict=True):
        if limit is not None:
            x = node.call(operator, x, limit)
    return x


def _number_of(node: Node, limit: Expr) -> Any:
    """The number that a limit is, or None where it is not known."""
    value = node.known.get(limit)
    if value is None or value.dtype == object:
        return None
    if value.size != 1:
        node.invalid(f"a limit must be one number, not {list(value.shape)}")
    return value.reshape(()).item()


def _modulo(node: Node) -> Results:
    return node.call(ops.modulo, node.input(0), node.input(1), fmod=node.flag("fmod"))


def _power(node: Node) -> Results:
    return node.call(ops.power, node.input(0), node.input(1))


def _bit_shift(node: Node) -> Results:
    direction = node.text("direction")
    operators = {"LEFT": ops.left_shift, "RIGHT": ops.right_shift}
    if direction not in operators:
        node.invalid(f"direction must be LEFT or RIGHT, not {direction!r}")
    return node.call(operators[direction], node.input(0), node.input(1))


def _prelu(node: Node) -> Results:
    x, slope = node.input(0), node.input(1)
    if node.dtype(x) in FLOATS:
        return node.call(ops.prelu, x, slope)
    negative = node.call(ops.less, x, node.constant(0, node.dtype(x)))
    return node.call(ops.where, negative, node.call(ops.multiply, x, slope), x)


def _cast(node: Node) -> Results:
    return _cast_to(node, node.input(0), _target(node))


def _target(node: Node) -> str:
    return dtype_of(node.integer("to"), f"the result of {node.origin!r}")


def _bit_cast(node: Node) -> Results:
    return node.call(ops.bitcast, node.input(0), dtype=_target(node))


def _cast_like(node: Node) -> Results:
    return _cast_to(node, node.input(0), node.dtype(node.input(1)))


def _cast_to(node: Node, x: Expr, dtype: str) -> Expr:
    if node.dtype(x) == dtype:
        return x
    return node.call(ops.cast, x, dtype=dtype, saturate=node.flag("saturate", True), round_mode=node.text("round_mode", "up"))


def _identity(node: Node) -> Results:
    return node.input(0)


def _dropout(node: Node) -> Results:
    """Outside of training the data passes, and the mask keeps everything. The ratio is an attribute before opset 12."""
    x = node.input(0)
    training = node.static_array(2, "training_mode") if node.opset >= 12 else None
    if training is not None and bool(training.any()):
        ratio = node.optional(1)
        known = None if ratio is None else node.known.get(ratio)
        rate: Expr | float = 0.5 if ratio is None else ratio if known is None else float(known.reshape(-1)[0])
        both = list(dropped(node, x, rate))
        return both if node.wants(1) else both[:1]
    if not node.wants(1):
        return x
    dtype = node.dtype(x) if node.opset < 10 else "bool"
    return [x, node.call(ops.full, shape=node.shape(x), value=True if dtype == "bool" else 1, dtype=dtype)]


def _gelu(node: Node) -> Results:
    return node.call(ops.gelu, node.input(0), approximate=node.text("approximate", "none"))


def _swish(node: Node) -> Results:
    x, alpha = node.input(0), node.number("alpha", 1.0)
    if alpha == 1.0:
        return node.call(ops.silu, x)
    gate = node.call(ops.sigmoid, node.call(ops.multiply, x, node.constant(alpha, node.dtype(x))))
    return node.call(ops.multiply, x, gate)


def _is_inf(node: Node) -> Results:
    return node.call(ops.isinf, node.input(0), negative=node.flag("detect_negative", True), positive=node.flag("detect_positive", True))


def _selu(node: Node) -> Results:
    alpha, gamma = 1.67326319217681884765625, 1.05070102214813232421875
    return node.call(ops.selu, node.input(0), alpha=node.number("alpha", alpha), gamma=node.number("gamma", gamma))


def _where(node: Node) -> Results:
    return node.call(ops.where, *(node.input(i) for i in range(3)))


HANDLERS: dict[str, Handler] = {
    **{
        name: _same(operator)
        for name, operator in {
            "Abs": ops.abs_, "Acos": ops.acos, "Acosh": ops.acosh, "Asin": ops.asin, "Asinh": ops.asinh, "Atan": ops.atan,
            "Atanh": ops.atanh, "Ceil": ops.ceil, "Cos": ops.cos, "Cosh": ops.cosh, "Erf": ops.erf, "Exp": ops.exp,
            "Floor": ops.floor, "HardSwish": ops.hard_swish, "IsNaN": ops.isnan, "Log": ops.log, "Mish": ops.mish,
            "Neg": ops.negative, "Not": ops.logical_not, "BitwiseNot": ops.bitwise_not, "Reciprocal": ops.reciprocal,
            "Relu": ops.relu, "Round": ops.round_, "Sigmoid": ops.sigmoid, "Sign": ops.sign, "Sin": ops.sin, "Sinh": ops.sinh,
            "Softplus": ops.softplus, "Softsign": ops.softsign, "Sqrt": ops.sqrt, "Tan": ops.tan, "Tanh": ops.tanh,
            "Add": ops.add, "Sub": ops.subtract, "Mul": ops.multiply, "Div": ops.divide, "Equal": ops.equal, "Less": ops.less,
            "LessOrEqual": ops.less_equal, "Greater": ops.greater, "GreaterOrEqual": ops.greater_equal, "And": ops.logical_and,
            "Or": ops.logical_or, "Xor": ops.logical_xor, "BitwiseAnd": ops.bitwise_and, "BitwiseOr": ops.bitwise_or,
            "BitwiseXor": ops.bitwise_xor,
        }.items()
    },
    "Elu": _same(ops.elu, alpha=_number("alpha", 1.0)),
    "Celu": _same(ops.celu, alpha=_number("alpha", 1.0)),
    "LeakyRelu": _same(ops.leaky_relu, alpha=_number("alpha", 0.01)),
    "ThresholdedRelu": _same(ops.thresholded_relu, alpha=_number("alpha", 1.0)),
    "HardSigmoid": _same(ops.hard_sigmoid, alpha=_number("alpha", 0.2), beta=_number("beta", 0.5)),
    "Selu": _selu,
    "Gelu": _gelu,
    "Swish": _swish,
    "PRelu": _prelu,
    "Clip": _clip,
    "IsInf": _is_inf,
    "Max": _variadic(ops.maximum),
    "Min": _variadic(ops.minimum),
    "Sum": _variadic(ops.add),
    "Mean": _mean,
    "Mod": _modulo,
    "Pow": _power,
    "BitShift": _bit_shift,
    "Where": _where,
    "Cast": _cast,
    "BitCast": _bit_cast,
    "CastLike": _cast_like,
    "Identity": _identity,
    "Dropout": _dropout,
}  # fmt: skip
