"""Values known while importing: constants, and what shapes and constants compute, with symbolic dims where they occur.

ONNX computes shapes, pads, axes and scales as tensors. Each small expression is evaluated as it is built; ``Known.get``
then turns a computed shape into an attribute. Floats computed from dims are exact ratios (``h * 0.5``), so that the floor
of one is a dim again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import numpy as np

from aotc.errors import InvalidModel
from aotc.ir.dims import Dim, DimExpr, ceildiv, floordiv
from aotc.ir.expr import Call, Constant, Expr, Function, Parameter, TupleGetItem
from aotc.ir.types import FLOATS, TensorType
from aotc.ops.base import OpDef

MAX_ELEMENTS = 4096  # of a computed value; no shape is that long
MAX_DENOMINATOR = 1 << 20


@dataclass(frozen=True)
class Ratio:
    """``numerator / denominator``: a float that was computed from dims."""

    numerator: DimExpr
    denominator: int

    def __add__(self, other: Any) -> Any:
        top, bottom = _parts(other)
        return ratio(self.numerator * bottom + top * self.denominator, self.denominator * bottom)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return Ratio(cast(DimExpr, -self.numerator), self.denominator)

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        top, bottom = _parts(other)
        return ratio(self.numerator * top, self.denominator * bottom)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        top, bottom = _parts(other)
        if isinstance(top, DimExpr):
            if self.numerator * bottom == top * self.denominator:
                return 1.0
            raise TypeError("a quotient of two dims is not followed")
        return ratio(self.numerator * (bottom if top > 0 else -bottom), self.denominator * abs(top))


def ratio(numerator: Dim, denominator: int) -> Any:
    """A float where the numerator is a number; raises TypeError where the value is no number or too fine to be meant."""
    if isinstance(numerator, int):
        return numerator / denominator
    if not 0 < denominator <= MAX_DENOMINATOR:
        raise TypeError("not a simple ratio")
    for divisor in (denominator, 2, 3, 5):
        while denominator > 1 and denominator % divisor == 0 and all(c % divisor == 0 for _, c in numerator.terms):
            numerator = cast(DimExpr, floordiv(numerator, divisor))
            denominator //= divisor
    return Ratio(numerator, denominator)


def _parts(value: Any) -> tuple[Dim, int]:
    if isinstance(value, Ratio):
        return value.numerator, value.denominator
    if isinstance(value, DimExpr):
        return value, 1
    exact = Fraction(float(value))
    if exact.denominator > MAX_DENOMINATOR:
        exact = exact.limit_denominator(1000)  # a decimal such as 0.1
        if np.float32(float(exact)) != np.float32(value):
            raise TypeError("not a simple ratio")
    return exact.numerator, exact.denominator


def _to_float(value: Any) -> Any:
    return Ratio(value, 1) if isinstance(value, DimExpr) else value if isinstance(value, Ratio) else float(value)


def _to_int(value: Any) -> Any:
    """Truncation; ratios of dims are taken to be positive."""
    return floordiv(value.numerator, value.denominator) if isinstance(value, Ratio) else value if isinstance(value, DimExpr) else int(value)


def _rounded(divide: Callable[[Dim, Dim], Dim], plain: Callable[[float], float]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        return _to_float(divide(value.numerator, value.denominator)) if isinstance(value, Ratio) else float(plain(value))

    return run


_FLOAT_OPERATORS: dict[str, tuple[int, Callable[..., Any]]] = {
    "add": (2, lambda a, b: a + b),
    "subtract": (2, lambda a, b: a - b),
    "multiply": (2, lambda a, b: a * b),
    "divide": (2, lambda a, b: a / b),
    "floor": (1, _rounded(floordiv, np.floor)),
    "trunc": (1, _rounded(floordiv, np.trunc)),
    "ceil": (1, _rounded(ceildiv, np.ceil)),
    "negative": (1, lambda a: -a),
}
_MOVES = ("gather", "concat", "slice", "reshape", "transpose", "broadcast_to", "tile")


class Known:
    """The known values of expressions, remembered by node."""

    def __init__(self) -> None:
        self._values: dict[Expr, np.ndarray | None] = {}

    def get(self, expr: Expr) -> np.ndarray | None:
        """The value: of its dtype where it is constant, an object array where dims occur; ``None`` where it is unknown."""
        if isinstance(expr, (Constant, Parameter)):
            return expr.data
        return self._values.get(expr)

    def remember(self, expr: Expr, value: np.ndarray) -> None:
        """States the value of an expression that stands for another."""
        self._values[expr] = value

    def note(self, expr: Expr) -> None:
        """Evaluates a node that was just built; those below it were noted before."""
        if isinstance(expr, Call) and isinstance(expr.op, Function):
            return
        try:
            value = self._compute(expr)
        except (TypeError, ValueError, ArithmeticError, AttributeError, IndexError, InvalidModel):
            return  # it depends on data, or on how two dims compare
        if value is not None:
            self._values[expr] = value

    def _compute(self, expr: Expr) -> np.ndarray | None:
        if isinstance(expr, TupleGetItem) and isinstance(expr.value, Call):
            return None
        if not isinstance(expr, Call) or not isinstance(expr.type, TensorType) or not _is_small(expr.type):
            return None
        operator = cast(OpDef, expr.op)
        if operator.name == "define_dims":
            return _settled(_objects(cast(Any, expr.attrs).dims).reshape(expr.type.static_shape()), "int64")
        if operator.name == "shape_of":
            return _settled(_objects(cast(TensorType, expr.args[0].type).shape), "int64")
        args = [self.get(arg) for arg in expr.args]
        if any(arg is None or arg.size > MAX_ELEMENTS for arg in args):
            return None
        arrays = cast("list[np.ndarray]", args)
        if all(arg.dtype != object for arg in arrays):
            result = np.asarray(operator.reference(expr.attrs, *arrays))
            return _settled(result, expr.type.dtype)
        return _settled(_on_dims(operator, expr, arrays), expr.type.dtype)


def _on_dims(operator: OpDef, expr: Call, args: list[np.ndarray]) -> np.ndarray:
    dtype = cast(TensorType, expr.type).dtype
    source = cast(TensorType, expr.args[0].type).dtype
    if operator.name == "cast" and (dtype in FLOATS or source in FLOATS):
        return np.asarray(np.frompyfunc(_to_float if dtype in FLOATS else _to_int, 1, 1)(args[0]), object)
    if dtype in FLOATS and operator.name in _FLOAT_OPERATORS:
        arity, function = _FLOAT_OPERATORS[operator.name]
        return np.asarray(np.frompyfunc(function, arity, 1)(*args), object)
    if operator.name in _MOVES:
        return np.asarray(operator.reference(expr.attrs, *args), object)
    if not operator.shape_value or dtype in FLOATS:
        raise TypeError(f"{operator.name} is not followed on dims")
    return np.asarray(operator.reference(expr.attrs, *[arg.astype(object) for arg in args]), object)


def _is_small(type_: TensorType) -> bool:
    return isinstance(type_.size, int) and type_.size <= MAX_ELEMENTS


def _objects(values: tuple[Any, ...]) -> np.ndarray:
    result = np.empty(len(values), object)
    result[:] = values
    return result


def _settled(value: np.ndarray, dtype: str) -> np.ndarray:
    """``value`` in its dtype where no dim is left in it."""
    if value.dtype == object and any(isinstance(each, (DimExpr, Ratio)) for each in value.flat):
        return value
    return value.astype(dtype)
