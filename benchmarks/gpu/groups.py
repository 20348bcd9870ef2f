"""What is run, in groups: each has a process of its own and an end in time, and what it has found stays when it dies.

The journal has a line when something begins and one when it has ended. What began in a process that is no more has failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import networks, pytorch, shapes
from tests.cuda.launcher import CudaError

Result = dict[str, Any]

BROKEN = 3
"""The status of a process that the GPU is of no more use to: the rest goes to another one."""


@dataclass(frozen=True)
class Group:
    """``run`` gives the result of a key: with ``failed``, the reason, where it is wrong, and ``missing`` where something is not there.
    ``seconds``: after which a process has hung."""

    name: str
    names: Callable[[], list[str]]
    run: Callable[[str, Path], Result]
    seconds: float


GROUPS = (
    Group("shapes", shapes.names, shapes.run, 150),
    Group("networks", networks.names, networks.run, 150),
    Group("pytorch", lambda: pytorch.names(("eager", "graphs")), pytorch.run, 90),
    Group("onnxruntime", lambda: list(networks.NETWORKS), networks.onnxruntime_run, 60),
    Group("pytorch-compiled", lambda: pytorch.names(pytorch.COMPILED), pytorch.run, 150),
)
"""In the order of what is most worth to know: the last are cut off where the time ends."""


class Journal:
    """Results by group and key, in a file that is only ever added to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"

    def write(self, group: str, key: str, result: Result | None) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([group, key, result]) + "\n")

    def results(self) -> dict[str, dict[str, Result | None]]:
        """``None``: it began and has not ended."""
        found: dict[str, dict[str, Result | None]] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            group, key, result = json.loads(line)
            found.setdefault(group, {})[key] = result
        return found


def run_here(group: Group, keys: list[str], folder: Path) -> int:
    """Runs the keys in this process; the status that it is to end with."""
    journal = Journal(folder)
    for key in keys:
        journal.write(group.name, key, None)
        try:
            result, broken = group.run(key, folder), False
        except (ImportError, FileNotFoundError) as error:
            result, broken = {"missing": str(error)}, False
        except Exception as error:
            result, broken = {"failed": _told(error)}, isinstance(error, CudaError) or "CUDA driver says" in str(error)
        journal.write(group.name, key, result)
        if broken:
            return BROKEN
    return 0


def _told(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"


def run_apart(group: Group, wanted: list[str], folder: Path, seconds: Callable[[], float]) -> Iterator[tuple[str, Result]]:
    """Runs the keys in processes, at most ``seconds()`` more in all; each result when it is there. Keys without one had no time."""
    journal, told = Journal(folder), set[str]()
    while left := [key for key in wanted if key not in told]:
        limit = min(group.seconds, seconds())
        if limit <= 0:
            return
        command = [sys.executable, "-m", "benchmarks.gpu", "part", group.name, "--folder", str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        reason = "the process ended"
        try:
            process.communicate("\n".join(left), timeout=limit)
            reason += f" with status {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            reason = f"no end after {limit:g} s"
        before = len(told)
        for key, result in journal.results().get(group.name, {}).items():
            if key in left:
                if result is None:
                    result = {"failed": reason}
                    journal.write(group.name, key, result)
                told.add(key)
                yield key, result
        if len(told) == before:  # it did not even begin
            for key in left:
                journal.write(group.name, key, {"failed": reason})
                yield key, {"failed": reason}
            return
