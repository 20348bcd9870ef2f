"""Runs node tests and writes down which pass; a run that was ended goes on where it was."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from aotc.cli.common import console
from tests.onnx import results
from tests.onnx.cases import cases, drawn, exclusion, operator_of, part_of
from tests.onnx.pool import run_tests
from tests.onnx.results import EXCLUDED, FAIL, PASS, Journal, Result

app = typer.Typer(add_completion=False, no_args_is_help=True, help="ONNX's node tests, each from a file that aotc built.")
SEED = 3


@app.command()
def run(
    shard: Annotated[str, typer.Option(help="Only the part I/N of the tests, by a hash of their names.", metavar="I/N")] = "1/1",
    only: Annotated[str, typer.Option(help="Only tests whose name holds this regular expression.", metavar="PATTERN")] = "",
    draw: Annotated[int, typer.Option(help="Only this many of those that pass on the host, drawn by --seed; 0 for all.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="What --draw draws by.")] = SEED,
    target: Annotated[str, typer.Option(help="host, aarch64 under qemu, or cuda on the software GPU.")] = "host",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Tests that run at the same time.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an unfinished run has found.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; only say what passed before and fails now.")] = False,
    again: Annotated[bool, typer.Option("--failed", help="Only those that the committed result has as failed.")] = False,
) -> None:
    """Run node tests. Without --check the results go into tests/onnx/results. Fails when a test that passed before fails."""
    before = results.read(target)
    names = _chosen(shard, only)
    if draw:
        passing = {name for name, result in results.read("host").items() if result.outcome == PASS}
        names = drawn(passing.intersection(names), draw, seed)
    if again:
        names = [name for name in names if name not in before or before[name].outcome == FAIL]
    found = _run(names, target, jobs, Journal(target, fresh) if not check else None)
    if not check:
        results.write(target, {**before, **found} if set(names) != set(cases()) else found)
        Journal(target, fresh=True)
    _summarise(found, before)
    if results.regressions(found.values(), before):
        raise typer.Exit(1)


@app.command()
def exclusions() -> None:
    """List the tests that do not count, with the reason for each."""
    table = Table("test", "reason")
    for name, case in sorted(cases().items()):
        if reason := exclusion(case):
            table.add_row(name, reason)
    console.print(table)
    console.print(f"{table.row_count} of {len(cases())} node tests do not count")


def _chosen(shard: str, only: str) -> list[str]:
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"--shard is {shard!r}; expected I/N with 1 <= I <= N, as in 1/3")
    part, parts = int(match[1]), int(match[2])
    return sorted(name for name in cases() if part_of(name, parts) == part and re.search(only, name))


def _run(names: Sequence[str], target: str, jobs: int, journal: Journal | None) -> dict[str, Result]:
    found = {name: Result(name, operator_of(cases()[name]), EXCLUDED, reason) for name in names if (reason := exclusion(cases()[name]))}
    if journal is not None:
        found |= {name: result for name, result in journal.read().items() if name in names}
    left = [name for name in names if name not in found]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, auto_refresh=False) as progress:  # a thread that refreshes would not survive a fork
        task = progress.add_task("node tests", total=len(left))
        for name, reason in run_tests(left, target, jobs):
            found[name] = Result(name, operator_of(cases()[name]), FAIL if reason else PASS, reason)
            if journal is not None:
                journal.add(found[name])
            failed = sum(result.outcome == FAIL for result in found.values())
            progress.update(task, advance=1, description=f"node tests, {failed} failed", refresh=True)
    return found


def _summarise(found: Mapping[str, Result], before: Mapping[str, Result]) -> None:
    for result in results.regressions(found.values(), before):
        console.print(f"[red]passed before:[/red] {result.name}: {result.reason}", highlight=False, soft_wrap=True)
    counts = Counter(result.outcome for result in found.values())
    counted = counts[PASS] + counts[FAIL]
    share = 100 * counts[PASS] / counted if counted else 100.0
    console.print(f"{counts[PASS]} of {counted} node tests pass ({share:.2f} %), {counts[EXCLUDED]} do not count")


if __name__ == "__main__":
    app()
