"""What random graphs are made of: one function an operator or family, which adds a node or raises Skip."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.builder import Builder
from tests.fuzz.operators import elementwise, heavy, index, quantised, reduce, shape

Add = Callable[[Builder], object]

FAMILIES: dict[str, dict[str, Add]] = {
    "elementwise": elementwise.OPERATORS,
    "shape": shape.OPERATORS,
    "index": index.OPERATORS,
    "reduce": reduce.OPERATORS,
    "heavy": heavy.OPERATORS,
    "quantised": quantised.OPERATORS,
}
WEIGHTS = {"elementwise": 4, "shape": 3, "index": 2, "reduce": 2, "heavy": 3, "quantised": 1}
"""How often each family is chosen."""

OPERATORS: dict[str, Add] = {name: add for family in FAMILIES.values() for name, add in family.items()}
assert len(OPERATORS) == sum(len(family) for family in FAMILIES.values()), "two families have one operator"
