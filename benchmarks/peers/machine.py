"""What this machine is and what it can do at most."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "roofline.c"


@functools.cache
def processor() -> str:
    """The processor's name and its widest vectors."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    vectors = next(
        (name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON")) if flag in flags), "no vectors known"
    )
    family = f", family {fields['cpu family']} model {fields['model']}" if "cpu family" in fields else ""
    return f"{fields.get('model name', platform.processor())}{family}, {vectors}"


def peak(threads: int, folder: Path) -> dict[str, float]:
    """Measured limits: ``gflops`` of fused float32 multiply-adds (two operations each), ``copy_gbytes`` a second read and written."""
    from aotc.packaging.toolchain import ZigToolchain
    from aotc.targets import get

    host = get("host")
    program = folder / f"roofline-{hashlib.sha256(SOURCE.read_bytes() + processor().encode()).hexdigest()[:12]}"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["-O3", "-std=gnu11", "-march=native", "-ffp-contract=fast", "-pthread"]
        ZigToolchain(host.triple, host.glibc).build_program([SOURCE], program, options)
    done = subprocess.run([str(program), str(min(threads, os.cpu_count() or 1))], check=True, capture_output=True, text=True)
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}
