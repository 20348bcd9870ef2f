"""What is known of a machine that models are built for: data, which passes and lowering read through fields."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from aotc.errors import InvalidOption

JETPACK_GLIBC = {"4.6": (2, 27), "5.1": (2, 31), "6.1": (2, 35), "6.2": (2, 35), "7.0": (2, 39), "7.1": (2, 39), "7.2": (2, 39)}
"""The C library of each JetPack: Ubuntu 18.04, 20.04, 22.04 and 24.04 (NVIDIA's JetPack archive)."""

CUDA_PTX = {(10, 2): (6, 5), (11, 4): (7, 4), (11, 8): (7, 8), (12, 6): (8, 5), (13, 0): (9, 0), (13, 2): (9, 2)}
"""The newest PTX that the driver of a CUDA release reads (PTX ISA, release notes)."""

COMPUTE_CAPABILITIES = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
"""What CUDA's compilers make code for (CUDA C++ Programming Guide, compute capabilities)."""

JETPACK_CUDA = {"4.6": (10, 2), "5.1": (11, 4), "6.1": (12, 6), "6.2": (12, 6), "7.0": (13, 0), "7.1": (13, 0), "7.2": (13, 2)}
"""The CUDA release of each JetPack (NVIDIA's JetPack archive)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU of a target.

    ``sm`` are the compute capabilities that a file gets machine code for (87 for sm_87); capabilities are those that all of them have.
    ``cuda`` is the CUDA release whose driver runs the file. ``round_factors`` says that factors of float32 products may be rounded to
    tf32, which tensor cores multiply: the build's user asked for it. ``shared_bytes`` is the shared memory that a block can ask for,
    ``registers`` how many 32-bit registers it may use. ``ptx``: files hold PTX for the oldest of ``sm`` as well, of which a driver makes
    code for newer GPUs. ``memory_gbs`` (GB/s) and ``clock_ghz`` are rough figures, from which times are
    estimated; ``multiprocessors`` is how many blocks run side by side at least.
    """

    sm: tuple[int, ...]
    cuda: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    registers: int
    memory_gbs: float
    clock_ghz: float
    ptx: bool = False
    round_factors: bool = False

    @property
    def tensor_types(self) -> frozenset[str]:
        """The element types that tensor cores multiply."""
        oldest = min(self.sm)
        halves = {"float16"} if oldest >= 70 else set()
        integers = {"int8", "uint8"} if oldest >= 72 else set()
        return frozenset(halves | integers | ({"bfloat16", "tfloat32"} if oldest >= 80 else set()))

    @property
    def async_copy(self) -> bool:
        """Whether global memory can be copied to shared memory while threads go on (cp.async)."""
        return min(self.sm) >= 80

    @property
    def tensor_multiplies(self) -> int:
        """How many products of halves the tensor cores of a multiprocessor add in a cycle (NVIDIA's data sheets: dense fp16 rate by
        clock and multiprocessors; what wgmma and tcgen05 have beyond that is left out)."""
        oldest = min(self.sm)
        return 0 if oldest < 70 else 512 if oldest < 80 else 1024 if oldest < 90 else 2048

    @property
    def ptx_isa(self) -> tuple[int, int]:
        """The newest PTX that the driver reads."""
        return CUDA_PTX[self.cuda]


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU and its system, with its GPU if it has one that code can be made for.

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
    gpu: Gpu | None = None

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
    def adds_byte_products(self) -> bool:
        """Whether one instruction adds four products of bytes to a sum of 32 bits."""
        return self.has("avx512vnni") or self.has("avxvnni") or self.has("dotprod")

    @property
    def byte_factor(self) -> str:
        """The dtype of bytes that the machine multiplies by signed ones: x86's dot product has one factor without a sign."""
        return "int8" if self.has("neon") else "uint8"

    @property
    def outruns_memory(self) -> bool:
        """Whether multiplying is so fast that weights have to be asked for ahead of their use."""
        return self.vector_bits >= 256

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


def with_sm(target: Target, sm: tuple[int, ...]) -> Target:
    """The target with code for GPUs of the compute capabilities ``sm`` (87 for sm_87). Raises InvalidOption where it has no GPU, or
    there is none of that number."""
    if target.gpu is None:
        raise InvalidOption(f"the target {target.name} has no GPU that code for sm_{sm[0]} could be for; name a Jetson, or leave it out")
    if 101 in sm:
        raise InvalidOption("sm_101 is what CUDA 12.8 and 12.9 call Thor's GPU, which is sm_110 since CUDA 13: ask for 110")
    if unknown := sorted(set(sm) - set(COMPUTE_CAPABILITIES)):
        known = ", ".join(map(str, COMPUTE_CAPABILITIES))
        raise InvalidOption(f"there is no GPU of compute capability {unknown[0]}: expected some of {known}")
    return replace(target, gpu=replace(target.gpu, sm=tuple(sorted(set(sm)))))


def with_ptx(target: Target) -> Target:
    """The target with PTX beside its GPU's machine code. Raises InvalidOption where it has no GPU."""
    if target.gpu is None:
        raise InvalidOption(f"the target {target.name} has no GPU that PTX could be for; name a Jetson, or leave it out")
    return replace(target, gpu=replace(target.gpu, ptx=True))


def with_rounded_factors(target: Target) -> Target:
    """The target with products of float32 on its GPU's tensor cores, in tf32. Raises InvalidOption where these have no tf32."""
    if target.gpu is None or "tfloat32" not in target.gpu.tensor_types:
        raise InvalidOption(
            f"{target.name} has no tensor cores that multiply tf32, which are GPUs' from sm_80 on: build with --precision fp16 or fp32"
        )
    return replace(target, gpu=replace(target.gpu, round_factors=True))


def without_gpu(target: Target) -> Target:
    """The target's CPU alone: what lowering and passes get of a target says what they make code for."""
    return replace(target, gpu=None)
