"""``aotc quantize``: which values of a model become int8 and how, as a recipe that ``aotc build`` takes."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.table import Table

from aotc.cli.build import _progress
from aotc.cli.calibration import (
    BiasOption,
    CalibOption,
    DropOption,
    EqualiseOption,
    MetricOption,
    ObserverOption,
    TimeOption,
    int8_options,
    load_calibration,
)
from aotc.cli.common import AsJson, InputShapes, Operators, SourceModel, console, load_operators_of, print_json
from aotc.cli.dims import parse_inputs
from aotc.cli.source import load_source
from aotc.cli.tensors import ChannelsOption, CropOption, LayoutOption, MeanOption, Preprocessing, StdOption
from aotc.errors import InvalidOption, RuntimeFailure


def quantize(
    model: SourceModel,
    calib: CalibOption = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The recipe to write.")] = "model.int8.json",
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write what was done, layer by layer, as one HTML page.")
    ] = None,
    inputs: InputShapes = None,
    observer: ObserverOption = "auto",
    max_drop: DropOption = None,
    metric: MetricOption = None,
    equalise: EqualiseOption = True,
    bias_correction: BiasOption = True,
    timing: TimeOption = False,
    mean: MeanOption = "0",
    std: StdOption = "1",
    layout: LayoutOption = "nchw",
    channels: ChannelsOption = "rgb",
    crop: CropOption = 1.0,
    operators: Operators = None,
    as_json: AsJson = False,
) -> None:
    """Find out how a model becomes int8; exit code 6 if the bound of `--max-drop` cannot be kept.

    Example: `aotc quantize model.onnx --calib photographs/ --mean 127 --std 128 --max-drop 1% -o model.int8.json`

    Example: `aotc build model.onnx --precision int8 --calib model.int8.json`
    """
    from aotc.frontends import import_model
    from aotc.quantisation import quantise
    from aotc.quantisation.report import facts_of, write_page

    if calib is None:
        raise InvalidOption("--calib is missing: some dozens of typical inputs, such as a folder of images")
    started = time.perf_counter()
    source = load_source(model)
    module = import_model(source.model, parse_inputs(inputs), source.args, source.dynamic_shapes, load_operators_of(operators))
    data = load_calibration(calib, module, Preprocessing(mean, std, layout, channels, crop))
    options = int8_options(observer, max_drop, metric, equalise, bias_correction, timing)
    with _progress(quiet=as_json) as progress:
        made = quantise(module, data, options, progress)
    made.recipe.write(output)
    facts = {"output": output, "seconds": round(time.perf_counter() - started, 3), **facts_of(made), "notes": list(made.notes)}
    if report is not None:
        write_page(made, report)
    if as_json:
        print_json(facts)
    else:
        _print(facts)
    if made.search is not None and not made.search.kept:
        raise RuntimeFailure(f"the metric loses more than {options.max_drop:g} even with all layers in float")


def _print(facts: dict[str, Any]) -> None:
    table = Table(title="Layers, in order of computation", title_justify="left")
    for heading in ("layer", "kind", "dtype", "weights dB", "input dB", "alone dB", "multiply-adds", "float us", "int8 us", ""):
        table.add_column(heading)
    for layer in facts["layers"]:
        decibels = [layer["weight_sqnr"], layer["value_sqnr"], layer["sensitivity_sqnr"]]
        shown = ["" if each is None else f"{each:.1f}" for each in decibels]
        work = "" if layer["multiply_adds"] is None else f"{layer['multiply_adds'] / 1e6:.2f} M"
        times = ["" if layer[key] is None else f"{layer[key]:.1f}" for key in ("float_us", "int8_us")]
        table.add_row(
            layer["name"],
            layer["kind"],
            layer["dtype"],
            *shown,
            work,
            *times,
            layer["reason"],
            style=None if layer["dtype"] == "int8" else "yellow",
        )
    console.print(table, highlight=False)
    console.print(f"[bold green]wrote[/] {facts['output']} in {facts['seconds']:.1f} s", highlight=False)
    for note in facts["notes"]:
        console.print(note, highlight=False)
