"""A profile in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing show."""

from __future__ import annotations

from typing import Any

from aotc.measure.profile import Profile, StepCost

SHOWN = 20
"""Runs in the trace at most."""
GAP = 20.0  # microseconds between two runs


def trace(profile: Profile) -> dict[str, Any]:
    """The last runs, one after another, each a slice with its steps inside. A step that a loop repeats is one slice, as long as all its
    executions together; steps stand in the order of the plan. Times are microseconds."""
    events: list[dict[str, Any]] = [
        _named("process_name", f"{profile.file}, {profile.entry_point}, {profile.target}"),
        _named("thread_name", f"{profile.threads} thread{'s' * (profile.threads > 1)} on {profile.machine}"),
    ]
    steps = [step for step in profile.steps if step.executions]
    begin = 0.0
    for number, sample in enumerate(profile.samples[-SHOWN:]):
        at = begin
        inside = []
        for step in steps:
            length = float(sample[step.number]) / 1e3
            inside.append(_slice(step.name or step.kind, step.operators or step.kind, at, length, step_arguments(profile, step)))
            at += length
        events += [_slice(f"run {number}", "run", begin, at - begin, {}), *inside]
        begin = at + GAP
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"tool": "aotc profile", "runs": profile.runs}}


def step_arguments(profile: Profile, step: StepCost) -> dict[str, Any]:
    """What is said of a step beside its time in this run."""
    share, rate = profile.of_peak(step), step.bytes_per_second
    return {
        "step": step.number,
        "operators": step.operators,
        "kernel": step.kernel,
        "outputs": ", ".join(step.outputs),
        "tasks": step.tasks,
        "median ms": round(step.ns / 1e6, 6),
        "share of the run": f"{100 * profile.share(step):.1f} %",
        "GFLOP/s": round(step.flops_per_second / 1e9, 2),
        "of peak": "" if share is None else f"{100 * share:.0f} %",
        "bytes": "" if step.bytes is None else round(step.bytes),
        "GB/s": "" if rate is None else round(rate / 1e9, 2),
    }


def _named(kind: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": 1, "name": kind, "args": {"name": name}}


def _slice(name: str, category: str, begin: float, length: float, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "pid": 1, "tid": 1, "name": name, "cat": category, "ts": round(begin, 3), "dur": round(length, 3), "args": arguments}
