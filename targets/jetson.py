"""The CPU side of NVIDIA's Jetson boards.

LLVM has no Denver 2, so TX2 is built for its Cortex-A57 cores; Denver 2 runs that code. Carmel has fp16 arithmetic and
LSE atomics but no dot product instructions. Cache sizes: NVIDIA's module data sheets. Cortex-A57 takes
a 128-bit multiply-add in a cycle (Arm, Cortex-A57 Software Optimization Guide), the others two.
"""

from __future__ import annotations

from aotc.targets.base import JETPACK_GLIBC, Target


def _board(
    name: str,
    description: str,
    mcpu: str,
    features: tuple[str, ...],
    caches: tuple[int, int, int],
    cores: int,
    jetpacks: tuple[str, ...],
    multiply_adds: int = 2,
) -> Target:
    return Target(
        name=name,
        description=description,
        triple="aarch64-linux-gnu",
        mcpu=mcpu,
        features=("neon", *features),
        vector_bits=128,
        vector_registers=32,
        l1_bytes=caches[0] << 10,
        l2_bytes=caches[1] << 10,
        l3_bytes=caches[2] << 10,
        cores=cores,
        glibc=JETPACK_GLIBC[jetpacks[0]],
        jetpacks=jetpacks,
        jetpack=jetpacks[0],
        multiply_adds=multiply_adds,
    )


_ARMV8_2 = ("fullfp16", "lse")
_ARMV9 = ("fullfp16", "lse", "dotprod", "i8mm", "bf16", "sve", "sve2")

BOARDS = (
    _board("jetson-nano", "Jetson Nano and TX1: 4 Cortex-A57", "cortex-a57", (), (32, 2048, 0), 4, ("4.6",), 1),
    _board("jetson-tx2", "Jetson TX2: 4 Cortex-A57 and 2 Denver 2", "cortex-a57", (), (32, 2048, 0), 6, ("4.6",), 1),
    _board("jetson-xavier", "Jetson AGX Xavier (8 Carmel) and Xavier NX (6)", "carmel", _ARMV8_2, (64, 2048, 4096), 6, ("5.1", "4.6")),
    _board(
        "jetson-orin",
        "Jetson AGX Orin, Orin NX and Orin Nano: 6 to 12 Cortex-A78AE",
        "cortex-a78ae",
        (*_ARMV8_2, "dotprod"),
        (64, 256, 2048),
        6,
        ("6.2", "6.1", "5.1", "7.2"),
    ),
    _board(
        "jetson-thor",
        "Jetson AGX Thor T5000 (14 Neoverse-V3AE) and T4000 (12)",
        "neoverse-v3ae",
        _ARMV9,
        (64, 1024, 16384),
        12,
        ("7.0", "7.1", "7.2"),
    ),
)
