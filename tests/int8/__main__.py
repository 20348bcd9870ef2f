"""``python -m tests.int8 run``: whole networks in int8 on real data. Goes on where it was when ended; results.json is committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from aotc.cli.common import console
from tests.int8.cases import CASES

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Whole networks in int8.")
RESULT = Path(__file__).parent / "results.json"


@app.callback()
def main() -> None:
    """A group, so that `run` is a command of it."""


@app.command()
def run(
    only: Annotated[list[str] | None, typer.Option(help="Only this case. Repeat for more.", metavar="NAME")] = None,
    fresh: Annotated[bool, typer.Option(help="Run also what has a result.")] = False,
) -> None:
    """Run the cases without a result, and write each one's as it is found. Fails when one fails."""
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name, case in CASES.items():
        if (only and name not in only) or (not fresh and results.get(name, {}).get("passed")):
            continue
        passed, figures = case()
        results[name] = {"passed": bool(passed), **figures}
        RESULT.write_text(json.dumps({each: results[each] for each in CASES if each in results}, indent=2) + "\n")
        console.print(f"{name}: {results[name]}", highlight=False, soft_wrap=True)
    failed = [name for name in CASES if name in results and not results[name]["passed"]]
    if failed:
        console.print(f"[red]failed:[/] {', '.join(failed)}")
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
