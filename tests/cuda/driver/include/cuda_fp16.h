// IEEE binary16 as CUDA's header of this name declares it.
#pragma once
#include "software_cuda/small_float.h"

namespace software_cuda {
struct HalfBits {
  static unsigned short narrow(float value) {
    const _Float16 rounded = static_cast<_Float16>(value);
    unsigned short bits;
    memcpy(&bits, &rounded, sizeof bits);
    return bits;
  }
  static float widen(unsigned short bits) {
    _Float16 value;
    memcpy(&value, &bits, sizeof bits);
    return value;
  }
};
}  // namespace software_cuda
using __half = software_cuda::SmallFloat<software_cuda::HalfBits>;
using half = __half;
using __half2 = software_cuda::SmallFloat2<__half>;
using half2 = __half2;
SOFTWARE_CUDA_SMALL_FUNCTIONS(half, half2)
inline __half2 make_half2(half x, half y) { return {x, y}; }
inline float __half2float(half a) { return a; }
inline half __float2half(float a) { return a; }
inline half __float2half_rn(float a) { return a; }
inline half __double2half(double a) { return a; }
inline half __int2half_rn(int a) { return a; }
inline int __half2int_rz(half a) { return static_cast<int>(static_cast<float>(a)); }
inline half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
inline half2 __float2half2_rn(float a) { return {a, a}; }
inline float2 __half22float2(half2 a) { return {a.x, a.y}; }
inline half2 __halves2half2(half a, half b) { return {a, b}; }
inline half2 __half2half2(half a) { return {a, a}; }
inline unsigned short __half_as_ushort(half a) { return a.__x; }
inline half __ushort_as_half(unsigned short bits) {
  half value;
  value.__x = bits;
  return value;
}
