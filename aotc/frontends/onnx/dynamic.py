"""Sizes that only a run tells: symbols for values of tensors, and checks of what cannot be proved.

Each function (the model's graph, a body of control flow) has a frame that collects its definitions and checks, so that they
stay alive though no result may need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aotc import ops
from aotc.ir import dims
from aotc.ir.dims import Dim
from aotc.ir.expr import Call, Expr, Tuple
from aotc.ir.types import TensorType

LARGEST = 2**31 - 1


class Dynamic:
    """``taken`` are names that no new symbol may have. ``settled`` says of symbols, by name, what an earlier try at this import
    found that they must be: the definition is then a check."""

    def __init__(self, taken: Iterable[str], settled: Mapping[str, Dim]) -> None:
        self.taken, self.settled = set(taken), settled
        self.made: set[str] = set()
        self.frames: list[list[Expr]] = [[]]

    def symbol(self, lower: int = 0, upper: int | None = LARGEST) -> Dim:
        """A symbol of its own, or what it must be."""
        name = f"u{len(self.made)}"
        while name in self.taken:
            name += "_"
        self.made.add(name)
        return self.settled.get(name, dims.symbol(name, lower, upper))

    def define(self, values: Expr, origin: str, bounds: Sequence[tuple[int, int | None]]) -> Call:
        """``values``, int64 of rank 0 or 1, as dims within ``bounds``: the call's attribute ``dims`` has them."""
        defined = ops.define_dims(values, dims=tuple(self.symbol(*each) for each in bounds), origin=origin)
        self.frames[-1].append(defined)
        return defined

    def define_as(self, values: Expr, origin: str, wanted: Sequence[Dim | None]) -> tuple[Dim, ...]:
        """As ``define``, with dims that values must be; None for a symbol of its own."""
        made = tuple(self.symbol() if dim is None else dim for dim in wanted)
        self.frames[-1].append(ops.define_dims(values, dims=made, origin=origin))
        return made

    def check(self, x: Expr, pairs: Sequence[tuple[Dim, Dim]], origin: str) -> Expr:
        """``x``, after a check that dims are equal."""
        checked = ops.check_dims(x, pairs=tuple(pairs), origin=origin)
        self.frames[-1].append(checked)
        return checked

    def concerns(self, *sizes: Dim) -> bool:
        """Whether any of ``sizes`` mentions a symbol that was made here."""
        return any(name in self.made for name in dims.symbols_of(*sizes))

    def begin(self) -> set[str]:
        """A new function begins inside of the present one. Returns the symbols made so far."""
        self.frames.append([])
        return set(self.made)

    def end(self, results: Sequence[Expr]) -> list[Expr]:
        """The function's results, which keep its definitions and checks alive."""
        definers, kept = self.frames.pop(), list(results)
        for i, result in enumerate(results):
            if definers and isinstance(result.type, TensorType):
                kept[i], definers = ops.anchor(result, *definers), []
            elif definers and isinstance(result, Tuple) and result.fields:  # a sequence
                kept[i], definers = Tuple((ops.anchor(result.fields[0], *definers), *result.fields[1:]), result.origin), []
        return kept
