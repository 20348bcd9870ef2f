// Comes before a kernel's CUDA C when it is compiled for the CPU: what nvcc and NVRTC have built in.
#pragma once
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // C's math.h alone: <cmath> takes as long to compile as a kernel
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <stdint.h>
#include <string.h>
#include <type_traits>

#include "interface.h"

#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 6
#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __builtin_align__(n) alignas(n)

// In memory of its own that looks constant, so that reading an index costs a load and no check.
asm(R"(.pushsection .bss
.balign 64
.hidden software_cuda_state
.globl software_cuda_state
software_cuda_state: .zero 512
.popsection)");
extern "C" __attribute__((visibility("hidden"))) const software_cuda::State software_cuda_state;
static_assert(sizeof(software_cuda::State) <= 512);
#define threadIdx (software_cuda_state.thread)
#define blockIdx (software_cuda_state.block)
#define blockDim (software_cuda_state.block_size)
#define gridDim (software_cuda_state.grid_size)
constexpr int warpSize = 32;

#define SOFTWARE_CUDA_PLAIN __attribute__((no_sanitize("thread", "undefined"))) inline

#include "vector_types.h"
#include "warp.h"
#include "atomic.h"
#include "intrinsics.h"
#ifdef SOFTWARE_CUDA_CHECKED
#include "hooks.h"
#endif
#include "kernel.h"
