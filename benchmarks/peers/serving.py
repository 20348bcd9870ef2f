"""A worker that serves one engine with one model: stopped except while it is asked something, so that idle threads that spin
cannot disturb the engine that is measured."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from benchmarks.peers.builds import ROOT, Place, command, environment
from benchmarks.peers.engine import Engine
from benchmarks.peers.venvs import last_line


class Failed(Exception):
    """The engine could not do it; the message is the reason for the page."""


class Serving:
    """``facts`` are what ``worker.start`` told: seconds, bytes, the path of the first result. Raises Failed."""

    def __init__(self, engine: type[Engine], model: str, threads: int, files: Path, place: Place, limit: float) -> None:
        self.engine, self.threads = engine, threads
        self.log = place.log("serve", engine.name, model, str(threads))
        words = command("serve", engine, model, threads, files, place)
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                words, cwd=ROOT, env=environment(threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        try:
            self.facts = self._read(limit)
        except Failed:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def measure(self, seconds: float, warm: int, number: int) -> list[float]:
        """Seconds of each run in round ``number``. One thread goes from core to core between rounds, since one may be busier."""
        cores = sorted(os.sched_getaffinity(0))
        if self.threads == 1:
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {cores[number % len(cores)]})
        return [nanoseconds * 1e-9 for nanoseconds in self._ask(f"run {seconds} {warm}")["ns"]]

    def memory(self) -> dict[str, int]:
        """Bytes beyond Python, NumPy and the input: ``peak`` and ``resident``."""
        return cast("dict[str, int]", self._ask("memory"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _ask(self, words: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(words + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._reason()) from None
        answer = self._read(600)
        self._signal(signal.SIGSTOP)
        return answer

    def _read(self, limit: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], limit)[0]:
            raise Failed(f"no answer within {limit:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise Failed(self._reason())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _reason(self) -> str:
        status = self.process.wait()
        if status < 0:
            return f"ended by {signal.Signals(-status).name}: {last_line(self.log.read_text(errors='replace'))}"
        return last_line(self.log.read_text(errors="replace"))

    def _signal(self, number: int) -> None:
        os.kill(self.process.pid, number)
