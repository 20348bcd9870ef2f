// What half and bfloat16 have in common: 16 bits, arithmetic in float, each result rounded to nearest even. A float has more than
// twice the bits, so one operation rounded twice is rounded right.
#pragma once

namespace software_cuda {
template <class Bits> struct alignas(2) SmallFloat {
  unsigned short __x;
  SmallFloat() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> SmallFloat(T value) : __x(Bits::narrow(static_cast<float>(value))) {}
  operator float() const { return Bits::widen(__x); }

#define SOFTWARE_CUDA_OPERATOR(op)                                                                                 \
  friend SmallFloat operator op(SmallFloat a, SmallFloat b) { return static_cast<float>(a) op static_cast<float>(b); } \
  SmallFloat &operator op##=(SmallFloat b) { return *this = *this op b; }
  SOFTWARE_CUDA_OPERATOR(+)
  SOFTWARE_CUDA_OPERATOR(-)
  SOFTWARE_CUDA_OPERATOR(*)
  SOFTWARE_CUDA_OPERATOR(/)
#undef SOFTWARE_CUDA_OPERATOR
#define SOFTWARE_CUDA_COMPARISON(op) \
  friend bool operator op(SmallFloat a, SmallFloat b) { return static_cast<float>(a) op static_cast<float>(b); }
  SOFTWARE_CUDA_COMPARISON(<)
  SOFTWARE_CUDA_COMPARISON(<=)
  SOFTWARE_CUDA_COMPARISON(>)
  SOFTWARE_CUDA_COMPARISON(>=)
  SOFTWARE_CUDA_COMPARISON(==)
  SOFTWARE_CUDA_COMPARISON(!=)
#undef SOFTWARE_CUDA_COMPARISON
  friend SmallFloat operator-(SmallFloat a) {
    a.__x ^= 0x8000;
    return a;
  }
};

template <class T> struct alignas(4) SmallFloat2 {
  T x, y;
  SmallFloat2() = default;
  SmallFloat2(T x, T y) : x(x), y(y) {}
  friend SmallFloat2 operator+(SmallFloat2 a, SmallFloat2 b) { return {a.x + b.x, a.y + b.y}; }
  friend SmallFloat2 operator-(SmallFloat2 a, SmallFloat2 b) { return {a.x - b.x, a.y - b.y}; }
  friend SmallFloat2 operator*(SmallFloat2 a, SmallFloat2 b) { return {a.x * b.x, a.y * b.y}; }
  friend SmallFloat2 operator/(SmallFloat2 a, SmallFloat2 b) { return {a.x / b.x, a.y / b.y}; }
};
}  // namespace software_cuda

// CUDA's functions of one type T and its pair P.
#define SOFTWARE_CUDA_SMALL_FUNCTIONS(T, P)                                                          \
  inline T __hadd(T a, T b) { return a + b; }                                                        \
  inline T __hsub(T a, T b) { return a - b; }                                                        \
  inline T __hmul(T a, T b) { return a * b; }                                                        \
  inline T __hdiv(T a, T b) { return a / b; }                                                        \
  inline T __hfma(T a, T b, T c) { return static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c); } \
  inline T __hneg(T a) { return -a; }                                                                \
  inline T __habs(T a) { return fabsf(a); }                                                          \
  inline T __hmax(T a, T b) { return fmaxf(a, b); }                                                  \
  inline T __hmin(T a, T b) { return fminf(a, b); }                                                  \
  inline bool __hgt(T a, T b) { return a > b; }                                                      \
  inline bool __hge(T a, T b) { return a >= b; }                                                     \
  inline bool __hlt(T a, T b) { return a < b; }                                                      \
  inline bool __hle(T a, T b) { return a <= b; }                                                     \
  inline bool __heq(T a, T b) { return a == b; }                                                     \
  inline bool __hne(T a, T b) { return a != b; }                                                     \
  inline bool __hisnan(T a) { return a != a; }                                                       \
  inline T hexp(T a) { return expf(a); }                                                             \
  inline T hexp2(T a) { return exp2f(a); }                                                           \
  inline T hexp10(T a) { return powf(10, a); }                                                       \
  inline T hlog(T a) { return logf(a); }                                                             \
  inline T hlog2(T a) { return log2f(a); }                                                           \
  inline T hlog10(T a) { return log10f(a); }                                                         \
  inline T hsin(T a) { return sinf(a); }                                                             \
  inline T hcos(T a) { return cosf(a); }                                                             \
  inline T hsqrt(T a) { return sqrtf(a); }                                                           \
  inline T hrsqrt(T a) { return rsqrtf(a); }                                                         \
  inline T hrcp(T a) { return 1 / static_cast<float>(a); }                                           \
  inline T hfloor(T a) { return floorf(a); }                                                         \
  inline T hceil(T a) { return ceilf(a); }                                                           \
  inline T htrunc(T a) { return truncf(a); }                                                         \
  inline T hrint(T a) { return rintf(a); }                                                           \
  inline P __hadd2(P a, P b) { return a + b; }                                                       \
  inline P __hsub2(P a, P b) { return a - b; }                                                       \
  inline P __hmul2(P a, P b) { return a * b; }                                                       \
  inline P __hfma2(P a, P b, P c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }         \
  inline P __hmax2(P a, P b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                        \
  inline P __hmin2(P a, P b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                        \
  inline P h2exp(P a) { return {hexp(a.x), hexp(a.y)}; }                                             \
  inline T __low2##T(P a) { return a.x; }                                                            \
  inline T __high2##T(P a) { return a.y; }
