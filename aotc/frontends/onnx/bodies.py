"""Graphs inside nodes as closed functions: what they read from around them becomes a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aotc.errors import UnsupportedModel
from aotc.frontends.onnx.narrowed import Narrowed
from aotc.frontends.onnx.values import Known
from aotc.ir.dims import Dim, bounds, symbols_of
from aotc.ir.expr import Constant, Expr, Function, Parameter, Tuple, Var
from aotc.ir.types import TensorType


@dataclass(slots=True)
class Boundary:
    """The border of a body: ``captured`` has the variable that stands inside for each expression outside, ``shown`` the same in the
    body's own dims. ``repeats``: it is that of a loop."""

    known: Known
    narrowed: Narrowed | None = None
    captured: dict[Expr, Var] = field(default_factory=dict)
    shown: dict[Expr, Expr] = field(default_factory=dict)
    repeats: bool = False

    def inside(self, expr: Expr) -> Expr:
        """What ``expr``, from outside, is inside. Constants and weights are themselves."""
        value = self.known.get(expr)
        if isinstance(expr, (Constant, Parameter)):
            return expr
        if isinstance(expr, Tuple):  # a sequence
            return Tuple(tuple(self.inside(field) for field in expr.fields), expr.origin)
        if value is not None and value.dtype != object:
            return Constant(value, getattr(expr, "origin", ""))
        if expr not in self.captured:
            var = Var(f"captured{len(self.captured)}", expr.type, getattr(expr, "origin", ""))
            self.captured[expr] = var
            self.shown[expr] = var if self.narrowed is None else self.narrowed.inside(var)
            if value is not None:
                self.known.remember(self.shown[expr], value if self.narrowed is None else self.narrowed.value(value))
        return self.shown[expr]


@dataclass(frozen=True, slots=True)
class Body:
    """An imported graph: its results over its own parameters and what it captures. ``symbols`` are those that only it knows."""

    params: tuple[Var, ...]
    results: tuple[Expr, ...]
    boundary: Boundary
    symbols: frozenset[str]

    def mentions(self, dim: Dim) -> bool:
        """Whether ``dim`` is known only inside."""
        return any(name in self.symbols for name in symbols_of(dim))

    def function(self, captured: Sequence[Expr], name: str) -> Function:
        """Closed over its parameters and ``captured``, which may be more than it reads itself."""
        own = self.boundary.captured
        rest = [own.get(expr) or Var(f"unused{i}", expr.type) for i, expr in enumerate(captured)]
        return Function((*self.params, *rest), Tuple(self.results), name)


def captured_by(*bodies: Body) -> list[Expr]:
    """What several bodies read from outside, each once."""
    return list(dict.fromkeys(expr for body in bodies for expr in body.boundary.captured))


def merged_dim(one: Dim, other: Dim) -> tuple[int, int | None]:
    """Bounds that hold for two dims."""
    (low, high), (low2, high2) = bounds(one), bounds(other)
    upper = None if high is None or high2 is None else max(high, high2)
    return max(min(low or 0, low2 or 0), 0), upper


def tensor_types(exprs: Sequence[Expr], what: str) -> list[TensorType]:
    """The types of results. Raises UnsupportedModel for one that is no tensor."""
    for expr in exprs:
        if not isinstance(getattr(expr, "type", None), TensorType):
            raise UnsupportedModel(f"{what}: a sequence cannot leave a body that runs or not, or several times; use tensors there")
    return [expr.type for expr in exprs]  # type: ignore[misc]


def flat(results: Sequence[Expr]) -> list[Expr]:
    """Results with sequences item by item."""
    return [tensor for result in results for tensor in (result.fields if isinstance(result, Tuple) else (result,))]


def true() -> Constant:
    return Constant(np.array(True))
