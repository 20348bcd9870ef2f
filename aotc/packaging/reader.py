"""Reads a built file back without loading it, for any target: what ``aotc inspect`` and ``aotc check`` show."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aotc.errors import RuntimeFailure
from aotc.lowering.plan import ExecutionPlan
from aotc.packaging.elf_check import ElfReport, inspect_elf
from aotc.packaging.link import CUBINS_SECTION
from aotc.packaging.manifest import Manifest, parse_manifest
from aotc.packaging.weights_file import HEADER_BYTES, weights_header, weights_path
from aotc.runtime.loader import FileInfo, read_file


@dataclass(frozen=True)
class Sizes:
    """Bytes by kind; they add up to ``file``, but for ``weights_beside``, the file of weights beside it. ``runtime``: the
    runtime's own machine code; ``cubins``: code for GPUs; ``other``: ELF tables, constants."""

    kernels: int
    runtime: int
    weights: int
    plan: int
    manifest: int
    other: int
    file: int
    weights_beside: int = 0
    cubins: int = 0


@dataclass(frozen=True)
class PackagedModel:
    """A built file. ``plan``: the bytes that ``planfile`` decodes; ``elf``: what the dynamic loader needs and sees."""

    path: Path
    info: FileInfo
    manifest: Manifest
    plan: bytes
    elf: ElfReport
    sizes: Sizes

    def cubins(self, plan: ExecutionPlan) -> list[bytes]:
        """The code for GPUs, in the order of the plan's cubins."""
        offset, _ = self.elf.sections[CUBINS_SECTION]
        with self.path.open("rb") as file:
            return [_piece(file, offset + cubin.offset, cubin.size) for cubin in plan.cubins]

    def weights_digest(self) -> str:
        """SHA-256 of the weights, in the file or beside it, read in pieces. Raises RuntimeFailure where a file beside it is missing,
        of another build, or cut short."""
        if not self.manifest.external_weights:
            return _digest(self.path, *self.info.weights)
        size, beside = self.manifest.weights_size, weights_path(self.path)
        try:
            with beside.open("rb") as file:
                header, found = file.read(HEADER_BYTES), file.seek(0, 2)
        except OSError as error:
            raise RuntimeFailure(
                f"{beside}, which holds the weights, cannot be read: {error.strerror}; copy it beside the model"
            ) from error
        if found != HEADER_BYTES + size:
            raise RuntimeFailure(f"{beside} has {found} bytes, expected {HEADER_BYTES + size}; copy or build both files again")
        if header != weights_header(size, self.manifest.weights_sha256):
            raise RuntimeFailure(f"{beside} belongs to another build of {self.path.name}; copy or build both files again")
        return _digest(beside, HEADER_BYTES, size)

    def verify(self) -> None:
        """Compare plan and weights with the manifest's digests. Raises RuntimeFailure if one differs."""
        found = {"plan": hashlib.sha256(self.plan).hexdigest(), "weights": self.weights_digest()}
        expected = {"plan": self.manifest.plan_sha256, "weights": self.manifest.weights_sha256}
        if wrong := [name for name in found if found[name] != expected[name]]:
            raise RuntimeFailure(f"{self.path}: the {' and the '.join(wrong)} changed since the file was built; copy or build it again")


def _piece(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _digest(path: Path, offset: int, left: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(offset)
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


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
    manifest = parse_manifest(info.manifest)
    inside, beside = (0, HEADER_BYTES + manifest.weights_size) if manifest.external_weights else (info.weights[1], 0)
    cubins = elf.sections[CUBINS_SECTION][1] if manifest.sm else 0
    other = info.file_size - (info.kernel_text + info.runtime_text + inside + size + manifest_size + cubins)
    sizes = Sizes(info.kernel_text, info.runtime_text, inside, size, manifest_size, other, info.file_size, beside, cubins)
    return PackagedModel(path, info, manifest, plan, elf, sizes)
