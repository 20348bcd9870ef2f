"""Whole classes of machines: what any of them can run."""

from __future__ import annotations

from aotc.targets.base import Target

X86_64_V3_FEATURES = ("sse4.2", "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "popcnt", "lzcnt", "movbe")

GENERIC = (
    Target(
        name="x86-64-v3",
        description="Any x86-64 CPU with AVX2 and FMA (Intel since Haswell, AMD since Excavator)",
        triple="x86_64-linux-gnu",
        mcpu="x86-64-v3",
        features=X86_64_V3_FEATURES,
        vector_bits=256,
        vector_registers=16,
        l1_bytes=32 << 10,
        l2_bytes=256 << 10,
        l3_bytes=8 << 20,
        cores=4,
        glibc=(2, 27),
    ),
    Target(
        name="aarch64",
        description="Any 64-bit Arm CPU (Armv8.0-A with NEON)",
        triple="aarch64-linux-gnu",
        mcpu="generic",
        features=("neon",),
        vector_bits=128,
        vector_registers=32,
        l1_bytes=32 << 10,
        l2_bytes=256 << 10,
        l3_bytes=0,
        cores=4,
        glibc=(2, 27),
    ),
)
