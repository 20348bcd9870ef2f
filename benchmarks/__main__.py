"""Builds each model, measures both engines in alternating rounds, prints ratios and writes them down."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

import aotc
from aotc.cli.common import console
from benchmarks.engines import Engine
from benchmarks.models import MODELS, Model
from benchmarks.statistics import Ratio, ratio
from tests.zoo.cache import empty_build_cache

RESULTS = Path(__file__).parent / "results.md"
FIGURE = 1e-4  # agreement with ONNX Runtime that a measured file must have


@dataclass(frozen=True)
class Built:
    path: Path
    build_seconds: float
    rebuild_seconds: float
    weights: int


@dataclass(frozen=True)
class Row:
    """Times in milliseconds."""

    model: str
    threads: int
    ours_min: float
    ours_median: float
    theirs_min: float
    theirs_median: float
    ratio: Ratio
    ours_load: float
    theirs_load: float
    difference: float


def build(model: Model, folder: Path) -> Built:
    """Builds twice with a kernel cache that is empty at first; the linker's files stay as they are."""
    output = folder / f"{model.name}.so"
    source = str(model.path())
    aotc.compile(source, output=output)  # makes the linker's files where they are missing
    os.environ["AOTC_CACHE_DIR"] = str(empty_build_cache(folder / model.name))
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        report = aotc.compile(source, output=output)
        seconds.append(time.perf_counter() - begin)
    del os.environ["AOTC_CACHE_DIR"]
    return Built(output, seconds[0], seconds[1], report.weights_size)


def compare(model: Model, file: Path, threads: int, rounds: int, seconds: float) -> Row:
    feeds = model.feeds()
    with Engine("aotc", file, feeds, threads) as ours, Engine("onnxruntime", model.path(), feeds, threads) as theirs:
        times: tuple[list[list[float]], list[list[float]]] = ([], [])
        for number in range(rounds):
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                times[index].append((ours, theirs)[index].measure(seconds))
        difference = max(
            float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in zip(ours.outputs, theirs.outputs, strict=True)
        )
        load = [1e3 * (engine.load_seconds + engine.first_seconds) for engine in (ours, theirs)]
    flat = [[1e3 * value for each in side for value in each] for side in times]
    return Row(
        model.name, threads, min(flat[0]), statistics.median(flat[0]), min(flat[1]), statistics.median(flat[1]),
        ratio(*times), load[0], load[1], difference,
    )  # fmt: skip


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def report(rows: list[Row], built: dict[str, Built], options: str) -> str:
    """The results as Markdown."""
    import onnxruntime

    lines = [
        "# aotc beside ONNX Runtime",
        "",
        f"One run of `make bench` ({options}) on {time.strftime('%d %B %Y')}: {processor()}, {os.cpu_count()} cores, aotc {aotc.__version__} for `host`, ",
        f"ONNX Runtime {onnxruntime.__version__} with its CPU provider and default optimisations, float32, batch 1. The engines run in processes of their own, ",
        "in alternating rounds, the other one stopped. A ratio above 1 means that aotc is faster; in brackets the 95 % bootstrap interval over rounds.",
        "Times vary with the machine and its load: read the ratios.",
        "",
        "| model | threads | ratio of medians | ratio of minima | aotc ms, min / median | ONNX Runtime ms, min / median | largest difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.model} | {row.threads} | {row.ratio.median:.2f} [{row.ratio.low:.2f}, {row.ratio.high:.2f}] | {row.ratio.minimum:.2f} "
            f"| {row.ours_min:.2f} / {row.ours_median:.2f} | {row.theirs_min:.2f} / {row.theirs_median:.2f} | {row.difference:.1e} |"
        )
    lines += [
        "",
        "Build time with an empty kernel cache and again with a full one; size of the file and of the weights in it; load to first result in a process ",
        "that has imported the engine, page cache warm, one thread.",
        "",
        "| model | input | build s | rebuild s | file MB | weights MB | aotc load to first result ms | ONNX Runtime's ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, made in built.items():
        first = next(row for row in rows if row.model == name)
        size = made.path.stat().st_size / 1e6
        lines.append(
            f"| {name} | {MODELS[name].note} | {made.build_seconds:.1f} | {made.rebuild_seconds:.1f} | {size:.1f} | {made.weights / 1e6:.1f} "
            f"| {first.ours_load:.1f} | {first.theirs_load:.1f} |"
        )
    return "\n".join(line.rstrip() for line in lines) + "\n"


def show(rows: list[Row]) -> None:
    table = Table(title="Time of ONNX Runtime over time of aotc (above 1: aotc is faster)", title_justify="left")
    for heading in ("model", "threads", "medians", "95 % interval", "minima", "aotc ms", "ONNX Runtime ms", "difference"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        interval = f"{row.ratio.low:.2f} to {row.ratio.high:.2f}"
        table.add_row(
            row.model, str(row.threads), f"{row.ratio.median:.2f}", interval, f"{row.ratio.minimum:.2f}",
            f"{row.ours_median:.2f}", f"{row.theirs_median:.2f}", f"{row.difference:.1e}",
        )  # fmt: skip
    console.print(table, highlight=False)


def main(
    models: Annotated[str, typer.Option(help="Which models, by commas.")] = ",".join(MODELS),
    threads: Annotated[str, typer.Option(help="Numbers of threads, by commas.")] = "1,2",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of measuring each engine.")] = 15,
    seconds: Annotated[float, typer.Option(help="Length of one engine's part of a round.")] = 0.5,
    write: Annotated[bool, typer.Option(help="Write benchmarks/results.md.")] = True,
) -> None:
    """Measure aotc beside ONNX Runtime."""
    rows: list[Row] = []
    built: dict[str, Built] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in models.split(","):
            model = MODELS[name]
            built[name] = build(model, Path(folder))
            console.print(
                f"{name}: built in {built[name].build_seconds:.1f} s, again in {built[name].rebuild_seconds:.1f} s", highlight=False
            )
            for count in map(int, threads.split(",")):
                rows.append(compare(model, built[name].path, count, rounds, seconds))
        show(rows)
        if write:
            RESULTS.write_text(report(rows, built, f"{rounds} rounds of {seconds} s"))
            console.print(f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")
    wrong = [f"{row.model}: {row.difference:.1e}" for row in rows if row.difference > FIGURE]
    if wrong:
        sys.exit(f"results differ from ONNX Runtime by more than {FIGURE:.0e}: {', '.join(wrong)}")


if __name__ == "__main__":
    typer.run(main)
