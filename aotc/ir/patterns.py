"""Rewrite rules written as functions that look like the graph.

A pattern is a function of a builder and of variables; a rewrite is a function of what they stood for::

    def pattern(op, x):
        return op.multiply(x, op.sigmoid(x))

    def rewrite(root, x):
        return ops.silu(x, origin=root.origin)

    RULES = [rule(pattern, rewrite)]
    new = rewrite_module(module, any_of(RULES))

A variable stands for any expression, the same one wherever it appears. Operands of commutative operators match in both
orders. A rewrite that returns ``None`` declines. This is the style of onnxscript's rewriter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aotc.ir.expr import Call, Constant, Expr, Function, Parameter

COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "logical_and", "logical_or", "equal"})


@dataclass(frozen=True, eq=False)
class Variable:
    """Any expression."""

    name: str


@dataclass(frozen=True, eq=False)
class Number:
    """A constant all of whose elements are ``value``, within a few units of its dtype's precision, or within 1e-6."""

    value: float

    def matches(self, expr: Expr) -> bool:
        if not isinstance(expr, (Constant, Parameter)) or expr.data.size != 1 or expr.data.dtype.kind not in "fiu":
            return False
        tolerance = 1e-3 if expr.data.dtype == np.float16 else 1e-6
        return bool(abs(float(expr.data.reshape(())) - self.value) <= tolerance * max(abs(self.value), 1e-3))


@dataclass(frozen=True, eq=False)
class Operation:
    """A call of the operator named, whose attributes have at least the values given."""

    op: str
    args: tuple[Pattern, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def named(self, name: str) -> Operation:
        """The same, handed to the rewrite as ``name``."""
        return Operation(self.op, self.args, self.attrs, name)


Pattern = Variable | Number | Operation
Bindings = dict[str, Expr]
Rule = Callable[[Expr], "Expr | None"]


class Builder:
    """``op.add(x, 1.0)`` in a pattern."""

    def __getattr__(self, name: str) -> Callable[..., Operation]:
        def build(*args: Pattern | float, **attrs: Any) -> Operation:
            return Operation(name, tuple(Number(float(a)) if isinstance(a, (int, float)) else a for a in args), attrs)

        return build


@dataclass(frozen=True)
class PatternRule:
    """A pattern with what becomes of it. Called with an expression it returns the replacement, or ``None``."""

    pattern: Operation
    rewrite: Callable[..., Expr | None]
    wanted: tuple[str, ...]

    def __call__(self, expr: Expr) -> Expr | None:
        for bindings in match(self.pattern, expr, {}):
            found = {"root": expr, **bindings}
            result = self.rewrite(**{name: found[name] for name in self.wanted})
            if result is not None:
                return result
        return None


def rule(pattern: Callable[..., Operation], rewrite: Callable[..., Expr | None]) -> PatternRule:
    """The rule of two functions. The parameters of ``pattern`` after the builder are its variables; those of ``rewrite``
    are variables, named operations and ``root``. Raises TypeError for a parameter of ``rewrite`` that is none of these."""
    names = list(inspect.signature(pattern).parameters)[1:]
    built = pattern(Builder(), *map(Variable, names))
    wanted = tuple(inspect.signature(rewrite).parameters)
    known = {"root", *names, *_operation_names(built)}
    if not set(wanted) <= known:
        raise TypeError(f"{rewrite.__name__} takes {sorted(set(wanted) - known)}, which {pattern.__name__} does not name")
    return PatternRule(built, rewrite, wanted)


def any_of(rules: Sequence[PatternRule]) -> Rule:
    """The first of ``rules`` that applies, as one rule for ``visitor.rewrite``."""
    by_operator: dict[str, list[PatternRule]] = {}
    for each in rules:
        by_operator.setdefault(each.pattern.op, []).append(each)

    def apply(expr: Expr) -> Expr | None:
        if not isinstance(expr, Call) or isinstance(expr.op, Function):
            return None
        results = (each(expr) for each in by_operator.get(expr.op.name, ()))
        return next((result for result in results if result is not None), None)

    return apply


def match(pattern: Pattern, expr: Expr, bindings: Bindings) -> Iterator[Bindings]:
    """All ways in which ``pattern`` fits ``expr``, given what its variables stand for already."""
    if isinstance(pattern, Variable):
        if bindings.get(pattern.name, expr) is expr:
            yield {**bindings, pattern.name: expr}
    elif isinstance(pattern, Number):
        if pattern.matches(expr):
            yield bindings
    elif isinstance(expr, Call) and not isinstance(expr.op, Function) and _fits(pattern, expr):
        bound = {**bindings, pattern.name: expr} if pattern.name else bindings
        yield from _match_all(pattern.args, expr.args, bound)
        if pattern.op in COMMUTATIVE and len(expr.args) == 2 and expr.args[0] is not expr.args[1]:
            yield from _match_all(pattern.args, expr.args[::-1], bound)


def _match_all(patterns: Sequence[Pattern], exprs: Sequence[Expr], bindings: Bindings) -> Iterator[Bindings]:
    if not patterns:
        yield bindings
        return
    for bound in match(patterns[0], exprs[0], bindings):
        yield from _match_all(patterns[1:], exprs[1:], bound)


def _fits(pattern: Operation, expr: Call) -> bool:
    if isinstance(expr.op, Function) or expr.op.name != pattern.op or len(expr.args) != len(pattern.args):
        return False
    return all(getattr(expr.attrs, name, None) == value for name, value in pattern.attrs.items())


def _operation_names(pattern: Pattern) -> Iterator[str]:
    if isinstance(pattern, Operation):
        if pattern.name:
            yield pattern.name
        for arg in pattern.args:
            yield from _operation_names(arg)
