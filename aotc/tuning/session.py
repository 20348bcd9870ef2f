"""A tuning session: the layers of a model shared out to boards, and a database that is written after each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aotc.errors import AotcError
from aotc.ir.expr import Function
from aotc.lowering.build import Workers, compile_functions
from aotc.lowering.compiled import CompiledFunction
from aotc.lowering.identity import is_custom
from aotc.lowering.tuned import Tuned, offered_digest, write_tuning
from aotc.packaging.operator_source import is_source
from aotc.targets import Target
from aotc.tuning.board import Board, BoardLost
from aotc.tuning.candidates import Compiler, Layer
from aotc.tuning.model import Sized
from aotc.tuning.search import Effort, Search


@dataclass(frozen=True, slots=True)
class Event:
    """What happened on a board: ``start`` of a layer, ``done`` with its entry, ``failed`` with a message; or the board was ``lost``."""

    kind: str
    board: str
    layer: Layer
    entry: Tuned | None = None
    message: str = ""


Tell = Callable[[Event], None]
"""Called from any thread, one call at a time."""


@dataclass(slots=True)
class Session:
    """What the boards' threads share. ``entries`` is the whole database; ``failed`` has messages by key, ``lost`` by board."""

    compiler: Compiler
    path: Path
    effort: Effort
    untuned: dict[str, CompiledFunction]
    entries: dict[str, Tuned]
    tell: Tell
    waiting: list[Layer]
    failed: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    busy: int = 0
    fault: BaseException | None = None
    stopping: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def run(self, boards: Sequence[Board]) -> None:
        """Tunes the waiting layers. Where all boards are lost, what could not be measured stays in ``waiting``.

        An interruption passes through, and so does a fault of our own; what was found until then is in the file.
        """
        threads = [threading.Thread(target=self._serve, args=(board,), daemon=True) for board in boards]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            self.stopping = True
        if self.fault is not None:
            raise self.fault

    def _serve(self, board: Board) -> None:
        while (layer := self._take()) is not None:
            try:
                if not self._tune(layer, board):
                    return
            except BaseException as error:  # handed to the caller's thread
                self.fault, self.stopping = error, True
            finally:
                with self.changed:
                    self.busy -= 1
                    self.changed.notify_all()

    def _tune(self, layer: Layer, board: Board) -> bool:
        """Whether the board is still there. Raises BuildError where the file cannot be written."""
        self._event(Event("start", board.name, layer))
        try:
            entry = Search(layer, self.untuned[layer.key], self.compiler, board, self.effort).run()
        except BoardLost as error:
            with self.changed:  # others go on with what it had begun
                self.waiting.insert(0, layer)
                self.lost[board.name] = str(error)
            self._event(Event("lost", board.name, layer, message=str(error)))
            return False
        except AotcError as error:
            self.failed[layer.key] = str(error)
            self._event(Event("failed", board.name, layer, message=str(error)))
        else:
            self._keep(Event("done", board.name, layer, entry), entry)
        return True

    def _take(self) -> Layer | None:
        """The next layer; waits while another board has one that may come back. ``None`` at the end."""
        with self.changed:
            while not self.waiting and self.busy and not self.stopping:
                self.changed.wait()
            if self.stopping or not self.waiting:
                return None
            self.busy += 1
            return self.waiting.pop(0)

    def _event(self, event: Event) -> None:
        with self.changed:
            self.tell(event)

    def _keep(self, event: Event, entry: Tuned) -> None:
        with self.changed:
            self.entries[entry.key] = entry
            write_tuning(self.path, self.entries)
            self.tell(event)


def compile_untuned(model: Sized, target: Target, jobs: int | None, workers: Workers) -> dict[Function, CompiledFunction]:
    """The kernels that a build without measurements has, mostly from the cache."""
    return compile_functions([f for f in model.functions if not (is_source(f) or is_custom(f))], target, jobs, workers=workers)


def is_known(entry: Tuned | None, untuned: CompiledFunction) -> bool:
    """Whether an entry says all about a function that there is to choose."""
    return entry is not None and entry.offered == offered_digest(untuned)
