"""Random graphs, as hypothesis draws and shrinks them, or drawn by numpy where nothing is to be shrunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.fuzz.builder import Builder, Draw, Graph, Skip
from tests.fuzz.operators import FAMILIES, WEIGHTS

OPSETS = (21, 18, 19, 20, 22, 23)
MOST_NODES = 8
_WEIGHTED = [name for name, weight in WEIGHTS.items() for _ in range(weight)]


@st.composite
def graphs(draw: Any) -> Graph:
    """A graph of 1 to 8 nodes and more, with values for its inputs."""

    def choose(options: Sequence[Any]) -> Any:
        return draw(st.sampled_from(options))

    graph = build(choose, draw(st.integers(0, 2**32 - 1)))
    assume(graph is not None)
    assert graph is not None
    return graph


def build(choose: Draw, seed: int) -> Graph | None:
    """A graph by the choices of ``choose``, with numbers by ``seed``; ``None`` where no node came of it."""
    builder = Builder(choose, np.random.default_rng(seed), choose(OPSETS))
    for _ in range(builder.integer(1, MOST_NODES)):
        try:
            family = FAMILIES[choose(_WEIGHTED)]
            family[choose(list(family))](builder)
        except Skip:
            continue
    if not builder.nodes:
        return None
    dynamic = [size for size in builder.free_sizes() if choose((False, True))] if choose((False, True)) else []
    return builder.finish(dynamic)
