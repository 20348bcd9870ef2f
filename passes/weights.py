"""Weights that passes compute from weights: named after their source, made once for each, never larger than is sensible."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from aotc.cache_dir import cache_dir
from aotc.ir.arrays import release, spilled
from aotc.ir.expr import Constant, Expr, Module, Parameter
from aotc.ir.visitor import all_functions, post_order

IN_MEMORY = 1 << 27
"""Bytes of computed weights that a pass keeps in memory; those beyond it go to a file, so that a build needs little more than
the largest weight."""
SMALL = 1 << 16  # bytes; arrays up to this size stay in memory


class Weights:
    """Makes parameters under names that are free in ``module``. Equal requests give the same object, so that weights
    shared by several layers stay shared."""

    def __init__(self, module: Module) -> None:
        bodies = [function.body for function in all_functions(module)]
        self.taken = {node.name for node in post_order(*bodies) if isinstance(node, Parameter)}
        self.made: dict[tuple[object, ...], Parameter] = {}
        self.sources: list[Expr] = []  # keeps what ``made`` names by identity alive
        self.in_memory = 0

    def derive(self, sources: Iterable[Expr], what: str, compute: Callable[[], np.ndarray], details: object = None) -> Parameter:
        """The parameter that ``compute`` makes from ``sources``. ``what``, a part of its name, and ``details`` say exactly
        what is done to them."""
        sources = list(sources)
        key = (what, repr(details), *(id(source) for source in sources))
        if key not in self.made:
            self.sources += sources
            self.made[key] = Parameter(self._name(sources, what), self._kept(compute()))
            for source in sources:
                data = array_of(source)
                if data is not None:
                    release(data)
        return self.made[key]

    def _kept(self, data: np.ndarray) -> np.ndarray:
        data = np.asarray(data)
        if data.nbytes > SMALL and self.in_memory + data.nbytes > IN_MEMORY:
            return spilled(data, cache_dir())
        self.in_memory += data.nbytes
        return np.asarray(data, order="C")

    def _name(self, sources: list[Expr], what: str) -> str:
        named = [source.name for source in sources if isinstance(source, Parameter)]
        stem = next(iter([*named, *(source.origin for source in sources if source.origin)]), "constant")
        name, count = f"{stem}~{what}", 1
        while name in self.taken:
            count += 1
            name = f"{stem}~{what}.{count}"
        self.taken.add(name)
        return name


def array_of(expr: Expr) -> np.ndarray | None:
    """The data of a weight or constant; ``None`` for anything else."""
    return expr.data if isinstance(expr, (Constant, Parameter)) else None


def scalar_of(expr: Expr) -> float | None:
    """The value of a weight or constant of one element, as a float; ``None`` for anything else."""
    data = array_of(expr)
    return float(data.reshape(())) if data is not None and data.size == 1 else None
