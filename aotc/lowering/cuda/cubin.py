"""What a cubin says of itself: the GPU it is for, and what each kernel takes of it. Read from the ELF file, without any tool of CUDA's."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from elftools.elf.elffile import ELFFile

from aotc.errors import InvalidModel

_REGISTERS, _FRAME = 0x2F, 0x11
"""Attributes of ``.nv.info`` (named EIATTR_REGCOUNT and EIATTR_FRAME_SIZE by cuobjdump): a symbol's number and a value."""

WARP = 32
_REGISTER_UNIT = 256
"""Registers are handed out to warps in units of so many (CUDA's occupancy calculator)."""


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What one multiprocessor has for the blocks that it runs side by side (CUDA C++ Programming Guide, compute capabilities)."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int


MULTIPROCESSORS = {
    53: Multiprocessor(64, 32, 65536, 64 << 10),
    62: Multiprocessor(128, 32, 65536, 64 << 10),
    72: Multiprocessor(64, 32, 65536, 96 << 10),
    87: Multiprocessor(48, 16, 65536, 164 << 10),
    90: Multiprocessor(64, 32, 65536, 228 << 10),
    110: Multiprocessor(48, 24, 65536, 228 << 10),
}


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """What a kernel takes: registers of a thread, bytes of local memory of a thread (spilled registers and arrays that are indexed at
    run time), bytes of shared memory whose size is in the code."""

    symbol: str
    registers: int
    local_bytes: int
    shared_bytes: int

    def occupancy(self, sm: int, threads: int, dynamic_shared: int = 0) -> float | None:
        """Which share of a multiprocessor's warps blocks of ``threads`` threads keep busy at most; ``None`` for an unknown ``sm``."""
        machine = MULTIPROCESSORS.get(sm)
        if machine is None:
            return None
        warps = -(-threads // WARP)
        registers = -(-self.registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT * warps
        blocks = min(machine.blocks, machine.warps // warps, machine.registers // max(registers, 1))
        if shared := self.shared_bytes + dynamic_shared:
            blocks = min(blocks, machine.shared_bytes // shared)
        return blocks * warps / machine.warps


def architecture(cubin: bytes) -> int:
    """The compute capability that a cubin is for: 87 for sm_87. Raises InvalidModel for anything else than a cubin."""
    if cubin[:4] != b"\x7fELF" or len(cubin) < 64 or int.from_bytes(cubin[18:20], "little") != 190:
        raise InvalidModel("this is no cubin: expected an ELF file for CUDA")
    flags = int.from_bytes(cubin[48:52], "little")
    return flags >> (8 if cubin[8] >= 8 else 0) & 0xFF  # CUDA 13 moved it, with a new ABI version


def toolkit(cubin: bytes) -> tuple[int, int]:
    """The CUDA release whose compiler made a cubin."""
    architecture(cubin)
    version = int.from_bytes(cubin[20:24], "little")
    if version >= 100:  # until CUDA 12 where other ELF files have their version: 126 for 12.6
        return version // 10, version % 10
    note = ELFFile(io.BytesIO(cubin)).get_section_by_name(".note.nv.tkinfo")
    told = re.search(rb"release (\d+)\.(\d+)", note.data() if note is not None else b"")
    if told is None:
        raise InvalidModel("this cubin does not say which release of CUDA made it")
    return int(told[1]), int(told[2])


def ptx_isa(text: bytes) -> tuple[int, int]:
    """The version of PTX. Raises InvalidModel for anything else."""
    told = re.search(rb"^\.version (\d+)\.(\d+)", text, re.MULTILINE)
    if told is None:
        raise InvalidModel("this is no PTX: expected a line .version")
    return int(told[1]), int(told[2])


def figures(cubin: bytes) -> list[KernelFigures]:
    """The kernels of a cubin, in the order of its symbols."""
    architecture(cubin)
    file = ELFFile(io.BytesIO(cubin))
    symbols = [symbol.name for symbol in file.get_section_by_name(".symtab").iter_symbols()]
    registers: dict[int, int] = {}
    frames: dict[int, int] = {}
    for attribute, payload in _attributes(file.get_section_by_name(".nv.info").data()):
        if attribute in (_REGISTERS, _FRAME) and len(payload) == 8:
            symbol, value = struct.unpack("<II", payload)
            (registers if attribute == _REGISTERS else frames)[symbol] = value
    found = []
    for symbol in sorted(registers):
        shared = file.get_section_by_name(f".nv.shared.{symbols[symbol]}")
        size = shared.header["sh_size"] if shared is not None else 0
        found.append(KernelFigures(symbols[symbol], registers[symbol], frames.get(symbol, 0), size))
    return found


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Entries of ``.nv.info``: a format, an attribute, and 16 bits of value or the length of what follows (format 4)."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == 4:
            yield attribute, data[at : at + value]
            at += value
        else:
            yield attribute, value.to_bytes(2, "little")
