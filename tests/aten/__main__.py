"""Runs torch's samples of the core operators and writes down which pass; a run that was ended goes on where it was."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from aotc.cli.common import console
from tests.aten.run import serve
from tests.aten.samples import SAMPLES, core_operators, exclusion
from tests.onnx import results
from tests.onnx.cases import Operator, part_of
from tests.onnx.pool import run_tests
from tests.onnx.results import EXCLUDED, FAIL, PASS, Journal, Result

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="torch's samples of its core operators, each from a file that aotc built."
)
TARGET = "aten"


@app.command()
def run(
    shard: Annotated[str, typer.Option(help="Only the part I/N of the operators, by a hash of their names.", metavar="I/N")] = "1/1",
    only: Annotated[str, typer.Option(help="Only operators whose name holds this regular expression.", metavar="PATTERN")] = "",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Samples that run at the same time.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an unfinished run has found.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; only say what passed before and fails now.")] = False,
) -> None:
    """Run samples. Without --check the results go into tests/onnx/results/aten.tsv. Fails when one that passed before fails."""
    before = results.read(TARGET)
    part, parts = (int(number) for number in shard.split("/"))
    names = [name for name in core_operators() if part_of(name, parts) == part and re.search(only, name)]
    found = {name: Result(name, _operator(name), EXCLUDED, reason) for name in names if (reason := exclusion(name))}
    tests = [f"{name} {number}" for name in names if name not in found for number in range(SAMPLES)]
    journal = None if check else Journal(TARGET, fresh)
    if journal is not None:
        found |= {name: result for name, result in journal.read().items() if name in tests}
    left = [name for name in tests if name not in found]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("samples", total=len(left))
        for name, reason in run_tests(left, TARGET, jobs, serve):
            outcome, reason = (EXCLUDED, "torch has no such sample") if reason == "none" else (FAIL if reason else PASS, reason)
            found[name] = Result(name, _operator(name.split()[0]), outcome, reason)
            if journal is not None:
                journal.add(found[name])
            progress.update(task, advance=1, refresh=True)
    if not check:
        results.write(TARGET, {**before, **found} if shard != "1/1" or only else found)
        Journal(TARGET, fresh=True)
    for result in results.regressions(found.values(), before):
        console.print(f"[red]passed before:[/red] {result.name}: {result.reason}", highlight=False, soft_wrap=True)
    counts = Counter(result.outcome for result in found.values())
    console.print(f"{counts[PASS]} of {counts[PASS] + counts[FAIL]} samples pass")
    if results.regressions(found.values(), before):
        raise typer.Exit(1)


def _operator(name: str) -> Operator:
    return Operator("aten", name, 0)


if __name__ == "__main__":
    app()
