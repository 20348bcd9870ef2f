"""Engines in processes of their own, stopped while another one is measured, so that none disturbs the other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

Runner = Callable[[], list[np.ndarray]]


def aotc_runner(file: Path, feeds: dict[str, np.ndarray], threads: int) -> Runner:
    import aotc

    session = aotc.load(file).session(num_threads=threads)
    return lambda: list(session.run(feeds, copy=False).values())


def onnxruntime_runner(file: Path, feeds: dict[str, np.ndarray], threads: int) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


RUNNERS: dict[str, Callable[[Path, dict[str, np.ndarray], int], Runner]] = {"aotc": aotc_runner, "onnxruntime": onnxruntime_runner}


class Engine:
    """One engine with one model, loaded and warm, in a stopped process. Times are in seconds."""

    def __init__(self, engine: str, file: Path, feeds: dict[str, np.ndarray], threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, engine, file, feeds, threads), daemon=True)
        self.process.start()
        theirs.close()
        self.load_seconds, self.first_seconds, self.outputs = self.pipe.recv()
        self._signal(signal.SIGSTOP)

    def measure(self, seconds: float) -> list[float]:
        """The time of each run, over about ``seconds``."""
        self._signal(signal.SIGCONT)
        self.pipe.send(seconds)
        times: list[float] = self.pipe.recv()
        self._signal(signal.SIGSTOP)
        return times

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.join()

    def _signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


def _serve(pipe: Connection, engine: str, file: Path, feeds: dict[str, np.ndarray], threads: int) -> None:
    _import(engine)
    begin = time.perf_counter()
    run = RUNNERS[engine](file, feeds, threads)
    loaded = time.perf_counter()
    outputs: list[Any] = [np.array(array) for array in run()]
    pipe.send((loaded - begin, time.perf_counter() - loaded, outputs))
    while True:
        seconds = pipe.recv()
        run()  # the process was stopped: caches are warm again after one run
        times = []
        end = time.perf_counter() + seconds
        while len(times) < 3 or time.perf_counter() < end:
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        pipe.send(times)


def _import(engine: str) -> None:
    """Imports what the engine needs, so that loading a model is timed without it."""
    if engine == "aotc":
        import aotc  # noqa: F401
    else:
        import onnxruntime  # noqa: F401
