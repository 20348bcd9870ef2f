"""What a model silently takes for granted about its dynamic dims, found where two of them must be equal.

A network that adds a feature map to one that was halved and doubled runs only where the size is even, and a convolution of
three channels only where a channel dim declared as dynamic is 3. Such a fact becomes part of the input's type.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence

from aotc.frontends.onnx.node import Node
from aotc.ir.dims import Dim, DimExpr, Symbol, bounds, floordiv, substitute, symbol, symbols_of
from aotc.ir.types import TensorType
from aotc.ops.shape_values import value_of

MULTIPLES = (2, 4, 8, 16, 32, 64, 128, 3, 5, 6, 7, 9, 10, 12, 14, 20, 24, 28, 48, 56, 96, 112)
SCANNED = 4096  # sizes that are tried
BROADCASTING = frozenset(
    (
        "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual", "Less",
        "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
    )
)  # fmt: skip


class Assumption(Exception):
    """The model can run only where these symbols have these values."""

    def __init__(self, values: dict[str, Dim]) -> None:
        super().__init__(", ".join(f"{name} = {value}" for name, value in values.items()))
        self.values = values


def assumption_of(node: Node) -> Assumption | None:
    """What would let ``node`` fit its inputs, if that is a fact about symbols."""
    for left, right in _pairs_that_must_be_equal(node):
        if left != right:
            values = solve_equal(left, right)
            if values:
                return Assumption(values)
    return None


def solve_equal(left: Dim, right: Dim) -> dict[str, Dim] | None:
    """Values of symbols that make two dims equal: a symbol as a number, as another dim, as a multiple of itself, or as
    itself within bounds."""
    difference = left - right
    if isinstance(difference, int):
        return None
    difference = _reduced(difference)
    return _linear(difference) or _multiples(difference) or _range(difference)


def _reduced(difference: DimExpr) -> DimExpr:
    """Without the factors that all terms share, which are not 0: b * s - 5 * b becomes s - 5."""
    common = functools.reduce(operator.and_, (Counter(monomial) for monomial, _ in difference.terms))
    divisor: Dim = math.gcd(*(coefficient for _, coefficient in difference.terms))
    for atom in common.elements():
        if isinstance(atom, Symbol) and atom.lower < 1:
            return difference
        divisor = divisor * DimExpr((((atom,), 1),))
    quotient = floordiv(difference, divisor)
    return quotient if isinstance(quotient, DimExpr) else difference


def _linear(difference: DimExpr) -> dict[str, Dim] | None:
    for monomial, coefficient in reversed(difference.terms):
        if len(monomial) != 1 or not isinstance(monomial[0], Symbol):
            continue
        rest = difference - DimExpr(((monomial, coefficient),))
        name = monomial[0].name
        if name in symbols_of(rest):
            continue
        value = floordiv(rest * (-1 if coefficient > 0 else 1), abs(coefficient))
        low, high = bounds(value)
        if value * coefficient + rest == 0 and not (high is not None and high < monomial[0].lower) and not (low is not None and low < 0):
            return {name: value}
    return None


def _multiples(difference: DimExpr) -> dict[str, Dim] | None:
    symbols = symbols_of(difference)
    choices = [[name] for name in symbols] + ([list(symbols)] if len(symbols) > 1 else [])
    for factor in MULTIPLES:
        for names in choices:
            values: dict[str, Dim] = {name: factor * _divided(symbols[name], factor) for name in names}
            if substitute(difference, values) == 0:
                return values
    return None


def _range(difference: DimExpr) -> dict[str, Dim] | None:
    """The one run of sizes for which the difference is 0, such as 33 to 80 for (h + 15) // 48 - 1."""
    symbols = symbols_of(difference)
    if len(symbols) != 1:
        return None
    (dim,) = symbols.values()
    last = SCANNED if dim.upper is None else min(dim.upper, SCANNED)
    fitting = [size for size in range(dim.lower, last + 1) if substitute(difference, {dim.name: size}) == 0]
    if not fitting or fitting[-1] == SCANNED or fitting[-1] - fitting[0] + 1 != len(fitting):
        return None
    values: dict[str, Dim] = {dim.name: fitting[0] if len(fitting) == 1 else symbol(dim.name, fitting[0], fitting[-1])}
    return values if substitute(difference, values) == 0 else None


def _divided(dim: Symbol, factor: int) -> DimExpr:
    upper = None if dim.upper is None else dim.upper // factor
    return symbol(dim.name, -(-dim.lower // factor), upper)


def _pairs_that_must_be_equal(node: Node) -> Iterable[tuple[Dim, Dim]]:
    shapes = [expr.type.shape for expr in node.inputs if expr is not None and isinstance(expr.type, TensorType)]
    kind = node.proto.op_type
    if len(shapes) < 2:
        return []
    x, w = shapes[0], shapes[1]
    if kind == "Conv" and len(x) > 1 and len(w) > 1:
        return [(x[1], w[1] * node.integer("group", 1))]
    if kind == "ConvTranspose" and len(x) > 1 and w:
        return [(x[1], w[0])]
    if kind == "MatMul" and x and w:
        inner = w[-2] if len(w) > 1 else w[0]
        return [(x[-1], inner), *_broadcast([x[:-2], w[:-2]])]
    if kind == "Gemm" and len(x) == len(w) == 2:
        return [(x[0 if node.integer("transA", 0) else 1], w[1 if node.integer("transB", 0) else 0])]
    if kind == "Concat":
        axis = node.integer("axis", 0) % max(len(x), 1)
        return _aligned([(*shape[:axis], 1, *shape[axis + 1 :]) for shape in shapes])
    if kind in ("BatchNormalization", "InstanceNormalization", "GroupNormalization") and len(x) > 1 and w:
        return [(x[1], w[0])]
    if kind in ("LSTM", "GRU", "RNN") and len(x) == 3:
        axis = 0 if node.integer("layout", 0) else 1
        states = [node.inputs[i] for i in (5, 6) if i < len(node.inputs)]
        return [
            (x[axis], expr.type.shape[axis])
            for expr in states
            if expr is not None and isinstance(expr.type, TensorType) and expr.type.rank == 3
        ]
    if kind == "Expand":
        wanted = value_of(node.inputs[1]) if node.inputs[1] is not None else None
        return [] if wanted is None else _broadcast([x, tuple(wanted.tolist())])
    return _broadcast(shapes) if kind in BROADCASTING else []


def _broadcast(shapes: Sequence[tuple[Dim, ...]]) -> list[tuple[Dim, Dim]]:
    return [(left, right) for left, right in _aligned(shapes) if left != 1 and right != 1]


def _aligned(shapes: Sequence[tuple[Dim, ...]]) -> list[tuple[Dim, Dim]]:
    """Dims that stand at the same place, counted from the end."""
    first, pairs = shapes[0], []
    for shape in shapes[1:]:
        pairs += list(zip(reversed(first), reversed(shape), strict=False))
    return pairs
