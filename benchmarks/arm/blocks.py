"""Which code of a built file runs most often under qemu-user: blocks of instructions, with how often one inference executes each."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aotc.cross import qemu
from aotc.errors import BuildError
from aotc.packaging.toolchain import ZigToolchain

PAGE = 4096


@dataclass(frozen=True)
class Block:
    """Instructions in a row that ran ``executions`` times."""

    executions: int
    address: int
    words: tuple[int, ...]

    @property
    def instructions(self) -> int:
        return self.executions * len(self.words)

    @property
    def fmlas(self) -> int:
        return sum(map(is_fmla, self.words))


def is_fmla(word: int) -> bool:
    """FMLA and FMLS of four floats: three registers of one kind, or by element (Arm Architecture Reference Manual, C7.2)."""
    same = word & 0xFF60FC00 == 0x4E20CC00
    by_element = word & 0xFFC0B400 == 0x4F801000
    return same or by_element


def merged(blocks: Sequence[Block]) -> list[Block]:
    """Equal code at several places, as layers of one shape may have, as one block; the most executed instructions first."""
    executions = Counter[tuple[int, ...]]()
    places: dict[tuple[int, ...], int] = {}
    for block in blocks:
        executions[block.words] += block.executions
        places.setdefault(block.words, block.address)
    found = [Block(count, places[words], words) for words, count in executions.items()]
    return sorted(found, key=lambda block: -block.instructions)


def profile(file: Path, cpu: str, inputs: Mapping[str, np.ndarray], outputs: Path) -> list[Block]:
    """The blocks of one warm inference: what a process of two runs executes beyond one of a single run. ``outputs`` is a folder for the
    results as .npy files. Raises BuildError."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(file), "--output-dir", str(outputs)]
        for name, array in inputs.items():
            path = Path(folder) / f"{len(words)}.npy"
            np.save(path, array)
            words += ["--input", f"{name}={path}"]
        once, twice = (_run([*words, "--runs", str(runs)], cpu, Path(folder) / "blocks.txt") for runs in (1, 2))
    seen = Counter[tuple[int, tuple[int, ...]]]()
    for block in once:
        seen[_key(block)] += block.executions
    found = []
    for block in twice:
        # Of equal blocks at equal places of several pages the first ones give what the single run had.
        before = min(seen[_key(block)], block.executions)
        seen[_key(block)] -= before
        if block.executions > before:
            found.append(Block(block.executions - before, block.address, block.words))
    return _joined(found)


def _key(block: Block) -> tuple[int, tuple[int, ...]]:
    """Which block it is in every process: where libraries lie varies by whole pages."""
    return block.address % PAGE, block.words


def _joined(blocks: Sequence[Block]) -> list[Block]:
    """Blocks that qemu cut at the end of a page are one again. Where the second part was reached in other ways too, those runs of it stay
    a block of their own."""
    at = {block.address: block for block in blocks}
    for address in sorted(at, reverse=True):
        block = at[address]
        end = address + 4 * len(block.words)
        rest = at.get(end)
        if end % PAGE == 0 and rest and rest.executions >= block.executions and not _branches(block.words[-1]):
            at[address] = Block(block.executions, address, block.words + rest.words)
            at[end] = Block(rest.executions - block.executions, end, rest.words)
    return [block for block in at.values() if block.executions]


def _branches(word: int) -> bool:
    """Branches and system instructions."""
    return word >> 26 & 0b111 == 0b101


def _run(arguments: Sequence[str], cpu: str, log: Path) -> list[Block]:
    program, *words = qemu.command(arguments, cpu)
    done = subprocess.run(
        [program, "-plugin", str(plugin()), "-d", "plugin", "-D", str(log), *words], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise BuildError(f"the emulated run of {arguments[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    found = []
    for line in log.read_text().splitlines():
        executions, address, *codes = line.split()
        found.append(Block(int(executions), int(address, 16), tuple(int(code, 16) for code in codes)))
    return found


@functools.cache
def plugin() -> Path:
    """blocks.c as qemu's plugin, compiled for this machine. Raises BuildError."""
    library = Path(tempfile.mkdtemp()) / "blocks.so"
    flags = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-shared", "-fPIC", "-s", "-Wl,-z,undefs"]
    ZigToolchain("x86_64-linux-gnu", (2, 27)).build_program([Path(__file__).with_name("blocks.c")], library, flags)
    return library
