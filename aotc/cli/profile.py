"""``aotc profile``: where the time of a built file goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from aotc.cli.common import AsJson, BuiltFile, console, print_json, shape_text
from aotc.cli.tensors import DataOption, Preprocessing, SeedOption, ShapeOption, load_feeds
from aotc.errors import InvalidOption

if TYPE_CHECKING:
    from aotc.measure.profile import Profile, StepCost


def profile(
    file: BuiltFile,
    data: DataOption = None,
    shape: ShapeOption = None,
    seed: SeedOption = 0,
    threads: Annotated[int, typer.Option("--threads", "-j", min=1, help="Threads.")] = 1,
    runs: Annotated[int, typer.Option(min=1, help="Timed runs; times are medians over them.")] = 50,
    entry_point: Annotated[
        str | None, typer.Option("--entry-point", metavar="NAME", help="Which entry point; the first by default.")
    ] = None,
    sort: Annotated[str, typer.Option(help="Order of the table: `time`, or `plan` as the steps run.")] = "time",
    top: Annotated[int, typer.Option(min=0, help="Show so many steps at most; 0 for all.")] = 30,
    by: Annotated[str, typer.Option(help="Rows of the table: `step`, or `operators` with equal steps together.")] = "step",
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="FILE", help="Write a trace for ui.perfetto.dev or chrome://tracing.")
    ] = None,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write one page with the graph of steps, coloured by time.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show where the time of a built file goes: each step's time, rate, share of this machine's measured multiply-add peak, and bytes.

    Example: `aotc profile model.so --threads 2 --html profile.html --trace trace.json`
    """
    import aotc
    from aotc.measure import profile as measured

    _check("--sort", sort, ("time", "plan"))
    _check("--by", by, ("step", "operators"))
    signatures = aotc.load(file).signatures
    name = entry_point or next(iter(signatures))
    if name not in signatures:
        raise InvalidOption(f"--entry-point {name!r}: the file has {', '.join(signatures)}")
    feeds = load_feeds(signatures[name].inputs, data, shape, seed, Preprocessing())
    found = measured.profile(file, feeds, threads=threads, runs=runs, entry_point=name)
    if trace is not None:
        from aotc.measure.trace import trace as as_trace

        _write("--trace", trace, json.dumps(as_trace(found)))
    if html is not None:
        from aotc.measure.page import page

        _write("--html", html, page(found))
    if as_json:
        print_json(facts(found))
        return
    _print_head(found)
    if by == "step":
        _print_steps(found, sort, top)
    else:
        _print_operators(found, top)


def _check(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidOption(f"{option} is {value!r}; expected {' or '.join(allowed)}")


def _write(option: str, path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise InvalidOption(f"{option} {path!r} cannot be written: {error.strerror}") from error


def facts(found: Profile) -> dict[str, Any]:
    """The profile as plain data; the documentation has its fields. Times in microseconds, a size that only a run tells is null."""
    return {
        "format": "aotc-profile",
        "version": 1,
        "file": found.file,
        "entry_point": found.entry_point,
        "target": found.target,
        "machine": found.machine,
        "threads": found.threads,
        "runs": found.runs,
        "shapes": {name: list(shape) for name, shape in found.shapes.items()},
        "run_us": found.run_ns / 1e3,
        "steps_us": found.steps_ns / 1e3,
        "flops": found.flops,
        "peak_flops_per_second": found.peak,
        "steps": [_step_facts(found, step) for step in found.steps],
    }


def _step_facts(found: Profile, step: StepCost) -> dict[str, Any]:
    return {
        "number": step.number,
        "kind": step.kind,
        "name": step.name,
        "operators": step.operators,
        "kernel": step.kernel,
        "outputs": list(step.outputs),
        "tasks": step.tasks,
        "executions": step.executions,
        "us": step.ns / 1e3,
        "share": found.share(step),
        "flops": step.flops,
        "flops_per_second": step.flops_per_second,
        "of_peak": found.of_peak(step),
        "bytes": step.bytes,
        "weight_bytes": step.weights,
        "bytes_per_second": step.bytes_per_second,
    }


def _print_head(found: Profile) -> None:
    shapes = ", ".join(f"{name} {shape_text(shape)}" for name, shape in found.shapes.items())
    console.print(
        f"[bold]{found.file}[/], {found.entry_point}({shapes}), {found.threads} thread{'s' * (found.threads > 1)}, "
        f"medians of {found.runs} runs on {found.machine}",
        highlight=False,
    )
    rate = found.flops / found.steps_ns if found.steps_ns else 0.0
    share = f", {100 * rate * 1e9 / found.peak:.0f} % of the measured peak of {found.peak / 1e9:.1f}" if found.peak else ""
    work = f"; {found.flops / 1e9:.3f} GFLOP at {rate:.1f} GFLOP/s{share}" if found.flops else ""
    console.print(f"run {found.run_ns / 1e6:.3f} ms, its steps {found.steps_ns / 1e6:.3f} ms{work}", highlight=False)


HEADINGS = ("ms", "share", "GFLOP/s", "of peak", "MB", "GB/s")


def _numbers(ns: float, share: float, flops: float, peak: float, moved: float | None) -> list[str]:
    rate = flops / ns if ns else 0.0
    return [
        f"{ns / 1e6:.3f}",
        f"{100 * share:.1f} %",
        f"{rate:.1f}" if rate else "",
        f"{100 * rate * 1e9 / peak:.0f} %" if rate and peak else "",
        "" if moved is None else f"{moved / 1e6:.2f}",
        "" if moved is None or not ns else f"{moved / ns:.1f}",
    ]


def _print_steps(found: Profile, sort: str, top: int) -> None:
    steps = [step for step in found.steps if step.executions]
    if sort == "time":
        steps.sort(key=lambda step: -step.ns)
    table = Table()
    for heading in ("#", "name", "operators", *HEADINGS):
        table.add_column(heading, justify="left" if heading in ("name", "operators") else "right")
    for step in steps[: top or None]:
        numbers = _numbers(step.ns, found.share(step), step.flops, found.peak, step.bytes)
        table.add_row(str(step.number), step.name, step.operators or step.kind, *numbers)
    console.print(table, highlight=False)
    if top and len(steps) > top:
        rest = sum(step.ns for step in steps[top:])
        console.print(f"{len(steps) - top} more steps take {rest / 1e6:.3f} ms; --top 0 shows them", highlight=False)


def _print_operators(found: Profile, top: int) -> None:
    groups: dict[str, list[StepCost]] = {}
    for step in found.steps:
        if step.executions:
            groups.setdefault(step.operators or step.kind, []).append(step)
    times = {label: sum(step.ns for step in steps) for label, steps in groups.items()}
    table = Table()
    for heading in ("operators", "steps", *HEADINGS):
        table.add_column(heading, justify="left" if heading == "operators" else "right")
    for label in sorted(groups, key=lambda label: -times[label])[: top or None]:
        steps = groups[label]
        moved = [step.bytes for step in steps if step.bytes is not None]
        total = sum(moved) if len(moved) == len(steps) else None
        share = times[label] / found.steps_ns if found.steps_ns else 0.0
        table.add_row(label, str(len(steps)), *_numbers(times[label], share, sum(step.flops for step in steps), found.peak, total))
    console.print(table, highlight=False)
