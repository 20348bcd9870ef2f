"""What each pass of the compiler brings on each model: its time and bytes with everything, and without that pass.

    python -m benchmarks.ablation                    builds what is missing, times it, writes the section of docs/performance.md
    python -m benchmarks.ablation --build-only       the first half, which needs no quiet machine

The variants of a model are timed in rounds, one after another in each, so that a machine which changes its speed changes all of them.
"""

from __future__ import annotations

import gc
import hashlib
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import track

import aotc
from aotc.cli.common import AsJson, bytes_text, console, print_json, reporting_errors
from aotc.compiler import compile_kernels, package, primitive_functions
from aotc.frontends import import_model
from aotc.ir.expr import Module
from aotc.lowering.in_place import choose_in_place
from aotc.lowering.memory import align
from aotc.lowering.plan import EntryPoint
from aotc.lowering.planner import Planned, make_plan
from aotc.packaging.planfile import read_plan
from aotc.packaging.reader import read_packaged
from aotc.passes.options import options_for
from aotc.passes.pipeline import PIPELINE, run_passes
from aotc.targets import Target, get
from benchmarks import page
from benchmarks.peers.builds import ROOT, Place
from benchmarks.peers.models import MODELS, prepare
from benchmarks.statistics import Ratio, ratio

OUTPUT = ROOT / "build" / "ablation"


@dataclass(frozen=True)
class Variant:
    """A build with something left out: passes, fusion, results written over arguments, or memory that buffers share."""

    name: str
    skip: tuple[str, ...] = ()
    fuse: bool = True
    in_place: bool = True
    planned: bool = True


EVERYTHING = Variant("everything")
VARIANTS = (
    EVERYTHING,
    Variant("no fusion", fuse=False),
    Variant("plain layout", ("convert_layout", "choose_winograd")),
    Variant("no Winograd", ("choose_winograd",)),
    Variant("weights not packed", ("pack_weights",)),
    Variant("batch norms not folded", ("fold_batch_norm",)),
    Variant("algebra not simplified", ("simplify_algebra", "sink_reshapes")),
    Variant("nothing in place", in_place=False),
    Variant("memory not planned", planned=False),
)


@dataclass(frozen=True)
class Measured:
    """Of one variant: ``milliseconds``, the median; ``slowdown``: its time over that of everything; bytes of the arena and of the file;
    how many steps a run has."""

    milliseconds: float
    slowdown: Ratio
    arena: int
    file: int
    steps: int


# Building ---------------------------------------------------------------------------------------------------------------


def build(model: str | Module, variant: Variant, output: Path, target: Target, jobs: int | None = None) -> None:
    """``model`` is an ONNX file or a Module; ``jobs`` as ``aotc.compile`` has it. Raises BuildError and what importing raises."""
    module = passed(import_model(model), variant, target)
    in_place = choose_in_place(module) if variant.in_place else {}
    kernels = compile_kernels(primitive_functions(module), target, jobs, lambda done, total, label: None, in_place)
    planned = make_plan(module, kernels, in_place)
    package(planned if variant.planned else unplanned(planned), kernels.values(), target, output, {}, "fp32", None)


def passed(module: Module, variant: Variant, target: Target) -> Module:
    options = replace(options_for(target, frozenset(variant.skip)), fuse=variant.fuse)
    return run_passes(module, PIPELINE, options)


def unplanned(planned: Planned) -> Planned:
    """Every buffer with memory of its own. Sizes must be fixed."""
    entries = tuple(_unplanned(entry) for entry in planned.plan.entry_points)
    return replace(planned, plan=replace(planned.plan, entry_points=entries))


def _unplanned(entry: EntryPoint) -> EntryPoint:
    buffers, end = [], 0
    for buffer in entry.buffers:
        assert isinstance(buffer.size, int)
        buffers.append(replace(buffer, offset=end))
        end += align(buffer.size)
    return replace(entry, buffers=tuple(buffers), arena_size=end)


def files_of(model: str, variants: Sequence[Variant], place: Place) -> dict[str, Path]:
    """The built file of each variant. Kernels come from the cache, so building again is quick."""
    source, target = str(prepare(MODELS[model], place.models) / "model.onnx"), get("host")
    files = {variant.name: OUTPUT / f"{model}-{variant.name.replace(' ', '_')}.so" for variant in variants}
    for variant in variants:
        build(source, variant, files[variant.name], target)
    return files


# Timing -----------------------------------------------------------------------------------------------------------------


def measure(files: Mapping[str, Path], x: np.ndarray, rounds: int, seconds: float) -> dict[str, Measured]:
    """All variants of a model in ``rounds``, each for ``seconds`` in one."""
    sessions = {name: aotc.load(file).session(num_threads=1) for name, file in files.items()}
    for session in sessions.values():
        session.run({"x": x}, copy=False)
    gc.collect()
    times: dict[str, dict[str, float]] = {name: {} for name in sessions}
    for number in range(rounds):
        for name in sorted(sessions, reverse=bool(number % 2)):
            times[name][str(number)] = _median(sessions[name], x, seconds)
    return {name: _measured(files[name], times[name], times[EVERYTHING.name]) for name in files}


def _median(session: Any, x: np.ndarray, seconds: float) -> float:
    session.run({"x": x}, copy=False)  # another variant ran before: its data leave the caches
    found, end = [], time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        session.run({"x": x}, copy=False)
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def _measured(file: Path, times: Mapping[str, float], whole: Mapping[str, float]) -> Measured:
    entry = read_plan(read_packaged(str(file)).plan).entry_points[0]
    milliseconds = 1e3 * statistics.median(times.values())
    return Measured(milliseconds, ratio(times, whole), entry.arena_size or 0, file.stat().st_size, len(entry.steps))


def digest(files: Mapping[str, Path]) -> str:
    found = hashlib.sha256()
    for name, file in files.items():
        found.update(name.encode() + file.read_bytes())
    return found.hexdigest()[:16]


def differences(files: Mapping[str, Path], x: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """The largest one of each variant, of the largest value."""
    results = {name: next(iter(aotc.load(file).run({"x": x}).values())) for name, file in files.items()}
    return {name: float(np.abs(result - reference).max() / np.abs(reference).max()) for name, result in results.items()}


# Reporting --------------------------------------------------------------------------------------------------------------


def section(results: Mapping[str, Mapping[str, Measured]]) -> list[str]:
    lines = [
        "## What each pass brings",
        "",
        page.provenance("python -m benchmarks.ablation"),
        "One thread, batch 1, float32, not tuned. Each row leaves one thing out of the whole; the time is over that of everything, with its 95 % bootstrap interval",
        "over interleaved rounds. The arena is the memory for what lies between inputs and outputs. Layouts that are left out take Winograd with them.",
        "",
    ]
    for model, measured in results.items():
        whole = measured[EVERYTHING.name]
        lines += [f"**{model}**", "", *page.table(_HEADINGS, [_row(name, each, whole) for name, each in measured.items()]), ""]
    return lines


_HEADINGS = ("build", "ms", "time", "arena", "of it", "file", "steps")


def _row(name: str, each: Measured, whole: Measured) -> tuple[str, ...]:
    interval = "" if each is whole else f" [{each.slowdown.low:.2f}, {each.slowdown.high:.2f}]"
    arena = f"{each.arena / whole.arena:.2f}" if whole.arena else ""
    return (
        name, f"{each.milliseconds:.2f}", f"{each.slowdown.median:.2f}{interval}", bytes_text(each.arena), arena, bytes_text(each.file), str(each.steps),
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _from_json(facts: Mapping[str, Any]) -> Measured:
    return Measured(**{**facts, "slowdown": Ratio(**facts["slowdown"])})


@reporting_errors
def main(
    models: Annotated[str, typer.Option(help="Which models, by commas.")] = "resnet18,mobilenet_v2,efficientnet_b0,bert6,lstm2,resnet50",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of measuring each variant.")] = 10,
    seconds: Annotated[float, typer.Option(help="Length of one variant's part of a round.")] = 0.25,
    build_only: Annotated[bool, typer.Option("--build-only", help="Build the files and stop before timing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Time again what was timed of the same files.")] = False,
    write: Annotated[bool, typer.Option(help="Write the section of docs/performance.md.")] = True,
    json_: AsJson = False,
) -> None:
    """Time each model with one thing left out of the compiler at a time.

    Example: `python -m benchmarks.ablation --models lstm2 --rounds 5 --no-write`
    """
    OUTPUT.mkdir(parents=True, exist_ok=True)
    place, kept = Place(ROOT / "build" / "peers"), OUTPUT / "results.json"
    results = _read(kept)
    names = models.split(",")
    built = {name: files_of(name, VARIANTS, place) for name in track(names, description="building", console=console, disable=json_)}
    if build_only:
        return
    for name in track(names, description="timing", console=console, disable=json_):
        key = digest(built[name])
        if again or results.get(name, {}).get("key") != key:
            data = np.load(prepare(MODELS[name], place.models) / "data.npz")
            measured = measure(built[name], data["x"], rounds, seconds)
            wrong = differences(built[name], data["x"], data["reference"])
            results[name] = {"key": key, "variants": {each: asdict(facts) for each, facts in measured.items()}, "differences": wrong}
            kept.write_text(json.dumps(results, indent=1))
    found = {name: {each: _from_json(facts) for each, facts in results[name]["variants"].items()} for name in results}
    if write:
        page.write_section("ablation", section(found))
    if json_:
        print_json(results)
    else:
        console.print("\n".join(section({name: found[name] for name in names})), highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
