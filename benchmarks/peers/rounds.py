"""Measures one group, which is a model with a number of threads: all engines in interleaved rounds."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.builds import Place
from benchmarks.peers.engine import Engine
from benchmarks.peers.serving import Failed, Serving
from tests.agreement import distance


@dataclass(frozen=True)
class Plan:
    """``starts``: fresh processes from which the fastest start is taken. An engine that takes more than ``slow`` seconds a run gets
    ``slow_rounds`` rounds of one run each."""

    rounds: int = 12
    seconds: float = 0.25
    starts: int = 3
    slow: float = 0.3
    slow_rounds: int = 3
    start_limit: float = 180.0


def measure_group(
    engines: Mapping[str, type[Engine]], model: str, threads: int, files: Path, place: Place, plan: Plan, tell: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """By engine: what was measured, or ``error`` with the reason."""
    found: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        running: dict[str, Serving] = {}
        for name, engine in engines.items():
            tell(f"starting {engine.title}")
            try:
                running[name], found[name] = _started(engine, model, threads, files, place, plan)
                stack.callback(running[name].close)
            except Failed as failure:
                found[name] = {"error": str(failure)}
        for number in range(plan.rounds):
            tell(f"round {number + 1} of {plan.rounds}")
            order = list(running)
            turn = number % max(len(order), 1)
            for name in order[turn:] + order[:turn]:
                try:
                    _measure_round(running[name], found[name], number, plan)
                except Failed as failure:
                    found[name] = {"error": str(failure)}
                    del running[name]
        for name, serving in running.items():
            found[name] |= {"memory": serving.memory()}
    return found


def _started(engine: type[Engine], model: str, threads: int, files: Path, place: Place, plan: Plan) -> tuple[Serving, dict[str, Any]]:
    """The worker that stays, and the figures of the fastest of several starts."""
    starts: list[dict[str, Any]] = []
    while True:
        serving = Serving(engine, model, threads, files, place, plan.start_limit)
        starts.append(serving.facts)
        if len(starts) >= plan.starts or starts[0]["import"] + starts[0]["load"] + starts[0]["first"] > 2:  # noise is small beside this
            break
        serving.close()
    best = min(starts, key=lambda facts: facts["load"] + facts["first"])
    kept = {name: best[name] for name in ("import", "load", "first", "runtime_bytes", "model_bytes")}
    try:
        return serving, {**kept, **_distance(Path(best["result"]), files), "rounds": {}}
    except AssertionError as error:
        serving.close()
        raise Failed(f"wrong result: {error}") from None


def _distance(result: Path, files: Path) -> dict[str, float]:
    """How far the first result is from the reference; engines may drop dims of one."""
    reference = np.load(files / "data.npz")["reference"]
    array = np.load(result)
    assert array.size == reference.size, f"{array.size} values in shape {array.shape}, expected {reference.shape}"
    found = distance(array.reshape(reference.shape), reference)
    return {"largest": found.largest, "l2": found.l2}


def _measure_round(serving: Serving, found: dict[str, Any], number: int, plan: Plan) -> None:
    rounds: dict[str, dict[str, float]] = found["rounds"]
    slow = bool(rounds) and min(each["minimum"] for each in rounds.values()) > plan.slow
    if slow and len(rounds) >= plan.slow_rounds:
        return
    times = serving.measure(0 if slow else plan.seconds, 0 if slow else 1, number)
    rounds[str(number)] = {"runs": len(times), "minimum": min(times), "median": statistics.median(times)}
