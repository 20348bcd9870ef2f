"""``aotc bench``: how long a built file takes on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from aotc.cli.common import AsJson, BuiltFile, bytes_text, console, print_json
from aotc.cli.tensors import DataOption, Preprocessing, SeedOption, ShapeOption, load_feeds
from aotc.errors import InvalidOption

if TYPE_CHECKING:
    from aotc.runtime.aotc_runtime import Model, Session

PERCENTILES = (50, 90, 99)


def bench(
    file: BuiltFile,
    data: DataOption = None,
    shape: ShapeOption = None,
    seed: SeedOption = 0,
    threads: Annotated[str, typer.Option("--threads", "-j", metavar="N[,N...]", help="Numbers of threads to measure.")] = "1",
    seconds: Annotated[float, typer.Option(min=0.01, help="How long to measure for each number of threads.")] = 3.0,
    warmup: Annotated[int, typer.Option(min=0, help="Runs before measuring.")] = 3,
    steps: Annotated[bool, typer.Option("--steps", help="Also show the time of each step.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a built file on this machine.

    Example: `aotc bench model.so --threads 1,2,4 --steps`
    """
    import aotc

    model = aotc.load(file)
    feeds = load_feeds(model.inputs, data, shape, seed, Preprocessing())
    counts = _counts(threads)
    results = [measure(model, feeds, count, seconds, warmup) for count in counts]
    profile = _profile(model, feeds, counts[0]) if steps else []
    if as_json:
        print_json({"file": file, "results": results} | ({"steps": profile} if steps else {}))
        return
    _print(results)
    if steps:
        _print_steps(profile)


def measure(model: Model, feeds: dict[str, np.ndarray], threads: int, seconds: float, warmup: int) -> dict[str, Any]:
    """Latencies in milliseconds over at least ten runs; outputs are left in the session's memory, so no copies are timed."""
    session = model.session(num_threads=threads)
    for _ in range(warmup):
        session.run(feeds, copy=False)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 10 or time.perf_counter() < end:
        begin = time.perf_counter()
        session.run(feeds, copy=False)
        times.append((time.perf_counter() - begin) * 1e3)
    latencies = {f"p{percentile}": float(np.percentile(times, percentile)) for percentile in PERCENTILES}
    return {
        "threads": threads,
        "runs": len(times),
        "min": min(times),
        "mean": float(np.mean(times)),
        **latencies,
        "memory": _memory(session),
    }


def _memory(session: Session) -> int:
    return session.memory().total


def _profile(model: Model, feeds: dict[str, np.ndarray], threads: int, runs: int = 10) -> list[dict[str, Any]]:
    session = model.session(num_threads=threads)
    session.run(feeds, copy=False)
    session.set_profiling(True)
    for _ in range(runs):
        session.run(feeds, copy=False)
    return [
        {"name": step.name, "label": step.label, "us": step.total_ns / max(step.runs, 1) / 1e3, "flops": step.flops, "tasks": step.tasks}
        for step in session.steps()
    ]


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidOption(f"--threads {text!r} is not a list of numbers such as 1,2,4") from error
    if any(count < 1 for count in counts):
        raise InvalidOption(f"--threads {text!r}: each number must be 1 or more")
    return counts


def _print(results: list[dict[str, Any]]) -> None:
    table = Table(title="Latency, ms", title_justify="left")
    columns = ("min", "mean", *(f"p{percentile}" for percentile in PERCENTILES))
    for heading in ("threads", "runs", *columns, "runs per s", "memory"):
        table.add_column(heading, justify="right")
    for result in results:
        numbers = [f"{result[column]:.3f}" for column in columns]
        table.add_row(str(result["threads"]), str(result["runs"]), *numbers, f"{1e3 / result['mean']:.1f}", bytes_text(result["memory"]))
    console.print(table, highlight=False)


def _print_steps(steps: list[dict[str, Any]]) -> None:
    total = sum(step["us"] for step in steps)
    table = Table(title=f"Steps, {total / 1e3:.3f} ms together", title_justify="left")
    for heading, justify in (
        ("#", "right"),
        ("name", "left"),
        ("operators", "left"),
        ("µs", "right"),
        ("share", "right"),
        ("GFLOP/s", "right"),
        ("tasks", "right"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for number, step in enumerate(steps):
        rate = f"{step['flops'] / step['us'] / 1e3:.1f}" if step["flops"] and step["us"] else ""
        share = f"{100 * step['us'] / total:.1f} %" if total else ""
        table.add_row(str(number), step["name"], step["label"], f"{step['us']:.1f}", share, rate, str(step["tasks"]))
    console.print(table, highlight=False)
