"""``aotc build``: a model becomes one shared library."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from aotc.cli.calibration import (
    BiasOption,
    CalibOption,
    DropOption,
    EqualiseOption,
    MetricOption,
    ObserverOption,
    int8_options,
    load_calibration,
)
from aotc.cli.common import (
    AsJson,
    InputShapes,
    JetPack,
    Operators,
    SourceModels,
    TargetName,
    bytes_text,
    console,
    error_console,
    load_operators_of,
    one_per_name,
    print_json,
    version_text,
)
from aotc.cli.dims import parse_inputs, parse_versions
from aotc.cli.source import Source, load_sources
from aotc.cli.tensors import ChannelsOption, CropOption, LayoutOption, MeanOption, Preprocessing, StdOption
from aotc.errors import InvalidOption

if TYPE_CHECKING:
    from aotc.compiler import BuildReport
    from aotc.ir.expr import Module
    from aotc.targets import Target


def build(
    models: SourceModels,
    target: TargetName = "host",
    jetpack: JetPack = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = "model.so",
    inputs: InputShapes = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Arithmetic of the built file: `fp32`; for a GPU `fp16`, where sums and norms stay in float32, or `tf32`: float32 whose "
            "factors of products are rounded to 11 bits."
        ),
    ] = "fp32",
    device: Annotated[
        str,
        typer.Option(
            help="`cpu`; `cuda` for the target's GPU, with the CPU for what it cannot do; or `auto`: as `cuda` where the target has a GPU, "
            "and all of it for the CPU too, which runs where no such GPU is found.",
        ),
    ] = "auto",
    sm: Annotated[
        str | None,
        typer.Option("--sm", metavar="72,87", help="The GPUs to hold code for, as compute capabilities, instead of the board's."),
    ] = None,
    ptx: Annotated[
        bool,
        typer.Option(
            "--ptx", help="Also hold PTX for the oldest GPU of `--sm`, of which a driver makes code for newer ones (slow to open)."
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Processes that build kernels; one a core by default. Does not change the file."),
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Text to carry in the file. Repeat for more.")
    ] = None,
    compiler: Annotated[
        str | None, typer.Option("--cc", metavar="PROGRAM", help="Link with this gcc instead of the linker that came with aotc.")
    ] = None,
    operators: Operators = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            metavar="NAME:DIMS,DIMS...",
            help="Sizes for which the file gets a fast version of its own beside the general one: `image:1x3x224x224,1x3x640x640`. "
            "Repeat for more inputs, with as many sizes each.",
        ),
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="INPUT=OUTPUT", help="Keep an input in the session: OUTPUT is its next value. Repeat for more."),
    ] = None,
    tuning: Annotated[
        str | None,
        typer.Option(
            "--tuning", metavar="FILE", help="Build kernels as `aotc tune` found them to be fastest. No file is read unless named here."
        ),
    ] = None,
    winograd: Annotated[
        bool,
        typer.Option(
            "--winograd/--no-winograd",
            help="Use Winograd convolution where it is estimated to be faster. Its weights make the file larger; the report says by how much.",
        ),
    ] = True,
    calib: CalibOption = None,
    observer: ObserverOption = "auto",
    max_drop: DropOption = None,
    metric: MetricOption = None,
    equalise: EqualiseOption = True,
    bias_correction: BiasOption = True,
    mean: MeanOption = "0",
    std: StdOption = "1",
    layout: LayoutOption = "nchw",
    channels: ChannelsOption = "rgb",
    crop: CropOption = 1.0,
    as_json: AsJson = False,
) -> None:
    """Compile a model, or several as the entry points of one file, into one shared library.

    Example: `aotc build model.onnx --target jetson --input image:1x3x224x224 --output model.so`

    Example: `aotc build model.onnx --tuning tuning.jsonl`, where `aotc tune model.onnx` wrote that file

    Example: `aotc build model.onnx --precision int8 --calib photographs/ --mean 127 --std 128 --max-drop 1%`

    Example: `aotc build prefill=prefill.onnx step=step.onnx --state past=present`
    """
    import aotc

    if sm is not None and device == "cpu":
        raise InvalidOption("--sm says which GPUs to hold code for: it goes with --device cuda or auto, not with --device cpu")
    if ptx and device == "cpu":
        raise InvalidOption("--ptx is code for GPUs: it goes with --device cuda or auto, not with --device cpu")
    own = load_operators_of(operators)
    source = load_sources(models)
    started = time.perf_counter()
    calibration, taken = _calibration(calib, source, inputs, own, Preprocessing(mean, std, layout, channels, crop))
    with _progress(quiet=as_json) as progress:
        report = aotc.compile(
            source.model if taken is None else taken,
            target=_target(target, jetpack, sm, ptx),
            output=output,
            inputs=parse_inputs(inputs) if taken is None else None,
            args=source.args if taken is None else None,
            dynamic_shapes=source.dynamic_shapes if taken is None else None,
            precision=precision,
            device=device,
            jobs=jobs,
            metadata=one_per_name(metadata or [], "=", "--metadata"),
            compiler=compiler,
            operators=own,
            versions=parse_versions(shapes),
            states=one_per_name(states or [], "=", "--state"),
            tuning=tuning,
            winograd=winograd,
            calibration=calibration,
            int8=int8_options(observer, max_drop, metric, equalise, bias_correction) if calibration is not None else None,
            progress=progress,
        )
    facts = build_facts(report, time.perf_counter() - started)
    if as_json:
        print_json(facts)
    else:
        _print_summary(facts)


def _calibration(
    calib: str | None, source: Source, inputs: list[str] | None, own: list[Any], images: Preprocessing
) -> tuple[Any, Module | None]:
    """The calibration data, and the imported model, whose inputs they are for; None without data."""
    if calib is None:
        return None, None
    from aotc.frontends import import_model

    if isinstance(source.model, dict):
        raise InvalidOption("int8 takes one model: quantise each alone")
    module = import_model(source.model, parse_inputs(inputs), source.args, source.dynamic_shapes, own)
    return load_calibration(calib, module, images), module


def _target(name: str, jetpack: str | None, sm: str | None, ptx: bool) -> Target:
    from aotc import targets

    target = targets.with_ptx(targets.get(name, jetpack)) if ptx else targets.get(name, jetpack)
    if sm is None:
        return target
    words = sm.split(",")
    if not all(word.isdigit() for word in words):
        raise InvalidOption(f"--sm {sm}: expected compute capabilities as numbers with commas between them, such as 72,87")
    return targets.with_sm(target, tuple(map(int, words)))


def build_facts(report: BuildReport, seconds: float) -> dict[str, Any]:
    """What a build made, as plain data. Sizes are bytes."""
    from aotc.cli.inspect import gpu_facts
    from aotc.packaging.elf_check import inspect_elf
    from aotc.packaging.planfile import read_plan
    from aotc.packaging.reader import read_packaged
    from aotc.quantisation.report import facts_of as int8_facts

    elf = inspect_elf(Path(report.output))
    return {
        "output": str(report.output),
        "target": report.target.name,
        "jetpack": report.target.jetpack,
        "size": Path(report.output).stat().st_size,
        "weights": report.weights_size,
        "weights_file": None if report.weights_file is None else str(report.weights_file),
        "winograd_growth": dict(report.winograd_growth),
        "arena": report.arena_size,
        "arena_lower_bound": report.arena_lower_bound,
        "steps": report.steps,
        "kernels_built": report.kernels_built,
        "kernels_cached": report.kernels_cached,
        "kernels_tuned": report.kernels_tuned,
        "needed": list(elf.needed),
        "glibc_needed": version_text(elf.newest_glibc),
        "glibc_of_target": version_text(report.target.glibc),
        "seconds": round(seconds, 3),
        "seconds_of_stages": {stage: round(value, 3) for stage, value in report.seconds.items()},
        "sm": sorted({sm for kernel in report.cuda_kernels for sm, _ in kernel.cubins}),
        "ptx": next((kernel.ptx[0] for kernel in report.cuda_kernels if kernel.ptx), None),
        "functions_on_gpu": sum(placed.on_device for placed in report.placement.values()),
        "functions_on_cpu": [
            {"source": function.origin, "operators": function.name, "reason": placed.reason}
            for function, placed in report.placement.items()
            if not placed.on_device
        ],
        "gpu": gpu_facts(read_plan(read_packaged(report.output).plan).entry_points[0]) if report.cuda_kernels else {},
        "int8": None if report.quantised is None else int8_facts(report.quantised),
        "notes": list(report.notes),
    }


def _print_summary(facts: dict[str, Any]) -> None:
    from aotc.cli.inspect import working_memory

    table = Table(show_header=False, box=None, pad_edge=False)
    jetpack = f" (JetPack {facts['jetpack']})" if facts["jetpack"] else ""
    table.add_row("target", f"{facts['target']}{jetpack}")
    if facts["weights_file"] is None:
        table.add_row("size", f"{bytes_text(facts['size'])}, of it weights {bytes_text(facts['weights'])}")
    else:
        table.add_row("size", f"{bytes_text(facts['size'])}, weights {bytes_text(facts['weights'])} beside it in {facts['weights_file']}")
    for number, (layer, size) in enumerate(facts["winograd_growth"].items()):
        table.add_row("" if number else "Winograd adds", f"{bytes_text(size)} for {layer}")
    table.add_row("working memory", working_memory(facts["arena"], facts["arena_lower_bound"], facts["gpu"]))
    tuned = f", tuned {facts['kernels_tuned']}" if facts["kernels_tuned"] else ""
    table.add_row("steps", f"{facts['steps']}, kernels built {facts['kernels_built']}, from the cache {facts['kernels_cached']}{tuned}")
    if facts["sm"]:
        count = facts["functions_on_gpu"] + len(facts["functions_on_cpu"])
        ptx = f", PTX for sm_{facts['ptx']} and newer" if facts["ptx"] else ""
        table.add_row(
            "GPU", f"{', '.join(f'sm_{sm}' for sm in facts['sm'])}{ptx}; {facts['functions_on_gpu']} of {count} fused functions run there"
        )
    if gpu := facts["gpu"]:
        table.add_row("", f"{gpu['launches']} launches, {gpu['crossings']} crossings")
        alone = ", and all of them where no such GPU is found" if gpu["runs_without_gpu"] else ""
        table.add_row("CPU", f"{len(facts['functions_on_cpu'])} fused functions run there{alone}")
    table.add_row(
        "needs", f"{', '.join(facts['needed'])}; glibc {facts['glibc_needed']} or newer, the target has {facts['glibc_of_target']}"
    )
    table.add_row(
        "time", f"{facts['seconds']:.1f} s  " + ", ".join(f"{stage} {value:.1f}" for stage, value in facts["seconds_of_stages"].items())
    )
    console.print(f"[bold green]built[/] {facts['output']}", highlight=False)
    console.print(table, highlight=False)
    for note in facts["notes"]:
        console.print(f"[yellow]note:[/] {note}", highlight=False)


class _progress:
    """A progress bar on standard error as the ``progress`` callback of ``aotc.compile``."""

    def __init__(self, quiet: bool) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.display = Progress(*columns, console=error_console, transient=True, disable=quiet or not error_console.is_terminal)
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _progress:
        self.display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.display.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self.tasks:
            self.tasks[stage] = self.display.add_task(stage, total=total)
        self.display.update(self.tasks[stage], completed=done, total=total)
