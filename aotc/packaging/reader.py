"""Reads a built file back without loading it, for any target: what ``aotc inspect`` and ``aotc check`` show."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from aotc.errors import RuntimeFailure
from aotc.packaging.elf_check import ElfReport, inspect_elf
from aotc.packaging.manifest import Manifest, parse_manifest
from aotc.runtime.loader import FileInfo, read_file


@dataclass(frozen=True)
class Sizes:
    """Bytes by kind; they add up to ``file``. ``runtime``: the runtime's own machine code; ``other``: ELF tables, constants."""

    kernels: int
    runtime: int
    weights: int
    plan: int
    manifest: int
    other: int
    file: int


@dataclass(frozen=True)
class PackagedModel:
    """A built file. ``plan``: the bytes that ``planfile`` decodes; ``elf``: what the dynamic loader needs and sees."""

    path: Path
    info: FileInfo
    manifest: Manifest
    plan: bytes
    elf: ElfReport
    sizes: Sizes

    def weights_digest(self) -> str:
        """SHA-256 of the weights in the file, read in pieces."""
        digest = hashlib.sha256()
        offset, left = self.info.weights
        with self.path.open("rb") as file:
            file.seek(offset)
            while left > 0 and (piece := file.read(min(left, 1 << 20))):
                digest.update(piece)
                left -= len(piece)
        return digest.hexdigest()

    def verify(self) -> None:
        """Compare plan and weights with the manifest's digests. Raises RuntimeFailure if one differs."""
        found = {"plan": hashlib.sha256(self.plan).hexdigest(), "weights": self.weights_digest()}
        expected = {"plan": self.manifest.plan_sha256, "weights": self.manifest.weights_sha256}
        if wrong := [name for name in found if found[name] != expected[name]]:
            raise RuntimeFailure(f"{self.path}: the {' and the '.join(wrong)} changed since the file was built; copy or build it again")


def read_packaged(path: str | Path) -> PackagedModel:
    """Read a file built for any target. Raises RuntimeFailure if it is truncated, damaged, foreign or no ELF file."""
    path = Path(path)
    info = read_file(path)
    offset, size = info.plan
    with path.open("rb") as file:
        file.seek(offset)
        plan = file.read(size)
    elf = inspect_elf(path)
    manifest_size = elf.sections[".aotc.manifest"][1]
    known = info.kernel_text + info.runtime_text + info.weights[1] + size + manifest_size
    sizes = Sizes(info.kernel_text, info.runtime_text, info.weights[1], size, manifest_size, info.file_size - known, info.file_size)
    return PackagedModel(path, info, parse_manifest(info.manifest), plan, elf, sizes)
