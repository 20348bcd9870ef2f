"""Instructions in a cubin: the low twelve bits of each 16-byte instruction say what it does (seen with nvdisasm)."""

from __future__ import annotations

import io
from collections import Counter

from elftools.elf.elffile import ELFFile

NAMES = {0x236: "HMMA", 0x23C: "HMMA", 0x237: "IMMA", 0xFAE: "LDGSTS"}
"""Products on tensor cores, of floats (Volta's, later GPUs') and of bytes, and asynchronous copies from global to shared memory."""


def code(cubin: bytes) -> bytes:
    """The instructions and constants of a cubin, without the names in it."""
    sections = ELFFile(io.BytesIO(cubin)).iter_sections()
    return b"".join(section.data() for section in sections if section.name.startswith((".text.", ".nv.constant")))


def instructions(cubin: bytes) -> Counter[str]:
    """How many of each named kind a cubin has."""
    found: Counter[str] = Counter()
    for section in ELFFile(io.BytesIO(cubin)).iter_sections():
        if section.name.startswith(".text."):
            code = section.data()
            opcodes = [int.from_bytes(code[at : at + 8], "little") & 0xFFF for at in range(0, len(code), 16)]
            found.update(NAMES[opcode] for opcode in opcodes if opcode in NAMES)
    return found
