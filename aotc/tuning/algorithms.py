"""Convolutions that have several algorithms: which is the fastest, each with the best that its schedule can choose.

A pass chooses the algorithm before operators are fused, and each has weights of its own. So the algorithms are not choices of one
function: they are functions of as many forms of the model, and the file that compares them holds their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from aotc.ir.expr import Call, Function
from aotc.ir.visitor import calls_of
from aotc.lowering.compiled import CompiledFunction
from aotc.lowering.tuned import ALGORITHM, Tuned, is_known, offered_digest
from aotc.passes.options import Pick
from aotc.targets import Target
from aotc.tuning.board import Board, Timing
from aotc.tuning.candidates import Compiler, Layer, candidate_file
from aotc.tuning.measure import Bench, Candidate
from aotc.tuning.model import Sized, layer_of
from aotc.tuning.search import Effort, Neighbours, Search, fastest

NAMES = ("conv", "winograd_conv")
CONTENDER = 1.3
"""An algorithm whose untuned kernel takes longer than this times that of the fastest is left alone."""


@dataclass(frozen=True, slots=True)
class Site:
    """A convolution by its ``algorithms``, the estimate's first: for each the layer of that form of the model which holds it."""

    key: str
    name: str
    shapes: str
    algorithms: tuple[str, ...]
    layers: Mapping[str, Layer]

    @property
    def choices(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ((ALGORITHM, self.algorithms),)

    @property
    def flops(self) -> int:
        return self.layers[self.algorithms[0]].flops


def sites(asked: Mapping[str, tuple[Call, tuple[str, ...]]], form: Callable[[Pick], Sized], target: Target) -> list[Site]:
    """The convolutions that were asked about, where each algorithm's function can be told by the node's name. ``form`` makes
    the model with algorithms picked."""
    names = sorted({name for _, algorithms in asked.values() for name in algorithms})
    holders = {name: _holders(form(_picking(name))) for name in names}
    found = []
    for key, (node, algorithms) in asked.items():
        calls = {name: holders[name][1].get(node.origin) for name in algorithms}
        layers = {name: layer_of([each], holders[name][0], target) for name, each in calls.items() if each is not None}
        if len(layers) == len(algorithms):
            shapes = f"{', '.join(str(arg.type) for arg in node.args)} -> {node.type}"
            found.append(Site(key, node.origin, shapes, algorithms, layers))
    return sorted(found, key=lambda site: -site.flops)


def _picking(name: str) -> Pick:
    return lambda node, algorithms: name if name in algorithms else algorithms[0]


def _holders(model: Sized) -> tuple[Sized, dict[str, Call]]:
    """The calls of fused functions by the names of the convolutions in them."""
    return model, {conv.origin: node for node in model.calls for conv in calls_of(cast(Function, node.op).body, NAMES) if conv.origin}


@dataclass(slots=True)
class AlgorithmSearch:
    """The search for the algorithm of one site on one board. ``known`` is what the database has of functions."""

    site: Site
    untuned: Mapping[str, CompiledFunction]
    compiler: Compiler
    board: Board
    effort: Effort
    known: Mapping[str, Tuned]

    def run(self) -> Iterator[Tuned]:
        """Entries of the functions that are tuned for it, and the site's. Raises as ``Search.run`` does."""
        every = [Candidate({ALGORITHM: name}, self.untuned[name]) for name in self.site.algorithms]
        self._bench.screen(every, rounds=16, minimum=3, seconds=self.effort.seconds / 4)
        best = min(candidate.ratio for candidate in every)
        contenders = [each for each in every if each is every[0] or (not each.failed and each.ratio < CONTENDER * best)]
        if len(contenders) == 1:
            timing, _ = self._bench.measure(contenders, rounds=50, minimum=3, seconds=self.effort.seconds / 4)
            yield self._entry(contenders[0], timing, 0, len(every))
            return
        tuned = []
        for each in contenders:
            layer = self.site.layers[each.selection[ALGORITHM]]
            entry = self.known.get(layer.key)
            if not is_known(entry, each.compiled.choices):
                entry = Search(layer, each.compiled, self.compiler, self.board, self.effort, Neighbours()).run()
                yield entry
            tuned.append(self._again(each, layer, entry))
        timing, ran = self._bench.measure(tuned, rounds=200, minimum=12, seconds=self.effort.seconds / 2)
        place = fastest(timing)
        yield self._entry(ran[place], timing, place, len(every))

    def _again(self, candidate: Candidate, layer: Layer, entry: Tuned) -> Candidate:
        """The candidate with what its schedule shall choose."""
        (compiled,) = self.compiler.compile(layer.function, [entry.selection])
        return replace(candidate, compiled=compiled or candidate.compiled)

    @property
    def _bench(self) -> Bench:
        layer = self.site.layers[self.site.algorithms[0]]
        return Bench(self.board, self.site.name, layer.inputs(), layer.tolerance, layer.sweep, self.effort.threads, self._write)

    def _write(self, path: Path, candidates: Sequence[Candidate]) -> None:
        ways = [(self.site.layers[candidate.selection[ALGORITHM]].call, candidate.compiled) for candidate in candidates]
        candidate_file(ways, self.compiler.target, path)

    def _entry(self, candidate: Candidate, timing: Timing, place: int, trials: int) -> Tuned:
        untuned, tuned = (float(np.median(timing.times[:, each])) / 1e3 for each in (0, place))
        selection = candidate.selection if place else {}
        return Tuned(
            self.site.key, "algorithm of conv", self.site.shapes, self.compiler.target.mcpu, selection, offered_digest(self.site.choices),
            trials - 1, self.effort.threads, round(untuned, 3), round(tuned, 3),
        )  # fmt: skip
