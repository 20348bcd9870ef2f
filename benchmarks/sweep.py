"""How near kernels come to what the machine can do, over 200 convolutions and matrix products of published networks and odd ones.

    python -m benchmarks.sweep                    builds what is missing, times it, writes docs/performance.md and docs/sweep.svg
    python -m benchmarks.sweep --build-only       the first half, which needs no quiet machine

The attainable time of a shape is the greater of its multiply-adds at the measured peak and its compulsory traffic (inputs, weights
and outputs once each) at the bandwidth of a copy of as many bytes. A kernel's time is the smallest of many runs, as peak and
bandwidth are the best of many trials.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import track
from rich.table import Table

import aotc
from aotc import ops
from aotc.cli.common import AsJson, console, print_json
from aotc.errors import AotcError
from aotc.ir.expr import Constant, Function, Module, Var
from aotc.ir.types import tensor
from benchmarks import page, shapes
from benchmarks.chart import Axis, Chart, Series, powers
from benchmarks.machine import Machine, measure
from benchmarks.shapes import Conv, Shape

FOLDER = Path("build") / "sweep"
CHART = page.DOCS / "sweep.svg"
GROUP = 20
"""Shapes in one built file: linking takes longer than building one kernel."""
MOVES = ("layout_transform",)
"""Steps that only bring one convolution alone into and out of blocks; inside a network there are none."""


@dataclass(frozen=True)
class Measured:
    """Microseconds: ``time`` of the kernel, ``attainable`` of the machine."""

    shape: Shape
    time: float
    attainable: float

    @property
    def share(self) -> float:
        return self.attainable / self.time


# Building ---------------------------------------------------------------------------------------------------------------


def module_of(shape: Shape) -> Module:
    """The shape as it stands in networks: a convolution with bias and ReLU, a dense layer with bias, a product of two inputs."""
    if isinstance(shape, Conv):
        x = Var("x", tensor("float32", shape.batch, shape.channels, *shape.size))
        weight = Constant(noise(shape.outputs, shape.channels // shape.groups, *shape.kernel))
        bias = Constant(noise(shape.outputs, *[1] * len(shape.size)))
        result = ops.conv(
            x, weight, strides=shape.strides, padding=(*shape.padding, *shape.padding), dilation=shape.dilation, groups=shape.groups
        )
        return _module((x,), ops.relu(ops.add(result, bias)))
    x = Var("x", tensor("float32", shape.batch, shape.rows, shape.inner))
    if shape.weights:
        return _module((x,), ops.add(ops.dense(x, Constant(noise(shape.columns, shape.inner))), Constant(noise(shape.columns))))
    other = Var("other", tensor("float32", shape.batch, shape.inner, shape.columns))
    return _module((x, other), ops.matmul(x, other))


def _module(inputs: tuple[Var, ...], result: object) -> Module:
    return Module({"main": Function(inputs, result, "main")}, {"main": ("y",)})  # type: ignore[arg-type]


def noise(*shape: int) -> np.ndarray:
    """Numbers from a fixed sequence: large arrays of random ones would take longer to make than to build."""
    return np.resize(np.random.default_rng(0).standard_normal(65521, dtype=np.float32), shape)


def build(group: Sequence[Shape], output: Path) -> list[str | None]:
    """Builds the shapes as entry points s0, s1, ... of ``output``; the error of each that cannot be built."""
    modules = [module_of(shape) for shape in group]
    errors: list[str | None] = [None] * len(group)
    try:
        aotc.compile({f"s{number}": module for number, module in enumerate(modules)}, output=output)
        return errors
    except AotcError:  # which of them?
        pass
    good = {}
    for number, module in enumerate(modules):
        try:
            aotc.compile(module, output=output, jobs=0)
            good[f"s{number}"] = module
        except AotcError as error:
            errors[number] = str(error)
    if good:
        aotc.compile(good, output=output)
    return errors


# Timing -----------------------------------------------------------------------------------------------------------------


def kernel_seconds(file: Path, entry: str, seconds: float) -> float:
    """The smallest time of all steps of a run together but MOVES, over at least five runs and about ``seconds``."""
    session = aotc.load(file).session(num_threads=1, entry_point=entry, profile=True)
    feeds = {info.name: noise(*[int(dim) for dim in info.shape]) for info in session.inputs}
    session.run(feeds, copy=False)
    best, runs, end = float("inf"), 0, time.perf_counter() + seconds
    while runs < 5 or time.perf_counter() < end:
        session.run(feeds, copy=False)
        best = min(best, sum(step.last_ns for step in session.steps() if step.label not in MOVES))
        runs += 1
    return best * 1e-9


def measure_all(files: Iterable[tuple[Path, Sequence[Shape]]], seconds: float, store: Store) -> None:
    """Times each shape that ``store`` lacks and keeps it there at once, so that a run that ended goes on."""
    for file, group in files:
        missing = [(f"s{number}", shape) for number, shape in enumerate(group) if store.get(file, shape) is None]
        for entry, shape in missing:
            if entry in aotc.load(file).entry_points:
                store.put(file, shape, kernel_seconds(file, entry, seconds))


class Store:
    """Seconds by the content of the built file and the shape, in one file of JSON lines: builds are deterministic, so what has not
    changed need not be timed again."""

    def __init__(self, path: Path) -> None:
        self.path, self.digests = path, dict[Path, str]()
        lines = path.read_text().splitlines() if path.exists() else []
        self.times: dict[str, float] = {entry["key"]: entry["seconds"] for entry in map(json.loads, lines)}

    def get(self, file: Path, shape: Shape) -> float | None:
        return self.times.get(self._key(file, shape))

    def put(self, file: Path, shape: Shape, seconds: float) -> None:
        self.times[self._key(file, shape)] = seconds
        with self.path.open("a") as stream:
            stream.write(json.dumps({"key": self._key(file, shape), "seconds": seconds}) + "\n")

    def _key(self, file: Path, shape: Shape) -> str:
        if file not in self.digests:
            with file.open("rb") as stream:
                self.digests[file] = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
        return f"{self.digests[file]} {shape}"


# Reporting --------------------------------------------------------------------------------------------------------------


def summary(measured: Sequence[Measured]) -> dict[str, float]:
    shares = [each.share for each in measured]
    return {
        "shapes": len(shares),
        "median": statistics.median(shares),
        "worst": min(shares),
        "under 60 %": sum(share < 0.6 for share in shares),
        "under 15 %": sum(share < 0.15 for share in shares),
    }


def families(measured: Sequence[Measured]) -> Iterator[tuple[str, list[Measured]]]:
    for family in dict.fromkeys(each.shape.family for each in sorted(measured, key=lambda each: each.shape.family)):
        yield family, [each for each in measured if each.shape.family == family]


def chart(measured: Sequence[Measured]) -> Chart:
    macs = [each.shape.macs for each in measured]
    low, high = 10 ** np.floor(np.log10(min(macs))), 10 ** np.ceil(np.log10(max(macs)))
    points = [
        Series(
            family, [(each.shape.macs, 100 * each.share, f"{each.shape.network}: {each.shape.name}, {each.time:.1f} µs") for each in group]
        )
        for family, group in families(measured)
    ]
    x = Axis("multiply-accumulates", low, high, powers(low, high), log=True)
    y = Axis("share of the attainable speed, %", 0, 160, range(0, 161, 20))
    return Chart(f"{len(measured)} shapes, one thread", x, y, points, rules=((60, "60 % at the median"), (15, "none below 15 %")))


def section(measured: Sequence[Measured], machine: Machine) -> list[str]:
    """The page's part."""
    found = summary(measured)
    memory, cache = machine.bandwidth[-1] / 1e9, max(machine.bandwidth) / 1e9
    rows = [
        (family, len(group), f"{100 * statistics.median(e.share for e in group):.0f} %", f"{100 * min(e.share for e in group):.0f} %")
        for family, group in families(measured)
    ]
    worst = sorted(measured, key=lambda each: each.share)[:12]
    return [
        "## Operators against the machine",
        "",
        page.provenance("python -m benchmarks.sweep"),
        f"{found['shapes']:.0f} convolutions and matrix products drawn by seed from {len({e.shape.network for e in measured}) - 1} published networks, {shapes.ODD} odd ones among them "
        "(benchmarks/shapes.json), float32, one thread, not tuned.",
        f"The attainable speed is the lesser of the measured multiply-add peak ({machine.peak / 1e9:.1f} GFLOP/s) and compulsory traffic over the measured bandwidth of a copy",
        f"of as many bytes ({cache:.0f} GB/s in the first cache to {memory:.0f} GB/s in memory). Winograd's kernels multiply less often than the count, so they may pass it.",
        "",
        f"**{100 * found['median']:.0f} % of the attainable at the median, {100 * found['worst']:.0f} % at the worst;** {found['under 15 %']:.0f} shapes below 15 %.",
        "",
        f"![Share of the attainable speed]({CHART.name})",
        "",
        *page.table(("family", "shapes", "median", "worst"), rows),
        "",
        "The farthest from it:",
        "",
        *page.table(
            ("network", "shape", "µs", "attainable µs", "share"),
            [
                (e.shape.network, f"{e.shape.family} {e.shape.name}", f"{e.time:.1f}", f"{e.attainable:.1f}", f"{100 * e.share:.0f} %")
                for e in worst
            ],
        ),
    ]


def show(measured: Sequence[Measured], worst: int) -> None:
    found = summary(measured)
    title = f"{found['shapes']:.0f} shapes: {100 * found['median']:.0f} % of the attainable at the median, {100 * found['worst']:.0f} % at the worst"
    view = Table(title=title, title_justify="left")
    for heading in ("network", "shape", "µs", "attainable µs", "share"):
        view.add_column(heading, justify="left" if heading in ("network", "shape") else "right")
    for each in sorted(measured, key=lambda each: each.share)[:worst]:
        view.add_row(
            each.shape.network,
            f"{each.shape.family} {each.shape.name}",
            f"{each.time:.1f}",
            f"{each.attainable:.1f}",
            f"{100 * each.share:.0f} %",
        )
    console.print(view, highlight=False)


def as_json(measured: Sequence[Measured]) -> dict[str, object]:
    rows = [asdict(each.shape) | {"us": each.time, "attainable_us": each.attainable, "share": each.share} for each in measured]
    return {"summary": summary(measured), "shapes": rows}


def main(
    only: Annotated[str, typer.Option(help="Only families or networks whose name contains this.")] = "",
    seconds: Annotated[float, typer.Option(help="How long to time each shape.")] = 0.1,
    worst: Annotated[int, typer.Option(help="How many of the worst to print.")] = 20,
    build_only: Annotated[bool, typer.Option("--build-only", help="Build the files and stop before timing.")] = False,
    file: Annotated[Path, typer.Option(help="The list of shapes.")] = shapes.FILE,
    write: Annotated[bool, typer.Option(help="Write the page's section and the chart.")] = True,
    json_: AsJson = False,
) -> None:
    """Time 200 convolutions and matrix products against what the machine can do.

    Example: `python -m benchmarks.sweep --only depthwise --no-write`
    """
    chosen = [shape for shape in shapes.load(file) if only in shape.family or only in shape.network]
    FOLDER.mkdir(parents=True, exist_ok=True)
    groups = [chosen[begin : begin + GROUP] for begin in range(0, len(chosen), GROUP)]
    files = [(FOLDER / f"{only.replace(' ', '_') or 'all'}{number}.so", group) for number, group in enumerate(groups)]
    for path, group in track(files, description="building", console=console, disable=json_):
        for shape, error in zip(group, build(group, path)):
            if error:
                console.print(f"{shape.family} {shape.name} cannot be built: {error}", highlight=False)
    if build_only:
        return
    machine, store = measure(), Store(FOLDER / "times.jsonl")
    measure_all(track(files, description="timing", console=console, disable=json_), seconds, store)
    timed = [(shape, took) for path, group in files for shape in group if (took := store.get(path, shape)) is not None]
    measured = [Measured(shape, 1e6 * took, 1e6 * machine.attainable_seconds(shape.macs, 4 * shape.elements)) for shape, took in timed]
    if write:
        CHART.write_text(chart(measured).svg())
        page.write_section("sweep", section(measured, machine))
    if json_:
        print_json(as_json(measured))
    else:
        show(measured, worst)


if __name__ == "__main__":
    typer.run(main)
