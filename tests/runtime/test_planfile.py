"""The plan file: what is written is read back, is the same bytes each time, and says no to what it cannot hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.errors import BuildError, RuntimeFailure
from aotc.ir import dims
from aotc.ir.dims import Dim, symbol
from aotc.lowering.plan import Buffer, EntryPoint, ExecutionPlan, Kernel, Step, StepKind, Storage, Symbol, TensorSpec, Value
from aotc.packaging.dims_code import postfix
from aotc.packaging.planfile import DTYPES, read_plan, with_hash, write_plan
from aotc.packaging.stubs import stub_source
from tests.runtime.models import MODELS, static

SYMBOLS = (Symbol("batch", 1, 32, 0, 0), Symbol("sequence", 0, None, 0, 1))
ATOMS = [symbol(s.name, s.lower, s.upper) for s in SYMBOLS]


def combine(children: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    positive = st.integers(1, 50)
    return st.one_of(
        st.tuples(children, children).map(lambda pair: pair[0] + pair[1]),
        st.tuples(children, children).map(lambda pair: pair[0] * pair[1]),
        st.tuples(children, positive).map(lambda pair: dims.floordiv(*pair)),
        st.tuples(children, positive).map(lambda pair: dims.mod(*pair)),
        st.tuples(children, children).map(lambda pair: dims.minimum(*pair)),
        st.tuples(children, children).map(lambda pair: dims.maximum(*pair)),
    )


DIMS = st.recursive(st.one_of(st.integers(-5, 200), st.sampled_from(ATOMS)), combine, max_leaves=6)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
SHAPES = st.lists(DIMS, max_size=4).map(tuple)
SPECS = st.lists(st.builds(TensorSpec, NAMES, st.sampled_from(DTYPES), SHAPES), max_size=3).map(tuple)
NUMBERS = st.integers(0, 2**31)
VALUES = st.builds(Value, st.sampled_from(DTYPES), SHAPES, st.sampled_from(Storage), NUMBERS, DIMS)
BUFFERS = st.builds(Buffer, DIMS, NUMBERS, NUMBERS, st.none() | st.integers(0, 2**40))
STEPS = st.builds(
    Step,
    st.sampled_from(StepKind),
    st.lists(NUMBERS, max_size=4).map(tuple),
    NUMBERS,
    NUMBERS,
    SHAPES,
    DIMS,
    NAMES,
    NAMES,
    DIMS,
)
SIZES = st.none() | st.integers(0, 2**40)
ENTRIES = st.builds(
    EntryPoint,
    NAMES,
    SPECS,
    SPECS,
    st.lists(VALUES, max_size=5).map(tuple),
    st.lists(BUFFERS, max_size=4).map(tuple),
    st.lists(STEPS, max_size=4).map(tuple),
    SIZES,
    SIZES,
    st.just(SYMBOLS),
)
KERNELS = st.lists(st.builds(Kernel, NAMES, NUMBERS, NUMBERS), max_size=3).map(tuple)
PLANS = st.builds(ExecutionPlan, st.lists(ENTRIES, max_size=3).map(tuple), KERNELS)


@settings(max_examples=100, deadline=None)
@given(PLANS)
def test_round_trip(plan: ExecutionPlan) -> None:
    data = write_plan(plan)
    assert read_plan(data) == plan
    assert write_plan(plan) == data


@settings(max_examples=200, deadline=None)
@given(DIMS, st.integers(1, 32), st.integers(0, 1000))
def test_postfix_evaluates_as_the_dim_does(dim: Dim, batch: int, sequence: int) -> None:
    """A stack machine written out here, on Python's integers."""
    stack: list[int] = []
    for operation, value in postfix(dim, {"batch": 0, "sequence": 1}):
        if operation < 2:
            stack.append(value if operation == 0 else (batch, sequence)[value])
            continue
        right, left = stack.pop(), stack.pop()
        stack.append(
            [left + right, left * right, *((left // right, left % right) if right else (0, 0)), min(left, right), max(left, right)][
                operation - 2
            ]
        )
    assert stack == [dims.evaluate(dim, {"batch": batch, "sequence": sequence})]


@pytest.mark.parametrize("name", MODELS)
def test_models_round_trip(name: str) -> None:
    plan = MODELS[name]()
    assert read_plan(write_plan(plan)) == plan


def test_dims_are_stored_once() -> None:
    b = symbol("b", 1, 8)
    value = Value("float32", (b * 3, b * 3, 1, 1), Storage.INPUT)
    entry = EntryPoint("main", (TensorSpec("x", "float32", (b,)),), (), (value,) * 50, (), (), None, None, (Symbol("b", 1, 8, 0, 0),))
    one = len(write_plan(ExecutionPlan((entry,), ())))
    more = EntryPoint("main", entry.inputs, (), (value,) * 51, (), (), None, None, entry.symbols)
    assert len(write_plan(ExecutionPlan((more,), ()))) - one == 24 + 4 * 4  # a value and its four indices


def test_damage_is_noticed() -> None:
    data = write_plan(static())
    source = random.Random(0)
    for _ in range(300):
        at = source.randrange(len(data))
        with pytest.raises(RuntimeFailure):
            read_plan(data[:at] + bytes([data[at] ^ source.randrange(1, 256)]) + data[at + 1 :])
    for cut in range(0, len(data), 8):
        with pytest.raises(RuntimeFailure):
            read_plan(data[:cut])


def test_other_version_names_both() -> None:
    data = write_plan(static())
    with pytest.raises(RuntimeFailure, match=r"format 7, this aotc reads 3"):
        read_plan(with_hash(data[:8] + (7).to_bytes(4, "little") + data[12:]))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((symbol("other"),), "'other' is not a dim of any input"),
        ((1,) * 17, "17 dims, at most 16"),
        ((2**63,), "do not fit the format"),
    ],
)
def test_what_the_format_cannot_hold(shape: tuple[Dim, ...], message: str) -> None:
    entry = EntryPoint("main", (TensorSpec("x", "float32", shape),), (), (), (), (), None, None, SYMBOLS)
    with pytest.raises(BuildError, match=message):
        write_plan(ExecutionPlan((entry,), ()))


def test_stubs_spread_arguments() -> None:
    text = stub_source(ExecutionPlan((), (Kernel("conv_0", 3, 2), Kernel("relu", 2, 0))))
    assert "conv_0(a->buffers[0], a->buffers[1], a->buffers[2], (int32_t)a->dims[0], (int32_t)a->dims[1], a->begin, a->end)" in text
    assert "relu(a->buffers[0], a->buffers[1], a->begin, a->end)" in text
    assert "aotc_kernel_count = 2" in text


def test_stubs_refuse_bad_symbols() -> None:
    with pytest.raises(BuildError, match="no C identifier"):
        stub_source(ExecutionPlan((), (Kernel("a b", 1, 0),)))
    with pytest.raises(BuildError, match="'k' stands for two kernels"):
        stub_source(ExecutionPlan((), (Kernel("k", 1, 0), Kernel("k", 2, 0))))
