"""``python -m tests.cuda run``: operators of ``shapes.py`` through the software CUDA driver, its checks on, in three orders of threads.

Goes on where it was when ended: what has passed counts for as long as its kernels stay the same. ``shapes.json`` is the result, which
is committed: what passes, and the reason of what does not.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from aotc.cli.common import console
from tests.cuda.shapes import cases
from tests.cuda.shapes_run import digest, lowered, outcome

app = typer.Typer(add_completion=False, no_args_is_help=True, help="CUDA kernels through the software driver.")

RESULT = Path(__file__).parent / "shapes.json"
JOURNAL = Path(__file__).parents[2] / "build" / "cuda-shapes.jsonl"
"""What unfinished runs have found, a line a case: several may run at a time."""


@app.callback()
def main() -> None:
    """A group, so that `run` is a command of it."""


@app.command()
def run(
    only: Annotated[str, typer.Option(help="Only cases whose name holds this regular expression.", metavar="PATTERN")] = "",
    shard: Annotated[str, typer.Option(help="Only every N-th case, from the I-th on.", metavar="I/N")] = "1/1",
) -> None:
    """Run the cases that have not passed yet, and write the result once all have run. Fails when one fails."""
    part, parts = (int(number) for number in shard.split("/"))
    everything = cases()
    wanted = [case for case in everything[part - 1 :: parts] if re.search(only, case.name)]
    before = _journal()
    JOURNAL.parent.mkdir(exist_ok=True)
    found: dict[str, str] = {}
    for number, case in enumerate(wanted):
        made = lowered(case)
        key = digest(made)
        found[case.name] = before.get(case.name, {}).get(key) or ""
        if before.get(case.name, {}).get(key) != "":
            found[case.name] = outcome(case, made)
        with JOURNAL.open("a") as journal:
            journal.write(json.dumps([case.name, key, found[case.name]]) + "\n")
        if found[case.name]:
            console.print(f"[red]{case.name}[/]: {found[case.name]}", highlight=False, soft_wrap=True)
        if number % 20 == 19:
            console.print(f"{number + 1} of {len(wanted)}")
    failed = [case.name for case in wanted if found[case.name]]
    console.print(f"{len(wanted) - len(failed)} of {len(wanted)} pass")
    last = {name: list(results.values())[-1] for name, results in _journal().items()}
    names = sorted(case.name for case in everything)
    if all(name in last for name in names):
        result = {"passed": [name for name in names if not last[name]], "failed": {name: last[name] for name in names if last[name]}}
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    if failed:
        raise typer.Exit(1)


def _journal() -> dict[str, dict[str, str]]:
    """What runs have found, by case and digest of its kernels, the newest last."""
    found: dict[str, dict[str, str]] = {}
    for line in JOURNAL.read_text().splitlines() if JOURNAL.exists() else []:
        name, key, reason = json.loads(line)
        found.setdefault(name, {}).pop(key, None)
        found[name][key] = reason
    return found


if __name__ == "__main__":
    app()
