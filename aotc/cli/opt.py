"""``aotc opt``: runs passes on the text form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aotc.cli.common import InputShapes, JetPack, TargetName, console
from aotc.cli.dims import parse_inputs
from aotc.cli.source import load_source
from aotc.errors import InvalidOption

if TYPE_CHECKING:
    from aotc.ir.expr import Module
    from aotc.passes.pipeline import Pass

WHOLE = "pipeline"


def opt(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A text form (.aotc), or a model as `aotc build` takes it.")] = None,
    passes: Annotated[
        list[str] | None,
        typer.Option(
            "--pass", "-p", metavar="NAME", help=f"Passes in this order; repeat, or separate by commas; `{WHOLE}` is all of them."
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write here, large arrays to the .npz beside it; else print.")
    ] = None,
    target: TargetName = "host",
    jetpack: JetPack = None,
    inputs: InputShapes = None,
    verify: Annotated[bool, typer.Option(help="Verify the module after each pass.")] = True,
    list_passes: Annotated[bool, typer.Option("--list", help="List the passes in the order of the pipeline and exit.")] = False,
) -> None:
    """Run passes on a module's text form and print what comes out.

    Example: `aotc opt model.aotc -p fold_constants,fuse_operators`
    """
    from aotc.passes.pipeline import PIPELINE

    if list_passes:
        for run in PIPELINE:
            doc = " ".join((run.__doc__ or "").split("\n\n")[0].split())
            console.print(f"[bold]{run.__name__:20}[/] {doc}", highlight=False)
        return
    if model is None:
        raise InvalidOption("MODEL is missing; give a .aotc file or a model, or --list")
    _print(_run(_read(model, inputs), _chosen(passes or []), target, jetpack, verify), output)


def _read(model: str, inputs: list[str] | None) -> Module:
    if model.endswith(".aotc"):
        from aotc import ops
        from aotc.ir import text

        return text.read(model, ops.ALL)
    from aotc.frontends import import_model

    source = load_source(model)
    return import_model(source.model, parse_inputs(inputs), source.args, source.dynamic_shapes)


def _chosen(names: list[str]) -> list[Pass]:
    from aotc.passes.pipeline import PASSES, PIPELINE

    chosen: list[Pass] = []
    for name in (part.strip() for entry in names for part in entry.split(",")):
        if name == WHOLE:
            chosen += PIPELINE
        elif name in PASSES:
            chosen.append(PASSES[name])
        else:
            raise InvalidOption(f"there is no pass {name!r}; the passes are {', '.join(PASSES)}, and {WHOLE} for all of them in order")
    return chosen


def _run(module: Module, passes: list[Pass], target: str, jetpack: str | None, check: bool) -> Module:
    from aotc import targets
    from aotc.passes.options import options_for
    from aotc.passes.pipeline import run_passes

    return run_passes(module, passes, options_for(targets.get(target, jetpack), verify=check))


def _print(module: Module, output: str | None) -> None:
    if output is None:
        from aotc.ir.printer import module_text

        typer.echo(module_text(module)[0], nl=False)
        return
    from aotc.ir import text

    if not Path(output).absolute().parent.is_dir():
        raise InvalidOption(f"--output {output!r}: its folder does not exist")
    try:
        text.write(module, output)
    except OSError as error:
        raise InvalidOption(f"--output {output!r} cannot be written: {error.strerror}") from error
