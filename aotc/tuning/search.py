"""The search for one function: from the untuned choice to its neighbours, in the order of their estimated time, as measured.

Candidates are screened in small batches, each beside the untuned choice. The best few then run once more, longer and on fresh
times, so that luck in the screening counts for nothing; only what is faster there with confidence takes the untuned choice's place.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from aotc.errors import RuntimeFailure
from aotc.lowering.compiled import CompiledFunction, Selection
from aotc.lowering.tuned import Tuned, offered_digest, shapes_text
from aotc.tuning.board import Board, CandidateFailed, Request, Timing
from aotc.tuning.candidates import Compiler, Layer, candidate_file
from aotc.tuning.verdict import paired_ratio

BATCH = 8
FINALISTS = 3
PATIENCE = 2
"""Batches without a better candidate after which a function is left alone."""
RUN_LIMIT = 60.0
"""Seconds beyond its budget after which a measurement is killed."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to spend on a function: candidates, seconds of measuring (half of it for the finalists), threads."""

    trials: int = 24
    seconds: float = 3.0
    threads: int = 1


@dataclass(slots=True)
class Candidate:
    selection: dict[str, str]
    compiled: CompiledFunction
    ratio: float = float("inf")
    failed: str = ""


@dataclass(slots=True)
class Search:
    """The state of one function's search on one board."""

    layer: Layer
    untuned: CompiledFunction
    compiler: Compiler
    board: Board
    effort: Effort
    tried: list[Candidate] = field(default_factory=list)
    seen: set[tuple[tuple[str, str], ...]] = field(default_factory=lambda: {()})
    rounds: int = 0

    def run(self) -> Tuned:
        """What is best. Raises BoardLost where the board is lost, RuntimeFailure where the untuned function itself cannot be measured."""
        best = Candidate({}, self.untuned, 1.0)
        idle, batches = 0, max(1, -(-self.effort.trials // BATCH))
        while idle < PATIENCE and (batch := self._next_batch(best)):
            self._screen(batch, self.effort.seconds / 2 / batches)
            winner = min(batch, key=lambda candidate: candidate.ratio)
            idle += winner.ratio >= best.ratio
            best = min(best, winner, key=lambda candidate: candidate.ratio)
        return self._decide()

    def _next_batch(self, best: Candidate) -> list[Candidate]:
        """Neighbours of the best so far that were not tried, compiled."""
        wanted: list[dict[str, str]] = []
        for selection in neighbours(best.selection, best.compiled.choices):
            if len(wanted) >= min(BATCH, self.effort.trials - len(self.tried)):
                break
            if (key := tuple(sorted(selection.items()))) not in self.seen:
                self.seen.add(key)
                wanted.append(selection)
        made = self.compiler.compile(self.layer.function, wanted) if wanted else []
        batch = [Candidate(selection, code) for selection, code in zip(wanted, made, strict=True) if code is not None]
        self.tried += batch
        return batch

    def _screen(self, batch: Sequence[Candidate], seconds: float) -> None:
        timing, ran = self._measure(batch, rounds=16, minimum=3, seconds=seconds)
        for place, candidate in enumerate(ran, 1):
            candidate.ratio = float(np.median(timing.times[:, place] / timing.times[:, 0]))

    def _decide(self) -> Tuned:
        finalists = sorted((c for c in self.tried if not c.failed and c.ratio < 1.05), key=lambda candidate: candidate.ratio)[:FINALISTS]
        if not finalists:
            return self._entry({}, None, 0)
        timing, ran = self._measure(finalists, rounds=200, minimum=12, seconds=self.effort.seconds / 2)
        ratios = {place: paired_ratio(timing.times[:, place], timing.times[:, 0]) for place in range(1, len(ran) + 1)}
        faster = [place for place, ratio in ratios.items() if ratio.is_faster]
        place = min(faster, key=lambda each: ratios[each].median, default=0)
        return self._entry(ran[place - 1].selection if place else {}, timing, place)

    def _entry(self, selection: Selection, timing: Timing | None, place: int) -> Tuned:
        if timing is None:
            timing, _ = self._measure([], rounds=50, minimum=3, seconds=self.effort.seconds / 4)
        untuned, tuned = (float(np.median(timing.times[:, each])) / 1e3 for each in (0, place))
        return Tuned(
            key=self.layer.key,
            label=self.layer.label,
            shapes=shapes_text(self.layer.function),
            machine=self.compiler.target.mcpu,
            selection=dict(selection),
            offered=offered_digest(self.untuned),
            trials=len(self.tried),
            threads=self.effort.threads,
            untuned_us=round(untuned, 3),
            tuned_us=round(tuned, 3),
        )

    def _measure(self, candidates: Sequence[Candidate], rounds: int, minimum: int, seconds: float) -> tuple[Timing, list[Candidate]]:
        """Times of the untuned choice (entry 0) and of those candidates that run and agree with it. One that crashes, hangs or fails
        is marked, and the others are measured without it."""
        left = list(candidates)
        with self._file([self.untuned, *(candidate.compiled for candidate in left)]) as path:
            self.board.send_file(path)
        places = {id(candidate): place for place, candidate in enumerate(left, 1)}
        while True:
            entries = [0, *(places[id(candidate)] for candidate in left)]
            request = Request(
                entries, self.layer.inputs(), rounds, minimum, seconds, seconds + RUN_LIMIT, self.layer.sweep, self.effort.threads
            )
            try:
                timing = self.board.time(request)
            except CandidateFailed as error:
                if not 0 < error.entry <= len(left):
                    raise RuntimeFailure(
                        f"{self.layer.name}: the untuned kernel cannot be measured on {self.board.name}: {error}"
                    ) from error
                left.pop(error.entry - 1).failed = str(error)
                continue
            allowed = self.layer.tolerance * timing.largest[1:]
            wrong = [c for c, d, a in zip(left, timing.difference[1:], allowed, strict=True) if not d <= a]
            if not wrong:
                return timing, left
            for candidate in wrong:
                candidate.failed = "its result differs from the untuned one"
                candidate.ratio = float("inf")
            left = [candidate for candidate in left if candidate not in wrong]

    @contextlib.contextmanager
    def _file(self, compiled: Sequence[CompiledFunction]) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="aotc-tune-") as folder:
            path = Path(folder) / "candidates.so"
            candidate_file(self.layer, compiled, self.compiler.target, path)
            yield path


def neighbours(selection: Selection, choices: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[dict[str, str]]:
    """Selections that differ in one choice from ``selection``, and then in two: the options of least estimated time first, the choices
    taking turns. An option that is the first of its choice is left out of a selection: it needs no telling."""
    singles = sorted(
        ((rank, place, name) for place, (name, options) in enumerate(choices) for rank in range(len(options))),
    )
    options = dict(choices)
    for rank, _, name in singles:
        yield from _changed(selection, options, {name: rank})
    pairs = ((a, b) for i, a in enumerate(singles) for b in singles[:i] if a[2] != b[2] and a[0] and b[0])
    for one, other in sorted(pairs, key=lambda pair: pair[0][0] + pair[1][0]):
        yield from _changed(selection, options, {one[2]: one[0], other[2]: other[0]})


def _changed(selection: Selection, options: dict[str, tuple[str, ...]], ranks: dict[str, int]) -> Iterator[dict[str, str]]:
    made = {**selection, **{name: options[name][rank] for name, rank in ranks.items()}}
    yield {name: option for name, option in made.items() if name in options and option != options[name][0]}
