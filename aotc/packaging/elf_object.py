"""Writes an ELF relocatable object that holds read-only data, so that weights reach the linker without passing through an
assembler (which would read them whole) and without a compiler's cache (which does not look inside an ``.incbin``).

Each blob becomes a section of its own and a symbol at its start; a ``<symbol>_size`` symbol, if asked for, is a uint64_t that holds
its length. All symbols are hidden: visible to the objects linked with it, not outside the .so.
"""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine: EM_X86_64, EM_AARCH64

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB = 1, 2, 3
_SHF_ALLOC, _SHF_GNU_RETAIN = 0x2, 0x200000
_GLOBAL_OBJECT, _HIDDEN = 0x11, 2


@dataclass(frozen=True)
class Blob:
    """``content``: the bytes, or a file that is streamed without its first ``skip`` bytes. ``align`` in bytes, a power of two."""

    section: str
    symbol: str
    content: bytes | Path
    align: int = 64
    skip: int = 0


def write_object(path: Path, architecture: str, blobs: list[Blob]) -> None:
    """Write the object file ``path``. ``architecture`` is a key of ``MACHINES``. Raises OSError."""
    names, strings = _StringTable(), _StringTable()
    headers = [bytes(_SHDR.size)]
    symbols = [bytes(_SYM.size)]
    with path.open("wb") as file:
        file.write(bytes(_EHDR.size))
        for index, blob in enumerate(blobs, start=1):
            offset = _pad(file, blob.align)
            _copy(blob, file)
            size = file.tell() - offset
            flags = _SHF_ALLOC | _SHF_GNU_RETAIN  # retained: --gc-sections keeps what only the reader needs
            headers.append(_SHDR.pack(names.add(blob.section), _SHT_PROGBITS, flags, 0, offset, size, 0, 0, blob.align, 0))
            symbols.append(_SYM.pack(strings.add(blob.symbol), _GLOBAL_OBJECT, _HIDDEN, index, 0, size))
        sections = len(blobs) + 4
        offset = _pad(file, 8)
        file.write(b"".join(symbols))
        headers.append(_SHDR.pack(names.add(".symtab"), _SHT_SYMTAB, 0, 0, offset, len(symbols) * _SYM.size, sections - 2, 1, 8, _SYM.size))
        names_entry = (names.add(".strtab"), names.add(".shstrtab"))
        for name, table in zip(names_entry, (strings, names)):
            offset = file.tell()
            file.write(table.data)
            headers.append(_SHDR.pack(name, _SHT_STRTAB, 0, 0, offset, len(table.data), 0, 0, 1, 0))
        table_offset = _pad(file, 8)
        file.write(b"".join(headers))
        file.seek(0)
        identity = b"\x7fELF" + bytes([2, 1, 1, 3]) + bytes(8)  # 3: GNU, whose linker honours "retain" only then
        file.write(
            _EHDR.pack(identity, 1, MACHINES[architecture], 1, 0, 0, table_offset, 0, _EHDR.size, 0, 0, _SHDR.size, sections, sections - 1)
        )


class _StringTable:
    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def _pad(file: BinaryIO, align: int) -> int:
    position = file.tell()
    file.write(bytes(-position % align))
    return position + -position % align


def _copy(blob: Blob, file: BinaryIO) -> None:
    if isinstance(blob.content, bytes):
        file.write(blob.content)
        return
    with blob.content.open("rb") as source:
        source.seek(blob.skip)
        shutil.copyfileobj(source, file, 1 << 20)
