"""Runs node tests in processes of their own: a crash or a hang is one test's failure."""

from __future__ import annotations

import functools
import multiprocessing
import re
import time
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

TIMEOUT = 300  # seconds for one test: a machine may be busy with other work
REASON = 240  # characters

# The fork server would be cleaner, and would collect the tests once more in each process. Nothing here has started a thread.
_CONTEXT = multiprocessing.get_context("fork")

Serve = Callable[[Connection, str], None]


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    name: str | None = None
    since: float = 0.0


def run_tests(names: Sequence[str], target: str, jobs: int, serve: Serve | None = None) -> Iterator[tuple[str, str]]:
    """Each test's name with why it failed, or with nothing, as they end. ``serve`` is what a process does: it says that it is
    ready, then takes names and answers; by default it runs onnx's node tests."""
    waiting, start = list(reversed(names)), functools.partial(_start, serve or serve_node_tests, target)
    workers = [start() for _ in range(min(jobs, len(names)))]
    try:
        for worker in workers:
            _give(worker, waiting)
        while any(worker.name for worker in workers):
            ready = wait([worker.pipe for worker in workers if worker.name], timeout=1)
            for number, worker in enumerate(workers):
                if worker.name is None:
                    continue
                reason = _answer(worker, worker.pipe in ready)
                if reason is None:
                    continue
                yield worker.name, reason
                if not worker.process.is_alive():
                    worker = workers[number] = start()
                _give(worker, waiting)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _start(serve: Serve, target: str) -> _Worker:
    """Raises RuntimeError for a worker that cannot even begin: that is no test's failure."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=serve, args=(theirs, target), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
    except EOFError:
        raise RuntimeError("a worker process ended before its first test; its last words are above") from None
    return _Worker(process, ours)


def _give(worker: _Worker, waiting: list[str]) -> None:
    worker.name = waiting.pop() if waiting else None
    worker.since = time.monotonic()
    if worker.name:
        worker.pipe.send(worker.name)


def _answer(worker: _Worker, ready: bool) -> str | None:
    """What a worker says of its test, or ``None`` while it is at work."""
    if ready:
        try:
            return worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            return f"crash: the process ended with status {worker.process.exitcode}"
    if time.monotonic() - worker.since > TIMEOUT:
        worker.process.kill()
        worker.process.join()
        return f"no result within {TIMEOUT} s"
    return None


def serve_node_tests(pipe: Connection, target: str) -> None:
    from tests.onnx.backends import BACKENDS

    warnings.simplefilter("ignore")
    from onnx.backend.test import BackendTest

    tests = BackendTest(BACKENDS[target], __name__).test_cases["OnnxBackendNodeModelTest"]
    pipe.send("ready")
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        pipe.send(run_one(tests, name))


def run_one(tests: type[unittest.TestCase], name: str) -> str:
    """Why the runner's own test fails, or nothing."""
    try:
        getattr(tests, f"{name}_cpu")(None)
    except Exception as error:
        return reason_of(error)
    return ""


def reason_of(error: BaseException) -> str:
    """An error's text in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, AssertionError):
        telling = ("Error", "incorrect", "Mismatched", "Max ", "x and y", "ACTUAL", "DESIRED", "(shapes", "ACTUAL:")
        lines = [line for line in lines if line.startswith(telling) or "incorrect" in line] or lines[:3]
        lines = [line for line in lines if not line.startswith("Error")] or lines
    text = re.sub(r"\s+", " ", "; ".join(lines))
    return f"{type(error).__name__}: {text}"[:REASON]
