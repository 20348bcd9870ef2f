"""The fixed-size header (section .aotc.header) by which loaders judge a file before any of its code runs.

512 bytes, little-endian; aotc_loader.c and aotc_runtime.py read the same layout. The checksum is the CRC-32 (zlib's) of the whole
file except the content of .aotc.weights, with the checksum itself taken as zero: it finds accidents, and it is fast enough for each
opening. The weights' SHA-256 stands in the manifest, for ``aotc check``.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from aotc.errors import BuildError

MAGIC = b"AOTCFILE"
HEADER_VERSION = 1
SECTION = ".aotc.header"
PLAN_SECTION, MANIFEST_SECTION, WEIGHTS_SECTION = ".aotc.plan", ".aotc.manifest", ".aotc.weights"
CHECKSUM_OFFSET = 24

_LAYOUT = struct.Struct("<8s6I4Q2I2HI48s384s")
SIZE = _LAYOUT.size  # 512


@dataclass(frozen=True)
class Header:
    """Sizes are in bytes; ``machine`` is ELF's e_machine; ``features`` are CPU features in LLVM's names that the code uses."""

    abi_version: int
    machine: int
    target: str
    features: tuple[str, ...]
    glibc: tuple[int, int]
    plan_size: int
    manifest_size: int
    weights_size: int
    file_size: int = 0
    kernel_text: int = 0
    runtime_text: int = 0
    checksum: int = 0

    def pack(self) -> bytes:
        """The header's bytes. Raises BuildError if a text is too long for its field."""
        target, features = self.target.encode(), ",".join(self.features).encode()
        if len(target) > 47 or len(features) > 383:
            raise BuildError(f"the target's name ({target!r}) may have 47 bytes and its features ({features!r}) 383: shorten them")
        return _LAYOUT.pack(
            MAGIC, HEADER_VERSION, SIZE, self.abi_version, self.machine, self.checksum, 0,
            self.file_size, self.plan_size, self.manifest_size, self.weights_size,
            self.kernel_text, self.runtime_text, *self.glibc, 0, target, features,
        )  # fmt: skip


def seal(path: Path, header: Header, header_offset: int, weights: tuple[int, int]) -> Header:
    """Write the final ``header`` at ``header_offset`` of a linked file, with its size and checksum. ``weights``: offset and
    size of the weights' content in the file."""
    with path.open("r+b") as file:
        header = replace(header, file_size=file.seek(0, 2), checksum=0)
        file.seek(header_offset)
        file.write(header.pack())
        file.flush()
        header = replace(header, checksum=checksum(file.fileno(), header_offset, weights))
        file.seek(header_offset)
        file.write(header.pack())
    return header


def checksum(descriptor: int, header_offset: int, weights: tuple[int, int]) -> int:
    """The checksum of an open file as its header should have it."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
        field = header_offset + CHECKSUM_OFFSET
        skipped = sorted([(field, 4, bytes(4)), (weights[0], weights[1], b"")])
        crc, position = 0, 0
        for offset, size, instead in skipped:
            crc = zlib.crc32(view[position:offset], crc)
            crc = zlib.crc32(instead, crc)
            position = offset + size
        return zlib.crc32(view[position:], crc)
