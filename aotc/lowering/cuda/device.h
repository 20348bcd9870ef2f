// What every kernel's source begins with: types, fp16, wide loads and stores, asynchronous copies, tensor cores.
// Each named function has two bodies: PTX for the cubin, C++ for a run on a CPU (tests/cuda). No header is included,
// so a kernel compiles in milliseconds and needs no CUDA toolkit.
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
AOTC half __float2half_rn(float value) { return half(value); }
AOTC half operator-(half value) {
  value.bits ^= 0x8000;
  return value;
}

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
