"""``python -m tests.cuda.mutate``: do the checkers of the software driver and the numbers find faults in kernels?

Of each kernel of ``corpus.py``, every barrier is left out in turn and every index shifted. A fault is caught by a checker, by wrong
results, or because the kernel never ends or takes the process down. Of a barrier that nobody misses, a trace of all accesses shows
that nothing depends on it. Goes on where it was when ended (``--anew`` forgets); ``mutations.json`` is the result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aotc.lowering.compiled import CompiledFunction
from aotc.lowering.cuda.kernel import lower_function
from tests.cuda import host_code
from tests.cuda.corpus import Subject, subjects, wrong
from tests.cuda.launcher import CudaError, Device
from tests.cuda.lowered import build_lowered, run_lowered
from tests.cuda.machine_code import code
from tests.cuda.mutations import mutate
from tests.cuda.software import host_with_gpu
from tests.cuda.trace import conflicts

RESULT = Path(__file__).with_name("mutations.json")
ORDERS = ("forward", "reverse", "random:1", "random:2")
SECONDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cuda.mutate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--anew", action="store_true", help="forget what was found before")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels of functions whose name contains the text")
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() and not options.anew else {}
    found: dict[str, Any] = {}
    host_code.driver()
    for subject in subjects():
        lowered = lower_function(subject.function(), host_with_gpu())
        if not isinstance(lowered, CompiledFunction):
            continue
        for number, kernel in enumerate(lowered.kernels):
            name = subject.name if len(lowered.kernels) == 1 else f"{subject.name}, kernel {number + 1}"
            key = hashlib.sha256(b"".join(code(cubin) for _, cubin in kernel.cubins)).hexdigest()[:16]  # type: ignore[union-attr]
            if known.get(name, {}).get("code") != key and options.only in name:
                known[name] = {"code": key, **counted(examine(subject, lowered, number))}
                RESULT.write_text(json.dumps(known, indent=1) + "\n")
                print(f"{name}: {summary({name: known[name]})}", flush=True)
            if name in known:
                found[name] = known[name]
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(f"all: {summary(found)}")


def examine(subject: Subject, lowered: CompiledFunction, number: int) -> list[dict[str, str]]:
    """What became of each mutation of a kernel of the function."""
    with tempfile.TemporaryDirectory() as work:
        os.environ["AOTC_SOFTWARE_CUDA"] = work
        build_lowered(lowered, Path(work))
        kernel: Any = lowered.kernels[number]
        source, mutations = mutate(kernel.source)
        for _, cubin in kernel.cubins:
            host_code.build(source, cubin, Path(work))
        want = subject.want()
        whole, *outcomes = in_children(lambda i: attempt(subject, lowered, want, i - 1), len(mutations) + 1)
        if whole:
            raise SystemExit(f"{subject.name} fails without a mutation: {whole}")
        for i, mutation in enumerate(mutations):
            if not outcomes[i] and mutation.kind == "barrier" and not leaves_a_conflict(subject, lowered, want, i):
                outcomes[i] = "redundant: without it no two threads meet at an address"
        return [
            {"kind": mutation.kind, "text": mutation.text, "outcome": outcome}
            for mutation, outcome in zip(mutations, outcomes, strict=True)
        ]


def leaves_a_conflict(subject: Subject, lowered: CompiledFunction, want: Sequence[np.ndarray], mutation: int) -> bool:
    """Whether a trace of all accesses shows two threads that meet at an address without the barrier."""
    with tempfile.NamedTemporaryFile() as file:
        os.environ["AOTC_SOFTWARE_CUDA_TRACE"] = file.name
        in_children(lambda _: attempt(subject, lowered, want, mutation, ORDERS[:1]), 1)
        del os.environ["AOTC_SOFTWARE_CUDA_TRACE"]
        assert os.path.getsize(file.name), "no trace"
        return bool(conflicts(Path(file.name)))


def attempt(
    subject: Subject, lowered: CompiledFunction, want: Sequence[np.ndarray], mutation: int, orders: tuple[str, ...] = ORDERS
) -> str:
    """How the mutation shows in the first order of threads in which it does; empty if in none."""
    os.environ["AOTC_SOFTWARE_CUDA_MUTATION"] = str(mutation)
    for order in orders:
        os.environ["AOTC_SOFTWARE_CUDA_ORDER"] = order
        try:
            with Device(host_code.driver()) as device:
                if wrong(run_lowered(device, subject.function(), lowered, subject.arrays), want):
                    return "numbers"
        except CudaError as error:
            return f"checker: {error.finding.partition(':')[0]}"
    return ""


def in_children(work: Callable[[int], str], count: int) -> list[str]:
    """``work(0)``, ``work(1)``... in a process that each of them may take down, or that is ended when one takes too long."""
    found: list[str] = []
    while len(found) < count:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            for i in range(len(found), count):
                signal.alarm(SECONDS)
                os.write(writer, f"{work(i)}\n".encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            found += pipe.read().splitlines()
        _, status = os.waitpid(child, 0)
        if status:
            found.append("never ends" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else "crash")
    return found


def counted(mutations: list[dict[str, str]]) -> dict[str, Any]:
    """How often each outcome was seen by kind of mutation, and what was missed."""
    counts = {kind: dict(Counter(m["outcome"] for m in mutations if m["kind"] == kind)) for kind in ("barrier", "index")}
    return {**counts, "missed": [mutation["text"] for mutation in mutations if not mutation["outcome"]]}


def summary(found: dict[str, Any]) -> str:
    """Counts in words."""
    parts = []
    for kind in ("barrier", "index"):
        total: Counter[str] = Counter()
        for kernel in found.values():
            for outcome, count in kernel[kind].items():
                total[outcome.partition(":")[0]] += count
        kernels = sum(bool(kernel[kind]) for kernel in found.values())
        counts = ", ".join(f"{count} {outcome or 'missed'}" for outcome, count in total.most_common())
        share = 100 * (1 - total[""] / max(1, total.total()))
        parts.append(f"{total.total()} of kind {kind} in {kernels} kernels, {share:.1f} % accounted for ({counts})")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
