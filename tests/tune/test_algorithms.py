"""Convolutions with several algorithms: found, compared, built as the file says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import aotc
from aotc import ops
from aotc.ir.expr import Function, Module, Parameter, Var
from aotc.ir.types import TensorType
from aotc.lowering.compiled import CompiledFunction
from aotc.lowering.tuned import ALGORITHM, Algorithms, algorithm_key, offered_digest, read_tuning, write_tuning
from aotc.passes.choose_winograd import DIRECT, WINOGRAD
from aotc.tuning.algorithms import AlgorithmSearch, Site, sites
from aotc.tuning.measure import Candidate
from aotc.tuning.search import Effort
from aotc.tuning.tune import Forms, Source, tune
from tests.agreement import assert_agrees
from tests.tune.helpers import HOST
from tests.tune.test_database import ENTRY
from tests.tune.test_search import MadeUp, code

EVERY = sorted([DIRECT, *WINOGRAD])
CHANNELS, SIZE = 64, 14
WEIGHTS = np.random.default_rng(1).standard_normal((2, CHANNELS, CHANNELS, 3, 3), dtype=np.float32)


def two_convolutions() -> Module:
    """Of one shape, so of one algorithm; the second adds its input."""
    x = Var("x", TensorType((1, CHANNELS, SIZE, SIZE), "float32"))
    first, second = (Parameter(f"w{number}", each) for number, each in enumerate(WEIGHTS))
    y = ops.relu(ops.conv(x, first, padding=(1, 1, 1, 1), origin="/first"))
    z = ops.add(ops.conv(y, second, padding=(1, 1, 1, 1), origin="/second"), y)
    return Module({"main": Function((x,), z)}, {"main": ("z",)})


def asked() -> Algorithms:
    found = Algorithms({}, HOST)
    Forms(two_convolutions(), HOST, {})(found)
    return found


def test_equal_convolutions_are_one_site() -> None:
    made = asked()
    ((key, (node, names)),) = made.asked.items()
    assert key == algorithm_key(node, HOST) and sorted(names) == EVERY and not made.other
    (site,) = sites(made.asked, Forms(two_convolutions(), HOST, {}), HOST)
    assert (site.key, site.name, site.algorithms) == (key, "/first", names)
    labels = {name: layer.label for name, layer in site.layers.items()}
    assert {name: label.startswith("winograd_conv") for name, label in labels.items()} == {name: name != DIRECT for name in EVERY}
    assert len({layer.key for layer in site.layers.values()}) == 3
    assert all(len(layer.inputs()) == 1 for layer in site.layers.values())  # weights are in the file


@pytest.mark.parametrize("name", EVERY)
def test_a_build_takes_what_the_file_says(tmp_path: Path, name: str) -> None:
    ((key, (_, names)),) = asked().asked.items()
    entry = replace(ENTRY, key=key, selection={ALGORITHM: name}, offered=offered_digest(((ALGORITHM, names),)))
    write_tuning(tmp_path / "t.jsonl", {key: entry})
    report = aotc.compile(two_convolutions(), output=tmp_path / "m.so", jobs=0, tuning=tmp_path / "t.jsonl")
    assert bool(report.winograd_growth) == (name != DIRECT)
    assert any("has nothing better" in note for note in report.notes) == (name == names[0])
    x = np.random.default_rng(2).standard_normal((1, CHANNELS, SIZE, SIZE), dtype=np.float32)
    first, second = (torch.from_numpy(each) for each in WEIGHTS)
    y = torch.relu(torch.conv2d(torch.from_numpy(x), first, padding=1))
    z = torch.conv2d(y, second, padding=1) + y
    assert_agrees(aotc.load(tmp_path / "m.so").run({"x": x})["z"], z.numpy(), 1e-4)


def test_a_session_knows_the_algorithms(tmp_path: Path) -> None:
    report = tune(Source(two_convolutions()), HOST, tmp_path / "t.jsonl", effort=Effort(1, 0.1), jobs=0)
    (key,) = asked().asked
    entries = read_tuning(tmp_path / "t.jsonl")
    assert entries[key].trials == 2 and key in report.measured and not report.failed
    assert {layer.key for layer in report.layers} <= set(entries)
    again = tune(Source(two_convolutions()), HOST, tmp_path / "t.jsonl", effort=Effort(1, 0.1), jobs=0, network=False)
    assert again.measured == ()


def test_a_slower_algorithm_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an entry made by hand: the whole model is slower by it, surely, so it goes."""
    tune(Source(two_convolutions()), HOST, tmp_path / "t.jsonl", effort=Effort(1, 0.1), jobs=0, network=False)
    ((key, (_, names)),) = asked().asked.items()
    entries = read_tuning(tmp_path / "t.jsonl")
    write_tuning(tmp_path / "t.jsonl", {**entries, key: replace(entries[key], selection={ALGORITHM: names[-1]})})
    told = []
    monkeypatch.setattr("aotc.tuning.verdict.Ratio.is_slower", property(lambda ratio: told.append(ratio) or len(told) == 1))
    report = tune(Source(two_convolutions()), HOST, tmp_path / "t.jsonl", effort=Effort(1, 0.1), jobs=0)
    assert read_tuning(tmp_path / "t.jsonl")[key].selection == {}
    assert report.reverted and not report.algorithms


class Algorithmic(MadeUp):
    """A board whose times depend on algorithm and tile, as in "direct 5x4"."""

    def take(self, candidates: Sequence[Candidate]) -> None:
        self.file = [each.compiled.choices[-1][0] for each in candidates]

    def compile(self, function: object, selections: Sequence[dict[str, str]]) -> list[CompiledFunction | None]:
        name = next(name for name in EVERY if self.functions[name] is function)
        return [code(f"{name} {selection.get('tile', 'untuned')}") for selection in selections]


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({"direct untuned": 100, "winograd 2 untuned": 90, "winograd 4 untuned": 80}, "winograd 4"),
        ({"direct untuned": 100, "winograd 2 untuned": 110, "winograd 2 5x4": 50, "winograd 4 untuned": 95}, "winograd 2"),
        ({"direct untuned": 100, "winograd 2 untuned": 200, "winograd 2 5x4": 50, "winograd 4 untuned": 200}, None),
    ],
    ids=["untuned", "by its tile", "far off"],
)
def test_the_fastest_is_chosen(times: dict[str, float], chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Algorithmic({f"{name} {tile}": 300.0 for name in EVERY for tile in (f"{n}x4" for n in range(1, 13))} | times)
    (site,) = sites(asked().asked, Forms(two_convolutions(), HOST, {}), HOST)
    site = Site(site.key, site.name, site.shapes, tuple(EVERY), site.layers)
    board.functions = {name: layer.function for name, layer in site.layers.items()}
    for kind in ("algorithms.AlgorithmSearch", "search.Search"):
        monkeypatch.setattr(f"aotc.tuning.{kind}._write", lambda _, path, candidates: board.take(candidates))
    untuned = {name: code(f"{name} untuned") for name in EVERY}
    search = AlgorithmSearch(site, untuned, board, board, Effort(12, 1.0), {})  # type: ignore[arg-type]
    *others, entry = search.run()
    assert entry.key == site.key
    assert entry.selection == ({ALGORITHM: chosen} if chosen else {})
    assert {each.key for each in others} <= {layer.key for layer in site.layers.values()}
