"""``aotc check``: whether a built file is whole and loads on a target, or on a board."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aotc.cli.common import AsJson, BuiltFile, JetPack, console, print_json, version_text
from aotc.errors import BuildError, InvalidOption, RuntimeFailure, Unproven

if TYPE_CHECKING:
    from aotc.lowering.plan import ExecutionPlan
    from aotc.packaging.reader import PackagedModel
    from aotc.targets import Target


def check(
    file: BuiltFile,
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="NAME", help="Check for this target; the one it was built for by default.")
    ] = None,
    board: Annotated[
        str | None, typer.Option(metavar="NAME", help="Check for this board: `orin-nano`, `agx-xavier`; a wrong name lists them all.")
    ] = None,
    jetpack: JetPack = None,
    as_json: AsJson = False,
) -> None:
    """Check that a file is whole (all hashes) and will load on its target: processor, C library, needed libraries, exports.

    With `--board` also whether it will run there: GPU, driver, memory. Exit code 6 where it will not, 9 where nothing on this computer can
    tell.

    Example: `aotc check model.so --board orin-nano --jetpack 6.2`
    """
    from aotc.packaging.reader import read_packaged

    if target is not None and board is not None:
        raise InvalidOption("--board says which target it is: leave out --target")
    model = read_packaged(file)
    model.verify()
    if board is not None:
        _check_board(model, board, jetpack, as_json)
    else:
        _check_target(model, target, jetpack, as_json)


def _check_board(model: PackagedModel, name: str, jetpack: str | None, as_json: bool) -> None:
    from aotc.packaging.board_check import findings
    from aotc.targets.boards import board as board_named

    board = board_named(name)
    found = findings(model, board, jetpack)
    if as_json:
        print_json({"file": str(model.path), "board": board.name, "findings": [dataclasses.asdict(finding) for finding in found]})
    else:
        for finding in found:
            mark = {True: "[bold green]yes[/]    ", False: "[bold red]no[/]     ", None: "[bold yellow]unknown[/]"}[finding.right]
            console.print(f"{mark} [bold]{finding.what}[/]: {finding.text}", highlight=False)
    if wrong := [finding.text for finding in found if finding.right is False]:
        raise RuntimeFailure(f"{model.path} will not run on {board.title}: {'; '.join(wrong)}")
    if unknown := [finding.text for finding in found if finding.right is None]:
        raise Unproven(f"whether {model.path} runs on {board.title} is unproven: {'; '.join(unknown)}")


def _check_target(model: PackagedModel, target: str | None, jetpack: str | None, as_json: bool) -> None:
    built_for = model.manifest.target
    name = target or built_for.name
    glibc = built_for.glibc
    missing: list[str] = []
    from aotc import targets
    from aotc.packaging.board_check import shares
    from aotc.packaging.planfile import read_plan

    board = targets.get(name, jetpack) if target is not None or jetpack is not None else None
    if board is not None:
        glibc = board.glibc
        if board.triple != built_for.triple:
            raise RuntimeFailure(f"{model.path} is built for {built_for.triple}, {name} is {board.triple}; build it with --target {name}")
        missing = sorted(set(built_for.features) - set(board.features))
    faults = [f"it may use instructions that {name} lacks: {', '.join(missing)}"] if missing else []
    plan = read_plan(model.plan)
    faults += _gpu_faults(plan, targets.get(name)) + _elf_faults(model, board, glibc)
    facts: dict[str, Any] = {
        "file": str(model.path),
        "target": name,
        "glibc_of_target": version_text(glibc),
        "glibc_needed": version_text(model.elf.newest_glibc),
        "needed": list(model.elf.needed),
        "steps": shares(plan) if plan.cubins else "",
        "faults": faults,
    }
    if as_json:
        print_json(facts)
    elif not faults:
        on_gpu = f"; {facts['steps']}" if facts["steps"] else ""
        console.print(
            f"[bold green]fine:[/] {model.path} is whole and loads on {name} (glibc {facts['glibc_needed']} of {facts['glibc_of_target']})"
            f"{on_gpu}",
            highlight=False,
        )
    if faults:
        raise RuntimeFailure(f"{model.path} does not load on {name}: {'; '.join(faults)}")


def _gpu_faults(plan: ExecutionPlan, target: Target) -> list[str]:
    from aotc.packaging.board_check import gpu_code

    if not plan.cubins or target.gpu is None:
        return []
    has, wanted = target.gpu.sm, ",".join(map(str, target.gpu.sm))
    if any(cubin.sm in has or (cubin.ptx and cubin.sm < min(has)) for cubin in plan.cubins):
        return []
    return [f"it holds {gpu_code(plan)}, and {target.name} needs sm_{wanted}: build it with --sm {wanted}"]


def _elf_faults(model: PackagedModel, board: Target | None, glibc: tuple[int, int]) -> list[str]:
    """``board``: what was asked for, if it is not simply what the file was built for."""
    from aotc.packaging.elf_check import check_output

    try:
        check_output(model.path, glibc)
    except BuildError as error:
        if board is None or model.elf.newest_glibc <= glibc:
            return [str(error)]
        return [f"{error}: build it with --target {board.name}" + (f" --jetpack {board.jetpack}" if board.jetpack else "")]
    return []
