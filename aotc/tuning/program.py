"""The program that measures: one C program for the board, compiled by the ziglang wheel for whatever the target is."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from aotc.cache_dir import cache_dir
from aotc.errors import BuildError
from aotc.packaging.link import CSRC
from aotc.packaging.toolchain import ZigToolchain
from aotc.targets import Target

SOURCES = (CSRC / "board" / "aotc_board.c", CSRC / "board" / "timing.c", CSRC / "aotc_loader.c")
HEADERS = (CSRC / "board" / "protocol.h", CSRC / "board" / "timing.h", CSRC / "aotc.h")


def board_program(target: Target) -> Path:
    """The program aotc_board for a target's architecture and C library; compiled once. Raises BuildError."""
    tools = ZigToolchain(target.triple, min(target.glibc, (2, 27)))
    digest = hashlib.sha256(tools.identity.encode())
    for path in (*SOURCES, *HEADERS):
        digest.update(path.read_bytes())
    program = cache_dir("board") / f"aotc_board-{digest.hexdigest()[:16]}"
    if not program.exists():
        with tempfile.TemporaryDirectory(dir=program.parent) as work:
            made = Path(work) / "aotc_board"
            options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-s", f"-I{CSRC}"]
            if target.architecture == "aarch64":
                options.append("-mno-outline-atomics")
            tools.build_program(SOURCES, made, options)
            os.replace(made, program)
    return program


def write_program(target: Target, output: Path) -> None:
    """A copy of the program that may be carried to the board. Raises BuildError."""
    program = board_program(target)
    beside = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        shutil.copyfile(program, beside)
        beside.chmod(0o755)
        os.replace(beside, output)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise BuildError(f"{output} cannot be written: {error.strerror}; choose another --output") from error
