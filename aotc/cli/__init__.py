"""The command line. One file a subcommand; ``COMMANDS`` lists them in the order in which ``aotc --help`` shows them."""

from __future__ import annotations

from collections.abc import Callable

import typer

from aotc.cli import bench, build, check, compare, inspect, opt, profile, quantize, run, targets, tune
from aotc.cli.common import reporting_errors, set_up

COMMANDS: dict[str, Callable[..., None]] = {
    "build": build.build,
    "quantize": quantize.quantize,
    "run": run.run,
    "bench": bench.bench,
    "profile": profile.profile,
    "tune": tune.tune,
    "board": tune.board,
    "inspect": inspect.inspect,
    "check": check.check,
    "compare": compare.compare,
    "targets": targets.targets,
    "opt": opt.opt,
}

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(help="Compile PyTorch and ONNX networks into one shared library for x86-64 and for NVIDIA Jetson boards.")(set_up)
for name, function in COMMANDS.items():
    app.command(name)(reporting_errors(function))


def main() -> None:
    """Entry point of the ``aotc`` script. Exit codes: 0 success, 2 wrong usage, else that of the error (aotc.errors)."""
    app()
