"""Random graphs against ONNX Runtime by the thousand; a run that was ended goes on where it was.

python -m tests.fuzz run --graphs 5000          # until a difference; its result goes into tests/fuzz/results.json
python -m tests.fuzz seed 17                    # the graphs of one seed
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from aotc.cli.common import console
from tests.fuzz import session
from tests.fuzz.session import FOLDER, GRAPHS, Tally

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Random graphs, built and compared with ONNX Runtime.")
RESULTS = Path(__file__).parent / "results.json"
ROOT = Path(__file__).parent.parent.parent
TIMEOUT = 3600  # seconds for one seed: a failure is shrunk in it


@app.command()
def seed(
    number: Annotated[int, typer.Argument(help="The seed.")],
    count: Annotated[int, typer.Option(help="How many graphs.", min=1)] = GRAPHS,
) -> None:
    """Compare the graphs of one seed and print what became of them as JSON."""
    session.main(number, count)


@app.command()
def run(
    graphs: Annotated[int, typer.Option(help="How many graphs.", min=1)] = 5000,
    first: Annotated[int, typer.Option(help="The first seed; each has 50 graphs.", min=0)] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Seeds that run at the same time.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an unfinished run has found.")] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on with other seeds after a failure.")] = False,
) -> None:
    """Compare many graphs; stop at the first difference, error or crash and print a program that repeats it."""
    journal = FOLDER / f"run-{first}.jsonl"
    FOLDER.mkdir(parents=True, exist_ok=True)
    if fresh:
        journal.unlink(missing_ok=True)
    done, failed = dict(_read(journal)), False
    seeds = range(first, first + -(-graphs // GRAPHS))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("graphs", total=len(seeds) * GRAPHS, completed=len(done) * GRAPHS)
        left = [number for number in seeds if number not in done]
        for number, tally in zip(left, pool.map(in_a_process, left), strict=True):
            if tally.failure:
                failed = True
                console.print(tally.failure, highlight=False, soft_wrap=True, markup=False)
                if keep_going:
                    continue
                pool.shutdown(cancel_futures=True)
                raise typer.Exit(1)
            done[number] = tally
            with journal.open("a") as file:
                file.write(json.dumps({"seed": number, **asdict(tally)}) + "\n")
            progress.advance(task, GRAPHS)
    if failed:
        raise typer.Exit(1)
    total = Tally()
    for tally in done.values():
        total.add(tally)
    if problems := total.problems():
        console.print("\n".join(problems), markup=False)
        raise typer.Exit(1)
    write_results(seeds, total)
    console.print(f"{total.graphs} graphs in a row, {total.kinds}; {total.varied} of {total.outputs} outputs are not constant")


def write_results(seeds: range, total: Tally) -> None:
    found = {"first_seed": seeds[0], "last_seed": seeds[-1], **asdict(total)}
    del found["failure"]
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def in_a_process(number: int, count: int = GRAPHS) -> Tally:
    """The tally of one seed; a crash is a failure like others, and the program that repeats it is what was at work."""
    command = [sys.executable, "-m", "tests.fuzz", "seed", str(number), "--count", str(count)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return Tally(failure=f"seed {number}: no result within {TIMEOUT} s\n{_left_behind(number)}")
    if done.returncode != 0:
        return Tally(
            failure=f"seed {number}: the process ended with status {done.returncode}\n{done.stderr[-2000:]}\n{_left_behind(number)}"
        )
    return Tally(**json.loads(done.stdout.splitlines()[-1]))


def _left_behind(number: int) -> str:
    path = session.current(number)
    return path.read_text() if path.exists() else ""


def _read(journal: Path) -> Iterator[tuple[int, Tally]]:
    for line in journal.read_text().splitlines() if journal.exists() else []:
        entry = json.loads(line)
        yield entry.pop("seed"), Tally(**entry)


if __name__ == "__main__":
    app()
