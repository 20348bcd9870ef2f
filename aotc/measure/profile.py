"""Where the time of a built file goes: each step of its plan, timed by the runtime's own clocks over many runs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aotc.errors import InvalidOption
from aotc.lowering.plan import EntryPoint
from aotc.measure import calibration
from aotc.measure.traffic import symbol_values, traffic
from aotc.packaging.planfile import read_plan
from aotc.packaging.reader import read_packaged
from aotc.runtime.loader import Session, load

KEPT = 1000
"""Runs whose times are kept at most; of more runs, so many that lie evenly among them. So memory does not grow with the runs."""
WARM_UP = 3


@dataclass(frozen=True)
class StepCost:
    """One step of the plan in one run: medians over runs.

    ``ns``: nanoseconds, all executions together where a loop runs the step more than once; ``executions``: how many. ``flops``:
    floating-point operations of the step's mathematics (a multiply-add is two), whatever algorithm the kernel uses; ``bytes``: what it
    touches at least (``Traffic``), None where a size is known only while running.
    """

    number: int
    kind: str
    name: str
    operators: str
    kernel: str
    outputs: tuple[str, ...]
    tasks: int
    executions: float
    ns: float
    flops: float
    bytes: float | None
    weights: float | None

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.ns * 1e9 if self.ns else 0.0

    @property
    def bytes_per_second(self) -> float | None:
        return self.bytes / self.ns * 1e9 if self.ns and self.bytes is not None else None


@dataclass(frozen=True)
class Profile:
    """What ``profile`` measured. ``run_ns``: median of a whole run as the caller sees it; ``peak``: operations a second that this machine
    was seen to do at most with as many threads, 0 where it could not be measured; ``samples``: nanoseconds, kept runs x steps."""

    file: str
    entry_point: str
    target: str
    machine: str
    threads: int
    runs: int
    shapes: Mapping[str, tuple[int, ...]]
    run_ns: float
    peak: float
    steps: tuple[StepCost, ...]
    samples: np.ndarray
    entry: EntryPoint

    @property
    def steps_ns(self) -> float:
        """The steps' times together."""
        return sum(step.ns for step in self.steps)

    @property
    def flops(self) -> float:
        return sum(step.flops for step in self.steps)

    def share(self, step: StepCost) -> float:
        """The step's part of the time of all steps."""
        return step.ns / self.steps_ns if self.steps_ns else 0.0

    def of_peak(self, step: StepCost) -> float | None:
        """The step's rate as a part of the measured peak; may exceed 1 where the algorithm needs fewer operations (Winograd)."""
        return step.flops_per_second / self.peak if self.peak and step.flops else None


def profile(
    file: str | os.PathLike[str],
    feeds: Mapping[str, np.ndarray],
    *,
    threads: int = 1,
    runs: int = 50,
    entry_point: str | None = None,
    measure_peak: bool = True,
) -> Profile:
    """Run a built file ``runs`` times on ``feeds`` (arrays by input name) with ``threads`` threads and time each of its steps.

    The times are the runtime's, taken between steps: they need no special build. Raises RuntimeFailure where the file does not load or
    run here, InvalidOption for numbers below 1, BuildError where the peak is wanted and its loop cannot be compiled.
    """
    if runs < 1 or threads < 1:
        raise InvalidOption(f"runs is {runs} and threads {threads}; both must be 1 or more")
    peak = calibration.peak(threads) if measure_peak else 0.0
    model = load(file)
    session = model.session(num_threads=threads, entry_point=entry_point)
    entry = _plan_of(file, session.entry_point)
    for _ in range(WARM_UP):
        session.run(feeds, copy=False)
    samples, executions, run_ns = _sampled(session, feeds, runs)
    return Profile(
        os.fspath(file), session.entry_point, str(model.info.target), calibration.machine(), threads, runs,
        {name: tuple(np.shape(array)) for name, array in feeds.items()}, run_ns, peak,
        _costs(session, entry, feeds, np.median(samples, axis=0), executions), samples, entry,
    )  # fmt: skip


def _plan_of(file: str | os.PathLike[str], name: str) -> EntryPoint:
    plan = read_plan(read_packaged(os.fspath(file)).plan)
    return next(entry for entry in plan.entry_points if entry.name == name)


def _sampled(session: Session, feeds: Mapping[str, np.ndarray], runs: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Nanoseconds (kept runs x steps), executions a run of each step, and the median time of a whole run."""
    kept = min(runs, KEPT)
    samples, whole = np.zeros((kept, len(session.clocks()))), np.zeros(kept)
    session.set_profiling(False)
    session.set_profiling(True)  # from zero
    before = np.array(session.clocks(), np.int64)
    for run in range(runs):
        begin = time.perf_counter_ns()
        session.run(feeds, copy=False)
        end = time.perf_counter_ns()
        after = np.array(session.clocks(), np.int64)
        row = run * kept // runs  # where several runs have one row, the last of them stays
        samples[row], whole[row] = after[:, 1] - before[:, 1], end - begin
        before = after
    return samples, before[:, 0] / runs, float(np.median(whole))


def _costs(
    session: Session, entry: EntryPoint, feeds: Mapping[str, np.ndarray], times: np.ndarray, executions: np.ndarray
) -> tuple[StepCost, ...]:
    touched = traffic(entry, symbol_values(entry, feeds))
    found = []
    for number, (info, step) in enumerate(zip(session.steps(), entry.steps, strict=True)):
        outputs = [entry.values[value] for value in step.arguments[len(step.arguments) - step.outputs :]]
        often, moved = float(executions[number]), touched[number]
        found.append(
            StepCost(
                number, info.kind, info.name, info.label, info.kernel,
                tuple(f"{value.dtype}[{', '.join(map(str, value.shape))}]" for value in outputs),
                info.tasks, often, float(times[number]), info.flops * often,
                None if moved is None else moved.total * often, None if moved is None else moved.weights_read * often,
            )
        )  # fmt: skip
    return tuple(found)
