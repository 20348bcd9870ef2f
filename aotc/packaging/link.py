"""Links kernels, stubs, runtime, plan and weights into the one file that goes to the board."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aotc.errors import BuildError
from aotc.lowering.plan import ALIGNMENT
from aotc.packaging import header as headers
from aotc.packaging.elf_check import ElfReport, check_kernels, check_output, inspect_elf, needs_builtins, text_size
from aotc.packaging.elf_object import MACHINES, Blob, write_object
from aotc.packaging.header import Header
from aotc.packaging.manifest import Manifest
from aotc.packaging.toolchain import Toolchain, compile_all, toolchain
from aotc.packaging.weights_file import EMPTY, HEADER_BYTES, MAGIC, NO_HEADER, weights_header, weights_path

CSRC = Path(__file__).resolve().parent.parent / "runtime" / "csrc"
APPLICATION_SOURCES = {"aotc_loader.c"}  # the application's side, not part of a model's file
GPU_SOURCES = {"cuda_driver.c", "device.c", "device_session.c", "device_steps.c", "graphs.c"}
STUB_HEADERS = ("aotc_kernel.h", "blobs.h")
VERSION_SCRIPT = "{ global: aotc_model; local: *; };\n"
CUBINS_SECTION = ".aotc.cubins"
WEIGHTS_ALIGNMENT = {"x86_64": 4096, "aarch64": 65536}  # the largest page of a kernel for it


@dataclass(frozen=True)
class Parts:
    """All that goes into a file, in a fixed order. ``kernels``: object code; ``stubs``: C source, which defines what blobs.h declares of
    the kernels; ``weights``: what ``write_weights`` wrote, which goes into the file or, where the manifest says so, beside it;
    ``cubins``: the plan's, in one blob."""

    kernels: Sequence[bytes]
    stubs: str
    plan: bytes
    manifest: Manifest
    weights: Path
    cubins: bytes = b""


@dataclass(frozen=True)
class Linked:
    """A file that was linked and passed the checks; ``weights_beside``: its weights lie in a second file."""

    path: Path
    header: Header
    elf: ElfReport
    weights_beside: bool = False


def link(parts: Parts, output: Path, *, compiler: str | None = None) -> Linked:
    """Write ``output``, and the file of weights beside it if there is one. They appear whole or not at all, replacing what was there.

    ``compiler``: a gcc to use instead of the ziglang wheel, see ``toolchain``. Raises BuildError if a tool fails, the output's folder
    cannot be written or is full, or the result would not load on the target.
    """
    target = parts.manifest.target
    tools = toolchain(target.triple, _oldest_glibc(target.glibc), compiler)
    check_kernels(parts.kernels)
    output = output.absolute()
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise BuildError(f"cannot write to the folder {output.parent}: {error.strerror}; choose another output") from error
    try:
        made = work / "model.so"
        header = _link(parts, tools, work, made)
        report = check_output(made, target.glibc)
        _appear(parts, made, output)
        return Linked(output, header, report, parts.manifest.external_weights)
    except OSError as error:
        raise BuildError(f"cannot write {output}: {error.strerror}; free space or choose another output") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _appear(parts: Parts, made: Path, output: Path) -> None:
    """Give the new files their names. Between the two steps the old file finds weights of another build, and says so."""
    beside = weights_path(output)
    if parts.manifest.external_weights:
        os.replace(parts.weights, beside)
    _move(made, output)
    if not parts.manifest.external_weights and beside.is_file() and _is_weights(beside):
        beside.unlink()  # of the file that was here before


def _move(made: Path, output: Path) -> None:
    """Give the linked file its name, written anew in large pieces: systems that keep a file in memory in pieces as large as it was
    written can map its weights with huge pages, which makes the first run, and each reading of the weights, faster."""
    whole = made.with_name(f"{made.name}.whole")
    with made.open("rb", buffering=0) as source, whole.open("wb", buffering=0) as target:
        shutil.copymode(made, whole)
        shutil.copyfileobj(source, target, 4 << 20)
    made.unlink()
    os.replace(whole, output)


def _is_weights(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def runtime_objects(tools: Toolchain, for_gpu: bool) -> list[Path]:
    """The runtime's objects for a target, compiled once and cached; files without code for GPUs need not all of them."""
    left_out = APPLICATION_SOURCES if for_gpu else APPLICATION_SOURCES | GPU_SOURCES
    sources = sorted(path for path in CSRC.glob("*.c") if path.name not in left_out)
    return compile_all(tools, sources, sorted(CSRC.glob("*.h")))


def _oldest_glibc(target: tuple[int, int]) -> tuple[int, int]:
    """The version to link against: the oldest that works, so that the file also loads where the system is older than the
    target's. From 2.34 on libc holds what were libpthread and libdl, which files for newer systems must not need."""
    return (2, 34) if target >= (2, 34) else min(target, (2, 27))


def _link(parts: Parts, tools: Toolchain, work: Path, path: Path) -> Header:
    """Make the file ``path`` with the help of files in the folder ``work``."""
    architecture = tools.triple.split("-")[0]
    target, manifest, size = parts.manifest.target, parts.manifest.to_json(), parts.manifest.weights_size
    beside = parts.manifest.external_weights
    header = Header(
        abi_version=parts.manifest.abi_version,
        machine=MACHINES[architecture],
        target=target.name,
        features=target.features,
        glibc=target.glibc,
        plan_size=len(parts.plan),
        manifest_size=len(manifest),
        weights_size=len(EMPTY) if beside else size,
    )
    blobs = work / "blobs.o"
    write_object(
        blobs,
        architecture,
        [
            Blob(headers.SECTION, "aotc_header_data", header.pack()),
            Blob(headers.MANIFEST_SECTION, "aotc_manifest_data", manifest + b"\0"),
            Blob(headers.PLAN_SECTION, "aotc_plan_data", parts.plan),
            Blob(
                headers.WEIGHTS_SECTION,
                "aotc_weights_data",
                EMPTY if beside else parts.weights,
                WEIGHTS_ALIGNMENT[architecture],
                HEADER_BYTES,
            ),
            Blob(CUBINS_SECTION, "aotc_cubins_data", parts.cubins or EMPTY, ALIGNMENT),
            _constant("aotc_cubins_size", struct.pack("<Q", len(parts.cubins))),
            _constant("aotc_manifest_size", struct.pack("<Q", len(manifest))),
            _constant("aotc_plan_size", struct.pack("<Q", len(parts.plan))),
            _constant("aotc_weights_size", struct.pack("<Q", size)),
            _constant("aotc_weights_header", weights_header(size, parts.manifest.weights_sha256) if beside else NO_HEADER),
            _constant("aotc_version", parts.manifest.aotc_version.encode() + b"\0"),
        ],
    )
    objects = [
        *_write_kernels(parts.kernels, work),
        *_compile_stubs(parts.stubs, tools, work),
        *runtime_objects(tools, bool(parts.cubins)),
        blobs,
    ]
    script = work / "exports.map"
    script.write_text(VERSION_SCRIPT)
    tools.link(objects, script, path, builtins=needs_builtins(parts.kernels))
    sections = inspect_elf(path).sections
    kernel_text = sum(text_size(code) for code in parts.kernels)
    text = sum(sections.get(name, (0, 0))[1] for name in (".text", ".plt", ".init", ".fini"))
    final = replace(header, kernel_text=kernel_text, runtime_text=max(0, text - kernel_text))
    return headers.seal(path, final, sections[headers.SECTION][0], sections[headers.WEIGHTS_SECTION])


def _constant(symbol: str, value: bytes) -> Blob:
    return Blob(f".rodata.{symbol}", symbol, value, 8)


def _write_kernels(kernels: Sequence[bytes], work: Path) -> list[Path]:
    paths = [work / f"kernel{index}.o" for index in range(len(kernels))]
    for path, code in zip(paths, kernels):
        path.write_bytes(code)
    return paths


def _compile_stubs(stubs: str, tools: Toolchain, work: Path) -> list[Path]:
    source = work / "stubs.c"
    source.write_text(stubs)
    return compile_all(tools, [source], [CSRC / name for name in STUB_HEADERS], include=CSRC)
