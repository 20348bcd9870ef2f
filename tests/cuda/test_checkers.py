"""Each check of the software driver fires on a kernel that deserves it, and is silent on its right neighbour."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cuda.handwritten import Kernel, run
from tests.cuda.trace import conflicts


def finding(body: str, **shape: int) -> str:
    """What the driver says about ``body``, the inside of a kernel of ``float *a, float *b, int n``; empty for nothing."""
    return run(Kernel(body, **shape))[1]


BAD = {
    "read past the end": ("b[threadIdx.x + 64 * blockIdx.x] = a[threadIdx.x + n - 63];", "out of bounds of global memory: .*thread \\(63,0,0\\) reads 4 bytes at address"),
    "write before the start": ("b[(int)threadIdx.x - 1] = 1;", "out of bounds of global memory"),
    "host memory": ("b[0] = *(float *)(uintptr_t)(0x12345678 + n);", "out of bounds: .*no memory of the device"),
    "shared array past the end": ("__shared__ float s[64]; float *p = s + 1; p[threadIdx.x] = 1;", "out of bounds of shared memory"),
    "shared array before the start": ("__shared__ float s[64]; *(s + (int)threadIdx.x - 1) = 1;", "out of bounds of"),
    "index of a shared array": ("__shared__ float s[2][63]; s[0][threadIdx.x] = 1;", "out of bounds of an array: .*index 63"),
    "index of a local array": ("float s[8]; for (int i = 0; i < 8; ++i) s[i] = a[i]; b[threadIdx.x] = s[threadIdx.x / 7];", "out of bounds of an array"),
    "a local array through a pointer": ("float s[8]; for (int i = 0; i < 8; ++i) s[i] = a[i]; int *p = (int *)&s[8]; b[threadIdx.x] = *p;", "out of bounds of an array"),
    "dynamic shared memory past the end": ("extern __shared__ float s[]; s[threadIdx.x + 1] = 1;", "out of bounds of shared memory"),
    "shared memory before it is written": ("__shared__ float s[64]; b[threadIdx.x] = s[threadIdx.x];", "uninitialised shared memory"),
    "a misaligned vector": ("*(float2 *)(b + 1) = *(float2 *)a;", "misaligned: .*no multiple of 8"),
    "a misaligned float": ("b[0] = *(float *)((char *)a + 2);", "misaligned"),
    "a barrier in half of the block": ("if (threadIdx.x < 32) __syncthreads();", "divergent barrier: .*never reaches"),
    "two barriers": ("if (threadIdx.x < 32) {\n__syncthreads();\n} else {\n__syncthreads();\n}", "divergent barrier: .*another barrier"),
    "a barrier after a return": ("if (threadIdx.x == 5) return;\n__syncthreads();", "divergent barrier"),
    "a shuffle in half of a warp": ("float x = 0; if (threadIdx.x < 16) x = __shfl_sync(0xffffffffu, x, 0); b[threadIdx.x] = x;", "divergent warp call"),
    "a shuffle outside of its mask": ("b[threadIdx.x] = __shfl_sync(0x1u, 1.0f, 0);", "divergent warp call: .*not in the mask"),
    "write and read": ("__shared__ float s[64]; s[threadIdx.x] = 1; b[threadIdx.x] = s[63 - threadIdx.x];", "(race on|uninitialised) shared memory"),
    "read and write": (
        "__shared__ float s[64]; s[threadIdx.x] = 1; __syncthreads(); float x = s[63 - threadIdx.x]; s[threadIdx.x] = x;",
        "race on shared memory: .*reads",
    ),
    "two writes": ("__shared__ float s[1]; s[0] = threadIdx.x;", "race on shared memory: .*writes"),
    "a warp's barrier between warps": (
        "__shared__ float s[64]; s[threadIdx.x] = 1; __syncwarp(); b[threadIdx.x] = s[threadIdx.x ^ 32];",
        "(race on|uninitialised) shared memory",
    ),
    "global memory within a block": ("b[threadIdx.x] = 1; b[threadIdx.x ^ 1] = 2;", "race on global memory: .*thread"),
    "global memory between blocks": ("if (threadIdx.x == 0) b[0] = blockIdx.x;", "race on global memory: .*another block"),
    "a read of another block's result": ("b[blockIdx.x * 64 + threadIdx.x] = 1; __syncthreads(); a[threadIdx.x + 64 * blockIdx.x] = b[threadIdx.x];", "race on global"),
    "an atomic and a write": ("if (threadIdx.x) atomicAdd(b, 1.0f); else b[0] = 0;", "race on global memory"),
    "reading a copy under way": (
        "__shared__ alignas(16) float s[256]; copy(s + threadIdx.x * 4, a + threadIdx.x / 4 * 4, 16); commit(); b[threadIdx.x] = s[threadIdx.x * 4];",
        "asynchronous copy",
    ),
    "a copy of a group that is not waited for": (
        "__shared__ alignas(16) float s[512]; copy(s + threadIdx.x * 4, a, 16); commit(); copy(s + 256 + threadIdx.x * 4, a, 16); commit(); await(1);"
        "b[threadIdx.x] = s[256 + threadIdx.x * 4];",
        "asynchronous copy",
    ),
    "no barrier after a copy": (
        "__shared__ alignas(16) float s[256]; copy(s + threadIdx.x * 4, a, 16); commit(); await(0); b[threadIdx.x] = s[threadIdx.x * 4 ^ 4];",
        "(race on|uninitialised) shared memory|asynchronous copy",
    ),
    "a copy over what others read": (
        "__shared__ alignas(16) float s[256]; for (int i = 0; i < 4; ++i) s[threadIdx.x * 4 + i] = 1; __syncthreads(); b[threadIdx.x] = s[252 - threadIdx.x * 4];"
        "copy(s + threadIdx.x * 4, a, 16); commit(); await(0);",
        "race on shared memory",
    ),
}  # fmt: skip

GOOD = {
    "a barrier between": "__shared__ float s[64]; s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); b[threadIdx.x + 64 * blockIdx.x] = s[63 - threadIdx.x];",
    "a warp's barrier": "__shared__ float s[64]; s[threadIdx.x] = 1; __syncwarp(); b[threadIdx.x + 64 * blockIdx.x] = s[threadIdx.x ^ 31];",
    "barriers in a loop": "__shared__ float s[64]; float x = 1; for (int i = 0; i < 5; ++i) { s[threadIdx.x] = x; __syncthreads(); x += s[63 - threadIdx.x];"
    " __syncthreads(); } b[threadIdx.x + 64 * blockIdx.x] = x;",
    "a shuffle among some": "float x = threadIdx.x; if (threadIdx.x < 16) x = __shfl_down_sync(0xffffu, x, 8, 16); b[threadIdx.x + 64 * blockIdx.x] = x;",
    "the active lanes": "float x = 0; if (threadIdx.x % 32 < 5) x = __shfl_sync(__activemask(), 3.0f, 4); b[threadIdx.x + 64 * blockIdx.x] = x;",
    "atomics": "atomicAdd(b, 1.0f);",
    "a copy that is waited for": "__shared__ alignas(16) float s[256]; copy(s + threadIdx.x * 4, a + threadIdx.x / 4 * 4, 16); commit(); await(0); __syncthreads();"
    "b[threadIdx.x + 64 * blockIdx.x] = s[threadIdx.x * 4 ^ 4];",
    "many readers": "b[threadIdx.x + 64 * blockIdx.x] = a[0];",
}  # fmt: skip


READERS = """__shared__ float s[1];
if (threadIdx.x == 0) s[0] = 1;
__syncthreads();
if (threadIdx.x == 1 || threadIdx.x == 33) b[threadIdx.x] = s[0];
%s
if (threadIdx.x == %d) b[threadIdx.x] = s[0];
__syncwarp();
if (threadIdx.x == %d) s[0] = 2;
"""


@pytest.mark.parametrize(
    "barrier, reader, writer, races",
    [
        ("__syncthreads();", 65, 97, True),  # two readers before the barrier do not hide the one after it
        ("__syncthreads();", 65, 66, False),  # a warp's barrier orders these two
        ("", 65, 66, True),  # but not the writer and the first readers
        ("", 34, 35, True),
        ("__syncthreads();", 1, 0, False),
    ],
)
def test_readers_are_not_forgotten(barrier: str, reader: int, writer: int, races: bool) -> None:
    found = finding(READERS % (barrier, reader, writer), threads=128, blocks=1)
    assert found.startswith("race on shared memory") if races else found == ""


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("order", ["forward", "reverse", "random:1"])
def test_a_check_fires(what: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA_ORDER", order)
    body, message = BAD[what]
    assert re.search(message, finding(body))


@pytest.mark.parametrize("what", GOOD)
@pytest.mark.parametrize("order", ["forward", "reverse", "random:1"])
def test_checks_are_silent(what: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA_ORDER", order)
    assert finding(GOOD[what]) == ""


@pytest.mark.parametrize(
    "what, meets",
    [
        ("read and write", True),
        ("two writes", True),
        ("global memory between blocks", True),
        ("a barrier between", False),
        ("a warp's barrier", False),
    ],
)
def test_the_trace_shows_what_the_checks_see(what: str, meets: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA_TRACE", str(tmp_path / "trace"))
    finding(BAD[what][0] if meets else GOOD[what])
    assert bool(conflicts(tmp_path / "trace")) is meets
