"""A tuning session: jobs shared out to boards, and a database that is written after each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aotc.errors import AotcError
from aotc.lowering.tuned import Tuned, write_tuning
from aotc.tuning.board import Board, BoardLost


@dataclass(frozen=True, slots=True)
class Job:
    """Something to measure wholly on one board, for the sake of the database's entry ``key``: ``name`` is the user's name of the layer.
    ``run`` gives what it finds as it finds it, that entry last; it raises BoardLost where the board is lost."""

    key: str
    name: str
    run: Callable[[Board], Iterable[Tuned]]


@dataclass(frozen=True, slots=True)
class Event:
    """What happened on a board: ``start`` of a job, ``done`` with its entry, ``failed`` with a message; or the board was ``lost``."""

    kind: str
    board: str
    job: Job
    entry: Tuned | None = None
    message: str = ""


Tell = Callable[[Event], None]
"""Called from any thread, one call at a time."""


@dataclass(slots=True)
class Session:
    """What the boards' threads share. ``entries`` is the whole database, ``done`` has the keys of what was found now;
    ``failed`` has messages by key, ``lost`` by board."""

    path: Path
    entries: dict[str, Tuned]
    tell: Tell
    waiting: list[Job] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    busy: int = 0
    fault: BaseException | None = None
    stopping: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def run(self, jobs: Sequence[Job], boards: Sequence[Board]) -> None:
        """Does the jobs on the boards that are left. Where all are lost, what could not be done stays in ``waiting``.

        An interruption passes through, and so does a fault of our own; what was found until then is in the file.
        """
        self.waiting += jobs
        self.stopping = False
        alive = [board for board in boards if board.name not in self.lost]
        threads = [threading.Thread(target=self._serve, args=(board,), daemon=True) for board in alive]
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
        while (job := self._take()) is not None:
            try:
                if not self._do(job, board):
                    return
            except BaseException as error:  # handed to the caller's thread
                self.fault, self.stopping = error, True
            finally:
                with self.changed:
                    self.busy -= 1
                    self.changed.notify_all()

    def _do(self, job: Job, board: Board) -> bool:
        """Whether the board is still there. Raises BuildError where the file cannot be written."""
        self._event(Event("start", board.name, job))
        try:
            for entry in job.run(board):
                self._keep(entry)
        except BoardLost as error:
            with self.changed:  # others go on with what it had begun
                self.waiting.insert(0, job)
                self.lost[board.name] = str(error)
            self._event(Event("lost", board.name, job, message=str(error)))
            return False
        except AotcError as error:
            self.failed[job.key] = str(error)
            self._event(Event("failed", board.name, job, message=str(error)))
        else:
            self._event(Event("done", board.name, job, self.entries[job.key]))
        return True

    def _take(self) -> Job | None:
        """The next job; waits while another board has one that may come back. ``None`` at the end."""
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

    def _keep(self, entry: Tuned) -> None:
        with self.changed:
            self.entries[entry.key] = entry
            self.done.append(entry.key)
            write_tuning(self.path, self.entries)
