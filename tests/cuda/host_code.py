"""Builds the software CUDA driver, and the CUDA C of kernels for it.

The driver is a ``libcuda.so.1`` that runs kernels on this CPU. For a cubin it opens ``$AOTC_SOFTWARE_CUDA/<sha256>.so``, which
``build`` makes from the same source: CUDA's own words come from the headers in ``driver/include``, and the compiler's sanitizers
report every access to memory to the driver, which checks it (``checked=False`` leaves the checks out and is faster).
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from aotc.cache_dir import cache_dir

HERE = Path(__file__).resolve().parent / "driver"
COMMON = ["-std=c++20", "-mavx2", "-mfma", "-mf16c", "-fPIC", "-fvisibility=hidden"]
DRIVER = [*COMMON, "-O2", "-Wall", "-Wextra", "-Werror"]
KERNEL = [*COMMON, "-w", "-g1", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-math-errno", "-I", str(HERE / "include")]
FAST = ["-O2"]
CHECKED = ["-O1", "-fsanitize=thread,alignment,bounds,object-size", "-ftrivial-auto-var-init=pattern", "-DSOFTWARE_CUDA_CHECKED"]

_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\(\s*(\d+)[^)]*\)\s*)?(\w+)\s*\(')
_ALIGNED = r"(?:(?:alignas|__align__)\((\w+)\)\s*)?"
_DECLARATOR = r"\w+\s*(?:\[[^\]]+\]\s*)*"
_SHARED = re.compile(rf"(?:static\s+)?__shared__\s+{_ALIGNED}([\w:]+(?:\s+\w+)*?)\s+({_DECLARATOR}(?:,\s*{_DECLARATOR})*);")
_DYNAMIC = re.compile(rf"extern\s+__shared__\s+{_ALIGNED}([\w:]+(?:\s+\w+)*?)\s+(\w+)\s*\[\s*\]\s*;")


def driver() -> Path:
    """``libcuda.so.1``, built when its sources have changed. Raises RuntimeError with the compiler's words."""
    sources = sorted((HERE / "engine").glob("*.cpp"))
    folder = cache_dir("software-cuda", f"driver-{_key(*_engine_text(), *DRIVER)}")
    library = folder / "libcuda.so.1"
    if not library.exists():
        _compile([*DRIVER, "-shared", "-Wl,-soname,libcuda.so.1", "-Wl,--no-undefined", *map(str, sources), "-ldl"], library)
    return library


def build(source: str, cubin: bytes, folder: Path, *, checked: bool = True) -> Path:
    """The library that the driver opens for ``cubin``, or PTX, made from ``source``: the CUDA C of one translation unit.

    Raises RuntimeError with the compiler's words. Several processes may build into one folder.
    """
    library = compile_kernels(source, architecture(cubin), checked=checked)
    folder.mkdir(parents=True, exist_ok=True)
    content = cubin.rstrip(b"\0") if is_ptx(cubin) else cubin
    target = folder / f"{hashlib.sha256(content).hexdigest()}.so"
    with tempfile.TemporaryDirectory(dir=folder) as work:
        link = Path(work) / "link"
        link.symlink_to(library)
        link.replace(target)
    return target


def compile_kernels(source: str, sm: int, *, checked: bool = True) -> Path:
    """The host library of a source, from the cache where it is there."""
    options = [*KERNEL, *(CHECKED if checked else FAST), f"-D__CUDA_ARCH__={sm * 10}"]
    library = cache_dir("software-cuda", "kernels") / f"{_key(source, *_header_text(), *options)}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory() as work:
        unit, made = Path(work) / "kernel.cpp", Path(work) / "kernel.o"
        unit.write_text(host_source(source))
        _compile([*options, "-c", str(unit)], made)
        _compile(["-shared", str(made), "-lm"], library)
    return library


def host_source(source: str) -> str:
    """C++ of the CUDA C: shared arrays are declared in words of the driver's headers, lines keep their numbers."""
    kernels = {name: int(threads or 1024) for threads, name in _KERNEL.findall(source)}
    if not kernels:
        raise RuntimeError('the CUDA source has no kernel (extern "C" __global__ void name(...))')
    text = _DYNAMIC.sub(lambda m: f"SOFTWARE_CUDA_DYNAMIC_SHARED({m[2]}, {m[3]});", source)
    text = _SHARED.sub(_shared, text)
    table = ", ".join(f'software_cuda::describe<{name}>("{name}", {threads})' for name, threads in kernels.items())
    return f'#include "software_cuda/device.h"\n#line 1 "kernel.cu"\n{text}\nSOFTWARE_CUDA_MODULE({granule(source)}, {{{table}}});\n'


def _shared(found: re.Match[str]) -> str:
    alignment, element, declarators = found.groups()
    names = (re.fullmatch(r"(\w+)\s*(.*)", each.strip()) for each in declarators.split(","))
    return " ".join(
        f"SOFTWARE_CUDA_SHARED({element}, {name[1]}, {alignment or f'alignof({element})'}, {name[2]});" for name in names if name
    )


def granule(source: str) -> int:
    """Bytes of the smallest element that the kernels have pointers to or arrays of: 1, 2 or 4."""
    found = _KERNEL.search(source)
    text = _DYNAMIC.sub("", source[found.start() if found else 0 :])
    words = re.findall(r"\b(\w+)\s*(?:\*|\s\w+\s*\[)", text)
    elements = {*words, *(word[:-1] for word in words if word[-1] in "234")}
    if elements & {"char", "uchar", "int8_t", "uint8_t", "bool"}:
        return 1
    return 2 if elements & {"half", "__half", "nv_bfloat16", "__nv_bfloat16", "short", "ushort", "int16_t", "uint16_t"} else 4


def architecture(cubin: bytes) -> int:
    """The compute capability of a cubin, from its ELF header, or of PTX: 87 for sm_87."""
    if is_ptx(cubin):
        return int(cubin.partition(b"\n.target sm_")[2].partition(b"\n")[0].partition(b",")[0])
    flags = int.from_bytes(cubin[48:52], "little")
    return flags >> (8 if cubin[8] >= 8 else 0) & 0xFF  # CUDA 13 has moved it, with a new ABI version


def is_ptx(code: bytes) -> bool:
    return code.startswith(b"//")


def empty_cubin(sm: int, text: bytes = b"") -> bytes:
    """An ELF header that names ``sm``, and ``text`` after it: for a kernel whose real cubin no test needs."""
    header = bytearray(64)
    header[:9] = b"\x7fELF\x02\x01\x01\x33\x07"
    header[18:20] = (190).to_bytes(2, "little")
    header[32:40] = (64).to_bytes(8, "little")  # program headers, one that is not read: they make `text` part of the file
    header[48:52] = sm.to_bytes(4, "little")
    digest = hashlib.sha256(text).digest()
    header[56:58] = (1).to_bytes(2, "little")
    return bytes(header) + digest + bytes(24)


@cache
def _engine_text() -> tuple[str, ...]:
    return tuple(path.read_text() for path in sorted((HERE / "engine").iterdir())) + _header_text()


@cache
def _header_text() -> tuple[str, ...]:
    return tuple(path.read_text() for path in sorted((HERE / "include").rglob("*.h")))


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _compile(arguments: list[str], target: Path) -> None:
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    done = subprocess.run(["g++", *arguments, "-o", str(part)], capture_output=True, text=True, check=False)
    if done.returncode:
        part.unlink(missing_ok=True)
        raise RuntimeError(f"the host compiler refused the code:\n{done.stderr[:4000]}")
    part.replace(target)
