"""The processor that was measured, in words."""

from __future__ import annotations

import functools
from pathlib import Path

from aotc.measure.calibration import machine


@functools.cache
def processor() -> str:
    """Its model, its cores and its widest vectors."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    vectors = next(
        (name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON")) if flag in flags), "no vectors known"
    )
    family = f", family {fields['cpu family']} model {fields['model']}" if "cpu family" in fields else ""
    return f"{machine()}{family}, {vectors}"
