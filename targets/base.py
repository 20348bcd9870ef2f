"""What is known of a machine that models are built for: data, which passes and lowering read through fields."""

from __future__ import annotations

from dataclasses import dataclass, field

JETPACK_GLIBC = {"4.6": (2, 27), "5.1": (2, 31), "6.1": (2, 35), "6.2": (2, 35), "7.0": (2, 39), "7.1": (2, 39), "7.2": (2, 39)}
"""The C library of each JetPack: Ubuntu 18.04, 20.04, 22.04 and 24.04 (NVIDIA's JetPack archive)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU and its system.

    ``mcpu`` and ``features`` are LLVM's names; ``features`` are what the CPU has beyond its architecture's base, whether or
    not ``mcpu`` implies it. ``vector_bits`` and ``vector_registers`` describe the widest vectors that code should use.
    Cache sizes are bytes as one core sees them (a shared cache counts in full); ``l3_bytes`` is 0 where there is none.
    ``multiply_adds`` is how many vector multiply-adds start in a cycle, ``memory_bytes`` how many bytes a core reads from memory
    in one: rough figures, from which times are estimated. ``glibc`` is the oldest C library that a file has to run with;
    ``jetpacks`` are the releases that can be chosen, the default first, and ``jetpack`` the one that is.
    """

    name: str
    description: str
    triple: str
    mcpu: str
    features: tuple[str, ...]
    vector_bits: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    glibc: tuple[int, int]
    jetpacks: tuple[str, ...] = ()
    jetpack: str | None = field(default=None)
    multiply_adds: int = 2
    memory_bytes: float = 5.0

    @property
    def architecture(self) -> str:
        """``x86_64`` or ``aarch64``."""
        return self.triple.partition("-")[0]

    def has(self, feature: str) -> bool:
        """Whether the CPU has an instruction set, by LLVM's name of the feature."""
        return feature in self.features

    @property
    def multiplies_by_element(self) -> bool:
        """Whether a multiply-add takes one element of a vector register as a factor of all lanes."""
        return self.has("neon")

    @property
    def offset_bytes(self) -> int:
        """How far from the address in a register two vectors can be loaded by one instruction."""
        return 1008 if self.has("neon") else 1 << 30

    @property
    def extremes_keep_nan(self) -> bool:
        """Whether the instructions for the greater and the lesser of two floats give a NaN where either is one."""
        return self.has("neon")

    def lanes(self, dtype: str) -> int:
        """How many elements one vector register holds."""
        bits = 8 if dtype == "bool" else int("".join(filter(str.isdigit, dtype)))
        return self.vector_bits // bits
