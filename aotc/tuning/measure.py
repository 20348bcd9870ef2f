"""Candidates of one layer on one board: those that fail or compute something else drop out, the others get times."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aotc.errors import RuntimeFailure
from aotc.lowering.compiled import CompiledFunction
from aotc.tuning.board import Board, CandidateFailed, Input, Request, Timing

RUN_LIMIT = 60.0
"""Seconds beyond its budget after which a measurement is killed."""


@dataclass(slots=True, eq=False)
class Candidate:
    """``ratio``: its time relative to that of the choice it is compared with."""

    selection: dict[str, str]
    compiled: CompiledFunction
    ratio: float = float("inf")
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how the candidates of a layer are measured. ``write`` makes the file whose entry points they are; the first of
    them is what the others are compared with. ``tolerance`` is how far results may be from the first one's, relative to the largest."""

    board: Board
    name: str
    inputs: Sequence[Input]
    tolerance: float
    sweep: int
    threads: int
    write: Callable[[Path, Sequence[Candidate]], None]

    def measure(self, candidates: Sequence[Candidate], rounds: int, minimum: int, seconds: float) -> tuple[Timing, list[Candidate]]:
        """Times of those candidates that run and agree with the first one. One that crashes, hangs or fails is marked, and the others
        are measured without it. Raises BoardLost, or RuntimeFailure where the first one itself cannot be measured."""
        with tempfile.TemporaryDirectory(prefix="aotc-tune-") as folder:
            path = Path(folder) / "candidates.so"
            self.write(path, candidates)
            self.board.send_file(path)
        left = list(range(len(candidates)))
        while True:
            request = Request(left, self.inputs, rounds, minimum, seconds, seconds + RUN_LIMIT, self.sweep, self.threads)
            try:
                timing = self.board.time(request)
            except CandidateFailed as error:
                if not 0 < error.entry < len(left):
                    raise RuntimeFailure(f"{self.name}: the untuned kernel cannot be measured on {self.board.name}: {error}") from error
                candidates[left.pop(error.entry)].failed = str(error)
                continue
            allowed = self.tolerance * timing.largest
            wrong = [number for number, d, a in zip(left, timing.difference, allowed, strict=True) if not d <= a]
            if not wrong:
                return timing, [candidates[number] for number in left]
            for number in wrong:
                candidates[number].failed = "its result differs from the untuned one"
                candidates[number].ratio = float("inf")
            left = [number for number in left if number not in wrong]

    def screen(self, candidates: Sequence[Candidate], rounds: int, minimum: int, seconds: float) -> None:
        """Gives candidates their ratio."""
        timing, ran = self.measure(candidates, rounds, minimum, seconds)
        for place, candidate in enumerate(ran):
            candidate.ratio = float(np.median(timing.times[:, place] / timing.times[:, 0]))
