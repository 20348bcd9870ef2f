"""``aotc tune`` from end to end: the model, its layers, the boards, the database, the comparison in the whole model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from aotc.compiler import imported
from aotc.entry_points import EntryPoint, with_versions
from aotc.errors import AotcError, InvalidOption
from aotc.ir.dims import Dim
from aotc.ir.expr import Module
from aotc.ir.visitor import calls_of
from aotc.lowering.build import Workers
from aotc.lowering.tuned import ALGORITHM, TEMPLATES, TRACES, Algorithms, Tuned, is_known, read_tuning, tuning_key, write_tuning
from aotc.ops.custom import CustomOperator
from aotc.passes.options import Pick, first
from aotc.passes.pipeline import optimise
from aotc.targets import Target, catalogue, without_gpu
from aotc.tuning.algorithms import NAMES as CONVOLUTIONS
from aotc.tuning.algorithms import AlgorithmSearch, Site, sites
from aotc.tuning.board import Board, connect, local
from aotc.tuning.candidates import Compiler, Layer
from aotc.tuning.model import Sized, layers, sized
from aotc.tuning.network import Comparison, compare
from aotc.tuning.search import BATCH, Effort, Neighbours, Search
from aotc.tuning.session import Job, Session, Tell
from aotc.tuning.traces import Traces

NETWORK_SECONDS = 10.0
"""How long the whole model runs untuned beside tuned, at most."""


@dataclass(frozen=True, slots=True)
class Source:
    """What ``aotc.compile`` takes to import a model: see there."""

    model: Any
    args: Sequence[Any] | None = None
    dynamic_shapes: Any = None
    inputs: Mapping[str, Sequence[Dim]] | None = None
    states: Mapping[str, str] | None = None
    versions: Sequence[Mapping[str, Sequence[int]]] = ()
    operators: Sequence[CustomOperator] = ()
    winograd: bool = True

    def imported(self) -> Module:
        alone = EntryPoint(self.model, self.args, self.dynamic_shapes, self.inputs)
        return with_versions(imported(self.model, alone, self.states or {}, self.operators), self.versions)


@dataclass(frozen=True, slots=True)
class Forms:
    """A model at the sizes it is tuned for, optimised with algorithms picked."""

    module: Module
    target: Target
    sizes: Mapping[str, int]
    winograd: bool = True

    def __call__(self, pick: Pick = first) -> Sized:
        skip = () if self.winograd else ("choose_winograd",)
        return sized(optimise(self.module, self.target, skip, pick=pick), self.sizes)


@dataclass(frozen=True, slots=True)
class Report:
    """What a session found. ``layers`` are all functions with a choice, ``algorithms`` those of convolutions that are not the estimate's,
    by the layer's key, ``entries`` the database by key; ``measured`` and ``failed`` name those of this session, ``left`` what no board
    was left for, ``reverted`` those that were slower in the whole model. ``comparisons`` has an item an entry point, and none where the
    whole model was not run, for the reason in ``note``."""

    output: Path
    target: Target
    layers: tuple[Layer, ...]
    algorithms: Mapping[str, str]
    entries: Mapping[str, Tuned]
    measured: tuple[str, ...]
    failed: Mapping[str, str]
    left: tuple[Job, ...]
    lost: tuple[str, ...]
    reverted: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    note: str = ""


def tune(
    source: Source,
    target: Target,
    output: str | os.PathLike[str] = "tuning.jsonl",
    *,
    boards: Sequence[str] = (),
    effort: Effort | None = None,
    sizes: Mapping[str, int] | None = None,
    search: str = TEMPLATES,
    again: bool = False,
    network: bool = True,
    jobs: int | None = None,
    tell: Tell = lambda event: None,
    found: Callable[[str, int, int], None] = lambda what, count, known: None,
    stage: Callable[[str], None] = lambda text: None,
) -> Report:
    """Tune a model and keep what is found in ``output``, which may exist: its entries stay, and functions that it knows are not
    measured ``again`` unless asked for. ``boards`` are addresses; without any, this machine measures. ``sizes`` are those of dims that
    only a run tells. ``search`` is ``templates``, what schedules offer, or ``metaschedule``. ``network``: compare the whole model at the
    end and take back what is slower there. ``tell``, ``found`` and ``stage`` hear of the progress.

    Raises what an import raises, InvalidOption, BuildError, and RuntimeFailure where nothing can be measured at all.
    """
    if search not in (TEMPLATES, TRACES):
        raise InvalidOption(f"the search {search!r} is neither {TEMPLATES} nor {TRACES}")
    path, effort = Path(output), effort or Effort()
    session = Session(path, read_tuning(path) if path.exists() else {}, tell)
    write_tuning(path, session.entries)  # a path that cannot be written is to be known before the first minute
    target = without_gpu(target)  # what is tuned are the CPU's kernels
    with Workers() as workers, _opened(boards, target) as opened:
        form = Forms(source.imported(), target, sizes or {}, source.winograd)
        work = _Work(form, Compiler(target, jobs, workers), effort, session, search, again)
        stage("building the untuned kernels")
        untuned = form(asked := Algorithms({}, target))
        if search == TEMPLATES:
            convolutions = work.algorithms(asked)
            found("convolutions have several algorithms", len(asked.asked), len(asked.asked) - len(convolutions))
            session.run(convolutions, opened)
        tunable, functions = work.layers()
        found("layers have a choice", len(tunable), len(tunable) - len(functions))
        session.run(functions, opened)
        stage("comparing the whole model")
        whole = work.whole(untuned, opened) if network and not session.waiting else _Whole(note=_why_not(network))
        if whole.reverted:
            tunable, _ = work.layers()
    return Report(
        path, target, tuple(tunable), work.others(), session.entries, tuple(session.done), session.failed,
        tuple(session.waiting), tuple(session.lost.values()), whole.reverted, whole.comparisons, whole.note,
    )  # fmt: skip


@contextlib.contextmanager
def _opened(addresses: Sequence[str], target: Target) -> Iterator[list[Board]]:
    """Connections to all boards. Raises InvalidOption for a board of another kind, RuntimeFailure where one cannot be reached."""
    host = catalogue.get("host")
    if not addresses and host.architecture != target.architecture:
        raise InvalidOption(
            f"this machine is {host.architecture} and cannot measure for {target.name}: start aotc_board on such a board "
            f"(`aotc board --target {target.name}` writes it) and give its address by --board HOST:PORT"
        )
    with contextlib.ExitStack() as stack:
        boards = [connect(address) for address in addresses] if addresses else [local(target)]
        for board in boards:
            stack.callback(_close, board)
            if board.facts.get("machine") != target.architecture:
                raise InvalidOption(f"board {board.name} is {board.facts.get('machine')}, while {target.name} is {target.architecture}")
        yield boards


def _close(board: Board) -> None:
    with contextlib.suppress(OSError):
        board.close()


@dataclass(frozen=True, slots=True)
class _Whole:
    comparisons: tuple[Comparison, ...] = ()
    reverted: tuple[str, ...] = ()
    note: str = ""


def _why_not(network: bool) -> str:
    return "not all layers were measured" if network else "it was not asked for"


def _slower(results: Sequence[Comparison], chosen: set[str]) -> list[str]:
    """The layers with another choice that are slower in the model; or where it is slower as a whole, since a layer depends on what
    its neighbours leave in the caches, the one that gains the least."""
    ratios = {
        key: max((r.layers[key][2] for r in results if key in r.layers), key=lambda ratio: ratio.lower, default=None) for key in chosen
    }
    known = {key: ratio for key, ratio in sorted(ratios.items()) if ratio is not None}
    slower = [key for key, ratio in known.items() if ratio.is_slower]
    if not slower and known and any(r.total[2].is_slower for r in results):
        return [max(known, key=lambda key: known[key].median)]
    return slower


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done for a model."""

    form: Forms
    compiler: Compiler
    effort: Effort
    session: Session
    search: str
    again: bool

    def algorithms(self, asked: Algorithms) -> list[Job]:
        """For the convolutions whose algorithm the database does not know."""
        known = {} if self.again else self.session.entries
        unknown = {key: (node, names) for key, (node, names) in asked.asked.items() if not is_known(known.get(key), ((ALGORITHM, names),))}
        if not unknown:
            return []
        found = sites(unknown, self.form, self.form.target)
        functions = {layer.function for site in found for layer in site.layers.values()}
        compiled = self.compiler.untuned(functions)

        def job(site: Site) -> Job:
            kernels = {name: compiled[layer.function] for name, layer in site.layers.items()}
            return Job(site.key, site.name, lambda board: AlgorithmSearch(site, kernels, self.compiler, board, self.effort, known).run())

        return [job(site) for site in found]

    def layers(self) -> tuple[list[Layer], list[Job]]:
        """The functions with a choice, by the algorithms that are known to be best; and jobs for those that the database does not know."""
        model = self.form(Algorithms(self.session.entries, self.form.target))
        compiled = self.compiler.untuned(model.functions)
        found = layers(model, compiled, self.form.target, all_of_them=self.search != TEMPLATES)
        entries, done = self.session.entries, self.session.done

        def job(layer: Layer) -> Job:
            known = entries[layer.key].selection if layer.key in entries and self.search != TEMPLATES else None
            proposals = Neighbours if self.search == TEMPLATES else partial(Traces, layer.function, self.form.target, BATCH)
            untuned = compiled[layer.function]
            return Job(
                layer.key, layer.name,
                lambda board: [Search(layer, untuned, self.compiler, board, self.effort, proposals(), known).run()],
            )  # fmt: skip

        def is_left(layer: Layer) -> bool:
            known = is_known(entries.get(layer.key), compiled[layer.function].choices, self.search)
            return layer.key not in done and (self.again or not known)

        return found, [job(layer) for layer in found if is_left(layer)]

    def others(self) -> dict[str, str]:
        """By the keys of functions, the algorithms of convolutions in them that are not the estimate's."""
        return {key: self.session.entries[site].selection[ALGORITHM] for key, site in self._sites().items()}

    def _sites(self) -> dict[str, str]:
        """By the keys of functions, those of the convolutions in them whose algorithm is not the estimate's."""
        model = self.form(picked := Algorithms(self.session.entries, self.form.target))
        return {
            tuning_key(function, self.form.target): picked.other[conv.origin]
            for function in model.functions
            for conv in calls_of(function.body, CONVOLUTIONS)
            if conv.origin in picked.other
        }

    def whole(self, untuned: Sized, boards: Sequence[Board]) -> _Whole:
        """Compares the whole model, and takes back what is slower in it, until nothing is."""
        session, target = self.session, self.form.target
        alive = next((board for board in boards if board.name not in session.lost), None)
        reverted: list[str] = []
        try:
            while True:
                tuned = self.form(Algorithms(session.entries, target))
                keys = {tuning_key(function, target) for function in tuned.functions}
                other = self._sites()
                chosen = {key for key in keys if key in other or (key in session.entries and session.entries[key].selection)}
                if alive is None or not chosen:
                    return _Whole((), tuple(reverted), "no layer has a better choice" if alive else "no board is left")
                results = compare(untuned, tuned, session.entries, target, alive, NETWORK_SECONDS, self.effort.threads, self.compiler.jobs)
                slower = _slower(results, chosen)
                if not slower:
                    return _Whole(tuple(results), tuple(reverted))
                for key in {*slower, *(other[key] for key in slower if key in other)} & session.entries.keys():
                    entry = session.entries[key]
                    session.entries[key] = replace(entry, selection={}, tuned_us=entry.untuned_us)
                write_tuning(session.path, session.entries)
                reverted += slower
        except AotcError as error:
            return _Whole(reverted=tuple(reverted), note=str(error))
