"""The object that carries data, read by an ELF reader of others."""

from __future__ import annotations

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from aotc.packaging.elf_object import Blob, write_object


@pytest.mark.parametrize("architecture,machine", [("x86_64", "EM_X86_64"), ("aarch64", "EM_AARCH64")])
def test_sections_and_symbols(tmp_path: Path, architecture: str, machine: str) -> None:
    (tmp_path / "weights").write_bytes(bytes(range(256)) * 5000)
    blobs = [Blob(".a", "first", b"abc", 64), Blob(".empty", "none", b"", 8), Blob(".w", "weights", tmp_path / "weights", 65536)]
    write_object(tmp_path / "blobs.o", architecture, blobs)
    with (tmp_path / "blobs.o").open("rb") as file:
        elf = ELFFile(file)
        assert (elf["e_machine"], elf["e_type"]) == (machine, "ET_REL")
        table = elf.get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        symbols = {symbol.name: symbol for symbol in table.iter_symbols() if symbol.name}
        for blob, content in zip(blobs, (b"abc", b"", bytes(range(256)) * 5000), strict=True):
            section = elf.get_section(symbols[blob.symbol]["st_shndx"])
            assert section.name == blob.section
            assert section.data() == content
            assert section["sh_addralign"] == blob.align and section["sh_offset"] % blob.align == 0
            assert not section["sh_flags"] & 0x5  # neither writable nor executable
            assert symbols[blob.symbol]["st_other"]["visibility"] == "STV_HIDDEN"
