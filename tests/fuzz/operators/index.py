"""Operators that select by indices, or whose results are indices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fuzz.builder import FLOATS, Builder, Skip, Value

Add = Callable[[Builder], object]
ANY = (*FLOATS, "int64", "int32", "uint8", "bool", "int8")
SOLID = (2, 1, 3, 4)


def _indices(g: Builder, shape: tuple[int, ...], size: int) -> Value:
    """Of [-size, size) as int64 or int32, a constant or an input."""
    low = -size if g.flag() else 0
    made = g.rng.integers(low, max(size, 1), shape).astype(g.choose(("int64", "int32")))
    if size == 0 and made.size:
        raise Skip
    return g.constant(made) if g.flag() else g.input(made)


def gather(g: Builder) -> object:
    a = g.value(ANY, SOLID)
    axis = g.integer(-a.rank, a.rank - 1)
    return g.node("Gather", [a, _indices(g, g.shape(g.choose((1, 0, 2)), (2, 1, 3, 5, 0)), a.shape[axis])], axis=axis)


def gather_elements(g: Builder) -> object:
    a = g.value(ANY, SOLID)
    axis = g.integer(-a.rank, a.rank - 1)
    shape = [g.choose((size, min(size, 1))) for size in a.shape]
    shape[axis] = g.choose((2, 1, 4))
    return g.node("GatherElements", [a, _indices(g, tuple(shape), a.shape[axis])], axis=axis)


def gather_nd(g: Builder) -> object:
    a = g.value(ANY, SOLID, lambda v: 0 not in v.shape)
    batch = g.integer(0, min(1, a.rank - 1))
    depth = g.integer(1, a.rank - batch)
    lead = (*a.shape[:batch], *g.shape(g.integer(1 - min(batch, 1), 2), (2, 1, 3)))
    columns = [g.rng.integers(-size if g.flag() else 0, size, lead) for size in a.shape[batch : batch + depth]]
    indices = np.stack(columns, axis=-1).astype(np.int64)
    return g.node("GatherND", [a, g.constant(indices) if g.flag() else g.input(indices)], batch_dims=batch)


def scatter_elements(g: Builder) -> object:
    a = g.value(("float32", "int64", "float64", "int32", "uint8"), SOLID, lambda v: 0 not in v.shape)
    axis = g.integer(0, a.rank - 1)
    reduction = g.choose(("none", "add", "max", "min", "mul"))
    shape = [g.choose((size, 1)) for size in a.shape]
    shape[axis] = g.integer(1, a.shape[axis]) if reduction == "none" else g.choose((2, 1, 4))
    if reduction == "none":  # no place twice: which one wins is not defined
        order = np.argsort(g.rng.random((*shape[:axis], a.shape[axis], *shape[axis + 1 :])), axis=axis)
        made = np.take(order, range(shape[axis]), axis=axis).astype(np.int64)
        indices = g.constant(made) if g.flag() else g.input(made)
    else:
        indices = _indices(g, tuple(shape), a.shape[axis])
    updates = g.like(a, shape)
    return g.node("ScatterElements", [a, indices, updates], axis=axis, reduction=reduction)


def scatter_nd(g: Builder) -> object:
    a = g.value(("float32", "int64", "float64", "int32"), SOLID, lambda v: 0 not in v.shape)
    depth = g.integer(1, a.rank)
    places = int(np.prod(a.shape[:depth]))
    count = g.integer(1, min(places, 4))
    chosen = g.rng.permutation(places)[:count]
    indices = np.stack(np.unravel_index(chosen, a.shape[:depth]), axis=-1).astype(np.int64)
    updates = g.like(a, (count, *a.shape[depth:]))
    return g.node(
        "ScatterND", [a, g.constant(indices) if g.flag() else g.input(indices), updates], reduction=g.choose(("none", "add", "mul"))
    )


def one_hot(g: Builder) -> object:
    depth = g.integer(1, 6)
    shape = g.shape(g.choose((1, 2, 0)), (3, 1, 2))
    indices = g.rng.integers(-depth, depth, shape).astype(np.int64)
    values = g.constant(g.choose(([0, 1], [2, 5])), g.choose(("float32", "int64")))
    return g.node("OneHot", [g.input(indices), g.constant(depth, "int64"), values], axis=g.integer(-1, len(shape)))


def distinct(g: Builder, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array without equal values, so that their order is known."""
    return g.rng.permutation(int(np.prod(shape))).reshape(shape).astype(dtype)


def top_k(g: Builder) -> object:
    a = g.input(distinct(g, g.choose(("float32", "int64", "float64", "int32")), g.shape(g.choose((2, 1, 3)), (3, 5, 8, 1, 17))))
    axis = g.integer(-a.rank, a.rank - 1)
    return g.node("TopK", [a, g.ints(g.integer(0, a.shape[axis]))], outputs=2, axis=axis, largest=g.integer(0, 1))


def arg(g: Builder) -> object:
    a = g.input(distinct(g, g.choose(("float32", "int32", "float64", "uint8", "int8")), g.shape(g.choose((2, 1, 3)), (3, 5, 4, 1, 8))))
    axis = g.integer(-a.rank, a.rank - 1)
    return g.node(g.choose(("ArgMax", "ArgMin")), [a], axis=axis, keepdims=g.integer(0, 1), select_last_index=g.integer(0, 1))


def cum_sum(g: Builder) -> object:
    a = g.value(("float32", "int64", "float64", "int32"), SOLID)
    axis = g.constant(g.integer(-a.rank, a.rank - 1), g.choose(("int64", "int32")))
    return g.node("CumSum", [a, axis], exclusive=g.integer(0, 1), reverse=g.integer(0, 1))


def non_zero(g: Builder) -> object:
    return g.node("NonZero", [g.input(g.array(g.choose(("int64", "bool", "float32", "int32")), g.shape(g.choose((2, 1, 3)))) * 1)])


def unique(g: Builder) -> object:
    a = g.input(g.array(g.choose(("int64", "float32")), g.shape(g.choose((1, 2)), (5, 3, 8, 1)), "halves"))
    return g.node("Unique", [a], outputs=4, axis=g.choose((None, 0, a.rank - 1)), sorted=g.integer(0, 1))


def compress(g: Builder) -> object:
    a = g.value(("float32", "int64"), SOLID, lambda v: 0 not in v.shape)
    axis = g.choose((None, 0, a.rank - 1))
    size = a.array.size if axis is None else a.shape[axis]
    return g.node("Compress", [a, g.input(g.array("bool", (g.integer(1, size) if size < 40 else size,)))], axis=axis)


OPERATORS: dict[str, Add] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "OneHot": one_hot,
    "TopK": top_k,
    "ArgMax, ArgMin": arg,
    "CumSum": cum_sum,
    "NonZero": non_zero,
    "Unique": unique,
    "Compress": compress,
}
