"""Dimensions of tensors: integers, or integer expressions over named symbols.

A ``DimExpr`` is kept as a polynomial in canonical form, so two dims that are algebraically equal as polynomials are
equal as Python objects: ``(b + 1) * 2 == 2 * b + 2``. Floor division, modulo, min and max that do not simplify away
become atoms of the polynomial. Values that are integers are always plain ``int``, never a ``DimExpr``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Union

Dim = Union[int, "DimExpr"]
Monomial = tuple["Atom", ...]

INT64_MAX = 2**63 - 1
RESERVED = frozenset({"min", "max", "true", "false", "none", "inf", "nan"})  # words of the text form

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named dim that is known when the model runs. ``upper`` of ``None`` means without bound."""

    name: str
    lower: int = field(default=0, compare=False)
    upper: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """The name; in backquotes where it is not a plain word, so that a printed dim can be read back."""
        if _PLAIN_NAME.fullmatch(self.name) and self.name not in RESERVED:
            return self.name
        escaped = self.name.replace("\\", "\\\\").replace("`", "\\`").replace("\n", "\\n")
        return f"`{escaped}`"


@dataclass(frozen=True, slots=True)
class DimOp:
    """``floordiv``, ``mod``, ``min`` or ``max`` of two dims, where it does not simplify."""

    kind: str
    left: Dim
    right: Dim

    def __str__(self) -> str:
        if self.kind in ("min", "max"):
            return f"{self.kind}({self.left}, {self.right})"
        return f"({_grouped(self.left)} {'//' if self.kind == 'floordiv' else '%'} {_grouped(self.right)})"


Atom = Symbol | DimOp


@dataclass(frozen=True, slots=True)
class DimExpr:
    """A sum of integer multiples of products of atoms, sorted; never a plain constant."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _sum([self, other]) if _is_dim(other) else NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return _sum([self, other * -1]) if _is_dim(other) else NotImplemented

    def __rsub__(self, other: Dim) -> Dim:
        return _sum([self * -1, other]) if _is_dim(other) else NotImplemented

    def __mul__(self, other: Dim) -> Dim:
        return _product(self, other) if _is_dim(other) else NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other) if _is_dim(other) else NotImplemented

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self) if _is_dim(other) else NotImplemented

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other) if _is_dim(other) else NotImplemented

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self) if _is_dim(other) else NotImplemented

    def __bool__(self) -> bool:
        raise TypeError(f"the dim {self} is known only at run time: it has no truth value")

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = [str(atom) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = ("-" if coefficient < 0 else "") if not text else (" - " if coefficient < 0 else " + ")
            text += sign + "*".join(factors)
        return text

    def __repr__(self) -> str:
        return f"DimExpr({self})"


def symbol(name: str, lower: int = 0, upper: int | None = None) -> DimExpr:
    """A dim that is one symbol."""
    return DimExpr((((Symbol(name, lower, upper),), 1),))


def as_symbol(dim: Dim) -> Symbol | None:
    """The symbol that ``dim`` is by itself, else ``None``."""
    if isinstance(dim, DimExpr) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0]
    return None


def floordiv(left: Dim, right: Dim) -> Dim:
    """``left // right`` rounded towards minus infinity; ``right`` is taken to be positive where it is symbolic."""
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    if right == 1:
        return left
    if isinstance(right, int) and right <= 0:
        return floordiv(_product(left, -1), _positive(-right))
    whole = _exact_quotient(left, right)
    if whole is not None:
        return whole
    if isinstance(right, int) and right > 1:
        whole, rest = _split_multiples(left, right)
        return _sum([whole, _nested_floordiv(rest, right)])
    return _atom("floordiv", left, right)


def mod(left: Dim, right: Dim) -> Dim:
    """``left - right * (left // right)``."""
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    if isinstance(right, int) and right <= 0:
        return _product(mod(_product(left, -1), _positive(-right)), -1)
    if right == 1 or _exact_quotient(left, right) is not None:
        return 0
    if isinstance(right, int) and right > 1:
        _, left = _split_multiples(left, right)
        if isinstance(left, int):
            return left % right
        low, high = bounds(left)
        if low is not None and low >= 0 and high is not None and high < right:
            return left
    return _atom("mod", left, right)


def ceildiv(left: Dim, right: Dim) -> Dim:
    """``left / right`` rounded towards plus infinity."""
    if isinstance(right, int) and right < 0:
        left, right = _product(left, -1), -right
    return floordiv(left + right - 1, right)


def minimum(left: Dim, right: Dim) -> Dim:
    """The lesser dim; one of the two wherever bounds decide it."""
    return _pick("min", left, right)


def maximum(left: Dim, right: Dim) -> Dim:
    """The greater dim; one of the two wherever bounds decide it."""
    return _pick("max", left, right)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of all dims; 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = _product(result, dim)
    return result


def bounds(dim: Dim) -> tuple[int | None, int | None]:
    """The least and greatest value that ``dim`` can take as far as its symbols' bounds tell; ``None`` is without bound."""
    if isinstance(dim, int):
        return dim, dim
    low: float = 0
    high: float = 0
    for monomial, coefficient in dim.terms:
        span: tuple[float, float] = (1, 1)
        for atom in monomial:
            span = _interval_product(span, _atom_bounds(atom))
        span = _interval_product(span, (coefficient, coefficient))
        low, high = low + span[0], high + span[1]
    return (None if math.isinf(low) else int(low)), (None if math.isinf(high) else int(high))


def symbols_of(*dims: Dim) -> dict[str, Symbol]:
    """The symbols in ``dims`` by name, in the order in which they are met."""
    found: dict[str, Symbol] = {}
    for dim in dims:
        if isinstance(dim, DimExpr):
            for monomial, _ in dim.terms:
                for atom in monomial:
                    if isinstance(atom, Symbol):
                        found.setdefault(atom.name, atom)
                    else:
                        found.update({k: v for k, v in symbols_of(atom.left, atom.right).items() if k not in found})
    return found


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """``dim`` with symbols replaced by name; symbols without a value stay."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom in monomial:
            if isinstance(atom, Symbol):
                factor = values.get(atom.name, DimExpr((((atom,), 1),)))
            else:
                factor = OPERATIONS[atom.kind](substitute(atom.left, values), substitute(atom.right, values))
            term = _product(term, factor)
        total = _sum([total, term])
    return total


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The integer that ``dim`` is for these values of its symbols. Raises KeyError for a missing symbol."""
    missing = [name for name in symbols_of(dim) if name not in values]
    if missing:
        raise KeyError(missing[0])
    result = substitute(dim, values)
    assert isinstance(result, int)
    return result


OPERATIONS: dict[str, Callable[[Dim, Dim], Dim]] = {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum}


def _positive(divisor: int) -> int:
    if divisor == 0:
        raise ZeroDivisionError("division of a dim by zero")
    return divisor


def _is_dim(value: object) -> bool:
    return isinstance(value, (int, DimExpr))


def _grouped(dim: Dim) -> str:
    """``dim`` as an operand of ``//`` or ``%``: in brackets unless it is a number or one atom."""
    if isinstance(dim, DimExpr) and (len(dim.terms) > 1 or len(dim.terms[0][0]) > 1 or dim.terms[0][1] != 1):
        return f"({dim})"
    return str(dim)


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, DimExpr):
        return dim.terms
    return (((), int(dim)),) if dim else ()


def _from_terms(terms: Mapping[Monomial, int]) -> Dim:
    kept = {monomial: c for monomial, c in terms.items() if c}
    if not kept:
        return 0
    if set(kept) == {()}:
        return kept[()]
    return DimExpr(tuple(sorted(kept.items(), key=lambda item: (-len(item[0]), [str(a) for a in item[0]]))))


def _sum(dims: Iterable[Dim]) -> Dim:
    total: Counter[Monomial] = Counter()
    for dim in dims:
        for monomial, coefficient in _terms(dim):
            total[monomial] += coefficient
    return _from_terms(total)


def _product(left: Dim, right: Dim) -> Dim:
    total: Counter[Monomial] = Counter()
    for a, x in _terms(left):
        for b, y in _terms(right):
            total[tuple(sorted(a + b, key=str))] += x * y
    return _from_terms(total)


def _atom(kind: str, left: Dim, right: Dim) -> Dim:
    return DimExpr((((DimOp(kind, left, right),), 1),))


def _exact_quotient(left: Dim, right: Dim) -> Dim | None:
    """``left / right`` where it is a polynomial with integer coefficients (long division), else ``None``."""
    if right == 0:
        return None
    rest: Dim = left
    quotient: Dim = 0
    (lead, divisor), *_ = _terms(right)
    for _ in range(len(_terms(left)) + 4):
        if rest == 0:
            return quotient
        for monomial, coefficient in _terms(rest):
            missing = Counter(lead) - Counter(monomial)
            if not missing and coefficient % divisor == 0:
                factor = _from_terms({_without(monomial, lead): coefficient // divisor})
                quotient, rest = _sum([quotient, factor]), _sum([rest, _product(_product(factor, right), -1)])
                break
        else:
            return None
    return None


def _without(monomial: Monomial, factors: Monomial) -> Monomial:
    left = list(monomial)
    for atom in factors:
        left.remove(atom)
    return tuple(left)


def _split_multiples(dim: Dim, divisor: int) -> tuple[Dim, Dim]:
    """(q, r) with dim = divisor * q + r, where r keeps coefficients in [0, divisor)."""
    whole = {monomial: coefficient // divisor for monomial, coefficient in _terms(dim)}
    rest = {monomial: coefficient % divisor for monomial, coefficient in _terms(dim)}
    return _from_terms(whole), _from_terms(rest)


def _nested_floordiv(left: Dim, right: int) -> Dim:
    """``left // right`` where no coefficient of ``left`` reaches ``right``; (x // a + c) // b becomes (x + a * c) // (a * b)."""
    if isinstance(left, int):
        return left // right
    low, high = bounds(left)
    if low is not None and high is not None and low // right == high // right:
        return low // right
    divisor = math.gcd(right, *(coefficient for _, coefficient in left.terms))
    if divisor > 1:
        return floordiv(_split_multiples(left, divisor)[0], right // divisor)
    monomial, coefficient = left.terms[0]
    offset = left.terms[1:]
    if coefficient == 1 and len(monomial) == 1 and (not offset or [m for m, _ in offset] == [()]):
        atom, constant = monomial[0], offset[0][1] if offset else 0
        if isinstance(atom, DimOp) and atom.kind == "floordiv" and isinstance(atom.right, int):
            return floordiv(_sum([atom.left, constant * atom.right]), atom.right * right)
    return _atom("floordiv", left, right)


def _pick(kind: str, left: Dim, right: Dim) -> Dim:
    if left == right:
        return left
    low, high = bounds(_sum([left, _product(right, -1)]))
    if low is not None and low >= 0:
        return left if kind == "max" else right
    if high is not None and high <= 0:
        return right if kind == "max" else left
    first, second = sorted((left, right), key=str)
    return _atom(kind, first, second)


def _atom_bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Symbol):
        return atom.lower, math.inf if atom.upper is None else atom.upper
    (left_low, left_high), (right_low, right_high) = _float_bounds(atom.left), _float_bounds(atom.right)
    if atom.kind == "min":
        return min(left_low, right_low), min(left_high, right_high)
    if atom.kind == "max":
        return max(left_low, right_low), max(left_high, right_high)
    if atom.kind == "mod":
        return 0, right_high - 1
    divisors = (max(right_low, 1.0), max(right_high, 1.0))
    ends = [_float_floordiv(x, y) for x in (left_low, left_high) for y in divisors]
    return min(ends), max(ends)


def _float_bounds(dim: Dim) -> tuple[float, float]:
    low, high = bounds(dim)
    return -math.inf if low is None else low, math.inf if high is None else high


def _float_floordiv(left: float, right: float) -> float:
    if math.isinf(left):
        return left if not math.isinf(right) else math.copysign(math.inf, left)
    if math.isinf(right):
        return 0 if left >= 0 else -1
    return int(left) // int(right)


def _interval_product(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    ends = [0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)
