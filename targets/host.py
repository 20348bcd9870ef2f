"""The machine that the compiler runs on, read from the kernel's files.

Levels and feature names rather than one model's name: a virtual machine may hide instructions that the model has.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from aotc.errors import InvalidOption
from aotc.targets.base import Target
from aotc.targets.generic import X86_64_V3_FEATURES

_X86_FLAGS = {
    "sse4_2": "sse4.2", "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "bmi1": "bmi", "bmi2": "bmi2", "popcnt": "popcnt",
    "abm": "lzcnt", "movbe": "movbe", "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512dq": "avx512dq", "avx512vl": "avx512vl",
    "avx512cd": "avx512cd", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16", "avx_vnni": "avxvnni",
    "amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16",
}  # fmt: skip
_X86_64_V4_FEATURES = (*X86_64_V3_FEATURES, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
_ARM_FLAGS = {
    "asimd": "neon", "asimdhp": "fullfp16", "atomics": "lse", "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve", "sve2": "sve2",
}  # fmt: skip


def detect(cpuinfo: str | None = None, machine: str | None = None) -> Target:
    """The target ``host``. Raises InvalidOption on a machine that is neither x86-64 nor aarch64."""
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    machine = machine or platform.machine()
    if machine == "x86_64":
        features, mcpu, bits, registers = _x86(_flags(text, "flags"))
    elif machine == "aarch64":
        features, mcpu, bits, registers = _named(_ARM_FLAGS, _flags(text, "Features")), "generic", 128, 32
    else:
        raise InvalidOption(f"the host is {machine}: aotc builds on x86_64 and aarch64; name a target instead of 'host'")
    return Target(
        name="host",
        description=f"This machine: {_model(text) or machine}",
        triple=f"{machine}-linux-gnu",
        mcpu=mcpu,
        features=features,
        vector_bits=bits,
        vector_registers=registers,
        l1_bytes=_cache(1, 32 << 10),
        l2_bytes=_cache(2, 256 << 10),
        l3_bytes=_cache(3, 0),
        cores=os.cpu_count() or 1,
        glibc=_glibc(),
        multiply_adds=_multiply_adds(text, bits),
    )


def _x86(flags: set[str]) -> tuple[tuple[str, ...], str, int, int]:
    features = _named(_X86_FLAGS, flags)
    if set(_X86_64_V4_FEATURES) <= set(features):
        return features, "x86-64-v4", 512, 32
    if set(X86_64_V3_FEATURES) <= set(features):
        return features, "x86-64-v3", 256, 16
    if "sse4.2" in features:
        return features, "x86-64-v2", 128, 16
    return features, "x86-64", 128, 16


def _multiply_adds(text: str, bits: int) -> int:
    """Two, but AMD's family 25 (Zen 4) works on vectors of 512 bits in halves (Software Optimization Guide 57647)."""
    found = re.search(r"^vendor_id\s*: AuthenticAMD$.*?^cpu family\s*: (\d+)$", text, re.MULTILINE | re.DOTALL)
    return 1 if bits == 512 and found and int(found[1]) == 25 else 2


def _named(names: dict[str, str], flags: set[str]) -> tuple[str, ...]:
    return tuple(name for flag, name in names.items() if flag in flags)


def _flags(text: str, key: str) -> set[str]:
    found = re.search(rf"^{key}\s*:(.*)$", text, re.MULTILINE)
    return set(found[1].split()) if found else set()


def _model(text: str) -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _cache(level: int, default: int) -> int:
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, size = (index / "type").read_text().strip(), (index / "size").read_text().strip()
            if int((index / "level").read_text()) == level and kind != "Instruction":
                return int(size.rstrip("KM")) << (20 if size.endswith("M") else 10)
        except (OSError, ValueError):
            continue
    return default


def _glibc() -> tuple[int, int]:
    found = re.match(r"glibc (\d+)\.(\d+)", os.confstr("CS_GNU_LIBC_VERSION") or "")
    return (int(found[1]), int(found[2])) if found else (2, 27)
