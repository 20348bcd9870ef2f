"""A share of ``python -m tests.cuda.mutate``: faults in small kernels are found, each by what should find it."""

from __future__ import annotations

import json

import pytest

from aotc.lowering.compiled import CompiledFunction
from aotc.lowering.cuda.kernel import lower_function
from tests.cuda.corpus import subjects
from tests.cuda.mutate import RESULT, examine
from tests.cuda.mutations import mutate
from tests.cuda.software import host_with_gpu

SOURCE = """
extern "C" __global__ void __launch_bounds__(64) k(float* __restrict__ x_ptr, half* __restrict__ y_ptr) {
  __shared__ alignas(64) float s_ptr[64];
  s_ptr[threadIdx.x] = x_ptr[s[1]];
  __syncthreads();
  *(float4*)(x_ptr + (threadIdx.x * 4)) = *(float4*)(((float*)s_ptr) + 4);
  aotc_move<16>((&(y_ptr[8])), (&(y_ptr[0])));
}
"""


def test_what_is_mutated() -> None:
    text, mutations = mutate(SOURCE)
    assert [(mutation.kind, mutation.text) for mutation in mutations] == [
        ("barrier", "__syncthreads();"),
        ("index", "s_ptr at threadIdx.x"),
        ("index", "x_ptr at s[1]"),
        ("index", "s at 1"),
        ("index", "y_ptr at 8"),
        ("index", "y_ptr at 0"),
        ("index", "x_ptr at (threadIdx.x * 4)"),
        ("index", "((float*)s_ptr) at 4"),
    ]
    assert "__shared__ alignas(64) float s_ptr[64];" in text
    assert "if (!SOFTWARE_CUDA_MUTATED(0)) __syncthreads();" in text
    assert "x_ptr[(s[(1) + SOFTWARE_CUDA_MUTATED(3) * 1]) + SOFTWARE_CUDA_MUTATED(2) * 1]" in text
    assert "y_ptr[(8) + SOFTWARE_CUDA_MUTATED(4) * 8]" in text
    assert "(x_ptr + ((threadIdx.x * 4)) + SOFTWARE_CUDA_MUTATED(6) * 4)" in text


@pytest.mark.parametrize("name", ["matmul 16x16x16 float16", "mean of images", "integers"])
def test_mutations_are_found(name: str) -> None:
    (subject,) = [subject for subject in subjects() if subject.name == name]
    lowered = lower_function(subject.function(), host_with_gpu())
    assert isinstance(lowered, CompiledFunction)
    outcomes = examine(subject, lowered, 0)
    assert [outcome for outcome in outcomes if not outcome["outcome"]] == []


def test_the_recorded_result() -> None:
    """At least 50 kernels of each kind; of barriers and of indices, 95 % caught or shown to be redundant."""
    found = json.loads(RESULT.read_text())
    for kind in ("barrier", "index"):
        counts = [kernel[kind] for kernel in found.values() if kernel[kind]]
        missed = sum(of_kernel.get("", 0) for of_kernel in counts)
        assert len(counts) >= 50
        assert missed <= 0.05 * sum(sum(of_kernel.values()) for of_kernel in counts)
