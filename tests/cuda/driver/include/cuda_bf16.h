// bfloat16 as CUDA's header of this name declares it.
#pragma once
#include "software_cuda/small_float.h"

namespace software_cuda {
struct Bfloat16Bits {
  static unsigned short narrow(float value) {
    const unsigned bits = __float_as_uint(value);
    if (value != value) return 0x7FFF;
    return static_cast<unsigned short>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
  static float widen(unsigned short bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
};
}  // namespace software_cuda
using __nv_bfloat16 = software_cuda::SmallFloat<software_cuda::Bfloat16Bits>;
using nv_bfloat16 = __nv_bfloat16;
using __nv_bfloat162 = software_cuda::SmallFloat2<__nv_bfloat16>;
using nv_bfloat162 = __nv_bfloat162;
SOFTWARE_CUDA_SMALL_FUNCTIONS(nv_bfloat16, nv_bfloat162)
inline float __bfloat162float(nv_bfloat16 a) { return a; }
inline nv_bfloat16 __float2bfloat16(float a) { return a; }
inline nv_bfloat16 __float2bfloat16_rn(float a) { return a; }
inline nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
inline nv_bfloat162 __float22bfloat162_rn(float2 a) { return {a.x, a.y}; }
inline float2 __bfloat1622float2(nv_bfloat162 a) { return {a.x, a.y}; }
inline nv_bfloat162 __halves2bfloat162(nv_bfloat16 a, nv_bfloat16 b) { return {a, b}; }
inline unsigned short __bfloat16_as_ushort(nv_bfloat16 a) { return a.__x; }
