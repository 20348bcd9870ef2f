"""``python -m benchmarks.peers``: sets up, builds and measures all engines, and writes a page."""

from __future__ import annotations

import json
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from aotc.cli.common import console
from aotc.measure.calibration import peak
from benchmarks.peers import builds, venvs
from benchmarks.peers.builds import ROOT, Place
from benchmarks.peers.chart import chart
from benchmarks.peers.engine import Engine
from benchmarks.peers.engines import ENGINES, OURS
from benchmarks.peers.machine import processor
from benchmarks.peers.models import MODELS, prepare
from benchmarks.peers.own import footprint
from benchmarks.peers.page import milliseconds, page
from benchmarks.peers.results import Facts, Results, against, fastest_peer, median
from benchmarks.peers.rounds import Plan, measure_group


class Step(str, Enum):
    setup = "setup"
    build = "build"
    measure = "measure"
    page = "page"


class Session:
    """One call of the command: what was chosen, and the results as they grow."""

    def __init__(
        self, place: Place, path: Path, engines: dict[str, type[Engine]], models: list[str], threads: list[int], progress: Progress
    ) -> None:
        self.place, self.path, self.engines, self.models, self.threads = place, path, engines, models, threads
        self.results = Results.read(path)
        self.results.processor = processor()
        self.progress, self.task = progress, progress.add_task("starting")

    def tell(self, text: str) -> None:
        self.progress.update(self.task, description=text)

    def set_up(self) -> None:
        """Environments; engines whose environment cannot be made are left out with a line."""
        for name, engine in list(self.engines.items()):
            self.tell(f"environment of {engine.title}")
            if problem := venvs.set_up(engine.venv, self.place.venvs):
                console.print(f"{engine.title} is left out: {problem}", highlight=False)
                del self.engines[name]
                continue
            self.results.versions[name] = venvs.versions(engine.venv, engine.packages, self.place.venvs)

    def files(self, model: str) -> Path:
        self.tell(f"files of {model}")
        files = prepare(MODELS[model], self.place.models)
        known = self.results.models | {model: json.loads((files / "facts.json").read_text())}
        self.results.models = {name: known[name] for name in MODELS if name in known}
        return files

    def build(self, model: str, threads: int, limit: float) -> dict[str, Facts]:
        """What each engine's build told, old or new."""
        files, told = self.files(model), {}
        for name, engine in self.engines.items():
            self.tell(f"{engine.title} builds {model}")
            told[name] = builds.build(engine, model, threads, files, self.place, limit)
            self.results.builds[f"{name} {model} {threads}"] = told[name]
        self.results.write(self.path)
        return told

    def measure(self, model: str, threads: int, plan: Plan, told: dict[str, Facts], resume: bool) -> None:
        keys, old = {name: facts["key"] for name, facts in told.items()}, self.results.groups.get(f"{model} {threads}")
        if resume and old is not None and old["keys"] == keys and old["rounds"] >= plan.rounds:
            return
        self.results.peaks[str(threads)] = peak(threads)
        built = {name: engine for name, engine in self.engines.items() if "error" not in told[name]}
        files = self.files(model)
        found = measure_group(built, model, threads, files, self.place, plan, lambda text: self.tell(f"{model}, {threads} threads: {text}"))
        found |= {name: {"error": facts["error"]} for name, facts in told.items() if "error" in facts}
        self.results.groups[f"{model} {threads}"] = {
            "model": model, "threads": threads, "date": time.strftime("%-d %B %Y"), "rounds": plan.rounds, "seconds": plan.seconds,
            "keys": keys, "engines": found,
        }  # fmt: skip
        if OURS[0] in built:
            built_file = self.place.build(ENGINES[OURS[0]], model, threads) / "model.so"
            self.results.own[f"{model} {threads}"] = footprint(built_file, files, threads)
        self.results.write(self.path)
        show(self.results, model, threads)


def show(results: Results, model: str, threads: int) -> None:
    """A line for each group as it is done."""
    group = results.group(model, threads)
    peer = fastest_peer(group)
    times = ", ".join(f"{name} {milliseconds(median(facts))}" for name, facts in sorted(group.items(), key=lambda item: median(item[1])))
    ratios = [found for ours in OURS if peer is not None and (found := against(group, ours, peer))]
    text = ", ".join(f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]" for found in ratios)
    console.print(f"{model}, {threads} threads: {text} of {peer}; ms: {times}", highlight=False)


def chosen(text: str | None, known: dict[str, object], what: str) -> list[str]:
    names = text.split(",") if text else list(known)
    if wrong := [name for name in names if name not in known]:
        raise typer.BadParameter(f"no {what} is called {', '.join(wrong)}; there are {', '.join(known)}")
    return names


def main(
    models: Annotated[str | None, typer.Option(help="Which models, by commas; by default all.")] = None,
    engines: Annotated[str | None, typer.Option(help="Which engines, by commas; by default all.")] = None,
    threads: Annotated[str, typer.Option(help="Numbers of threads, by commas.")] = "1,2",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of measuring each engine.")] = 12,
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of one engine's part of a round.")] = 0.25,
    steps: Annotated[str, typer.Option(help="Which of setup, build, measure, page to do, by commas.")] = "setup,build,measure,page",
    resume: Annotated[bool, typer.Option("--resume", help="Keep what was measured of the same builds.")] = False,
    results: Annotated[
        Path, typer.Option("--json", show_default="build/peers/results.json", help="Where the figures are, and are added to.")
    ] = ROOT / "build/peers/results.json",
    output: Annotated[
        Path, typer.Option("--page", show_default="build/peers/page.md", help="Where the page goes; its chart goes beside it.")
    ] = ROOT / "build/peers/page.md",
    folder: Annotated[Path, typer.Option(show_default="build/peers", help="Where environments, models and builds are kept.")] = ROOT
    / "build/peers",
    build_limit: Annotated[float, typer.Option(help="Seconds that a build may take.")] = 600.0,
) -> None:
    """Measure aotc beside other engines, all of them interleaved, and write a page.

    The first call installs the engines and builds the models, which takes about an hour; all of it is kept. Let nothing else run while
    it measures. An engine that fails on a model becomes a line of the page.

    Example: `python -m benchmarks.peers --models resnet18,bert6 --engines aotc,onnxruntime,openvino --threads 1 --resume`
    """
    names = chosen(engines, dict(ENGINES), "engine")
    present = {name: ENGINES[name] for name in names if not (ENGINES[name].optional and ENGINES[name].missing())}
    todo = {Step(step) for step in chosen(steps, {step.value: step for step in Step}, "step")}
    counts, plan = [int(count) for count in threads.split(",")], Plan(rounds, seconds)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True) as progress:
        session = Session(Place(folder), results, present, chosen(models, dict(MODELS), "model"), counts, progress)
        if Step.setup in todo:
            session.set_up()
            session.results.write(results)
        for model in session.models if todo & {Step.build, Step.measure} else ():
            for count in counts:
                told = session.build(model, count, build_limit)
                if Step.measure in todo:
                    session.measure(model, count, plan, told, resume)
    if Step.page in todo:
        output.parent.mkdir(parents=True, exist_ok=True)
        picture = output.with_suffix(".svg")
        picture.write_text(chart(session.results, min(count for _, count in session.results.measured())))
        output.write_text(page(session.results, picture.name))
        console.print(f"written to {output}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
