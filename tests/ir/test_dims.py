"""Dims: canonical forms, evaluation, bounds and text, by random expressions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir import dims
from aotc.ir.dims import Dim, DimExpr
from aotc.ir.literals import parse_dim

SYMBOLS: dict[str, tuple[int, int | None]] = {"a": (0, 9), "b": (1, 4), "c": (2, None), "odd `name": (0, None)}
Recipe = tuple[str, object, object]
OPERATIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "floordiv": dims.floordiv,
    "mod": dims.mod,
    "ceildiv": dims.ceildiv,
    "min": dims.minimum,
    "max": dims.maximum,
}

leaves = st.one_of(st.integers(-6, 12), st.sampled_from(list(SYMBOLS)))
recipes = st.recursive(leaves, lambda inner: st.tuples(st.sampled_from(list(OPERATIONS)), inner, inner), max_leaves=7)
values = st.fixed_dictionaries({name: st.integers(low, high if high is not None else 40) for name, (low, high) in SYMBOLS.items()})


def build(recipe: object) -> Dim:
    """The dim of a recipe. Divisors are integers, never zero."""
    if isinstance(recipe, int):
        return recipe
    if isinstance(recipe, str):
        return dims.symbol(recipe, *SYMBOLS[recipe])
    kind, left, right = recipe  # type: ignore[misc]
    return OPERATIONS[kind](build(left), divisor(right) if kind in ("floordiv", "mod", "ceildiv") else build(right))


def divisor(recipe: object) -> Dim:
    built = build(recipe)
    return built if isinstance(built, int) and built != 0 else 3


def compute(recipe: object, at: dict[str, int]) -> int:
    """The same by Python's own integers."""
    if isinstance(recipe, int):
        return recipe
    if isinstance(recipe, str):
        return at[recipe]
    kind, left, right = recipe  # type: ignore[misc]
    x, y = compute(left, at), compute(right, at)
    if kind in ("floordiv", "mod", "ceildiv"):
        y = int(divisor(right))  # type: ignore[arg-type]
        return {"floordiv": x // y, "mod": x % y, "ceildiv": -(-x // y)}[kind]
    return {"+": x + y, "-": x - y, "*": x * y, "min": min(x, y), "max": max(x, y)}[kind]


@settings(max_examples=400, deadline=None)
@given(recipes, values)
def test_canonical_form_keeps_the_value(recipe: object, at: dict[str, int]) -> None:
    assert dims.evaluate(build(recipe), at) == compute(recipe, at)


@settings(max_examples=400, deadline=None)
@given(recipes, values)
def test_bounds_hold(recipe: object, at: dict[str, int]) -> None:
    low, high = dims.bounds(build(recipe))
    value = compute(recipe, at)
    assert (low is None or low <= value) and (high is None or value <= high)


@settings(max_examples=300, deadline=None)
@given(recipes)
def test_text_comes_back(recipe: object) -> None:
    dim = build(recipe)
    symbols = {name: dims.symbol(name, *limits) for name, limits in SYMBOLS.items()}
    assert parse_dim(str(dim), symbols) == dim


@settings(max_examples=300, deadline=None)
@given(recipes, values)
def test_substitution_in_steps(recipe: object, at: dict[str, int]) -> None:
    dim = build(recipe)
    half = dims.substitute(dim, {"a": at["a"], "c": at["c"]})
    assert dims.evaluate(half, at) == dims.evaluate(dim, at)


@settings(max_examples=200, deadline=None)
@given(recipes, recipes, recipes)
def test_polynomial_laws_hold_as_objects(first: object, second: object, third: object) -> None:
    x, y, z = build(first), build(second), build(third)
    assert x + y == y + x and (x + y) + z == x + (y + z)
    assert x * y == y * x and x * (y + z) == x * y + x * z
    assert x - x == 0 and x * 0 == 0 and x * 1 == x


def test_what_networks_need_to_be_equal() -> None:
    b, s = dims.symbol("b", 1), dims.symbol("s", 1)
    assert (b + 1) * 2 == 2 * b + 2
    assert dims.floordiv(b * s * 64, s) == 64 * b
    assert dims.floordiv(b * 12 * s * 64, 768) == b * s
    assert dims.mod(b * 8, 4) == 0
    assert dims.floordiv(dims.floordiv(s - 1, 2), 2) == dims.floordiv(s - 1, 4)
    assert dims.maximum(b, 1) == b and dims.minimum(b, 0) == 0
    assert dims.ceildiv(4 * s, 4) == s
    assert hash((b + 1) * 2) == hash(2 * b + 2)


def test_truth_and_division_by_zero_are_refused() -> None:
    b = dims.symbol("b")
    with pytest.raises(TypeError, match="known only at run time"):
        bool(b - 1)
    for operation in (dims.floordiv, dims.mod):
        with pytest.raises(ZeroDivisionError):
            operation(b, 0)


def test_names_that_are_not_words_are_quoted() -> None:
    for name in ("min", "a b", "x`y\\z", "1st", "none"):
        shown = str(dims.symbol(name))
        assert shown.startswith("`")
        back = parse_dim(shown)
        assert isinstance(back, DimExpr) and list(dims.symbols_of(back)) == [name]
