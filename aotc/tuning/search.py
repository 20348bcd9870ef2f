"""The search for one function: from the untuned choice to others, as measured.

Candidates are screened in small batches, each beside the untuned choice. The best few then run once more, longer and on fresh
times, so that luck in the screening counts for nothing; only what is faster there with confidence takes the untuned choice's place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from aotc.lowering.compiled import CompiledFunction, Selection
from aotc.lowering.tuned import TEMPLATES, Tuned, offered_digest, shapes_text
from aotc.tuning.board import Board, Timing
from aotc.tuning.candidates import Compiler, Layer, candidate_file
from aotc.tuning.measure import Bench, Candidate
from aotc.tuning.verdict import paired_ratio

BATCH = 8
FINALISTS = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to spend on a function: candidates, seconds of measuring (half of it for the finalists), threads."""

    trials: int = 24
    seconds: float = 3.0
    threads: int = 1


class Proposals(Protocol):
    """Where candidates come from."""

    name: str
    """As the database says it."""
    patience: int
    """Batches without a better candidate after which a function is left alone."""

    def propose(self, best: Candidate, count: int) -> Sequence[Selection]:
        """At most ``count`` selections that were not proposed before; none at the end."""

    def learn(self, batch: Sequence[Candidate]) -> None:
        """What the last ones turned out to be."""


@dataclass(slots=True)
class Search:
    """The state of one function's search on one board. ``known``: a choice that was found earlier, to be beaten as well."""

    layer: Layer
    untuned: CompiledFunction
    compiler: Compiler
    board: Board
    effort: Effort
    proposals: Proposals
    known: Selection | None = None
    tried: list[Candidate] = field(default_factory=list)

    def run(self) -> Tuned:
        """What is best. Raises BoardLost where the board is lost, RuntimeFailure where the untuned function itself cannot be measured."""
        best, idle = self._first, 0
        batches = max(1, -(-self.effort.trials // BATCH))
        while idle < self.proposals.patience and (batch := self._next_batch(best)):
            self._bench.screen([self._first, *batch], rounds=16, minimum=3, seconds=self.effort.seconds / 2 / batches)
            self.proposals.learn(batch)
            winner = min(batch, key=lambda candidate: candidate.ratio)
            idle += winner.ratio >= best.ratio
            best = min(best, winner, key=lambda candidate: candidate.ratio)
        return self._decide()

    @property
    def _first(self) -> Candidate:
        return Candidate({}, self.untuned, 1.0)

    @property
    def _bench(self) -> Bench:
        layer = self.layer
        return Bench(self.board, layer.name, layer.inputs(), layer.tolerance, layer.sweep, self.effort.threads, self._write)

    def _write(self, path: Path, candidates: Sequence[Candidate]) -> None:
        candidate_file([(self.layer.call, candidate.compiled) for candidate in candidates], self.compiler.target, path)

    def _next_batch(self, best: Candidate) -> list[Candidate]:
        """Further candidates, compiled."""
        room = min(BATCH, self.effort.trials - len(self.tried))
        wanted = list(self.proposals.propose(best, room)) if room > 0 else []
        if wanted and self.known and not self.tried:
            wanted.append(self.known)
        made = self.compiler.compile(self.layer.function, wanted) if wanted else []
        batch = [Candidate(dict(selection), code) for selection, code in zip(wanted, made, strict=True) if code is not None]
        self.tried += batch
        return batch

    def _decide(self) -> Tuned:
        finalists = sorted((c for c in self.tried if not c.failed and c.ratio < 1.05), key=lambda candidate: candidate.ratio)[:FINALISTS]
        if not finalists:
            timing, ran = self._bench.measure([self._first], rounds=50, minimum=3, seconds=self.effort.seconds / 4)
            return self._entry({}, timing, 0)
        timing, ran = self._bench.measure([self._first, *finalists], rounds=200, minimum=12, seconds=self.effort.seconds / 2)
        place = fastest(timing)
        return self._entry(ran[place].selection, timing, place)

    def _entry(self, selection: Selection, timing: Timing, place: int) -> Tuned:
        untuned, tuned = (float(np.median(timing.times[:, each])) / 1e3 for each in (0, place))
        return Tuned(
            key=self.layer.key,
            label=self.layer.label,
            shapes=shapes_text(self.layer.function),
            machine=self.compiler.target.mcpu,
            selection=dict(selection),
            offered=offered_digest(self.untuned.choices),
            trials=len(self.tried),
            threads=self.effort.threads,
            untuned_us=round(untuned, 3),
            tuned_us=round(tuned, 3),
            search=self.proposals.name,
        )


def fastest(timing: Timing) -> int:
    """The place of what is surely faster than the first, the fastest of them, or 0."""
    ratios = {place: paired_ratio(timing.times[:, place], timing.times[:, 0]) for place in range(1, timing.times.shape[1])}
    return min((place for place, ratio in ratios.items() if ratio.is_faster), key=lambda each: ratios[each].median, default=0)


@dataclass(slots=True)
class Neighbours:
    """What schedules offer: the neighbours of the best so far, in the order of estimated time."""

    name: str = TEMPLATES
    patience: int = 2
    seen: set[tuple[tuple[str, str], ...]] = field(default_factory=lambda: {()})

    def propose(self, best: Candidate, count: int) -> Sequence[Selection]:
        found: list[Selection] = []
        for selection in neighbours(best.selection, best.compiled.choices):
            if len(found) >= count:
                break
            if (key := tuple(sorted(selection.items()))) not in self.seen:
                self.seen.add(key)
                found.append(selection)
        return found

    def learn(self, batch: Sequence[Candidate]) -> None:
        pass


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
