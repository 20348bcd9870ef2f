"""Looks at object files and linked files as a board's loader would, so that a build can tell whether its output loads there."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from aotc.errors import BuildError

EXPORTED = ("aotc_model",)
LOADERS = {"EM_X86_64": "ld-linux-x86-64.so.2", "EM_AARCH64": "ld-linux-aarch64.so.1"}
NEEDED = ("libc.so.6", "libm.so.6")
NEEDED_BEFORE_2_34 = ("libpthread.so.0", "libdl.so.2")

LIBM = frozenset(re.findall(r"\w+", """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax fmin fmod hypot
    ldexp llrint llround log log10 log1p log2 lrint lround nearbyint nextafter pow rint round scalbn sin sincos sinh sqrt tan tanh trunc
"""))  # fmt: skip
BUILTINS = frozenset(re.findall(r"\w+", """
    __extendhfsf2 __extendhfdf2 __truncsfhf2 __truncdfhf2 __gnu_h2f_ieee __gnu_f2h_ieee __fixhfsi __fixhfdi __fixunshfsi
    __floatsihf __floatdihf __divti3 __modti3 __udivti3 __umodti3 __multi3 __extendbfsf2 __truncsfbf2 __truncdfbf2
"""))  # fmt: skip
OUTSIDE_SYMBOLS = frozenset([*LIBM, *(f"{name}f" for name in LIBM), *BUILTINS, "memcpy", "memmove", "memset", "memcmp"])
"""What the machine code of a kernel may call: libm, memory functions, compiler-rt. Nothing of TVM."""


@dataclass(frozen=True)
class ElfReport:
    """What the dynamic loader sees of a file. ``glibc``: needed library -> newest GLIBC version needed of it; ``sections``:
    name -> (file offset, size in bytes) of all that are loaded."""

    machine: str
    exported: tuple[str, ...]
    undefined: tuple[str, ...]
    needed: tuple[str, ...]
    glibc: dict[str, tuple[int, ...]]
    foreign_versions: tuple[str, ...]
    soname: str | None
    search_path: str | None
    writable_and_executable: bool
    sections: dict[str, tuple[int, int]]

    @property
    def newest_glibc(self) -> tuple[int, ...]:
        return max(self.glibc.values(), default=(0,))


def inspect_elf(path: Path) -> ElfReport:
    """Raises BuildError if ``path`` is not a shared library."""
    try:
        with path.open("rb") as file:
            return _report(ELFFile(file))
    except (ELFError, KeyError, ValueError, AttributeError) as error:
        raise BuildError(f"{path} is not a shared library that can be read: {error}") from error


def check_output(path: Path, glibc: tuple[int, int]) -> ElfReport:
    """Check a built file against what the design allows on a board with ``glibc``. Raises BuildError that lists all faults."""
    report = inspect_elf(path)
    faults = []
    if report.exported != EXPORTED:
        faults.append(f"it exports {', '.join(report.exported) or 'nothing'}; only {EXPORTED[0]} is expected")
    allowed = {*NEEDED, LOADERS.get(report.machine, ""), *(NEEDED_BEFORE_2_34 if glibc < (2, 34) else ())}
    if extra := sorted(set(report.needed) - allowed):
        faults.append(f"it needs the libraries {', '.join(extra)}; only {', '.join(sorted(allowed - {''}))} are allowed")
    for library, version in sorted(report.glibc.items()):
        if version > glibc:
            shown = ".".join(map(str, version))
            faults.append(f"it needs GLIBC_{shown} of {library}; the target has {glibc[0]}.{glibc[1]}")
    if report.foreign_versions:
        faults.append(f"it needs symbol versions that a board may lack: {', '.join(report.foreign_versions)}")
    if report.soname or report.search_path:
        faults.append(f"it has a soname ({report.soname}) or a search path ({report.search_path})")
    if report.writable_and_executable:
        faults.append("it has memory that is writable and executable")
    if faults:
        raise BuildError("the built file would not load on the target: " + "; ".join(faults))
    return report


def undefined_symbols(code: bytes) -> tuple[str, ...]:
    """Outside symbols that an object file needs, sorted."""
    try:
        table = ELFFile(io.BytesIO(code)).get_section_by_name(".symtab")
        symbols = table.iter_symbols() if isinstance(table, SymbolTableSection) else ()
        return tuple(sorted({symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name}))
    except (ELFError, KeyError, ValueError) as error:
        raise BuildError(f"a kernel's object code cannot be read: {error}; delete the cache folder and build again") from error


def text_size(code: bytes) -> int:
    """Bytes of machine code in an object file."""
    return sum(section["sh_size"] for section in ELFFile(io.BytesIO(code)).iter_sections() if section["sh_flags"] & 4)


def check_kernels(objects: Sequence[bytes]) -> None:
    """Raises BuildError if an object needs a symbol that is not in ``OUTSIDE_SYMBOLS``."""
    outside = {name for code in objects for name in undefined_symbols(code)}
    if wrong := sorted(outside - OUTSIDE_SYMBOLS):
        raise BuildError(f"kernels need symbols that a built file must not: {', '.join(wrong)}; this is a fault of aotc, please report it")


def needs_builtins(objects: Sequence[bytes]) -> bool:
    """Whether an object calls helper functions of the compiler."""
    return any(name in BUILTINS for code in objects for name in undefined_symbols(code))


def _report(elf: ELFFile) -> ElfReport:
    dynamic, symbols = elf.get_section_by_name(".dynamic"), elf.get_section_by_name(".dynsym")
    if not isinstance(dynamic, DynamicSection) or not isinstance(symbols, SymbolTableSection):
        raise ValueError("it has no dynamic section")
    tags = list(dynamic.iter_tags())
    named = [symbol for symbol in symbols.iter_symbols() if symbol.name]
    glibc, foreign = _versions(elf)
    paths = {"DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}
    loaded = [segment for segment in elf.iter_segments() if segment["p_type"] in ("PT_LOAD", "PT_GNU_STACK")]
    return ElfReport(
        machine=elf["e_machine"],
        exported=tuple(sorted(symbol.name for symbol in named if symbol["st_shndx"] != "SHN_UNDEF")),
        undefined=tuple(sorted(symbol.name for symbol in named if symbol["st_shndx"] == "SHN_UNDEF")),
        needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        glibc=glibc,
        foreign_versions=foreign,
        soname=next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), None),
        search_path=next((getattr(tag, paths[tag.entry.d_tag]) for tag in tags if tag.entry.d_tag in paths), None),
        writable_and_executable=any(segment["p_flags"] & 3 == 3 for segment in loaded),
        sections={section.name: (section["sh_offset"], section["sh_size"]) for section in elf.iter_sections() if section["sh_flags"] & 2},
    )


def _versions(elf: ELFFile) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """GLIBC versions needed by library, and needed versions that are no public GLIBC ones."""
    section = elf.get_section_by_name(".gnu.version_r")
    newest: dict[str, tuple[int, ...]] = {}
    foreign = []
    for library, versions in section.iter_versions() if isinstance(section, GNUVerNeedSection) else ():
        for version in versions:
            match = re.fullmatch(r"GLIBC_(\d+(?:\.\d+)+)", version.name)
            if match is None:
                foreign.append(f"{version.name} of {library.name}")
                continue
            numbers = tuple(int(number) for number in match[1].split("."))
            newest[library.name] = max(newest.get(library.name, (0,)), numbers)
    return newest, tuple(foreign)
