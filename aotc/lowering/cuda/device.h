// What every kernel's source begins with: types, fp16, wide loads and stores, asynchronous copies, tensor cores.
// Each named function has two bodies: PTX for the cubin, C++ for the software CUDA driver of the tests (tests/cuda). No header is
// included, so a kernel compiles in milliseconds and needs no CUDA toolkit.
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#endif
typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
#define AOTC static __device__ __forceinline__

// IEEE binary16. Arithmetic happens in float; each assignment rounds to nearest even.
struct alignas(2) half {
  unsigned short bits;
  half() = default;
  __device__ __forceinline__ half(float value) {
#ifdef __CUDACC_RTC__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    _Float16 narrow = static_cast<_Float16>(value);
    __builtin_memcpy(&bits, &narrow, 2);
#endif
  }
  __device__ __forceinline__ half(double value) : half(aotc_narrowed(value)) {}
  __device__ __forceinline__ half(int value) : half(static_cast<float>(value)) {}
  __device__ __forceinline__ half(unsigned value) : half(static_cast<float>(value)) {}
  __device__ __forceinline__ half(int64_t value) : half(static_cast<float>(value)) {}
  __device__ __forceinline__ half(uint64_t value) : half(static_cast<float>(value)) {}
  __device__ __forceinline__ operator float() const {
#ifdef __CUDACC_RTC__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    _Float16 narrow;
    __builtin_memcpy(&narrow, &bits, 2);
    return static_cast<float>(narrow);
#endif
  }
  // A double rounded to float toward the odd neighbour, so that the second rounding is the right one.
  static __device__ __forceinline__ float aotc_narrowed(double value) {
    float nearest = static_cast<float>(value);
    if (static_cast<double>(nearest) == value || nearest != nearest) return nearest;
    unsigned bits;
    memcpy(&bits, &nearest, 4);
    bool beyond = (value < 0 ? -value : value) < (nearest < 0 ? -static_cast<double>(nearest) : static_cast<double>(nearest));
    bits = (beyond ? bits - 1 : bits) | 1;
    memcpy(&nearest, &bits, 4);
    return nearest;
  }
};
// A product as a value of its own: no addition takes it in. (Adding -0 changes nothing, and .rn is never contracted.)
AOTC float aotc_rounded(float product) {
#ifdef __CUDACC_RTC__
  float value;
  asm("add.rn.f32 %0, %1, 0f80000000;" : "=f"(value) : "f"(product));
  return value;
#else
  volatile float value = product;
  return value;
#endif
}
AOTC half __float2half_rn(float value) { return half(value); }
AOTC half operator-(half value) {
  value.bits ^= 0x8000;
  return value;
}

// The names that TVM has for functions of halves.
#define AOTC_HALF(name, function) \
  AOTC half name(half x) { return half(function(static_cast<float>(x))); }
AOTC_HALF(__habs, fabsf)
AOTC_HALF(hexp, expf)
AOTC_HALF(hexp2, exp2f)
AOTC_HALF(hexp10, exp10f)
AOTC_HALF(hlog, logf)
AOTC_HALF(hlog2, log2f)
AOTC_HALF(hlog10, log10f)
AOTC_HALF(hsqrt, sqrtf)
AOTC_HALF(hsin, sinf)
AOTC_HALF(hcos, cosf)
AOTC_HALF(htan, tanf)
AOTC_HALF(hatan, atanf)
AOTC_HALF(htanh, tanhf)
AOTC_HALF(herf, erff)
AOTC_HALF(hfloor, floorf)
AOTC_HALF(hceil, ceilf)
AOTC_HALF(htrunc, truncf)
AOTC_HALF(hrint, rintf)
AOTC_HALF(hround, roundf)
AOTC half hpow(half x, half y) { return half(powf(static_cast<float>(x), static_cast<float>(y))); }
AOTC half max(half a, half b) { return float(a) > float(b) ? a : b; }
AOTC half min(half a, half b) { return float(a) < float(b) ? a : b; }

#ifdef __CUDACC_RTC__
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000LL)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000LL)
#else
#define CUDART_INF_F __builtin_huge_valf()
#define CUDART_INF __builtin_huge_val()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_NAN __builtin_nan("")
#endif

// BYTES (16, 8, 4, 2 or 1) at once; both addresses are multiples of as many.
template <int BYTES> struct aotc_word;
template <> struct aotc_word<16> { uint4 value; };
template <> struct aotc_word<8> { uint2 value; };
template <> struct aotc_word<4> { uint value; };
template <> struct aotc_word<2> { ushort value; };
template <> struct aotc_word<1> { uchar value; };
template <int BYTES> AOTC int aotc_move(void *target, const void *source) {
  *reinterpret_cast<aotc_word<BYTES> *>(target) = *reinterpret_cast<const aotc_word<BYTES> *>(source);
  return 0;
}

// The value of the lane whose number differs in the bits of ``mask``.
template <class Value> AOTC Value aotc_shuffle(Value value, int mask) {
  if constexpr (sizeof(Value) < 4) {
    int word = 0;
    memcpy(&word, &value, sizeof(Value));
    word = __shfl_xor_sync(~0u, word, mask);
    memcpy(&value, &word, sizeof(Value));
    return value;
  } else {
    return __shfl_xor_sync(~0u, value, mask);
  }
}

// BYTES from global to shared memory, or zeros; later threads of the block see them after aotc_wait and a barrier.
// From sm_80 on the copy goes on by itself.
template <int BYTES> AOTC int aotc_copy(void *target, const void *source, bool valid) {
#if __CUDA_ARCH__ >= 800 && defined(__CUDACC_RTC__)
  unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(target));
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(source), "r"(valid ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(source), "n"(BYTES), "r"(valid ? BYTES : 0) : "memory");
#elif __CUDA_ARCH__ >= 800
  software_cuda_state.engine.copy_async(target, source, BYTES, valid ? BYTES : 0);
#else
  aotc_word<BYTES> word{};
  if (valid) word = *reinterpret_cast<const aotc_word<BYTES> *>(source);
  *reinterpret_cast<aotc_word<BYTES> *>(target) = word;
#endif
  return 0;
}
// BYTES from global memory to registers, or zeros.
template <int BYTES> AOTC int aotc_fetch(void *target, const void *source, bool valid) {
  aotc_word<BYTES> word{};
  if (valid) word = *reinterpret_cast<const aotc_word<BYTES> *>(source);
  *reinterpret_cast<aotc_word<BYTES> *>(target) = word;
  return 0;
}
// Ends a group of copies of this thread.
AOTC int aotc_commit() {
#if __CUDA_ARCH__ >= 800 && defined(__CUDACC_RTC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif __CUDA_ARCH__ >= 800
  software_cuda_state.engine.commit_async();
#endif
  return 0;
}
// Waits until at most PENDING of this thread's last groups of copies are under way.
template <int PENDING> AOTC int aotc_wait() {
#if __CUDA_ARCH__ >= 800 && defined(__CUDACC_RTC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#elif __CUDA_ARCH__ >= 800
  software_cuda_state.engine.wait_async(PENDING);
#endif
  return 0;
}

// Tensor cores: products of 16x16 halves, summed in float, by the threads of a warp together. What of a matrix a thread holds is
// the hardware's business; sums are stored through shared memory. On the CPU the i-th value is element i * 32 + fragment_lane().
#ifdef __CUDACC_RTC__
#define AOTC_FRAGMENT(array) \
  "=r"(array[0]), "=r"(array[1]), "=r"(array[2]), "=r"(array[3]), "=r"(array[4]), "=r"(array[5]), "=r"(array[6]), "=r"(array[7])
#define AOTC_LOAD(operand, layout, array, source, stride)                                                             \
  asm volatile("wmma.load." operand ".sync.aligned." layout ".m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;" \
               : AOTC_FRAGMENT(array)                                                                                 \
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(source))), "r"(stride)                            \
               : "memory")
#else
template <bool TRANSPOSED> void aotc_load_halves(uint32_t *array, const half *source, int stride) {
  half held[8];
  for (int i = 0; i < 8; ++i) {
    int row = i * 2 + software_cuda::fragment_lane() / 16, column = software_cuda::fragment_lane() % 16;
    held[i] = TRANSPOSED ? source[column * stride + row] : source[row * stride + column];
  }
  memcpy(array, held, sizeof held);
}
#endif
// The left matrix, whose rows (or, if TRANSPOSED, columns) are ``stride`` elements apart.
template <bool TRANSPOSED> AOTC int aotc_load_left(uint32_t *array, const half *source, int stride) {
#ifdef __CUDACC_RTC__
  if constexpr (TRANSPOSED) AOTC_LOAD("a", "col", array, source, stride);
  else AOTC_LOAD("a", "row", array, source, stride);
#else
  aotc_load_halves<TRANSPOSED>(array, source, stride);
#endif
  return 0;
}
// The right matrix, as above: its rows are depths.
template <bool TRANSPOSED> AOTC int aotc_load_right(uint32_t *array, const half *source, int stride) {
#ifdef __CUDACC_RTC__
  if constexpr (TRANSPOSED) AOTC_LOAD("b", "col", array, source, stride);
  else AOTC_LOAD("b", "row", array, source, stride);
#else
  aotc_load_halves<TRANSPOSED>(array, source, stride);
#endif
  return 0;
}
// sums += left * right
AOTC int aotc_multiply(float *sums, const uint32_t *left, const uint32_t *right) {
#ifdef __CUDACC_RTC__
  asm volatile(
      "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(left[4]), "r"(left[5]), "r"(left[6]), "r"(left[7]),
        "r"(right[0]), "r"(right[1]), "r"(right[2]), "r"(right[3]), "r"(right[4]), "r"(right[5]), "r"(right[6]), "r"(right[7]));
#else
  using software_cuda::Number;
  software_cuda_state.engine.product(__LINE__, {16, 16, 16, Number::float16, Number::float32, true, left, right, sums, sums});
#endif
  return 0;
}
// Stores 16 rows of 16 sums, ``stride`` floats apart.
AOTC int aotc_store_sums(void *target, const float *sums, int stride) {
#ifdef __CUDACC_RTC__
  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(target))), "f"(sums[0]), "f"(sums[1]), "f"(sums[2]), "f"(sums[3]),
                 "f"(sums[4]), "f"(sums[5]), "f"(sums[6]), "f"(sums[7]), "r"(stride)
               : "memory");
#else
  float *row = static_cast<float *>(target) + software_cuda::fragment_lane() / 16 * stride + software_cuda::fragment_lane() % 16;
  for (int i = 0; i < 8; ++i) row[i * 2 * stride] = sums[i];
#endif
  return 0;
}
