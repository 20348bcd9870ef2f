"""MetaSchedule as a second search: its traces compile, agree, and are kept like any other choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import ops
from aotc.compiler import primitive_functions
from aotc.errors import InvalidOption
from aotc.ir.expr import Function, Module, Parameter, Var
from aotc.ir.types import TensorType
from aotc.lowering.compiled import TRACE
from aotc.lowering.tuned import TRACES, read_tuning, tuning_key, write_tuning
from aotc.lowering.worker import compile_one, without_torch
from aotc.tuning.measure import Candidate
from aotc.tuning.search import Effort
from aotc.tuning.traces import Traces
from aotc.tuning.tune import Forms, Source, tune
from tests.agreement import assert_agrees
from tests.tune.helpers import HOST
from tests.tune.test_commands import aotc as command
from tests.tune.test_database import ENTRY

WEIGHT = np.random.default_rng(0).standard_normal((32, 48), dtype=np.float32)


def model() -> Module:
    """A matrix product, which has a schedule with choices, and a mean, which has one without."""
    x = Var("x", TensorType((24, 32), "float32"))
    y = ops.matmul(x, Parameter("w", WEIGHT), origin="/product")
    return Module({"main": Function((x,), ops.mean(ops.multiply(y, y), axes=(0,), origin="/mean"))}, {"main": ("z",)})


def functions() -> list[Function]:
    return primitive_functions(Forms(model(), HOST, {})().module)


def test_traces_schedule_functions() -> None:
    """Every function of the model gets traces that compile, and others after it was told how fast they are."""
    for function in functions():
        search = Traces(function, HOST, 4)
        with without_torch():
            untuned = compile_one(function, HOST, None)
            first = search.propose(Candidate({}, untuned), 4)
            made = [Candidate(dict(each), compile_one(function, HOST, None, each), ratio=1.0 + i) for i, each in enumerate(first)]
            search.learn(made)
            second = search.propose(made[0], 3)
        assert 1 <= len(first) <= 4 and 1 <= len(second) <= 3
        texts = [each[TRACE] for each in (*first, *second)]
        assert len(set(texts)) == len(texts)
        assert all(each.compiled.kernels[0].object_code != untuned.kernels[0].object_code for each in made)


def test_a_build_takes_traces(tmp_path: Path) -> None:
    entries = {}
    for function in functions():
        (selection, *_) = Traces(function, HOST, 2).propose(Candidate({}, None), 2)  # type: ignore[arg-type]
        key = tuning_key(function, HOST)
        entries[key] = replace(ENTRY, key=key, selection=dict(selection))
    write_tuning(tmp_path / "t.jsonl", entries)
    report = aotc.compile(model(), output=tmp_path / "m.so", jobs=0, tuning=tmp_path / "t.jsonl")
    assert report.kernels_tuned == len(entries) == 2
    x = np.random.default_rng(1).standard_normal((24, 32), dtype=np.float32)
    assert_agrees(aotc.load(tmp_path / "m.so").run({"x": x})["z"], ((x @ WEIGHT) ** 2).mean(0), 1e-5)


@pytest.mark.parametrize("trace", ["", "[]", '[[["GetSBlock",[],["another","main"],["b0"]]],[]]'])
def test_a_trace_that_does_not_fit_counts_for_nothing(trace: str) -> None:
    function = functions()[0]
    with without_torch():
        compiled = compile_one(function, HOST, None, {TRACE: trace})
    assert compiled.choices  # those of our schedule


def test_a_session(tmp_path: Path) -> None:
    """After the templates: what they found is to be beaten, layers without a choice take part, and both are told apart."""
    effort = Effort(trials=4, seconds=0.1)
    tune(Source(model()), HOST, tmp_path / "t.jsonl", effort=effort, jobs=0, network=False)
    before = read_tuning(tmp_path / "t.jsonl")
    report = tune(Source(model()), HOST, tmp_path / "t.jsonl", effort=effort, jobs=0, search=TRACES)
    assert len(report.layers) == 2 > len(before) == 1
    assert {entry.search for entry in report.entries.values()} == {TRACES}
    for options in ({"search": TRACES}, {}):  # what the second search knows, the first one need not measure
        again = tune(Source(model()), HOST, tmp_path / "t.jsonl", effort=effort, jobs=0, network=False, **options)  # type: ignore[arg-type]
        assert again.measured == ()
    assert aotc.compile(model(), output=tmp_path / "m.so", jobs=0, tuning=tmp_path / "t.jsonl").steps


def test_other_searches_are_refused(tmp_path: Path) -> None:
    code, _, err = command("tune", "tests.tune.helpers:two_layers", "-o", str(tmp_path / "t.jsonl"), "--search", "luck")
    assert code == 2 and "neither templates nor metaschedule" in " ".join(err.split())
    with pytest.raises(InvalidOption, match="neither"):
        tune(Source(model()), HOST, tmp_path / "t.jsonl", search="luck")
