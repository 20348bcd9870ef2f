// nvcuda::wmma. Which lane holds which element of a fragment is left open by CUDA; interface.h says what it is here.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision

template <class T> struct Element {
  using type = T;
};
template <> struct Element<precision::tf32> {
  using type = float;
};
template <class T> constexpr software_cuda::Number number = software_cuda::Number::float32;
template <> constexpr software_cuda::Number number<half> = software_cuda::Number::float16;
template <> constexpr software_cuda::Number number<nv_bfloat16> = software_cuda::Number::bfloat16;
template <> constexpr software_cuda::Number number<precision::tf32> = software_cuda::Number::tfloat32;
template <> constexpr software_cuda::Number number<signed char> = software_cuda::Number::int8;
template <> constexpr software_cuda::Number number<unsigned char> = software_cuda::Number::uint8;
template <> constexpr software_cuda::Number number<int> = software_cuda::Number::int32;

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M, columns = std::is_same_v<Use, matrix_a> ? K : N;
  static constexpr int num_elements = rows * columns / 32;
  typename Element<T>::type x[num_elements];
};

inline float __float_to_tf32(float value) { return __uint_as_float((__float_as_uint(value) + 0x1000) & 0xFFFFE000); }

template <class Fragment, class T> void fill_fragment(Fragment &f, T value) {
  for (auto &x : f.x) x = value;
}

namespace detail {
template <class Fragment> int place(int i, unsigned stride, bool columns_first) {
  const int element = i * 32 + static_cast<int>(software_cuda::fragment_lane()), row = element / Fragment::columns, column = element % Fragment::columns;
  return columns_first ? column * static_cast<int>(stride) + row : row * static_cast<int>(stride) + column;
}
// Addresses and strides are multiples of 32 and 16 bytes.
template <class T> void check(const T *address, unsigned stride, int line) {
  software_cuda::need_alignment(address, 32, line);
  software_cuda::need_alignment(address + stride, 16, line);
}
}  // namespace detail

template <class Use, int M, int N, int K, class T, class Layout, class P>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout> &f, const P *p, unsigned stride, int line = __builtin_LINE()) {
  detail::check(p, stride, line);
  for (int i = 0; i < f.num_elements; ++i) f.x[i] = p[detail::place<fragment<Use, M, N, K, T, Layout>>(i, stride, std::is_same_v<Layout, col_major>)];
}
template <int M, int N, int K, class T, class P>
void load_matrix_sync(fragment<accumulator, M, N, K, T> &f, const P *p, unsigned stride, layout_t layout, int line = __builtin_LINE()) {
  detail::check(p, stride, line);
  for (int i = 0; i < f.num_elements; ++i) f.x[i] = p[detail::place<fragment<accumulator, M, N, K, T>>(i, stride, layout == mem_col_major)];
}
template <int M, int N, int K, class T, class P>
void store_matrix_sync(P *p, const fragment<accumulator, M, N, K, T> &f, unsigned stride, layout_t layout, int line = __builtin_LINE()) {
  detail::check(p, stride, line);
  for (int i = 0; i < f.num_elements; ++i) p[detail::place<fragment<accumulator, M, N, K, T>>(i, stride, layout == mem_col_major)] = f.x[i];
}

template <int M, int N, int K, class T, class LayoutA, class LayoutB, class Sum>
void mma_sync(fragment<accumulator, M, N, K, Sum> &d, const fragment<matrix_a, M, N, K, T, LayoutA> &a, const fragment<matrix_b, M, N, K, T, LayoutB> &b,
              const fragment<accumulator, M, N, K, Sum> &c, int line = __builtin_LINE()) {
  software_cuda_state.engine.product(line, {M, N, K, number<T>, number<Sum>, true, a.x, b.x, c.x, d.x});
}

}  // namespace nvcuda::wmma
