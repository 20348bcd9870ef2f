// CUDA's vector types with its alignments.
#pragma once

#define SOFTWARE_CUDA_VECTOR(T, name, size)                                                              \
  struct alignas(2 * sizeof(T)) name##2 {                                                                \
    T x, y;                                                                                              \
  };                                                                                                     \
  struct name##3 {                                                                                       \
    T x, y, z;                                                                                           \
  };                                                                                                     \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 {                                      \
    T x, y, z, w;                                                                                        \
  };                                                                                                     \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                             \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                     \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define uint3 software_cuda_no_uint3  // interface.h has it
SOFTWARE_CUDA_VECTOR(unsigned, uint, 4)
#undef uint3
SOFTWARE_CUDA_VECTOR(signed char, char, 1)
SOFTWARE_CUDA_VECTOR(unsigned char, uchar, 1)
SOFTWARE_CUDA_VECTOR(short, short, 2)
SOFTWARE_CUDA_VECTOR(unsigned short, ushort, 2)
SOFTWARE_CUDA_VECTOR(int, int, 4)
SOFTWARE_CUDA_VECTOR(float, float, 4)
SOFTWARE_CUDA_VECTOR(double, double, 8)
SOFTWARE_CUDA_VECTOR(long long, longlong, 8)
SOFTWARE_CUDA_VECTOR(unsigned long long, ulonglong, 8)
#undef SOFTWARE_CUDA_VECTOR
