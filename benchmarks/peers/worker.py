"""One engine with one model in one process, started by the engine's own Python.

    python -m benchmarks.peers.worker build ENGINE MODEL THREADS FILES FOLDER      prints one JSON line
    python -m benchmarks.peers.worker serve ENGINE MODEL THREADS FILES FOLDER      prints one JSON line a command

``serve`` loads, runs once, tells of it, then reads commands: ``run SECONDS WARM`` (so many untimed runs, then at least one timed
run), ``memory``, ``quit``.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.engine import Engine, Job, Run
from benchmarks.peers.engines import ENGINES


def status_bytes(field: str) -> int:
    """VmRSS, VmHWM and the like of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def build(engine: Engine) -> dict[str, Any]:
    begin = time.perf_counter()
    facts = engine.build()
    return {"seconds": facts.pop("compile_seconds", time.perf_counter() - begin), **facts}


def start(engine: Engine) -> tuple[Run, np.ndarray, dict[str, Any]]:
    """Imports, loads and runs once. Seconds and bytes; memory counts from after Python, NumPy and the input."""
    x, base = engine.job.input(), status_bytes("VmRSS")
    begin = time.perf_counter()
    for module in engine.modules:
        importlib.import_module(module)
    imported = time.perf_counter()
    run = engine.load()
    loaded = time.perf_counter()
    result = np.array(run(x))
    first = time.perf_counter()
    path = engine.job.folder / f"result-{engine.job.threads}.npy"
    np.save(path, result)
    runtime, model = engine.deployed()
    facts = {"result": str(path), "base": base, "import": imported - begin, "load": loaded - imported, "first": first - loaded}
    return run, x, {**facts, "runtime_bytes": runtime, "model_bytes": model}


def measure(run: Run, x: np.ndarray, seconds: float, warm: int) -> list[int]:
    """Nanoseconds of each run. The process was stopped: untimed runs make its caches warm again."""
    clock = time.perf_counter_ns
    for _ in range(warm):
        run(x)
    times: list[int] = []
    end = clock() + int(seconds * 1e9)
    while not times or clock() < end:
        begin = clock()
        run(x)
        times.append(clock() - begin)
    return times


def main() -> None:
    mode, name, model, threads, files, folder = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print to stdout; the protocol has a descriptor of its own

    def say(**facts: Any) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    engine = ENGINES[name](Job(model, int(threads), Path(files), Path(folder)))
    if mode == "build":
        say(**build(engine), peak=max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024)
        return
    run, x, facts = start(engine)
    say(**facts)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "run":
            say(ns=measure(run, x, float(words[0]), int(words[1])))
        elif command == "memory":
            say(peak=status_bytes("VmHWM") - facts["base"], resident=status_bytes("VmRSS") - facts["base"])
        elif command == "quit":
            break


if __name__ == "__main__":
    main()
