"""``aotc tune`` from end to end: the model, its layers, the boards, the database, the comparison in the whole model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aotc.compiler import imported
from aotc.entry_points import EntryPoint, with_versions
from aotc.errors import AotcError, InvalidOption
from aotc.ir.dims import Dim
from aotc.ir.expr import Module
from aotc.lowering.build import Workers
from aotc.lowering.tuned import Tuned, read_tuning, write_tuning
from aotc.ops.custom import CustomOperator
from aotc.passes.pipeline import optimise
from aotc.targets import Target, catalogue, without_gpu
from aotc.tuning.board import Board, connect, local
from aotc.tuning.candidates import Compiler, Layer
from aotc.tuning.model import Sized, layers, sized
from aotc.tuning.network import Comparison, compare
from aotc.tuning.search import Effort
from aotc.tuning.session import Session, Tell, compile_untuned, is_known

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

    def module(self, target: Target) -> Module:
        alone = EntryPoint(self.model, self.args, self.dynamic_shapes, self.inputs)
        module = with_versions(imported(self.model, alone, self.states or {}, self.operators), self.versions)
        return optimise(module, target, () if self.winograd else ("choose_winograd",))


@dataclass(frozen=True, slots=True)
class Report:
    """What a session found. ``layers`` are all functions with a choice, ``entries`` the database by key; ``measured`` and ``failed``
    name those of this session, ``left`` what no board was left for, ``reverted`` those that were slower in the whole model.
    ``comparisons`` has an item an entry point, and none where the whole model was not run, for the reason in ``note``."""

    output: Path
    target: Target
    layers: tuple[Layer, ...]
    entries: Mapping[str, Tuned]
    measured: tuple[str, ...]
    failed: Mapping[str, str]
    left: tuple[Layer, ...]
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
    again: bool = False,
    network: bool = True,
    jobs: int | None = None,
    tell: Tell = lambda event: None,
    found: Callable[[int, int], None] = lambda layers, known: None,
    stage: Callable[[str], None] = lambda text: None,
) -> Report:
    """Tune a model and keep what is found in ``output``, which may exist: its entries stay, and functions that it knows are not
    measured ``again`` unless asked for. ``boards`` are addresses; without any, this machine measures. ``sizes`` are those of dims that
    only a run tells. ``network``: compare the whole model at the end and take back what is slower there. ``tell``, ``found`` and ``stage`` hear of the progress.

    Raises what an import raises, InvalidOption, BuildError, and RuntimeFailure where nothing can be measured at all.
    """
    path, effort = Path(output), effort or Effort()
    entries = read_tuning(path) if path.exists() else {}
    write_tuning(path, entries)  # a path that cannot be written is to be known before the first minute
    target = without_gpu(target)  # what is tuned are the CPU's kernels
    with Workers() as workers, _opened(boards, target) as opened:
        model = sized(source.module(target), sizes or {})
        stage("building the untuned kernels")
        compiled = compile_untuned(model, target, jobs, workers)
        tunable = layers(model, compiled, target)
        untuned = {layer.key: compiled[layer.function] for layer in tunable}
        waiting = [layer for layer in tunable if again or not is_known(entries.get(layer.key), untuned[layer.key])]
        found(len(tunable), len(tunable) - len(waiting))
        session = Session(Compiler(target, jobs, workers), path, effort, untuned, entries, tell, list(waiting))
        session.run(opened)
        stage("comparing the whole model")
        whole = _whole(model, session, opened, tunable, jobs) if network and not session.waiting else _Whole(note=_why_not(network))
    measured = tuple(layer.key for layer in waiting if layer not in session.waiting and layer.key not in session.failed)
    return Report(
        path, target, tuple(tunable), session.entries, measured, session.failed, tuple(session.waiting), tuple(session.lost.values()),
        whole.reverted, whole.comparisons, whole.note,
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


def _whole(model: Sized, session: Session, boards: Sequence[Board], found: Sequence[Layer], jobs: int | None) -> _Whole:
    """Compares the whole model, and takes back what is slower in it, until nothing is."""
    alive = next((board for board in boards if board.name not in session.lost), None)
    if alive is None or not any(session.entries[layer.key].selection for layer in found if layer.key in session.entries):
        return _Whole(note="no layer has a better choice" if alive else "no board is left")
    reverted: list[str] = []
    try:
        while True:
            results = compare(model, session.entries, session.compiler.target, alive, NETWORK_SECONDS, session.effort.threads, jobs)
            slower = _slower(results, session.entries, found)
            if not slower:
                return _Whole(tuple(results), tuple(reverted))
            for key in slower:
                entry = session.entries[key]
                session.entries[key] = replace(entry, selection={}, tuned_us=entry.untuned_us)
            write_tuning(session.path, session.entries)
            reverted += slower
    except AotcError as error:
        return _Whole(reverted=tuple(reverted), note=str(error))


def _slower(results: Sequence[Comparison], entries: Mapping[str, Tuned], found: Sequence[Layer]) -> list[str]:
    keys = [layer.key for layer in found if layer.key in entries and entries[layer.key].selection]
    return [key for key in keys if any(key in result.layers and result.layers[key][2].is_slower for result in results)]
