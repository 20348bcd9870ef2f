"""The search and its verdicts, on boards whose times are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from aotc.errors import RuntimeFailure
from aotc.lowering.compiled import CompiledFunction
from aotc.tuning.board import CandidateFailed, Request, Timing
from aotc.tuning.measure import Candidate
from aotc.tuning.network import Comparison
from aotc.tuning.search import Effort, Neighbours, Search, neighbours
from aotc.tuning.tune import _slower
from aotc.tuning.verdict import Ratio, paired_ratio
from tests.tune.helpers import HOST, written_in_c

TILES = tuple(f"{n}x4" for n in range(1, 13))


def test_bounds_of_the_median() -> None:
    """Conover, Practical Nonparametric Statistics, table A3: for n = 20 the 99 % interval goes from the 4th to the 17th value."""
    values = np.random.default_rng(0).permutation(np.arange(1.0, 21.0))
    ratio = paired_ratio(values * 100, np.full(20, 100.0))
    assert (ratio.lower, ratio.median, ratio.upper) == (4.0, 10.5, 17.0)


def test_few_rounds_prove_nothing() -> None:
    ratio = paired_ratio(np.full(7, 10.0), np.full(7, 100.0))
    assert ratio.median == 0.1
    assert not ratio.is_faster and not ratio.is_slower


def test_noise_is_no_gain() -> None:
    """Of 500 pairs that differ by noise alone, about 1 in 200 may look faster; the threshold of 1 % leaves fewer."""
    rng = np.random.default_rng(7)
    verdicts = [paired_ratio(rng.lognormal(0, 0.05, 30) * 1e4, rng.lognormal(0, 0.05, 30) * 1e4) for _ in range(500)]
    assert sum(ratio.is_faster for ratio in verdicts) <= 3
    assert sum(paired_ratio(rng.lognormal(-0.1, 0.05, 30) * 1e4, rng.lognormal(0, 0.05, 30) * 1e4).is_faster for _ in range(50)) >= 49


def test_neighbours_take_turns_and_then_pairs() -> None:
    choices = (("tile", ("a", "b", "c")), ("order", ("x", "y")))
    assert list(neighbours({}, choices)) == [
        {}, {}, {"tile": "b"}, {"order": "y"}, {"tile": "c"}, {"tile": "b", "order": "y"}, {"tile": "c", "order": "y"},
    ]  # fmt: skip
    assert next(iter(neighbours({"tile": "c", "gone": "1"}, choices))) == {}


class MadeUp:
    """A board and a compiler in one: each selection of a tile has a time, and may crash or compute nonsense."""

    name, is_local = "made up", True

    def __init__(self, times: dict[str, float], crash: str = "", wrong: str = "", noise: float = 0.02) -> None:
        self.times, self.crash, self.wrong, self.noise = times, crash, wrong, noise
        self.rng = np.random.default_rng(5)
        self.target = HOST
        self.compiled: list[str] = []
        self.file: list[str] = []

    def compile(self, _: object, selections: Sequence[dict[str, str]]) -> list[CompiledFunction | None]:
        made: list[CompiledFunction | None] = []
        for selection in selections:
            self.compiled.append(selection["tile"])
            made.append(None if selection["tile"] == "broken" else code(selection["tile"]))
        return made

    def take(self, candidates: Sequence[Candidate]) -> None:
        self.file = [each.compiled.choices[-1][0] for each in candidates]

    def send_file(self, path: Path) -> None:
        pass

    def time(self, request: Request) -> Timing:
        names = [self.file[entry] for entry in request.entries]
        if self.crash in names:
            raise CandidateFailed("crashed", names.index(self.crash), "signal 11")
        base = np.array([self.times.get(name, 100.0) for name in names]) * 1e3
        rounds = max(request.minimum_rounds, min(request.rounds, 30))
        times = base * self.rng.lognormal(0, self.noise, (rounds, 1)) * self.rng.lognormal(0, self.noise, (rounds, len(names)))
        return Timing(times, np.array([9.0 * (name == self.wrong) for name in names]), np.ones(len(names)))


def code(tile: str) -> CompiledFunction:
    return CompiledFunction((), (), (("tile", ("untuned", *TILES)), (tile, ())))


def search(board: MadeUp, trials: int = 12, monkeypatch: pytest.MonkeyPatch | None = None) -> Search:
    layer, _ = written_in_c()
    made = Search(layer, code("untuned"), board, board, Effort(trials, 1.0), Neighbours())  # type: ignore[arg-type]
    assert monkeypatch is not None
    monkeypatch.setattr(Search, "_write", lambda _, path, candidates: board.take(candidates))
    return made


def test_the_fastest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = search(MadeUp({"5x4": 60.0, "2x4": 80.0}), monkeypatch=monkeypatch).run()
    assert entry.selection == {"tile": "5x4"}
    assert entry.trials == 12
    assert entry.tuned_us == pytest.approx(60.0, rel=0.05)
    assert entry.untuned_us == pytest.approx(100.0, rel=0.05)


def test_nothing_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = search(MadeUp(dict.fromkeys(TILES, 101.0)), monkeypatch=monkeypatch).run()
    assert entry.selection == {}
    assert entry.untuned_us == entry.tuned_us


def test_the_number_of_trials_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    board = MadeUp({})
    assert search(board, 3, monkeypatch).run().trials == 3
    assert board.compiled == list(TILES[:3])  # in the order of estimated time


def test_a_fast_candidate_that_computes_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = search(MadeUp({"5x4": 10.0, "2x4": 70.0}, wrong="5x4"), monkeypatch=monkeypatch).run()
    assert entry.selection == {"tile": "2x4"}


def test_a_candidate_that_crashes_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = search(MadeUp({"2x4": 70.0}, crash="5x4"), monkeypatch=monkeypatch).run()
    assert entry.selection == {"tile": "2x4"}


def test_an_untuned_kernel_that_crashes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeFailure, match="/by_hand: the untuned kernel cannot be measured on made up: crashed: signal 11"):
        search(MadeUp({}, crash="untuned"), monkeypatch=monkeypatch).run()


def test_what_the_whole_model_takes_back() -> None:
    """A layer that is slower there; or the one that gains the least, where no layer is slower but the model is."""
    gain, even, loss = Ratio(0.9, 0.89, 0.91), Ratio(0.99, 0.97, 1.01), Ratio(1.1, 1.05, 1.2)

    def taken(total: Ratio, chosen: set[str], **layers: Ratio) -> list[str]:
        pairs = {key: (1.0, 1.0, ratio) for key, ratio in layers.items()}
        return _slower([Comparison("main", (1.0, 1.0, total), pairs)], chosen)

    assert taken(gain, {"a", "b", "c"}, a=gain, b=even) == []
    assert taken(gain, {"a", "b"}, a=gain, b=loss) == ["b"]
    assert taken(gain, {"a"}, a=gain, b=loss) == []  # b has the kernel that it had
    assert taken(loss, {"a", "b"}, a=gain, b=even, c=loss) == ["b"]
