"""What kernels call, against NumPy: warp functions, atomics, small floats, tensor cores, asynchronous copies."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.cuda.handwritten import Kernel, run
from tests.cuda.host_code import granule

LANE = np.arange(32)
HALF = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <mma.h>\n"


def result(body: str, *, size: int = 128, threads: int = 32, before: str = HALF) -> np.ndarray:
    values, finding = run(Kernel(body, blocks=1, threads=threads, size=size, before=before))
    assert values is not None, finding
    return values


WARP = {
    "__shfl_sync(~0u, x, 5)": LANE * 0 + 5,
    "__shfl_sync(~0u, x, 3, 8)": LANE // 8 * 8 + 3,
    "__shfl_up_sync(~0u, x, 2)": np.where(LANE < 2, LANE, LANE - 2),
    "__shfl_up_sync(~0u, x, 3, 16)": np.where(LANE % 16 < 3, LANE, LANE - 3),
    "__shfl_down_sync(~0u, x, 16)": np.where(LANE + 16 < 32, LANE + 16, LANE),
    "__shfl_down_sync(~0u, x, 2, 4)": np.where(LANE % 4 < 2, LANE + 2, LANE),
    "__shfl_xor_sync(~0u, x, 9)": LANE ^ 9,
    "__shfl_xor_sync(~0u, x, 3, 4)": LANE ^ 3,
    "__ballot_sync(~0u, lane % 3 == 0) % 65536": LANE * 0 + sum(1 << i for i in range(0, 16, 3)),
    "__any_sync(~0u, lane == 31)": LANE * 0 + 1,
    "__any_sync(~0u, lane == 32)": LANE * 0,
    "__all_sync(~0u, lane < 32)": LANE * 0 + 1,
    "__all_sync(~0u, lane < 31)": LANE * 0,
    "__popc(__activemask())": LANE * 0 + 32,
    "__dp4a(0x01ff02fe, 0x04030201, lane)": LANE + 4 - 3 + 4 - 2,
    "__shfl_sync(~0u, double(x), 7)": LANE * 0 + 7,
    "__shfl_sync(~0u, half(x), 7)": LANE * 0 + 7,
}  # fmt: skip


@pytest.mark.parametrize("expression", WARP)
def test_warp_functions(expression: str) -> None:
    values = result(f"int lane = threadIdx.x; float x = a[lane]; b[lane] = {expression};")
    np.testing.assert_array_equal(values[:32], WARP[expression])


def test_a_shuffle_from_a_lane_that_takes_no_part_gives_no_number() -> None:
    values = result("float x = a[threadIdx.x]; b[threadIdx.x] = __shfl_down_sync(0xfffffu, x, 16);", threads=20)
    np.testing.assert_array_equal(values[:4], [16, 17, 18, 19])
    assert np.isnan(values[4:16]).all()


ATOMICS = {
    "atomicAdd(b, a[i])": 496,
    "atomicMax((int *)b, i); if (i == 0) c = 1": 31,
    "atomicAdd((int *)b, 3)": 96,
    "atomicOr((unsigned *)b, 1u << (i % 4))": 15,
    "atomicXor((int *)b, 1 << (i / 2))": 0,
    "atomicCAS((int *)b, i, i + 1)": 32,
}


@pytest.mark.parametrize("call", ATOMICS)
def test_atomics(call: str) -> None:
    bits = result(f"int i = threadIdx.x, c = 0; {call};")[:1]
    assert (bits if "a[i]" in call else bits.view(np.int32))[0] == ATOMICS[call]


@pytest.mark.parametrize("name, dtype", [("half", np.float16), ("nv_bfloat16", ml_dtypes.bfloat16)])
def test_small_floats_round_after_each_operation(name: str, dtype: type) -> None:
    values = result(f"{name} x = a[threadIdx.x] * 0.37f - 3, y = 1.7f; b[threadIdx.x] = (x * y + x) / y - hexp(x);")
    x, y = (LANE.astype(np.float32) * np.float32(0.37) - 3).astype(dtype), dtype(1.7)
    np.testing.assert_array_equal(values[:32], ((x * y + x) / y - np.exp(x.astype(np.float32)).astype(dtype)).astype(np.float32))


def test_all_half_values_survive_the_way_through_float() -> None:
    body = "for (int i = threadIdx.x; i < n; i += 32) b[i] = __ushort_as_half((unsigned short)a[i]);"
    values = result(body, size=65536)
    right = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(values, right)


# d = a * b of m x k and k x n, where element (i, j) of a is i + 2 j mod 7, of b i - j mod 5; by the layouts in the PTX ISA.
MMA = {
    "half, m16n8k16": ("half", "float16", 16, 8, 16),
    "half, m16n8k8": ("half", "float16", 16, 8, 8),
    "bfloat16, m16n8k16": ("nv_bfloat16", "bfloat16", 16, 8, 16),
    "tf32, m16n8k8": ("float", "tfloat32", 16, 8, 8),
    "tf32, m16n8k4": ("float", "tfloat32", 16, 8, 4),
    "int8, m16n8k32": ("signed char", "int8", 16, 8, 32),
    "int8, m16n8k16": ("signed char", "int8", 16, 8, 16),
    "int8, m8n8k16": ("signed char", "int8", 8, 8, 16),
}


@pytest.mark.parametrize("what", MMA)
def test_mma_sync(what: str) -> None:
    element, number, m, n, k = MMA[what]
    total, kind = ("int", "int32") if number == "int8" else ("float", "float32")
    # rows and columns as the PTX ISA's figures of each instruction give them, written out for the sizes of 8, 4, 2 and 1 elements
    # in 32 bits of registers
    body = f"""
    constexpr int run = 4 / sizeof({element});
    int group = threadIdx.x >> 2, quad = threadIdx.x & 3;
    {element} left[{m * k // 32}], right[{k * n // 32}];
    {total} sum[{m * n // 32}] = {{}};
    for (int i = 0; i < {m * k // 32}; ++i) {{
      int row = group + ({m} == 16 && i / run % 2 ? 8 : 0), column = quad * run + i % run + (i / run / ({m} / 8)) * 4 * run;
      left[i] = ({element})((row + 2 * column) % 7);
    }}
    for (int i = 0; i < {k * n // 32}; ++i) right[i] = ({element})((quad * run + i % run + i / run * 4 * run + 16 - group) % 5);
    software_cuda_state.engine.product(__LINE__, {{{m}, {n}, {k}, software_cuda::Number::{number}, software_cuda::Number::{kind}, false, left, right, sum, sum}});
    for (int i = 0; i < {m * n // 32}; ++i) b[(group + i / 2 * 8) * {n} + quad * 2 + i % 2] = sum[i];
    """
    i, j = np.indices((m, k))
    p, q = np.indices((k, n))
    np.testing.assert_array_equal(result(body, size=m * n), (((i + 2 * j) % 7) @ ((p + 16 - q) % 5)).ravel())


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(transposed: bool) -> None:
    body = f"""
    __shared__ alignas(16) unsigned short s[32][8];
    for (int i = 0; i < 8; ++i) s[threadIdx.x][i] = threadIdx.x * 8 + i;
    __syncthreads();
    uint32_t r[4];
    software_cuda_state.engine.load_matrix(__LINE__, r, s[threadIdx.x], 4, {int(transposed)});
    for (int i = 0; i < 4; ++i) b[i * 64 + threadIdx.x * 2] = r[i] & 0xffff, b[i * 64 + threadIdx.x * 2 + 1] = r[i] >> 16;
    """
    matrices = np.arange(256).reshape(4, 8, 8)
    np.testing.assert_array_equal(result(body, size=256), (matrices.transpose(0, 2, 1) if transposed else matrices).ravel())


@pytest.mark.parametrize("shape", [(16, 16, 16), (32, 8, 16), (8, 32, 16)])
def test_wmma(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    body = f"""
    using namespace nvcuda::wmma;
    __shared__ alignas(32) half x[{m * k}], y[{k * n}];
    __shared__ alignas(32) float z[{m * n}];
    for (int i = threadIdx.x; i < {m * k}; i += 32) x[i] = i % 13;
    for (int i = threadIdx.x; i < {k * n}; i += 32) y[i] = i % 11;
    __syncthreads();
    fragment<matrix_a, {m}, {n}, {k}, half, row_major> left;
    fragment<matrix_b, {m}, {n}, {k}, half, col_major> right;
    fragment<accumulator, {m}, {n}, {k}, float> sum;
    fill_fragment(sum, 1.0f);
    load_matrix_sync(left, x, {k});
    load_matrix_sync(right, y, {k});
    mma_sync(sum, left, right, sum);
    store_matrix_sync(z, sum, {n}, mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < {m * n}; i += 32) b[i] = z[i];
    """
    x, y = np.arange(m * k).reshape(m, k) % 13, np.arange(k * n).reshape(n, k) % 11
    np.testing.assert_array_equal(result(body, size=m * n), (x @ y.T + 1).ravel())


def test_an_asynchronous_copy_fills_with_zeros() -> None:
    body = """
    __shared__ alignas(16) float s[128];
    software_cuda_state.engine.copy_async(s + threadIdx.x * 4, a + threadIdx.x * 4, 16, threadIdx.x * 4 < 50 ? (threadIdx.x < 12 ? 16 : 8) : 0);
    commit();
    await(0);
    __syncthreads();
    for (int i = 0; i < 4; ++i) b[threadIdx.x * 4 + i] = s[threadIdx.x * 4 + i];
    """
    np.testing.assert_array_equal(result(body), np.where(np.arange(128) < 50, np.arange(128), 0))


def test_copies_land_group_by_group() -> None:
    body = """
    __shared__ alignas(16) float s[3][128];
    for (int stage = 0; stage < 3; ++stage) { copy(s[stage] + threadIdx.x * 4, a + threadIdx.x * 4, 16); commit(); }
    float sum = 0;
    await(2);
    sum += s[0][threadIdx.x * 4];
    await(1);
    sum += s[1][threadIdx.x * 4 + 1];
    await(0);
    b[threadIdx.x] = sum + s[2][threadIdx.x * 4 + 2];
    """
    np.testing.assert_array_equal(result(body)[:32], 12 * LANE + 3)


@pytest.mark.parametrize(
    "parameters, body, size",
    [
        ("float *a", "a[0] = 1;", 4),
        ("half* __restrict__ a", "a[0] = 1;", 2),
        ("float *a", "copy(a, (bool)1);", 4),
        ("float *a", "extern __shared__ uchar room[]; ((half*)room)[0] = 1;", 2),
        ("float *a", "alignas(64) int8_t held[4];", 1),
        ("const unsigned char *a", "", 1),
        ("float *a", "*(half2*)(a + 1) = x;", 2),
        ("nv_bfloat16 *a", "", 2),
        ("bool* __restrict__ a", "", 1),
    ],
)
def test_the_smallest_element(parameters: str, body: str, size: int) -> None:
    assert granule(f'extern "C" __global__ void __launch_bounds__(64) k({parameters}) {{ {body} }}') == size
