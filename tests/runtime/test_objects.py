"""What the runtime's own code needs of a board: its size, its outside symbols, its instructions."""

from __future__ import annotations

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from aotc.packaging.toolchain import TRIPLES, compile_all, toolchain
from tests.runtime.build import RUNTIME, SOURCES

LIBC = {
    "aligned_alloc", "bcmp", "clock_gettime", "free", "memcmp", "memcpy", "memset", "pthread_create", "pthread_join", "pthread_sigmask",
    "sched_getaffinity", "sched_yield", "__sched_cpucount", "sem_destroy", "sem_init", "sem_post", "sem_wait", "sigfillset", "strcmp", "strlen", "sysconf",
    "vsnprintf", "__errno_location", "open", "fstat", "__fxstat", "mmap", "munmap", "close",
    "madvise", "dlopen", "dlsym", "getenv", "pthread_mutex_init", "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_mutex_destroy",
}  # fmt: skip
BLOBS = {
    "aotc_plan_data", "aotc_plan_size", "aotc_manifest_data", "aotc_manifest_size", "aotc_weights_data", "aotc_weights_size", "aotc_weights_header",
    "aotc_cubins_data", "aotc_cubins_size", "aotc_version", "aotc_kernels", "aotc_kernel_count", "_GLOBAL_OFFSET_TABLE_",
}  # fmt: skip


def symbols(path: Path) -> tuple[set[str], set[str], set[str]]:
    """(defined, defined and visible, undefined) global symbols of an object."""
    with path.open("rb") as file:
        table = list(ELFFile(file).get_section_by_name(".symtab").iter_symbols())
    named = [s for s in table if s.name and s["st_info"]["bind"] == "STB_GLOBAL"]
    defined = [s for s in named if s["st_shndx"] != "SHN_UNDEF"]
    visible = {s.name for s in defined if s["st_other"]["visibility"] == "STV_DEFAULT"}
    return {s.name for s in defined}, visible, {s.name for s in named if s["st_shndx"] == "SHN_UNDEF"}


def text_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return sum(section["sh_size"] for section in ELFFile(file).iter_sections() if section["sh_flags"] & 4)


@pytest.mark.parametrize("triple", TRIPLES)
def test_small_and_closed(triple: str) -> None:
    objects = compile_all(toolchain(triple, (2, 27)), SOURCES, sorted(RUNTIME.glob("*.h")))
    defined, visible, outside = (set().union(*sets) for sets in zip(*map(symbols, objects), strict=True))
    assert sum(map(text_bytes, objects)) <= 96 * 1024
    assert visible == {"aotc_model"}
    assert outside - defined <= LIBC | BLOBS  # among them none of the outlined atomics (__aarch64_*), which hold LSE


@pytest.mark.parametrize("triple", TRIPLES)
def test_nothing_writable(triple: str) -> None:
    """No globals: constant tables only."""
    for path in compile_all(toolchain(triple, (2, 27)), SOURCES, sorted(RUNTIME.glob("*.h"))):
        with path.open("rb") as file:
            sections = [s for s in ELFFile(file).iter_sections() if s["sh_flags"] & 1 and s["sh_size"] and s["sh_flags"] & 2]
        assert all(section.name.startswith(".data.rel.ro") for section in sections), (path.name, [s.name for s in sections])
