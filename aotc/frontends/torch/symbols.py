"""Sizes that torch.export keeps symbolic, as dims: SymPy expressions become ``aotc.ir.dims``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import sympy
import torch
from torch.utils._sympy.symbol import SymT, symbol_is_type

from aotc.errors import UnsupportedModel
from aotc.ir import dims
from aotc.ir.dims import Dim, floordiv

LARGEST_BOUND = 2**62
"""Upper bounds from here on mean that there is none; torch writes them in several ways."""
LARGEST_FOUND = 2**31
"""An integer that a tensor holds and that becomes a size, or part of one, is at least minus this."""


class SymbolTable:
    """Names and bounds of the symbols of one exported program, and the conversion of its sizes."""

    def __init__(self, ranges: Mapping[Any, Any], names: Mapping[str, str]) -> None:
        """``ranges`` are the program's range constraints, ``names`` the users' names by torch's."""
        self._names = names
        self._bounds = {str(symbol): (_lower(value), _upper(value)) for symbol, value in ranges.items()}
        self._ranges = {str(symbol): value for symbol, value in ranges.items()}
        self._cache: dict[Any, Dim] = {}
        self._made = 0

    def dim(self, size: Any) -> Dim:
        """The dim of an int, SymInt or SymPy expression. Raises UnsupportedModel for sizes known only from values."""
        if isinstance(size, (int, sympy.Integer)):
            return int(size)
        expression = size.node.expr if isinstance(size, torch.SymInt) else size
        if expression not in self._cache:
            self._cache[expression] = self._convert(expression)
        return self._cache[expression]

    def fresh_name(self, stem: str) -> str:
        """A name that no symbol has."""
        self._made += 1
        name = f"{stem}{self._made}"
        taken = {*self._names.values(), *self._bounds}
        return name if name not in taken else self.fresh_name(stem)

    def shape(self, sizes: Any) -> tuple[Dim, ...]:
        return tuple(self.dim(size) for size in sizes)

    def _convert(self, e: Any) -> Dim:
        if e.is_Integer:
            return int(e)
        if e.is_Symbol:
            return self._symbol(e)
        if e.is_Add:
            return sum((self.dim(arg) for arg in e.args[1:]), self.dim(e.args[0]))
        if e.is_Mul and not any(arg.is_Rational and not arg.is_Integer for arg in e.args):
            return dims.product(self.dim(arg) for arg in e.args)
        if e.is_Pow and e.exp.is_Integer and e.exp > 0:
            return dims.product([self.dim(e.base)] * int(e.exp))
        name = type(e).__name__
        if name in BINARY:
            first, *rest = [self.dim(arg) for arg in e.args]
            for each in rest:
                first = BINARY[name](first, each)
            return first
        if name == "ModularIndexing":
            base, divisor, modulus = (self.dim(arg) for arg in e.args)
            return dims.mod(floordiv(base, divisor), modulus)
        if name in ("FloorToInt", "TruncToInt", "CeilToInt"):
            top, bottom = self._ratio(e.args[0])
            return dims.ceildiv(top, bottom) if name == "CeilToInt" else floordiv(top, bottom)
        top, bottom = self._ratio(e)
        if bottom == 1:
            return top
        raise UnsupportedModel(f"the size {e} is not an integer expression that can be computed from the inputs' shapes")

    def found(self, symbol: Any, most: Dim | None) -> Dim:
        """A symbol whose value a node finds when it runs, with torch's bounds and ``most``; the node must define it."""
        name = str(symbol)
        own = self._ranges.get(name)
        lower = int(own.lower) if own is not None and own.lower.is_Integer and abs(int(own.lower)) < LARGEST_BOUND else -LARGEST_FOUND
        upper = _upper(own) if own is not None else None
        limits = [limit for limit in (upper, None if most is None else dims.bounds(most)[1]) if limit is not None]
        lower = max(lower, 0) if most is not None else lower
        self._cache[symbol] = dims.symbol(self._unbacked_name(name), lower, min(limits) if limits else None)
        return self._cache[symbol]

    def meet(self, sizes: Sequence[Any], shape: Sequence[Dim]) -> None:
        """A size for which torch made a symbol, and which no node defines, is what it is here, as for ``x[:n.item()]``."""
        for size, dim in zip(sizes, shape, strict=False):  # ranks that differ are an error of the recipe, told later
            symbol = size.node.expr if isinstance(size, torch.SymInt) else None
            if symbol is not None and symbol.is_Symbol and symbol_is_type(symbol, SymT.UNBACKED_INT):
                self._cache.setdefault(symbol, dim)

    def _unbacked_name(self, name: str) -> str:
        while name in self._names.values():
            name += "_"
        return name

    def _symbol(self, symbol: Any) -> Dim:
        name = str(symbol)
        if symbol_is_type(symbol, SymT.UNBACKED_INT):
            raise UnsupportedModel(f"the size {name} depends on the values of a tensor in a way that aotc cannot follow")
        lower, upper = self._bounds.get(name, (1, None))
        return dims.symbol(self._names.get(name, name), lower, upper)

    def _ratio(self, e: Any) -> tuple[Dim, int]:
        """A real-valued size as dim / int, exactly. Factors that are no fractions of powers of two are refused: they
        would be rounded at run time in ways that integers do not follow."""
        name = type(e).__name__
        if name == "ToFloat":
            return self.dim(e.args[0]), 1
        if e.is_Number:
            factor = Fraction(e.p, e.q) if e.is_Rational else Fraction(float(e))
            if factor.denominator <= 2**20:
                return factor.numerator, factor.denominator
        if name == "IntTrueDiv" and e.args[1].is_Integer:
            return self.dim(e.args[0]), int(e.args[1])
        if e.is_Mul or name == "FloatTrueDiv":
            parts = [self._ratio(arg) for arg in e.args]
            if e.is_Mul:
                return dims.product(top for top, _ in parts), int(dims.product(bottom for _, bottom in parts))  # type: ignore[arg-type]
            (top, bottom), (divisor, multiplier) = parts
            if isinstance(divisor, int) and divisor > 0:
                return top * multiplier, bottom * divisor
        if e.is_integer and name not in ("Mul", "Add"):
            return self.dim(e), 1
        raise UnsupportedModel(f"the size factor {e} cannot be computed exactly in integers")


BINARY: dict[str, Callable[[Dim, Dim], Dim]] = {
    "FloorDiv": floordiv,
    "CleanDiv": floordiv,
    "CeilDiv": dims.ceildiv,
    "Mod": dims.mod,
    "PythonMod": dims.mod,
    "Max": dims.maximum,
    "Min": dims.minimum,
}


def _lower(value: Any) -> int:
    """torch traces with sizes of 2 or more. Where it knows no more it says 0 or, of Dim.DYNAMIC and Dim.AUTO, 2, and what it
    exported takes 1 all the same: a dynamic dim is then at least 1."""
    low = int(value.lower) if value.lower.is_Integer else 1
    return low if low > 2 else 1


def _upper(value: Any) -> int | None:
    high = value.upper
    return int(high) if high.is_Integer and int(high) < LARGEST_BOUND else None
