"""What is run, in groups: each has a process of its own and an end in time, and what it has found stays when it dies.

The journal has a line when something begins and one when it has ended. What began in a process that is no more has failed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotc.cli.common import console
from benchmarks.gpu import networks, pytorch, shapes
from tests.cuda.launcher import CudaError

Result = dict[str, Any]

BROKEN = 3
"""The status of a process that the GPU is of no more use to: the rest goes to another one."""


@dataclass(frozen=True)
class Group:
    """``run`` gives the result of a key: with ``failed``, the reason, where it is wrong, and ``missing`` where something is not there.
    ``seconds``: after so long with one key, or before the first, a process has hung."""

    name: str
    names: Callable[[], list[str]]
    run: Callable[[str, Path], Result]
    seconds: float


GROUPS = (
    Group("shapes", shapes.names, shapes.run, 40),
    Group("networks", networks.names, networks.run, 60),
    Group("pytorch", lambda: pytorch.names(("eager", "graphs")), pytorch.run, 40),
    Group("onnxruntime", lambda: list(networks.NETWORKS), networks.onnxruntime_run, 40),
    Group("pytorch-compiled", lambda: pytorch.names(pytorch.COMPILED), pytorch.run, 120),
)
"""In the order of what is most worth to know: the last are cut off where the time ends."""


class Journal:
    """Results by group and key, in a file that is only ever added to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"

    def write(self, group: str, key: str, result: Result | None) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([group, key, result]) + "\n")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def results(self, begin: int = 0) -> dict[str, dict[str, Result | None]]:
        """From byte ``begin`` on. ``None``: it began and has not ended."""
        found: dict[str, dict[str, Result | None]] = {}
        for line in self.path.read_bytes()[begin:].splitlines() if self.path.exists() else []:
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
        _tell(group, key, result)
        if broken:
            return BROKEN
    return 0


def _told(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"


def _tell(group: Group, key: str, result: Result) -> None:
    """A line of a result that is more than right."""
    words = [f"[red]wrong[/]: {result['failed']}"] if "failed" in result else []
    words += [f"off by {result['error']:.1e} of {result['allowed']:g}"] if "error" in result else []
    words += [f"{name.partition('_')[0]} {value['median']:.0f} us" for name, value in result.items() if isinstance(value, dict)]
    if words:
        console.print(f"{group.name}: {key}: {', '.join(words)}", highlight=False, soft_wrap=True)


def run_apart(group: Group, wanted: list[str], folder: Path, seconds: Callable[[], float]) -> dict[str, Result]:
    """Runs the keys in processes, ending when ``seconds()``, what is left of the time, does. A key without a result had no time."""
    journal, left, results = Journal(folder), list(wanted), dict[str, Result]()
    while left and seconds() > 0:
        begin = journal.size()
        reason = _process(group, left, folder, seconds)
        found = journal.results(begin).get(group.name, {})
        # Whose result is not there while the process is no more, and all, where it ended before the first: it would again.
        for key in [key for key in found or left if found.get(key) is None] if reason else []:
            found[key] = {"failed": reason}
            journal.write(group.name, key, {"failed": reason})
            _tell(group, key, {"failed": reason})
        results |= {key: result for key, result in found.items() if result is not None}
        left = [key for key in left if key not in found]
    return results


def _process(group: Group, keys: list[str], folder: Path, seconds: Callable[[], float]) -> str:
    """One process for the keys; why it ended before its work was done, empty where the time was over."""
    command = [sys.executable, "-m", "benchmarks.gpu", "part", group.name, "--folder", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already
        process.stdin.write("\n".join(keys))
        process.stdin.close()
    journal, size, since = Journal(folder), 0, time.monotonic()
    while process.poll() is None:
        time.sleep(0.1)
        if journal.size() != size:
            size, since = journal.size(), time.monotonic()
        hangs = time.monotonic() - since > group.seconds
        if hangs or seconds() <= 0:
            process.kill()
            process.wait()
            return f"no end after {group.seconds:g} s" if hangs else ""
    return f"the process ended with status {process.returncode}"
