"""``aotc bench``: how long a built file takes on this machine, or how many instructions it executes, beside an earlier measurement."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from aotc.cli.common import AsJson, BuiltFile, bytes_text, console, print_json
from aotc.cli.tensors import DataOption, Preprocessing, SeedOption, ShapeOption, load_feeds
from aotc.errors import InvalidOption, TooBusy, TooSlow

if TYPE_CHECKING:
    from aotc.measure.baseline import Change
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
    steps: Annotated[bool, typer.Option("--steps", help="Also show the time of each step; `aotc profile` tells more.")] = False,
    instructions: Annotated[
        bool,
        typer.Option(
            "--instructions",
            help="Count the instructions of a run instead, exactly, under qemu-user or valgrind; always so for a file for another processor.",
        ),
    ] = False,
    save: Annotated[
        str | None, typer.Option("--save", metavar="FILE", help="Write the measurement as JSON, a baseline for --against.")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="FILE", help="Compare with a saved measurement of the same model and options.")
    ] = None,
    fail: Annotated[
        str | None,
        typer.Option("--fail", metavar="PERCENT", help="With --against: end with exit code 7 where a run costs so much more: `10%`."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a built file on this machine, or count its instructions.

    A saved measurement holds the cost of a run: its time in units of a loop of multiply-adds that runs in alternation with it, so that a busy or a
    slower machine changes little. Exit codes: 0, 7 where --fail is exceeded, 8 where several threads seem to exceed it on a busy machine, 2 where the baseline is of another model or other options.

    Example: `aotc bench model.so --save baseline.json`, and later `aotc bench model.so --against baseline.json --fail 10%`
    """
    from aotc.measure import baseline
    from aotc.measure.instructions import count
    from aotc.packaging.reader import read_packaged

    limit = _limit(fail, against)
    then = None if against is None else baseline.read(against)
    packaged = read_packaged(file)
    feeds = load_feeds(packaged.manifest.entry_points[0].inputs, data, shape, seed, Preprocessing())
    counts = _counts(threads)
    facts = baseline.identity(packaged.manifest, feeds, file)
    if instructions or packaged.manifest.target.triple.partition("-")[0] != platform.machine():
        if counts != [1] or steps:
            raise InvalidOption("instructions are counted with one thread and not by step; leave out --threads and --steps")
        facts |= baseline.of_counts(count(file, feeds))
    else:
        facts |= _timed(file, feeds, counts, seconds, warmup, costs=save is not None or against is not None)
        facts |= {"steps": _profile(file, feeds, counts[0])} if steps else {}
    changes = [] if then is None else baseline.compare(then, facts, str(against))
    if save is not None:
        baseline.save(save, {key: value for key, value in facts.items() if key != "steps"})
    if as_json:
        print_json(facts | ({"changes": [dataclasses.asdict(change) for change in changes]} if then is not None else {}))
    else:
        _print(facts, changes, then)
    _judge(changes, limit, facts["measure"])


def _timed(file: str, feeds: dict[str, np.ndarray], counts: Sequence[int], seconds: float, warmup: int, costs: bool) -> dict[str, Any]:
    import aotc
    from aotc.measure import baseline

    model = aotc.load(file)
    return baseline.of_times([measure(model, feeds, threads, seconds, warmup, costs) for threads in counts])


def measure(model: Model, feeds: dict[str, np.ndarray], threads: int, seconds: float, warmup: int, costs: bool = False) -> dict[str, Any]:
    """Latencies in milliseconds over at least ten runs; outputs are left in the session's memory, so no copies are timed. ``costs``: also
    the cost of a run and the rounds that it comes from, see ``aotc.measure.baseline``."""
    session = model.session(num_threads=threads)
    for _ in range(warmup):
        session.run(feeds, copy=False)
    found: dict[str, Any] = {}
    if costs:
        from aotc.measure import baseline

        times, rounds = baseline.paired(session, feeds, threads, seconds)
        found = {"cost": float(baseline.cost(np.array(rounds))), "rounds": rounds}
    else:
        times = _times(session, feeds, seconds)
    latencies = {f"p{percentile}": float(np.percentile(times, percentile)) for percentile in PERCENTILES}
    summary = {"threads": threads, "runs": len(times), "min": min(times), "mean": float(np.mean(times)), **latencies}
    return {**summary, "memory": session.memory().total, **found}


def _times(session: Session, feeds: dict[str, np.ndarray], seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 10 or time.perf_counter() < end:
        begin = time.perf_counter()
        session.run(feeds, copy=False)
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def _profile(file: str, feeds: dict[str, np.ndarray], threads: int) -> list[dict[str, Any]]:
    from aotc.measure.profile import profile

    found = profile(file, feeds, threads=threads, runs=10, measure_peak=False)
    return [
        {"name": step.name, "label": step.operators, "us": step.ns / 1e3, "flops": round(step.flops), "tasks": step.tasks}
        for step in found.steps
    ]


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidOption(f"--threads {text!r} is not a list of numbers such as 1,2,4") from error
    if any(count < 1 for count in counts):
        raise InvalidOption(f"--threads {text!r}: each number must be 1 or more")
    return counts


def _limit(text: str | None, against: str | None) -> float | None:
    """``10%`` as 0.1."""
    if text is None:
        return None
    if against is None:
        raise InvalidOption("--fail needs --against FILE, the measurement to compare with")
    number = text.strip().removesuffix("%")
    try:
        limit = float(number) / 100
    except ValueError:
        limit = -1.0
    if number == text.strip() or not 0 <= limit < 100:
        raise InvalidOption(f"--fail {text!r} is not a percentage such as 10%")
    return limit


def _judge(changes: Sequence[Change], limit: float | None, measured: str) -> None:
    """Raises TooSlow where a change exceeds the limit (of instructions, that of their total), TooBusy where that may be other processes' doing."""
    judged = [change for change in changes if measured == "time" or change.what == "total"]
    worse = [change for change in judged if limit is not None and change.exceeds(limit)]
    if not worse:
        return
    allowed = f"--fail {100 * (limit or 0):g}% allows ({'; '.join(f'{change.what}: {100 * change.change:+.1f} %' for change in worse)})"
    if all(change.busy for change in worse):
        raise TooBusy(
            f"a run cost more than {allowed}, but other processes ran meanwhile; repeat it on a quiet machine, or compare --instructions"
        )
    raise TooSlow(f"a run costs more than {allowed}; look for the steps with `aotc profile`")


def _print(facts: dict[str, Any], changes: Sequence[Change], then: dict[str, Any] | None) -> None:
    if facts["measure"] == "time":
        _print_times(facts["results"])
    else:
        _print_instructions(facts)
    if "steps" in facts:
        _print_steps(facts["steps"])
    if then is not None:
        _print_changes(changes, facts, then)


def _print_times(results: list[dict[str, Any]]) -> None:
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


def _print_instructions(facts: dict[str, Any]) -> None:
    total = facts["instructions"]["total"]
    table = Table(title=f"Instructions of a run, {facts['counter']} {facts['cpu']}".rstrip(), title_justify="left")
    for heading in ("class", "millions", "share"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for name, number in facts["instructions"].items():
        table.add_row(name, f"{number / 1e6:.3f}", f"{100 * number / total:.1f} %")
    console.print(table, highlight=False)


def _print_changes(changes: Sequence[Change], facts: dict[str, Any], then: dict[str, Any]) -> None:
    timed = facts["measure"] == "time"
    unit = "GFLOP of the calibration loop" if timed else "million instructions"
    table = Table(title=f"Cost of a run, {unit}", title_justify="left")
    for heading in ("", "then", "now", "change", "95 % interval") if timed else ("", "then", "now", "change"):
        table.add_column(heading, justify="right" if heading else "left")
    for change in changes:
        scale = 1e9 if timed else 1e6
        interval = [f"{100 * change.low:+.1f} % to {100 * change.high:+.1f} %"] if timed else []
        table.add_row(change.what, f"{change.then / scale:.4f}", f"{change.now / scale:.4f}", f"{100 * change.change:+.2f} %", *interval)
    console.print(table, highlight=False)
    if timed and then.get("machine") != facts["machine"]:
        console.print(
            f"[yellow]measured on {then.get('machine')}, and now on {facts['machine']}: between processors costs differ by more than noise[/]",
            highlight=False,
        )
