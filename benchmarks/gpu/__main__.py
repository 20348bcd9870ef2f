"""``python -m benchmarks.gpu run --json gpu.json``: what only a GPU can say, in under 8 minutes on an H100 or H200.

The numbers of every CUDA schedule and of whole networks, and their times beside PyTorch's and ONNX Runtime's. It goes on where it was
ended: what has a result is not run again. A machine without a network needs no compiler if the folder was filled elsewhere
(``python -m benchmarks.gpu build``).
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from aotc.cache_dir import VARIABLE
from aotc.cli.common import console

app = typer.Typer(add_completion=False, no_args_is_help=True, help="CUDA kernels on a datacentre GPU.")

Folder = Annotated[Path, typer.Option(metavar="FOLDER", help="Where kernels, networks and results lie.")]
Only = Annotated[str, typer.Option(metavar="PATTERN", help="Only what holds this regular expression in `group/name`.")]
FOLDER = Path(__file__).resolve().parents[2] / "build" / "gpu"


def prepare(folder: Path) -> None:
    """Makes ``folder``, and has kernels kept there, unless the user wants them elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault(VARIABLE, str(folder.absolute() / "cache"))


@app.command()
def build(folder: Folder = FOLDER, only: Only = "") -> None:
    """Fill the folder with kernels and networks, on a machine without a GPU: then only Python, PyTorch and a gcc are needed to run.

    Example: `python -m benchmarks.gpu build`, then carry `build/gpu/models` and `build/gpu/cache/kernels`
    """
    from benchmarks.gpu import networks, shapes

    prepare(folder)
    wanted = [key for key in shapes.names() if re.search(only, f"shapes/{key}")]
    shapes.build(wanted)
    console.print(f"{len(wanted)} shapes", highlight=False)
    for key in networks.names():
        if re.search(only, f"networks/{key}"):
            networks.build(key, folder)
            console.print(f"network {key}", highlight=False)


@app.command()
def run(
    result: Annotated[Path, typer.Option("--json", metavar="FILE", help="The result, written anew as it grows.")] = FOLDER / "gpu.json",
    folder: Folder = FOLDER,
    only: Only = "",
    minutes: Annotated[float, typer.Option(help="After these nothing new begins.")] = 7.5,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget earlier results.")] = False,
) -> None:
    """Run all that has no result yet. Status 1 where something is wrong, 2 where there is no GPU.

    Example: `python -m benchmarks.gpu run --json gpu.json`
    """
    from benchmarks.gpu.groups import GROUPS, Journal, run_apart
    from benchmarks.gpu.machine import all_missing, facts, gpu_missing

    prepare(folder)
    begin = time.monotonic()
    missing = all_missing()
    for each in missing:
        console.print(f"[yellow]missing:[/] {each.what}: {each.without}", highlight=False)
    if gpu_missing():
        raise typer.Exit(2)
    journal = Journal(folder)
    if fresh:
        journal.path.unlink(missing_ok=True)
    told = {"machine": facts(), "missing": [f"{each.what}: {each.without}" for each in missing]}
    for group in GROUPS:
        done = journal.results().get(group.name, {})
        keys = [key for key in group.names() if re.search(only, f"{group.name}/{key}") and not _is_done(done.get(key))]
        run_apart(group, keys, folder, lambda: minutes * 60 - (time.monotonic() - begin))
        results = {name: {key: each for key, each in found.items() if each is not None} for name, found in journal.results().items()}
        _write(result, {**told, "seconds": round(time.monotonic() - begin, 1), "results": results})
        console.print(f"{group.name}: {_summary(group.names(), journal.results().get(group.name, {}))}", highlight=False)
    if any(found and "failed" in found for each in journal.results().values() for found in each.values()):
        raise typer.Exit(1)


@app.command(hidden=True)
def part(name: str, folder: Folder = FOLDER) -> None:
    """What ``run`` starts: a group's keys, from standard input, in this process."""
    from benchmarks.gpu.groups import GROUPS, run_here

    prepare(folder)
    (group,) = (group for group in GROUPS if group.name == name)
    raise typer.Exit(run_here(group, sys.stdin.read().splitlines(), folder))


def _is_done(result: dict[str, Any] | None) -> bool:
    return result is not None and "failed" not in result and "missing" not in result


def _summary(keys: list[str], results: dict[str, Any]) -> str:
    found = [results[key] for key in keys if results.get(key) is not None]
    right, missing = sum(map(_is_done, found)), sum("missing" in each for each in found)
    words = [f"{right} of {len(keys)} done", f"{sum('failed' in each for each in found)} wrong", f"{missing} without what they need"]
    return ", ".join(word for word in words if not word.startswith("0 "))


def _write(path: Path, told: dict[str, Any]) -> None:
    part = path.with_suffix(".partial")
    part.write_text(json.dumps(told, indent=1) + "\n")
    part.replace(path)


if __name__ == "__main__":
    app()
