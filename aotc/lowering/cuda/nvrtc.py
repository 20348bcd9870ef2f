"""CUDA C to cubins: NVRTC from NVIDIA's wheels, of the release that suits the GPU. Needs no GPU and no toolkit."""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aotc.errors import BuildError
from aotc.targets.base import CUDA_PTX, Gpu


@dataclass(frozen=True, slots=True)
class Release:
    """One NVRTC: its wheel, its library below the folder ``nvidia``, the compute capabilities that it makes code for."""

    version: str
    wheel: str
    extra: str
    library: str
    oldest: int
    newest: int

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    @property
    def ptx_isa(self) -> tuple[int, int]:
        major, minor = self.version.split(".")
        return CUDA_PTX[int(major), int(minor)]


RELEASES = (
    Release("11.8", "nvidia-cuda-nvrtc-cu11==11.8.89", "jetson-nano", "cuda_nvrtc/lib/libnvrtc.so.11.2", 35, 90),
    Release("12.6", "nvidia-cuda-nvrtc-cu12==12.6.85", "jetson", "cuda_nvrtc/lib/libnvrtc.so.12", 50, 90),
    Release("13.0", "nvidia-cuda-nvrtc==13.0.88", "jetson-thor", "cu13/lib/libnvrtc.so.13", 75, 121),
)
"""A cubin made by the CUDA major version of a board's driver is the safe choice; no wheel of 10.2 exists."""

_LOG_LINES = 12


def release_for(sm: int, cuda: tuple[int, int]) -> Release:
    """The NVRTC of the driver's major version, else the next older one, else the oldest newer one, that knows ``sm``."""
    able = [release for release in RELEASES if release.oldest <= sm <= release.newest]
    if not able:
        raise BuildError(f"no NVRTC makes code for sm_{sm}: expected {RELEASES[0].oldest} to {RELEASES[-1].newest}")
    older = [release for release in able if release.major <= cuda[0]]
    return older[-1] if older else able[0]


def cubin(source: str, symbol: str, sm: int, cuda: tuple[int, int]) -> bytes:
    """Machine code of ``source`` for compute capability ``sm``, for a driver of CUDA ``cuda``. Multiplications and additions may be
    contracted, as on the CPU; division, square roots and denormals are exact (no fast-math).

    Raises BuildError where the wheel of the NVRTC that is needed is not installed, and for source that does not compile.
    """
    return compile_source(source, symbol, f"sm_{sm}", release_for(sm, cuda))


def ptx(source: str, symbol: str, gpu: Gpu) -> tuple[int, bytes] | None:
    """PTX for the oldest compute capability of a GPU that wants it, ending with a zero byte as drivers ask for; else ``None``.

    Raises BuildError as ``cubin`` does.
    """
    if not gpu.ptx:
        return None
    sm = min(gpu.sm)
    return sm, compile_source(source, symbol, f"compute_{sm}", release_for(sm, gpu.cuda), "PTX")


def compile_source(source: str, symbol: str, arch: str, release: Release, kind: str = "CUBIN") -> bytes:
    """``kind``: what NVRTC is to give, ``CUBIN`` or ``PTX``."""
    nvrtc = _load(release)
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), f"{symbol}.cu".encode(), 0, None, None)
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--disable-warnings"]
    argv = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), argv):
            log = "\n".join(_text(nvrtc, program, "ProgramLog").splitlines()[:_LOG_LINES])
            raise BuildError(f"NVRTC {release.version} fails on the kernel {symbol} for {arch}: {log}")
        return _bytes(nvrtc, program, kind)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def nvrtc_version(gpu: Gpu) -> str:
    """Which NVRTCs make the code for a GPU, for keys of caches."""
    return ",".join(f"{sm}:{release_for(sm, gpu.cuda).wheel}" for sm in gpu.sm)


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    return _bytes(nvrtc, program, what).rstrip(b"\0").decode(errors="replace").strip()


def _bytes(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def check_compilers(gpu: Gpu) -> None:
    """Raises BuildError where the wheel of an NVRTC that makes code for the GPU is not installed, or where PTX is wanted and the GPU's
    driver does not read what that NVRTC writes."""
    for sm in gpu.sm:
        _library(release_for(sm, gpu.cuda))
    written = release_for(min(gpu.sm), gpu.cuda)
    if gpu.ptx and (isa := written.ptx_isa) > gpu.ptx_isa:
        raise BuildError(
            f"NVRTC {written.version} writes PTX {isa[0]}.{isa[1]}, and the driver of CUDA {gpu.cuda[0]}.{gpu.cuda[1]} reads PTX up to "
            f"{gpu.ptx_isa[0]}.{gpu.ptx_isa[1]}: build without --ptx; the machine code for sm_{', sm_'.join(map(str, gpu.sm))} needs none"
        )


def _library(release: Release) -> Path:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    path = next((folder / release.library for folder in folders if (folder / release.library).is_file()), None)
    if path is None:
        raise BuildError(
            f"CUDA kernels for this target need NVRTC {release.version}, which is not installed: "
            f"pip install '{release.wheel}' (or aotc[{release.extra}]), or build with --device cpu for the CPU alone"
        )
    return path


@cache
def _load(release: Release) -> ctypes.CDLL:
    path = _library(release)
    for builtins in sorted(path.parent.glob(f"libnvrtc-builtins.so.{release.version}*")):
        ctypes.CDLL(str(builtins))  # NVRTC looks for it in the system's folders alone
    return ctypes.CDLL(str(path))
