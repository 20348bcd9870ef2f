"""NVIDIA's Jetson boards.

LLVM has no Denver 2, so TX2 is built for its Cortex-A57 cores; Denver 2 runs that code. Carmel has fp16 arithmetic and
LSE atomics but no dot product instructions. Cache sizes: NVIDIA's module data sheets. Cortex-A57 takes
a 128-bit multiply-add in a cycle (Arm, Cortex-A57 Software Optimization Guide), the others two.

GPUs: shared memory and registers of a block from the CUDA C++ Programming Guide's table of compute capabilities; multiprocessors,
memory and clock from the data sheets, of the smallest module of a family that has the usual memory (Xavier NX, Orin Nano Super, T4000).
"""

from __future__ import annotations

from aotc.targets.base import JETPACK_CUDA, JETPACK_GLIBC, Gpu, Target


def _board(
    name: str,
    description: str,
    mcpu: str,
    features: tuple[str, ...],
    caches: tuple[int, int, int],
    cores: int,
    jetpacks: tuple[str, ...],
    gpu: Gpu,
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
        gpu=gpu,
    )


def _gpu(sm: int, jetpack: str, multiprocessors: int, shared_kb: int, registers_k: int, memory_gbs: float, clock_ghz: float) -> Gpu:
    return Gpu((sm,), JETPACK_CUDA[jetpack], multiprocessors, shared_kb << 10, registers_k << 10, memory_gbs, clock_ghz)


_ARMV8_2 = ("fullfp16", "lse")
_ARMV9 = ("fullfp16", "lse", "dotprod", "i8mm", "bf16", "sve", "sve2")

BOARDS = (
    _board(
        "jetson-nano",
        "Jetson Nano and TX1: 4 Cortex-A57, Maxwell GPU",
        "cortex-a57",
        (),
        (32, 2048, 0),
        4,
        ("4.6",),
        _gpu(53, "4.6", 1, 48, 32, 25.6, 0.92),
        1,
    ),
    _board(
        "jetson-tx2",
        "Jetson TX2: 4 Cortex-A57 and 2 Denver 2, Pascal GPU",
        "cortex-a57",
        (),
        (32, 2048, 0),
        6,
        ("4.6",),
        _gpu(62, "4.6", 2, 48, 32, 59.7, 1.3),
        1,
    ),
    _board(
        "jetson-xavier",
        "Jetson AGX Xavier (8 Carmel) and Xavier NX (6), Volta GPU",
        "carmel",
        _ARMV8_2,
        (64, 2048, 4096),
        6,
        ("5.1", "4.6"),
        _gpu(72, "5.1", 6, 96, 64, 59.7, 1.1),
    ),
    _board(
        "jetson-orin",
        "Jetson AGX Orin, Orin NX and Orin Nano: 6 to 12 Cortex-A78AE, Ampere GPU",
        "cortex-a78ae",
        (*_ARMV8_2, "dotprod"),
        (64, 256, 2048),
        6,
        ("6.2", "6.1", "5.1", "7.2"),
        _gpu(87, "6.2", 8, 163, 64, 102.0, 1.02),
    ),
    _board(
        "jetson-thor",
        "Jetson AGX Thor T5000 (14 Neoverse-V3AE) and T4000 (12), Blackwell GPU",
        "neoverse-v3ae",
        _ARMV9,
        (64, 1024, 16384),
        12,
        ("7.0", "7.1", "7.2"),
        _gpu(110, "7.0", 12, 227, 64, 273.0, 1.5),
    ),
)
