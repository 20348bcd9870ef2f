"""Runs mutants through import and compilation: each must give a built file, or one of aotc's errors that says where and what.

    python -m tests.hostile.models --structured 1000 --bytes 1000

Each mutant has a time limit and a limit on memory. Results go into tests/hostile/results.json; what it has is not run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from rich.progress import track

import aotc
from aotc.errors import AotcError
from tests.hostile import mutate
from tests.zoo import ocr, silero

RESULTS = Path(__file__).parent / "results.json"
SECONDS = 60  # of processor time for one mutant
WAIT = 900  # seconds until a process counts as hanging
MEMORY = 6 << 30  # bytes of address space
BUILT = 12  # of so many mutants that import, one is compiled too


@cache
def sources() -> list[tuple[str, onnx.ModelProto]]:
    """Small real networks: PP-OCR's, a voice detector with branches and a recurrent layer."""
    paths = [("direction", ocr.onnx_path("direction")), ("detection", ocr.onnx_path("detection"))]
    paths += [(name, silero.onnx_path(name)) for name in ("16k", "16k-sequence")]
    return [(name, onnx.load(str(path))) for name, path in paths]


def run_structured(seed: int) -> str:
    name, model = sources()[seed % len(sources())]
    mutant, told = mutate.structured(model, seed)
    return _judged(lambda: aotc.import_onnx(mutant), seed, f"{name}: {told}")


def run_bytes(seed: int) -> str:
    name, model = sources()[seed % len(sources())]
    data, told = mutate.damaged(model.SerializeToString(), seed)
    return _judged(lambda: aotc.import_onnx(data), seed, f"{name}: {told}")


def _judged(load: Callable[[], Any], seed: int, told: str) -> str:
    """``built``, ``imported`` or ``refused``, or what is wrong."""
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        module = load()
        if seed % BUILT:
            return "imported"
        with tempfile.TemporaryDirectory() as folder:
            aotc.compile(module, output=Path(folder) / "model.so", jobs=0)
        return "built"
    except AotcError as error:
        return "refused" if names_something(str(error)) else f"FAULT {told}: the message names nothing: {error}"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"FAULT {told}: {type(error).__name__}: {str(error)[:200]} at {Path(last.filename).name}:{last.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def names_something(message: str) -> bool:
    """Whether a message has a name in quotes, of a node or tensor, or a part of the file and what was expected of it."""
    quoted = "'" in message or re.match(r"[\w@/.:+ ]+: \S", message) is not None  # a node's name may also begin the message
    return quoted or any(word in message for word in ("opset", "truncated", "not an ONNX", "graph", "protobuf", ": a tensor"))


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s of processor time")


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


KINDS: dict[str, Callable[[int], str]] = {"structured": run_structured, "bytes": run_bytes}


def run(kind: str, seeds: list[int], jobs: int) -> dict[int, str]:
    """The verdict on each seed. A process that dies takes its mutant's verdict with it: that is a fault too."""
    found: dict[int, str] = {}
    with multiprocessing.get_context("spawn").Pool(jobs, limit_memory, maxtasksperchild=100) as pool:
        waiting = [(seed, pool.apply_async(KINDS[kind], (seed,))) for seed in seeds]
        for seed, result in track(waiting, f"{kind} mutants"):
            try:
                found[seed] = result.get(WAIT)
            except multiprocessing.TimeoutError:
                found[seed] = "FAULT: its process died or hangs"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, metavar="N", help="how many, from seed 0 on")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    results: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for kind in KINDS:
        known = results.setdefault(kind, {})
        seeds = [seed for seed in range(getattr(options, kind)) if not known.get(str(seed), "").isalpha()]
        for first in range(0, len(seeds), 100):
            known |= {str(seed): verdict for seed, verdict in run(kind, seeds[first : first + 100], options.jobs).items()}
            RESULTS.write_text(json.dumps(results, indent=0, sort_keys=True) + "\n")
    faults = [f"{kind} {seed}: {verdict}" for kind, known in results.items() for seed, verdict in known.items() if not verdict.isalpha()]
    for kind, known in results.items():
        print(kind, {verdict: list(known.values()).count(verdict) for verdict in ("built", "imported", "refused")})
    print(*faults, sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
