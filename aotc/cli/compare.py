"""``aotc compare``: which layer is the first whose numbers depart from the reference."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from aotc.cli.common import (
    AsJson,
    InputShapes,
    JetPack,
    Operators,
    SourceModel,
    TargetName,
    console,
    load_operators_of,
    print_json,
    shape_text,
)
from aotc.cli.dims import parse_inputs
from aotc.cli.source import Source, load_source
from aotc.cli.tensors import (
    ChannelsOption,
    CropOption,
    DataOption,
    LayoutOption,
    MeanOption,
    Preprocessing,
    SeedOption,
    ShapeOption,
    StdOption,
    load_feeds,
)
from aotc.errors import InvalidOption, RuntimeFailure

if TYPE_CHECKING:
    import numpy as np

    from aotc.comparison import Comparison, Difference, Recorder
    from aotc.ir.expr import Module

REFERENCES = ("auto", "numpy")


def compare(
    model: SourceModel,
    target: TargetName = "host",
    jetpack: JetPack = None,
    inputs: InputShapes = None,
    data: DataOption = None,
    shape: ShapeOption = None,
    seed: SeedOption = 0,
    mean: MeanOption = "0",
    std: StdOption = "1",
    layout: LayoutOption = "nchw",
    channels: ChannelsOption = "rgb",
    crop: CropOption = 1.0,
    figure: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest difference allowed, relative to the largest value; the L2 distance is held to a third.",
            show_default="1e-4, or 2e-2 for fp16",
        ),
    ] = None,
    reference: Annotated[str, typer.Option(help="`auto`: ONNX Runtime or PyTorch; `numpy`: aotc's own operator references.")] = "auto",
    precision: Annotated[
        str | None,
        typer.Option(help="`fp16`: compare the model in this precision with itself in float32, as aotc's references compute both."),
    ] = None,
    operators: Operators = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show all layers, not only the ten that differ most.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare every layer of a model, compiled and run here, with ONNX Runtime or PyTorch; exit code 6 if an output departs.

    With `--precision fp16` the first layer that overflows, or loses too much, is named, without a GPU.

    Example: `aotc compare model.onnx --data cat.jpg --mean 127 --std 128`
    """
    from aotc import comparison, targets
    from aotc.cli.tensors import ParameterSpec
    from aotc.frontends import import_model

    if reference not in REFERENCES:
        raise InvalidOption(f"--reference is {reference!r}; expected one of {', '.join(REFERENCES)}")
    board = targets.get(target, jetpack)
    if precision not in (None, "fp16"):
        raise InvalidOption(f"--precision is {precision!r}; expected fp16, or none for the model as it is")
    figure = figure if figure is not None else 2e-2 if precision else 1e-4
    if not precision and board.triple != (here := targets.get("host")).triple:
        raise InvalidOption(f"--target {target} is {board.triple}; what is compared runs here, on {here.triple}: choose such a target")
    own = load_operators_of(operators)
    source = load_source(model)
    module = import_model(source.model, parse_inputs(inputs), source.args, source.dynamic_shapes, own)
    specs = [ParameterSpec.of(param) for param in module.main.params]
    feeds = load_feeds(specs, data, shape, seed, Preprocessing(mean, std, layout, channels, crop))
    if precision:
        found = comparison.compare_precision(module, precision, feeds)
    else:
        found = comparison.compare(module, board, feeds, *_reference(reference, source, module, feeds))
    first = found.first_departing(figure)
    wrong = [output.name for output in found.outputs if output.exceeds(figure)]
    if as_json:
        nodes = [dataclasses.asdict(node) for node in found.nodes]
        whole = [dataclasses.asdict(output) for output in found.outputs]
        print_json(
            {"outputs": whole, "layers": nodes, "unseen": found.unseen, "first_departing": first.name if first else None, "figure": figure}
        )
    else:
        _print(found, first, figure, show_all)
    if wrong:
        raise RuntimeFailure(f"{', '.join(wrong)} differ from the reference by more than {figure:g}")


def _reference(kind: str, source: Source, module: Module, feeds: dict[str, np.ndarray]) -> tuple[Recorder, list[np.ndarray]]:
    from aotc import comparison

    if kind == "numpy":
        return comparison.numpy_recorder(module, feeds)
    if source.is_onnx:
        return comparison.onnx_recorder(source.model, feeds)
    return comparison.torch_recorder(source.model, source.args, source.dynamic_shapes, feeds)


def _print(found: Comparison, first: Difference | None, figure: float, show_all: bool) -> None:
    worst = sorted(found.nodes, key=lambda node: -node.largest)[:10]
    shown = found.nodes if show_all else [node for node in found.nodes if node in worst]
    table = Table(title=f"{'All' if show_all else 'The most different'} layers, in order of computation", title_justify="left")
    for heading in ("layer", "shape", "largest difference", "L2", ""):
        table.add_column(heading)
    for node in [*shown, *found.outputs]:
        style = "red" if node.exceeds(figure) else None
        kind = node.note or ("output" if node in found.outputs else "")
        table.add_row(node.name, shape_text(node.shape), f"{node.largest:.1e}", f"{node.l2:.1e}", kind, style=style)
    console.print(table, highlight=False)
    if found.unseen:
        console.print(f"[dim]{len(found.unseen)} layers have no counterpart in the reference[/]")
    if first is None:
        console.print(f"[bold green]all {len(found.nodes)} layers agree[/] within {figure:g}", highlight=False)
    else:
        console.print(f"[bold red]the first layer that departs is[/] {first.name}", highlight=False)
