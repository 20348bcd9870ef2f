"""Sizes that only a run tells: symbols for values of tensors, and checks of what cannot be proved.

Each function (the model's graph, a body of control flow) has a frame that collects its definitions and checks, so that they
stay alive though no result may need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from aotc import ops
from aotc.ir import dims
from aotc.ir.dims import Dim, DimExpr, symbols_of
from aotc.ir.expr import Expr, If, Loop, Tuple, Var
from aotc.ir.printer import dims_of_node
from aotc.ir.types import TensorType
from aotc.ir.visitor import post_order, substitute

if TYPE_CHECKING:
    from aotc.frontends.onnx.bodies import Boundary

LARGEST = 2**31 - 1


class Dynamic:
    """``taken`` are names that no new symbol may have. ``settled`` says of symbols, by name, what an earlier try at this import
    found that they must be: what defines them is then checked to be that."""

    def __init__(self, taken: Iterable[str], settled: Mapping[str, Dim]) -> None:
        self.taken, self.settled = set(taken), settled
        self.made: set[str] = set()
        self.frames: list[list[Expr]] = [[]]
        self.borders: list[tuple[Boundary | None, set[str]]] = [(None, set())]
        self.level: dict[str, int] = {}

    def symbol(self, lower: int = 0, upper: int | None = LARGEST) -> Dim:
        """A symbol of its own, or what it must be."""
        made = self._fresh(lower, upper)
        return self.settled.get(str(made), made)

    def _fresh(self, lower: int, upper: int | None) -> DimExpr:
        name = f"u{len(self.made)}"
        while name in self.taken:
            name += "_"
        self.made.add(name)
        return dims.symbol(name, lower, upper)

    def define(self, values: Expr, origin: str, bounds: Sequence[tuple[int, int | None]]) -> tuple[Dim, ...]:
        """Elements of ``values``, int64 of rank 0 or 1, as dims within ``bounds``."""
        made = [self._fresh(*each) for each in bounds]
        return self._defined(values, origin, made, [self.settled.get(str(each)) for each in made])

    def define_as(self, values: Expr, origin: str, wanted: Sequence[Dim | None]) -> tuple[Dim, ...]:
        """As ``define``, with dims that values must be; None for a symbol of its own."""
        made: list[Dim] = [dim if isinstance(dim, int) else self._fresh(0, LARGEST) for dim in wanted]
        return self._defined(values, origin, made, wanted)

    def _defined(self, values: Expr, origin: str, made: Sequence[Dim], wanted: Sequence[Dim | None]) -> tuple[Dim, ...]:
        """The dims that stand for ``values`` from here on. What does not change from one iteration of a loop to the next is defined
        before the loop, so that sizes inside do not seem to change."""
        level = len(self.frames) - 1
        while (outside := self._outside(values, level)) is not None:
            values, level = outside, level - 1
        self.level.update((name, level) for name in symbols_of(*made))
        defined: Expr = ops.define_dims(values, dims=tuple(made), origin=origin)
        pairs = tuple((new, dim) for new, dim in zip(made, wanted, strict=True) if dim is not None and new != dim)
        if pairs and level == len(self.frames) - 1:
            defined = ops.check_dims(defined, pairs=pairs, origin=origin)
        elif pairs:
            self.check(ops.dims(values=tuple(made)), pairs, origin)
        self.frames[level].append(defined)
        return tuple(new if dim is None else dim for new, dim in zip(made, wanted, strict=True))

    def _outside(self, values: Expr, level: int) -> Expr | None:
        """What ``values`` is outside of the loop whose body is the function of this level; None where it is known only inside."""
        boundary, before = self.borders[level]
        if boundary is None or not boundary.repeats:
            return None
        outer = {var: expr for expr, var in boundary.captured.items()}
        inner = {name for name in self.made - before if self.level.get(name, level) >= level}
        nodes = post_order(values)
        if any(isinstance(node, (If, Loop)) or (isinstance(node, Var) and node not in outer) for node in nodes):
            return None
        if any(name in inner for node in nodes for name in symbols_of(*dims_of_node(node))):
            return None
        return substitute(values, outer)

    def check(self, x: Expr, pairs: Sequence[tuple[Dim, Dim]], origin: str) -> Expr:
        """``x``, after a check that dims are equal."""
        checked = ops.check_dims(x, pairs=tuple(pairs), origin=origin)
        self.frames[-1].append(checked)
        return checked

    def concerns(self, *sizes: Dim) -> bool:
        """Whether any of ``sizes`` mentions a symbol that was made here."""
        return any(name in self.made for name in dims.symbols_of(*sizes))

    def begin(self, boundary: Boundary) -> None:
        """A new function begins inside of the present one."""
        self.frames.append([])
        self.borders.append((boundary, set(self.made)))

    def abandon(self) -> None:
        """The present function is given up."""
        self.frames.pop()
        self.borders.pop()

    def own(self) -> frozenset[str]:
        """The symbols that only the present function knows."""
        level, (_, before) = len(self.frames) - 1, self.borders[-1]
        return frozenset(name for name in self.made - before if self.level.get(name, level) >= level)

    def end(self, results: Sequence[Expr]) -> list[Expr]:
        """The function's results, which keep its definitions and checks alive."""
        definers, kept = self.frames.pop(), list(results)
        self.borders.pop()
        for i, result in enumerate(results):
            if definers and isinstance(result.type, TensorType):
                kept[i], definers = ops.anchor(result, *definers), []
            elif definers and isinstance(result, Tuple) and result.fields:  # a sequence
                kept[i], definers = Tuple((ops.anchor(result.fields[0], *definers), *result.fields[1:]), result.origin), []
        return kept
