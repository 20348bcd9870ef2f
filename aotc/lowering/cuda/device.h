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

// BYTES (8, 4, 2 or 1) at once, or 16 at a time; both addresses are multiples of as many.
template <int BYTES> struct aotc_word { uint4 value[BYTES / 16]; };
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

// BYTES, each of which is FILL.
template <int BYTES, int FILL> AOTC aotc_word<BYTES> aotc_filled() {
  aotc_word<BYTES> word{};
  if constexpr (FILL != 0) memset(&word, FILL, BYTES);
  return word;
}
// BYTES from global memory, or FILLs.
template <int BYTES, int FILL = 0> AOTC int aotc_fetch(void *target, const void *source, bool valid) {
  aotc_word<BYTES> word = aotc_filled<BYTES, FILL>();
  if (valid) word = *reinterpret_cast<const aotc_word<BYTES> *>(source);
  *reinterpret_cast<aotc_word<BYTES> *>(target) = word;
  return 0;
}
// BYTES from global to shared memory, or FILLs; later threads of the block see them after aotc_wait and a barrier.
// From sm_80 on the copy goes on by itself.
template <int BYTES, int FILL = 0> AOTC int aotc_copy(void *target, const void *source, bool valid) {
#if __CUDA_ARCH__ >= 800
  if (FILL != 0 && !valid) {
    *reinterpret_cast<aotc_word<BYTES> *>(target) = aotc_filled<BYTES, FILL>();
    return 0;
  }
#ifdef __CUDACC_RTC__
  unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(target));
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(source), "r"(valid ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(source), "n"(BYTES), "r"(valid ? BYTES : 0) : "memory");
#else
  software_cuda_state.engine.copy_async(target, source, BYTES, valid ? BYTES : 0);
#endif
#else
  aotc_fetch<BYTES, FILL>(target, source, valid);
#endif
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

// Tensor cores: sums += left * right of 16 rows by some depths by 16 columns, by the threads of a warp together, a struct for each
// type of element. What of a matrix a thread holds is the hardware's business; sums are stored through shared memory. ``stride`` is
// how many elements rows lie apart; rows of the right matrix are depths. TRANSPOSED: columns lie apart instead.
#ifdef __CUDACC_RTC__
#define AOTC_OUT2(x) "=r"(x[0]), "=r"(x[1])
#define AOTC_OUT4(x) AOTC_OUT2(x), "=r"(x[2]), "=r"(x[3])
#define AOTC_OUT8(x) AOTC_OUT4(x), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]), "=r"(x[7])
#define AOTC_IN2(x) "r"(x[0]), "r"(x[1])
#define AOTC_IN4(x) AOTC_IN2(x), "r"(x[2]), "r"(x[3])
#define AOTC_IN8(x) AOTC_IN4(x), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7])
#define AOTC_SUMS(how, x) how(x[0]), how(x[1]), how(x[2]), how(x[3]), how(x[4]), how(x[5]), how(x[6]), how(x[7])
#define AOTC_LOADED2 "{%0, %1}, [%2], %3;"
#define AOTC_LOADED4 "{%0, %1, %2, %3}, [%4], %5;"
#define AOTC_LOADED8 "{%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
#define AOTC_FACTORS2 "{%8, %9}, {%10, %11}"
#define AOTC_FACTORS4 "{%8, %9, %10, %11}, {%12, %13, %14, %15}"
#define AOTC_FACTORS8 "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}"
#define AOTC_EIGHT "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define AOTC_LOAD(operand, layout, shape, type, held, array, source, stride)                           \
  asm volatile("wmma.load." operand ".sync.aligned." layout "." shape ".shared." type " " AOTC_LOADED##held \
               : AOTC_OUT##held(array)                                                                  \
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(source))), "r"(stride)              \
               : "memory")
#define AOTC_KIND(kind, sum, letter, held, shape, type, total, types)                                       \
  struct kind {                                                                                        \
    template <bool TRANSPOSED> AOTC void left(uint32_t *array, const void *source, int stride) {       \
      if constexpr (TRANSPOSED) AOTC_LOAD("a", "col", shape, type, held, array, source, stride);       \
      else AOTC_LOAD("a", "row", shape, type, held, array, source, stride);                            \
    }                                                                                                  \
    template <bool TRANSPOSED> AOTC void right(uint32_t *array, const void *source, int stride) {      \
      if constexpr (TRANSPOSED) AOTC_LOAD("b", "col", shape, type, held, array, source, stride);       \
      else AOTC_LOAD("b", "row", shape, type, held, array, source, stride);                            \
    }                                                                                                  \
    AOTC void multiply(sum *sums, const uint32_t *left, const uint32_t *right) {                       \
      asm volatile("wmma.mma.sync.aligned.row.row." shape types " " AOTC_EIGHT ", " AOTC_FACTORS##held ", " AOTC_EIGHT ";" \
                   : AOTC_SUMS("+" letter, sums)                                                       \
                   : AOTC_IN##held(left), AOTC_IN##held(right));                                       \
    }                                                                                                  \
    AOTC void store(void *target, const sum *sums, int stride) {                                       \
      asm volatile("wmma.store.d.sync.aligned.row." shape ".shared." total " [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;" \
                   :                                                                                   \
                   : "r"(static_cast<unsigned>(__cvta_generic_to_shared(target))), AOTC_SUMS(letter, sums), "r"(stride) \
                   : "memory");                                                                        \
    }                                                                                                  \
  };
AOTC_KIND(aotc_halves, float, "f", 8, "m16n16k16", "f16", "f32", ".f32.f32")
AOTC_KIND(aotc_bfloats, float, "f", 4, "m16n16k16", "bf16", "f32", ".f32.bf16.bf16.f32")
AOTC_KIND(aotc_short_floats, float, "f", 4, "m16n16k8", "tf32", "f32", ".f32.tf32.tf32.f32")
AOTC_KIND(aotc_signed_bytes, int, "r", 2, "m16n16k16", "s8", "s32", ".s32.s8.s8.s32")
AOTC_KIND(aotc_unsigned_bytes, int, "r", 2, "m16n16k16", "u8", "s32", ".s32.u8.u8.s32")
#else
// The i-th value of a thread is element i * 32 + fragment_lane().
template <class Element, class Sum, int DEPTH, software_cuda::Number INPUT, software_cuda::Number OUTPUT> struct aotc_kind {
  template <int COLUMNS, bool TRANSPOSED> static void load(uint32_t *array, const void *source, int stride) {
    software_cuda::need_alignment(source, 16, __LINE__);
    software_cuda::need_alignment(static_cast<const Element *>(source) + stride, 16, __LINE__);
    Element taken[DEPTH / 2];
    for (int i = 0; i < DEPTH / 2; ++i) {
      int at = i * 32 + software_cuda::fragment_lane(), row = at / COLUMNS, column = at % COLUMNS;
      taken[i] = static_cast<const Element *>(source)[TRANSPOSED ? column * stride + row : row * stride + column];
    }
    memcpy(array, taken, sizeof taken);
  }
  template <bool TRANSPOSED> static void left(uint32_t *array, const void *source, int stride) {
    load<DEPTH, TRANSPOSED>(array, source, stride);
  }
  template <bool TRANSPOSED> static void right(uint32_t *array, const void *source, int stride) {
    load<16, TRANSPOSED>(array, source, stride);
  }
  static void multiply(Sum *sums, const uint32_t *left, const uint32_t *right) {
    software_cuda_state.engine.product(__LINE__, {16, 16, DEPTH, INPUT, OUTPUT, true, left, right, sums, sums});
  }
  static void store(void *target, const Sum *sums, int stride) {
    Sum *row = static_cast<Sum *>(target) + software_cuda::fragment_lane() / 16 * stride + software_cuda::fragment_lane() % 16;
    for (int i = 0; i < 8; ++i) row[i * 2 * stride] = sums[i];
  }
};
using aotc_halves = aotc_kind<half, float, 16, software_cuda::Number::float16, software_cuda::Number::float32>;
using aotc_bfloats = aotc_kind<uint16_t, float, 16, software_cuda::Number::bfloat16, software_cuda::Number::float32>;
using aotc_short_floats = aotc_kind<float, float, 8, software_cuda::Number::tfloat32, software_cuda::Number::float32>;
using aotc_signed_bytes = aotc_kind<int8_t, int, 16, software_cuda::Number::int8, software_cuda::Number::int32>;
using aotc_unsigned_bytes = aotc_kind<uint8_t, int, 16, software_cuda::Number::uint8, software_cuda::Number::int32>;
#endif
template <class KIND, bool TRANSPOSED> AOTC int aotc_load_left(uint32_t *array, const void *source, int stride) {
  KIND::template left<TRANSPOSED>(array, source, stride);
  return 0;
}
template <class KIND, bool TRANSPOSED> AOTC int aotc_load_right(uint32_t *array, const void *source, int stride) {
  KIND::template right<TRANSPOSED>(array, source, stride);
  return 0;
}
template <class KIND, class SUM> AOTC int aotc_multiply(SUM *sums, const uint32_t *left, const uint32_t *right) {
  KIND::multiply(sums, left, right);
  return 0;
}
// Stores 16 rows of 16 sums.
template <class KIND, class SUM> AOTC int aotc_store_sums(void *target, const SUM *sums, int stride) {
  KIND::store(target, sums, stride);
  return 0;
}
// A float rounded to the 11 bits that tensor cores take, ties away from zero.
AOTC int aotc_shorten(uint32_t *value) {
#ifdef __CUDACC_RTC__
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(*value) : "f"(__uint_as_float(*value)));
#else
  *value = (*value + 0x1000) & 0xFFFFE000;
#endif
  return 0;
}
// Four bytes as signed numbers that are 128 less than the unsigned ones.
AOTC int aotc_center(uint32_t *bytes) {
  *bytes ^= 0x80808080;
  return 0;
}
