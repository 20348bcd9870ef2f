"""``aotc check``: whether a built file is whole and loads on a target."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aotc.cli.common import AsJson, BuiltFile, JetPack, console, print_json, version_text
from aotc.errors import BuildError, RuntimeFailure


def check(
    file: BuiltFile,
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="NAME", help="Check for this target; the one it was built for by default.")
    ] = None,
    jetpack: JetPack = None,
    as_json: AsJson = False,
) -> None:
    """Check that a file is whole (all hashes) and will load on its target: processor, C library, needed libraries, exports.

    Example: `aotc check model.so --target jetson-xavier --jetpack 5.1`
    """
    from aotc.packaging.reader import read_packaged

    model = read_packaged(file)
    model.verify()
    built_for = model.manifest.target
    name = target or built_for.name
    glibc = built_for.glibc
    missing: list[str] = []
    if target is not None or jetpack is not None:
        from aotc import targets

        board = targets.get(name, jetpack)
        glibc = board.glibc
        if board.triple != built_for.triple:
            raise RuntimeFailure(f"{file} is built for {built_for.triple}, {name} is {board.triple}; build it with --target {name}")
        missing = sorted(set(built_for.features) - set(board.features))
    faults = [f"it may use instructions that {name} lacks: {', '.join(missing)}"] if missing else []
    faults += _elf_faults(model, glibc)
    facts: dict[str, Any] = {
        "file": file,
        "target": name,
        "glibc_of_target": version_text(glibc),
        "glibc_needed": version_text(model.elf.newest_glibc),
        "needed": list(model.elf.needed),
        "faults": faults,
    }
    if as_json:
        print_json(facts)
    elif not faults:
        console.print(
            f"[bold green]fine:[/] {file} is whole and loads on {name} (glibc {facts['glibc_needed']} of {facts['glibc_of_target']})",
            highlight=False,
        )
    if faults:
        raise RuntimeFailure(f"{file} does not load on {name}: {'; '.join(faults)}")


def _elf_faults(model: Any, glibc: tuple[int, int]) -> list[str]:
    from aotc.packaging.elf_check import check_output

    try:
        check_output(model.path, glibc)
    except BuildError as error:
        return [str(error)]
    return []
