"""Compiles all fused functions of a model: each distinct one once, from the cache, in parallel worker processes or here.

Workers are plain child processes (``aotc.lowering.worker``) that import TVM once each. multiprocessing is not used: it would
run the caller's script again (spawn) or copy a process full of threads (fork). Without workers TVM stays in this process,
which then builds one small model after another without importing it again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aotc.errors import BuildError
from aotc.ir.expr import Function
from aotc.lowering import kernel_cache
from aotc.lowering.compiled import CompiledFunction, Selection
from aotc.lowering.frames import pack_function, read_frame, unpack_result, write_frame
from aotc.lowering.identity import function_key, function_label, is_custom
from aotc.lowering.in_place import InPlace
from aotc.lowering.worker import compile_one, without_torch
from aotc.targets import Target

Progress = Callable[[int, int, str], None]
"""Called as (functions ready, functions in all, label of the one that became ready), from any thread, one call at a time."""

KERNELS_PER_WORKER = 4
"""Fewer do not pay for a further process: importing TVM takes as long as this many kernels."""

_Task = tuple[str, Function, int | None, Selection]  # key, function, the parameter that its result overwrites, what to choose


def compile_functions(
    functions: Iterable[Function],
    target: Target,
    jobs: int | None = None,
    progress: Progress | None = None,
    in_place: InPlace | None = None,
    selections: Mapping[Function, Selection] | None = None,
    workers: Workers | None = None,
) -> dict[Function, CompiledFunction]:
    """Machine code of every function, for the target's GPU where it has one and can. ``jobs`` is the number of worker processes, by default one a core, and 0 compiles in this
    process; ``in_place`` names the functions that write their result over a parameter; ``selections`` says what their schedules
    shall choose. ``workers`` are processes kept from call to call.

    The result does not depend on ``jobs``. Raises BuildError for the first function (in the order given) that fails.
    """
    wanted, over, chosen = list(functions), in_place or {}, selections or {}
    keys = {function: function_key(function, target, over.get(function), chosen.get(function)) for function in wanted}
    distinct = {keys[function]: function for function in reversed(wanted)}
    ready = {key: found for key in distinct if (found := kernel_cache.load(key)) is not None}
    state = _State(len(distinct), progress or (lambda done, total, label: None), len(ready))
    missing = [key for key in dict.fromkeys(keys[function] for function in wanted) if key not in ready]
    if missing:
        state.report("cached")
        work = [(key, distinct[key], over.get(distinct[key]), chosen.get(distinct[key], {})) for key in missing]
        count = os.cpu_count() or 1 if jobs is None else jobs
        # A user's own expression lives in this process, where it may be a lambda of the caller's script.
        here = [not count or is_custom(function) for _, function, *_ in work]
        with contextlib.nullcontext(workers) if workers is not None else Workers() as processes:
            ready |= _compile([task for task, own in zip(work, here, strict=True) if not own], target, count, state, processes)
        ready |= _compile_here([task for task, own in zip(work, here, strict=True) if own], target, state)
    return {function: ready[keys[function]] for function in wanted}


# The caller's module search path, exactly: the package may have been found through it, and the folder that the caller
# stands in may hold files with the names of modules.
_WORKER = "import sys; sys.path[:] = sys.argv[1:]; from aotc.lowering.worker import main; main()"


class Workers:
    """Processes that compile, for one call of ``compile_functions`` or for many: importing TVM takes each of them seconds."""

    def __init__(self) -> None:
        self.idle: list[subprocess.Popen[bytes]] = []
        self.closed = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the processes: they wait for requests and see that none will come. One that still works ends after that."""
        self.closed = True
        while self.idle:
            _end(self.idle.pop())

    def take(self) -> subprocess.Popen[bytes]:
        """An idle process, or a new one."""
        with contextlib.suppress(IndexError):
            return self.idle.pop()
        command = [sys.executable, "-c", _WORKER, *sys.path]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TVM_NUM_THREADS": "1"})

    def give(self, worker: subprocess.Popen[bytes]) -> None:
        if worker.poll() is None and not self.closed:
            self.idle.append(worker)
        else:
            _end(worker)


def _end(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None and worker.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.close()
    worker.wait()
    worker.stdout.close()


@dataclass(slots=True)
class _State:
    total: int
    progress: Progress
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self, label: str, finished: int = 0) -> None:
        with self.lock:
            self.done += finished
            self.progress(self.done, self.total, label)


def _compile_here(work: list[_Task], target: Target, state: _State) -> dict[str, CompiledFunction]:
    results: dict[str, CompiledFunction] = {}
    with without_torch():
        for key, function, over, selection in work:
            results[key] = compile_one(function, target, over, selection)
            kernel_cache.store(key, results[key])
            state.report(function_label(function), finished=1)
    return results


def _compile(work: list[_Task], target: Target, jobs: int, state: _State, processes: Workers) -> dict[str, CompiledFunction]:
    tasks: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(work)):
        tasks.put(number)
    results: dict[str, CompiledFunction] = {}
    failures: dict[int, Exception] = {}
    count = min(jobs, len(work), max(len(processes.idle), -(-len(work) // KERNELS_PER_WORKER)))
    threads = [
        threading.Thread(target=_drive, args=(tasks, work, target, state, processes, results, failures), daemon=True) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as interruption:  # of the caller's, mostly Ctrl-C: no further task begins
        failures[-1] = BuildError(str(interruption))
        raise
    if failures:
        raise failures[min(failures)]
    return results


def _drive(
    tasks: queue.SimpleQueue[int],
    work: list[_Task],
    target: Target,
    state: _State,
    processes: Workers,
    results: dict[str, CompiledFunction],
    failures: dict[int, Exception],
) -> None:
    """Feeds one worker process until no task is left or one has failed."""
    worker = processes.take()
    try:
        while not failures:
            try:
                number = tasks.get_nowait()
            except queue.Empty:
                break
            key, function, over, selection = work[number]
            try:
                results[key] = _ask(worker, function, target, over, selection)
            except Exception as error:  # handed to the caller's thread
                failures[number] = error
                break
            kernel_cache.store(key, results[key])
            state.report(function_label(function), finished=1)
    finally:
        processes.give(worker)


def _ask(
    worker: subprocess.Popen[bytes], function: Function, target: Target, in_place: int | None, selection: Selection
) -> CompiledFunction:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        write_frame(worker.stdin, pack_function(function, target, in_place, selection))
        reply = read_frame(worker.stdout)
    except (BrokenPipeError, EOFError):
        where = function.origin or function.name or "a fused function"
        raise BuildError(
            f"{where}: the compiler process ended (status {worker.wait()}) while it compiled {function_label(function)}; "
            "its last words are above. This is a fault of aotc or TVM: please report the model"
        ) from None
    return unpack_result(reply)
