"""``python -m tests.cuda run``: operators of ``shapes.py`` through the software CUDA driver, its checks on, in three orders of threads.

Goes on where it was when ended; a change of the compiler or of the driver makes it begin again. ``shapes.json`` is the result, which is
committed: what passes, and the reason of what does not.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated

import typer

from aotc.cli.common import console
from aotc.lowering.identity import source_digest
from tests.cuda.shapes import cases
from tests.cuda.shapes_run import outcome

app = typer.Typer(add_completion=False, no_args_is_help=True, help="CUDA kernels through the software driver.")

RESULT = Path(__file__).parent / "shapes.json"
UNFINISHED = Path(__file__).parent.parent.parent / "build" / "cuda-shapes.json"


@app.callback()
def main() -> None:
    """A group, so that `run` is a command of it."""


@app.command()
def run(
    only: Annotated[
        str, typer.Option(help="Only cases whose name holds this regular expression; nothing is written.", metavar="PATTERN")
    ] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an unfinished run has found.")] = False,
) -> None:
    """Run all cases. Fails when one fails."""
    wanted = [case for case in cases() if re.search(only, case.name)]
    digest = hashlib.sha256((source_digest() + _sources()).encode()).hexdigest()[:16]
    before = json.loads(UNFINISHED.read_text()) if UNFINISHED.exists() and not fresh and not only else {}
    found: dict[str, str] = before["found"] if before.get("digest") == digest else {}
    for number, case in enumerate(wanted):
        if case.name in found:
            continue
        found[case.name] = outcome(case)
        if found[case.name]:
            console.print(f"[red]{case.name}[/]: {found[case.name]}", highlight=False, soft_wrap=True)
        if not only:
            UNFINISHED.parent.mkdir(exist_ok=True)
            UNFINISHED.write_text(json.dumps({"digest": digest, "found": found}))
        if number % 20 == 19:
            console.print(f"{number + 1} of {len(wanted)}")
    failed = [name for name, reason in found.items() if reason]
    console.print(f"{len(wanted) - len(failed)} of {len(wanted)} pass")
    if not only:
        result = {"passed": sorted(set(found) - set(failed)), "failed": {name: found[name] for name in sorted(failed)}}
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    if failed:
        raise typer.Exit(1)


def _sources() -> str:
    """The text of the header that source_digest leaves out, and of the driver."""
    root = Path(__file__).parents[2]
    paths = [root / "aotc" / "lowering" / "cuda" / "device.h", *sorted((root / "tests" / "cuda" / "driver").rglob("*.[ch]*"))]
    return "".join(path.read_text() for path in paths)


if __name__ == "__main__":
    app()
