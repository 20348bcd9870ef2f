"""Cycles of blocks of code by llvm-mca: an estimate from the processor's scheduling model, with all loads in the first cache.

LLVM's cortex-a78 name carries Cortex-A57's model; that of neoverse-n1 with 6 instructions dispatched in a cycle is the nearest to
Cortex-A78AE that there is. LLVM 19 or newer: before, its loads and multiply-adds cost twice as much.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aotc.errors import BuildError
from benchmarks.arm.blocks import Block

OLDEST, NEWEST = 19, 30
FMLAS_PER_CYCLE = 2
"""Neoverse N1 and Cortex-A78 have two vector pipes."""
_MCA = ("-mtriple=aarch64", "-mcpu=neoverse-n1", "-mattr=+dotprod,+fullfp16", "-dispatch=6", "-iterations=100", "-instruction-info=0")


@dataclass(frozen=True)
class Loop:
    """``cycles`` of one turn of a block."""

    block: Block
    cycles: float

    @property
    def share(self) -> float:
        """Of the bound by its multiply-adds alone: they would take fmlas / FMLAS_PER_CYCLE cycles."""
        return self.block.fmlas / FMLAS_PER_CYCLE / self.cycles


class Mca:
    """llvm-mc and llvm-mca of one LLVM."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder`` holds the two programs; by default the newest that is installed. Raises BuildError."""
        found = [folder] if folder else [Path(f"/usr/lib/llvm-{version}/bin") for version in range(NEWEST, OLDEST - 1, -1)]
        self.folder = next((path for path in found if (path / "llvm-mca").exists()), None)
        if self.folder is None and not folder and (program := shutil.which("llvm-mca")):
            self.folder = Path(program).parent
        if self.folder is None:
            raise BuildError(f"llvm-mca is missing: apt-get install llvm-{OLDEST}, or give the folder of another one that new with --llvm")
        self.version = self._version()

    def loops(self, blocks: Sequence[Block]) -> list[Loop]:
        """Each block repeated by itself. Raises BuildError."""
        lines = self._assembly(blocks)
        source: list[str] = []
        for number, block in enumerate(blocks):
            source += [f"# LLVM-MCA-BEGIN b{number}", *lines[: len(block.words)], "# LLVM-MCA-END"]
            lines = lines[len(block.words) :]
        report = self._run("llvm-mca", *_MCA, text="\n".join(source) + "\n")
        cycles = re.findall(r"^Total Cycles:\s+(\d+)", report, re.MULTILINE)
        if len(cycles) != len(blocks):
            raise BuildError(f"llvm-mca understood {len(cycles)} of {len(blocks)} blocks")
        return [Loop(block, int(count) / 100) for block, count in zip(blocks, cycles, strict=True)]

    def _assembly(self, blocks: Sequence[Block]) -> list[str]:
        codes = [" ".join(f"0x{byte:02x}" for byte in word.to_bytes(4, "little")) for block in blocks for word in block.words]
        text = self._run("llvm-mc", "--disassemble", "-triple=aarch64", "-mattr=+v8.2a,+dotprod,+fullfp16", text="\n".join(codes))
        lines = [line for line in text.splitlines() if line.startswith("\t") and not line.startswith("\t.")]
        if len(lines) != len(codes):
            raise BuildError(f"llvm-mc disassembled {len(lines)} of {len(codes)} instructions")
        return lines

    def _version(self) -> str:
        text = self._run("llvm-mca", "--version", text="")
        found = re.search(r"LLVM version (\d+)(\S*)", text)
        if not found or int(found[1]) < OLDEST:
            raise BuildError(f"{self.folder}/llvm-mca is of LLVM {found[1] if found else 'an unknown version'}; expected {OLDEST} or newer")
        return found[1] + found[2]

    def _run(self, program: str, *options: str, text: str) -> str:
        assert self.folder is not None
        done = subprocess.run([str(self.folder / program), *options], input=text, check=False, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"{program} failed: {done.stderr.strip()[:300]}")
        return done.stdout
