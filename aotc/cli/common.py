"""What the subcommands share: consoles, options that several take, errors as messages, small formatters."""

from __future__ import annotations

import functools
import json
import logging
import math
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from aotc.errors import AotcError, InvalidOption

# Where output goes to a file or pipe there is no width to fit into, and names must not be cut.
console = Console(width=None if sys.stdout.isatty() else 160)
error_console = Console(stderr=True)

BuiltFile = Annotated[str, typer.Argument(metavar="FILE", help="A file that `aotc build` wrote.")]
SourceModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An ONNX file, a saved torch.export program (.pt2), or `module:function`, a Python function that returns an "
        "ExportedProgram or a tuple (module, example inputs[, dynamic shapes]).",
    ),
]
SourceModels = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="An ONNX file, a saved torch.export program (.pt2), or `module:function`, a Python function that returns an "
        "ExportedProgram or a tuple (module, example inputs[, dynamic shapes]). Several as `name=MODEL` become entry points.",
    ),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="NAME:DIMS",
        help="Fix or name the dims of an input: `image:1x3x224x224`, `image:bx3x224x224` with any `b`, or `image:b=1..32x3x224x224`. Repeat for more.",
    ),
]
TargetName = Annotated[str, typer.Option("--target", "-t", metavar="NAME", help="What to build for; `aotc targets` lists them.")]
JetPack = Annotated[
    str | None, typer.Option("--jetpack", metavar="VERSION", help="JetPack of the board, where it is not the target's default.")
]
Operators = Annotated[
    list[str] | None,
    typer.Option("--operators", metavar="FILE", help="A Python file with `aotc.CustomOperator` objects. Repeat for more."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from aotc.version import __version__

        console.print(__version__, highlight=False)
        raise typer.Exit


def set_up(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell more of what happens, on standard error.")] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")


def reporting_errors(function: Callable[..., None]) -> Callable[..., None]:
    """``function`` whose AotcErrors become a message on standard error and an exit code."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except AotcError as error:
            error_console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            raise typer.Exit(error.exit_code) from error

    return wrapped


def print_json(value: Any) -> None:
    """As JSON, which has no number for NaN and infinity: they become the strings ``nan``, ``inf`` and ``-inf``."""
    typer.echo(json.dumps(_finite(value), indent=2, sort_keys=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def one_per_name(entries: Sequence[str], separator: str, option: str) -> dict[str, str]:
    """``["a=1", "b=2"]`` as a dict. Raises InvalidOption for an entry without separator and for a name given twice.

    The name ends at the last separator, since tensor names may contain colons; a value never does.
    """
    found: dict[str, str] = {}
    for entry in entries:
        name, mark, value = entry.rpartition(separator) if separator == ":" else entry.partition(separator)
        if not mark or not name:
            raise InvalidOption(f"{option} {entry!r} is not of the form NAME{separator}VALUE")
        if name in found:
            raise InvalidOption(f"{option} names {name!r} twice")
        found[name] = value
    return found


def load_operators_of(paths: Sequence[str] | None) -> list[Any]:
    """The custom operators in the files of ``--operators``. Raises InvalidOption."""
    from aotc.ops.custom import load_operators

    return [operator for path in paths or () for operator in load_operators(path)]


def bytes_text(size: int | None) -> str:
    """``1536`` as ``1.5 KiB``; ``depends on the shapes`` for None."""
    if size is None:
        return "depends on the shapes"
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def version_text(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def shape_text(shape: Sequence[int | str]) -> str:
    return "x".join(str(dim) for dim in shape) if shape else "scalar"
