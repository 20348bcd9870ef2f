"""``aotc tune``: measure what schedules could choose, and keep what is faster in a file for ``aotc build --tuning``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from aotc.cli.common import (
    AsJson,
    InputShapes,
    JetPack,
    Operators,
    TargetName,
    console,
    error_console,
    load_operators_of,
    one_per_name,
    print_json,
)
from aotc.cli.dims import parse_inputs, parse_versions
from aotc.cli.source import load_sources
from aotc.errors import InvalidOption, RuntimeFailure

if TYPE_CHECKING:
    from aotc.lowering.tuned import Tuned
    from aotc.tuning.candidates import Layer
    from aotc.tuning.session import Event
    from aotc.tuning.tune import Report


def tune(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="A model, or several as `name=MODEL`, as for `aotc build`. With --merge: tuning files."),
    ],
    target: TargetName = "host",
    jetpack: JetPack = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The tuning file: written after each layer; what it holds stays.")
    ] = "tuning.jsonl",
    boards: Annotated[
        list[str] | None,
        typer.Option(
            "--board", metavar="HOST:PORT", help="Measure on a board where `aotc_board` runs (see `aotc board`). Repeat for more."
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Candidates for each layer.")] = 24,
    seconds: Annotated[float, typer.Option(min=0.05, help="Seconds of measuring for each layer.")] = 3.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads that run each candidate.")] = 1,
    sizes: Annotated[
        list[str] | None, typer.Option("--size", metavar="NAME=N", help="Size to tune for of a dim that only a run tells. Repeat for more.")
    ] = None,
    search: Annotated[
        str,
        typer.Option(
            "--search",
            metavar="KIND",
            help="templates: what schedules of aotc offer. metaschedule: TVM's own search, for all layers, after that and beside what it found.",
        ),
    ] = "templates",
    again: Annotated[bool, typer.Option("--again", help="Measure layers anew that the file has already.")] = False,
    whole: Annotated[
        bool,
        typer.Option("--whole/--no-whole", help="At the end run the whole model untuned beside tuned, and take back what is slower there."),
    ] = True,
    merge: Annotated[
        bool, typer.Option("--merge", help="Put tuning files together into --output instead; where two know a layer, more trials count.")
    ] = False,
    inputs: InputShapes = None,
    shapes: Annotated[
        list[str] | None, typer.Option("--shapes", metavar="NAME:DIMS,DIMS...", help="Versions, as for `aotc build`.")
    ] = None,
    states: Annotated[list[str] | None, typer.Option("--state", metavar="INPUT=OUTPUT", help="States, as for `aotc build`.")] = None,
    operators: Operators = None,
    winograd: Annotated[bool, typer.Option("--winograd/--no-winograd", help="As for `aotc build`.")] = True,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes that build candidates; one a core by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest kernels for a model by measuring them, here or on boards.

    Each layer's candidates run beside the untuned kernel, paired by rounds; only what is faster with confidence is kept, and at the
    end the whole model is compared. It can be ended at any time: call it again and it goes on.

    Example: `aotc tune model.onnx`, then `aotc build model.onnx --tuning tuning.jsonl`

    Example: `aotc tune model.onnx --target jetson-orin --board 192.168.1.20:7878 --board 192.168.1.21:7878 -o orin.jsonl`

    Example: `aotc tune --merge mine.jsonl theirs.jsonl -o both.jsonl`
    """
    if merge:
        _merge(models, output, as_json)
        return
    from aotc import targets
    from aotc.tuning.search import Effort
    from aotc.tuning.tune import Source, tune

    own, source = load_operators_of(operators), load_sources(models)
    wanted = Source(
        source.model, source.args, source.dynamic_shapes, parse_inputs(inputs),
        one_per_name(states or [], "=", "--state"), parse_versions(shapes), own, winograd,
    )  # fmt: skip
    with _Display(quiet=as_json) as display:
        try:
            report = tune(
                wanted, targets.get(target, jetpack), output, boards=boards or [], effort=Effort(trials, seconds, threads),
                sizes=_sizes(sizes), search=search, again=again, network=whole, jobs=jobs, tell=display.tell, found=display.found, stage=display.stage,
            )  # fmt: skip
        except KeyboardInterrupt:
            error_console.print(f"ended; {output} has what was found: the same command goes on from there", highlight=False)
            raise typer.Exit(130) from None
    if as_json:
        print_json(tune_facts(report))
    else:
        _print(report)
    if report.left:
        names = ", ".join(job.name for job in report.left[:3])
        raise RuntimeFailure(
            f"{len(report.left)} layers were not measured ({names}{', ...' if len(report.left) > 3 else ''}), since every "
            f"board was lost: {'; '.join(report.lost)}. {output} has what was found: the same command goes on from there"
        )


def _sizes(entries: list[str] | None) -> dict[str, int]:
    pairs = one_per_name(entries or [], "=", "--size")
    wrong = [f"{name}={text}" for name, text in pairs.items() if not text.isdigit()]
    if wrong:
        raise InvalidOption(f"--size {wrong[0]!r}: expected NAME=N with a number, such as sequence=128")
    return {name: int(text) for name, text in pairs.items()}


def _merge(paths: list[str], output: str, as_json: bool) -> None:
    from aotc.lowering.tuned import merge, read_tuning, write_tuning

    entries = merge([entry for path in paths for entry in read_tuning(path).values()])
    write_tuning(output, entries)
    if as_json:
        print_json({"output": output, "layers": len(entries)})
    else:
        console.print(f"{output}: {len(entries)} layers of {len(paths)} files", highlight=False)


class _Display:
    """A bar on standard error, and a line for each layer that is done."""

    def __init__(self, quiet: bool) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.quiet = quiet
        self.progress = Progress(*columns, console=error_console, transient=True, disable=quiet or not error_console.is_terminal)
        self.task = self.progress.add_task("importing", total=None)
        self.running: dict[str, str] = {}

    def __enter__(self) -> _Display:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def stage(self, text: str) -> None:
        self.progress.update(self.task, description=text)

    def found(self, what: str, count: int, known: int) -> None:
        self.progress.update(self.task, description="tuning", total=count, completed=known)
        if not self.quiet and count:
            rest = f", {known} of them known already" if known else ""
            error_console.print(f"{count} {what}{rest}", highlight=False, soft_wrap=True)

    def tell(self, event: Event) -> None:
        if event.kind == "start":
            self.running[event.board] = _short(event.job.name)
        else:
            self.running.pop(event.board, None)
            self.progress.advance(self.task, event.kind != "lost")
        self.progress.update(self.task, description="; ".join(self.running.values()) or "tuning")
        if self.quiet or event.kind == "start":
            return
        text = _found(event.entry) if event.entry is not None else f"[yellow]{event.kind}[/]: {event.message}"
        where = "" if event.board == "this machine" else f" on {event.board}"
        error_console.print(f"  {_short(event.job.name)}{where}: {text}", highlight=False, soft_wrap=True)


def _short(name: str) -> str:
    """The name of the first of the nodes that were fused; the operators tell the others."""
    return name.split(" + ")[0]


def _found(entry: Tuned) -> str:
    if not entry.selection:
        return f"{entry.untuned_us:.1f} µs, the untuned choice is best of {entry.trials + 1}"
    return f"{entry.untuned_us:.1f} -> {entry.tuned_us:.1f} µs with {selection_text(entry.selection)}, best of {entry.trials + 1}"


def selection_text(selection: Any) -> str:
    return ", ".join(f"{name} {option}" if len(option) < 40 else f"a {name}" for name, option in selection.items())


def tune_facts(report: Report) -> dict[str, Any]:
    """What a session found, as plain data. Times are microseconds."""
    return {
        "output": str(report.output),
        "target": report.target.name,
        "layers": [_layer_facts(layer, report) for layer in report.layers],
        "lost_boards": list(report.lost),
        "whole_model": [
            {
                "entry_point": each.entry_point,
                "untuned_us": each.total[0],
                "tuned_us": each.total[1],
                "ratio": each.total[2].median,
                "ratio_bounds": [each.total[2].lower, each.total[2].upper],
            }
            for each in report.comparisons
        ],
        "note": report.note,
    }


def _layer_facts(layer: Layer, report: Report) -> dict[str, Any]:
    entry = report.entries.get(layer.key)
    facts: dict[str, Any] = {"name": layer.name, "label": layer.label, "calls": layer.calls, "key": layer.key}
    if layer.key in report.algorithms:
        facts["algorithm"] = report.algorithms[layer.key]
    if layer.key in report.failed:
        facts["failed"] = report.failed[layer.key]
    if entry is not None:
        facts |= {"selection": dict(entry.selection), "alone_untuned_us": entry.untuned_us, "alone_tuned_us": entry.tuned_us}
        facts |= {"trials": entry.trials, "measured_now": layer.key in report.measured, "reverted": layer.key in report.reverted}
    in_model = [each.layers[layer.key] for each in report.comparisons if layer.key in each.layers]
    if in_model:
        untuned, tuned, ratio = in_model[0]
        facts |= {"untuned_us": untuned, "tuned_us": tuned, "ratio": ratio.median, "ratio_bounds": [ratio.lower, ratio.upper]}
    return facts


def _print(report: Report) -> None:
    if not report.layers:
        console.print(f"nothing in this model has a choice on {report.target.name}", highlight=False)
        return
    inside = bool(report.comparisons)
    table = Table(title="Before and after, µs " + ("in the whole model" if inside else "of each layer alone"), title_justify="left")
    for heading in ("layer", "operators", "calls", "before", "after", "ratio", "choice"):
        table.add_column(heading, justify="right" if heading in ("calls", "before", "after", "ratio") else "left")
    for layer in report.layers:
        table.add_row(*_row(layer, report))
    console.print(table, highlight=False)
    for each in report.comparisons:
        untuned, tuned, ratio = each.total
        console.print(
            f"[bold]{each.entry_point}[/]: {untuned / 1e3:.3f} -> {tuned / 1e3:.3f} ms, ratio {ratio.median:.3f} "
            f"(surely from {ratio.lower:.3f} to {ratio.upper:.3f})",
            highlight=False,
        )
    if report.note:
        console.print(f"the whole model was not compared: {report.note}", highlight=False)
    console.print(f"[bold green]wrote[/] {report.output}; build with: aotc build MODEL --tuning {report.output}", highlight=False)


def _row(layer: Layer, report: Report) -> list[str]:
    facts = _layer_facts(layer, report)
    head = [_short(layer.name), layer.label, str(layer.calls)]
    if "failed" in facts:
        return [*head, "", "", "", f"failed: {facts['failed']}"]
    if "selection" not in facts:
        return [*head, "", "", "", "not measured"]
    told = [text for text in (facts.get("algorithm"), selection_text(facts["selection"])) if text]
    choice = ", ".join(told) or ("untuned: the other was slower in the model" if facts["reverted"] else "untuned")
    before, after = facts.get("untuned_us", facts["alone_untuned_us"]), facts.get("tuned_us", facts["alone_tuned_us"])
    ratio = facts.get("ratio", after / before if before else 1.0)
    return [*head, f"{before:.1f}", f"{after:.1f}", f"{ratio:.3f}", choice]


def board(
    target: TargetName = "jetson",
    jetpack: JetPack = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The program to write.")] = "aotc_board",
) -> None:
    """Write the program that measures for `aotc tune` on a board: copy it there and start it.

    It is one file and needs only the board's C library. It runs whatever it is sent, so it listens on the board's own loopback address
    unless told otherwise; `ssh -L 7878:127.0.0.1:7878 board` brings that port here.

    Example: `aotc board --target jetson-orin && scp aotc_board orin: && ssh -L 7878:127.0.0.1:7878 orin ./aotc_board`, and beside it
    `aotc tune model.onnx --target jetson-orin --board 127.0.0.1:7878`
    """
    from aotc import targets
    from aotc.tuning.program import write_program

    write_program(targets.get(target, jetpack), Path(output))
    console.print(f"[bold green]wrote[/] {output}; copy it to the board and start it there: ./{Path(output).name} --help", highlight=False)
