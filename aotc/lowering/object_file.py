"""Object files of kernels: which outside symbols they may need, and removal of what a model need not carry.

Only what LLVM writes for x86-64 and aarch64 is read: little-endian ELF64 relocatable files.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aotc.errors import BuildError

_UNARY_MATH = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "exp10",
    "expm1",
    "fabs",
    "floor",
    "log",
    "log10",
    "log1p",
    "log2",
    "nearbyint",
    "rint",
    "round",
    "roundeven",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
_BINARY_MATH = ["atan2", "copysign", "fdim", "fmax", "fmin", "fmod", "hypot", "ldexp", "nextafter", "pow", "remainder"]
_COMPILER_RT = [
    "__extendhfsf2",
    "__truncsfhf2",
    "__truncdfhf2",
    "__gnu_h2f_ieee",
    "__gnu_f2h_ieee",
    "__divti3",
    "__modti3",
    "__udivti3",
    "__umodti3",
    "__multi3",
    "__muloti4",
    "__floattisf",
    "__floattidf",
    "__fixsfti",
    "__fixdfti",
]

ALLOWED_SYMBOLS = frozenset(
    [name + suffix for name in (*_UNARY_MATH, *_BINARY_MATH, "fma", "sincos") for suffix in ("", "f")]
    + ["memcpy", "memset", "memmove", *_COMPILER_RT]
)
"""Outside symbols that an object may need: libm, three of libc's, and compiler-rt's helpers. Nothing of TVM's."""

_SHT_SYMTAB, _SHT_STRTAB, _SHT_RELA, _SHT_NOBITS = 2, 3, 4, 8
_SPECIAL = 0xFF00  # section indices from here on are not sections
_HEADER, _SECTION, _SYMBOL, _RELOCATION = (
    struct.Struct("<16sHHIQQQIHHHHHH"),
    struct.Struct("<IIQQQQIIQQ"),
    struct.Struct("<IBBHQQ"),
    struct.Struct("<QQq"),
)


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    link: int
    info: int
    align: int
    entry_size: int
    size: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def is_local(self) -> bool:
        return self.info >> 4 == 0


def outside_symbols(data: bytes) -> list[str]:
    """The names that an object needs from elsewhere, sorted."""
    _, sections = _read(data)
    return sorted(symbol.name for symbol in _symbols(sections) if symbol.section == 0 and symbol.name)


def defined_symbols(data: bytes) -> list[str]:
    """The names that an object defines for others, sorted."""
    _, sections = _read(data)
    return sorted(symbol.name for symbol in _symbols(sections) if symbol.section and not symbol.is_local)


def check_symbols(data: bytes, kernel: str) -> None:
    """Raises BuildError where an object needs a symbol outside ``ALLOWED_SYMBOLS``, or holds TVM's hooks: these are variables
    that the object itself defines, for a runtime to fill in."""
    _, sections = _read(data)
    foreign = [name for name in outside_symbols(data) if name not in ALLOWED_SYMBOLS]
    foreign += [symbol.name for symbol in _symbols(sections) if symbol.section and symbol.name.startswith("__TVM")]
    if foreign:
        raise BuildError(
            f"kernel {kernel} needs {', '.join(sorted(foreign))}, which no model may need: expected libm, memcpy, memset, memmove or "
            "compiler-rt names. A __TVM symbol means a nested parallel loop or a local buffer that is too large"
        )


def strip(data: bytes) -> bytes:
    """``data`` without debug sections and without conversion helpers that nothing calls."""
    header, sections = _read(data)
    symbols = _symbols(sections)
    used = {symbols[number].section for section in sections if _kept(section, sections) for number in _referenced(section)}
    keep = [_kept(section, sections) and (section.name != ".text.tvm.fp16.conv" or i in used) for i, section in enumerate(sections)]
    keep = [kept and not (section.kind == _SHT_RELA and not keep[section.info]) for kept, section in zip(keep, sections, strict=True)]
    section_numbers = _renumber(keep)
    keep_symbol = [symbol.section == 0 or symbol.section >= _SPECIAL or keep[symbol.section] for symbol in symbols]
    symbol_numbers = _renumber(keep_symbol)
    new_symbols = [
        replace(symbol, section=section_numbers.get(symbol.section, symbol.section))
        for symbol, kept in zip(symbols, keep_symbol, strict=True)
        if kept
    ]
    new_sections = []
    for section, kept in zip(sections, keep, strict=True):
        if kept:
            new_sections.append(_moved(section, section_numbers, symbol_numbers))
    return _write(header, new_sections, new_symbols)


def _kept(section: _Section, sections: Sequence[_Section]) -> bool:
    if section.kind == _SHT_RELA:
        return not sections[section.info].name.startswith(".debug")
    return not section.name.startswith(".debug")


def _referenced(section: _Section) -> list[int]:
    if section.kind != _SHT_RELA:
        return []
    return [info >> 32 for _, info, _ in _RELOCATION.iter_unpack(section.data)]


def _renumber(keep: Sequence[bool]) -> dict[int, int]:
    kept = [old for old, flag in enumerate(keep) if flag]
    return {old: new for new, old in enumerate(kept)}


def _moved(section: _Section, sections: dict[int, int], symbols: dict[int, int]) -> _Section:
    if section.kind != _SHT_RELA:
        return replace(section, link=sections.get(section.link, 0))
    old = _RELOCATION.iter_unpack(section.data)
    entries = [(offset, symbols[info >> 32] << 32 | info & 0xFFFFFFFF, addend) for offset, info, addend in old]
    data = b"".join(_RELOCATION.pack(*entry) for entry in entries)
    return replace(section, link=sections[section.link], info=sections[section.info], data=data)


def _read(data: bytes) -> tuple[tuple[int | bytes, ...], list[_Section]]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise BuildError("a kernel's object file is not little-endian ELF64")
    header = _HEADER.unpack_from(data)
    table, count, names = header[6], header[12], header[13]
    raw = [_SECTION.unpack_from(data, table + i * _SECTION.size) for i in range(count)]
    strings = raw[names][4]
    sections = []
    for name, kind, flags, _, offset, size, link, info, align, entry_size in raw:
        content = b"" if kind in (0, _SHT_NOBITS) else data[offset : offset + size]
        sections.append(_Section(_text(data, strings + name), kind, flags, link, info, align, entry_size, size, content))
    return header, sections


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def _symbols(sections: Sequence[_Section]) -> list[_Symbol]:
    table = next(section for section in sections if section.kind == _SHT_SYMTAB)
    strings = sections[table.link].data
    return [
        _Symbol(_text(strings, name), info, other, section, value, size)
        for name, info, other, section, value, size in _SYMBOL.iter_unpack(table.data)
    ]


def _write(header: tuple[int | bytes, ...], sections: Sequence[_Section], symbols: Sequence[_Symbol]) -> bytes:
    names: dict[str, int] = {"": 0}
    strings = bytearray(b"\0")
    for name in [symbol.name for symbol in symbols] + [section.name for section in sections]:
        if name not in names:
            names[name] = len(strings)
            strings += name.encode() + b"\0"
    out = bytearray(_HEADER.size)
    raw = []
    string_table = 0
    for i, section in enumerate(sections):
        data, info = section.data, section.info
        if section.kind == _SHT_SYMTAB:
            data = b"".join(_SYMBOL.pack(names[s.name], s.info, s.other, s.section, s.value, s.size) for s in symbols)
            info = sum(symbol.is_local for symbol in symbols)
        elif section.kind == _SHT_STRTAB:
            data, string_table = bytes(strings), i
        out += bytes(-len(out) % max(section.align, 1))
        size = section.size if section.kind == _SHT_NOBITS else len(data)
        offset = len(out) if i else 0
        raw.append(
            (names[section.name], section.kind, section.flags, 0, offset, size, section.link, info, section.align, section.entry_size)
        )
        out += data
    out += bytes(-len(out) % 8)
    fields = list(header)
    fields[6], fields[12], fields[13] = len(out), len(sections), string_table
    out[: _HEADER.size] = _HEADER.pack(*fields)
    return bytes(out) + b"".join(_SECTION.pack(*entry) for entry in raw)
