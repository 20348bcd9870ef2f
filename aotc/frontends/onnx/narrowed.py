"""What a branch takes for granted of sizes outside of it. It holds where the branch runs, and need not hold anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aotc import ops
from aotc.frontends.onnx.dynamic import Dynamic
from aotc.frontends.onnx.values import Ratio, ratio
from aotc.ir.dims import Dim, DimExpr, Symbol, as_symbol, floordiv, substitute, symbols_of
from aotc.ir.expr import Expr
from aotc.ir.types import TensorType


class Narrowed:
    """Inside the branch each size of which something is taken for granted is another dim, which is defined from it and checked
    whenever the branch runs."""

    def __init__(self, dynamic: Dynamic, origin: str) -> None:
        self.dynamic, self.origin = dynamic, origin
        self.outside = {*dynamic.made, *dynamic.taken}
        self.own: set[str] = set()
        self.values: dict[str, Dim] = {}
        self._symbols: dict[str, Symbol] = {}

    def take(self, values: Mapping[str, Dim]) -> bool:
        """Takes ``values`` of symbols for granted. False, and nothing is taken, where one is known only inside."""
        if not all(name in self.outside or name in self.own for name in values):
            return False
        for name, value in values.items():
            new = substitute(value, {name: self._fresh(value, name)}) if name in symbols_of(value) else value
            self.values = {key: substitute(dim, {name: new}) for key, dim in self.values.items()}
            if name in self.outside:
                self.values.setdefault(name, new)
        return True

    def _fresh(self, value: Dim, name: str) -> Dim:
        symbol = symbols_of(value)[name]
        made = self.dynamic.symbol(symbol.lower, symbol.upper)
        self.own |= set(symbols_of(made))
        return made

    def inside(self, expr: Expr) -> Expr:
        """``expr`` in the branch's own dims."""
        type_ = expr.type
        if not isinstance(type_, TensorType):
            return expr
        self._symbols = {**symbols_of(*type_.shape), **self._symbols}
        shape = tuple(substitute(dim, self.values) for dim in type_.shape)
        if shape == type_.shape:
            return expr
        # What is no definition of its own is checked before the first read: a kernel would else read beyond the data.
        pairs = tuple(
            (outer, inner) for outer, inner in zip(type_.shape, shape, strict=True) if outer != inner and as_symbol(inner) is None
        )
        checked = ops.check_dims(expr, pairs=pairs, origin=self.origin) if pairs else expr
        return ops.reshape(checked, shape=shape, origin=self.origin)

    def value(self, known: np.ndarray) -> np.ndarray:
        """A known value in the branch's own dims."""
        if known.dtype != object:
            return known
        return np.asarray(np.frompyfunc(self._value, 1, 1)(known), object)

    def _value(self, each: Any) -> Any:
        if isinstance(each, Ratio):
            return ratio(substitute(each.numerator, self.values), each.denominator)
        return substitute(each, self.values) if isinstance(each, DimExpr) else each

    def define(self) -> None:
        """Defines the branch's dims in its frame, which has just begun."""
        for name, value in self.values.items():
            outer = DimExpr((((self._symbols[name],), 1),))
            used = [symbol for key, symbol in symbols_of(value).items() if key in self.own]
            factor = _factor(value, used[0]) if len(used) == 1 else None
            if factor is None and not isinstance(value, int):
                self.dynamic.check(ops.dims(values=(outer,), scalar=True), [(outer, value)], self.origin)
                continue
            size: Dim = outer if factor is None else floordiv(outer, factor)
            wanted: Dim = value if factor is None else DimExpr((((used[0],), 1),))
            self.dynamic.frames[-1].append(ops.define_dims(ops.dims(values=(size,), scalar=True), dims=(wanted,), origin=self.origin))
            if factor is not None and factor > 1:
                self.dynamic.check(ops.dims(values=(outer,), scalar=True), [(outer, value)], self.origin)


def _factor(value: Dim, symbol: Symbol) -> int | None:
    """k where ``value`` is k times the symbol."""
    terms = value.terms if isinstance(value, DimExpr) else ()
    return terms[0][1] if len(terms) == 1 and terms[0][0] == (symbol,) and terms[0][1] > 0 else None
