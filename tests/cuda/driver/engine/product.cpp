// Tensor cores: the lanes of a warp bring their fragments, and the product is computed once for all of them.
#include <immintrin.h>

#include <cstring>
#include <list>

#include "checks.h"
#include "cuda_api.h"
#include "machine.h"

namespace software_cuda {

namespace {

struct ProductCall : WarpCall {
  Product product;
};

struct MatrixCall : WarpCall {
  uint32_t *registers;
  const void *row;
  int count;
  bool transposed;
};

struct Place {
  int row, column;
};

int bytes_of(Number number) {
  switch (number) {
    case Number::int8:
    case Number::uint8: return 1;
    case Number::float16:
    case Number::bfloat16: return 2;
    default: return 4;
  }
}

// Of mma.sync (PTX ISA, "Matrix Fragments for mma"): a lane holds runs of 32 bits (or of two results) at its own column, in this
// row and the one eight below, then the same further right.
Place place_a(int lane, int i, int rows, int bytes) {
  const int run = 4 / bytes, group = lane / 4, piece = i / run, halves = rows / 8;
  return {group + piece % halves * 8, lane % 4 * run + i % run + piece / halves * 4 * run};
}
Place place_b(int lane, int i, int bytes) {
  const int run = 4 / bytes, piece = i / run;
  return {lane % 4 * run + i % run + piece * 4 * run, lane / 4};
}
Place place_c(int lane, int i) { return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2}; }

// Where the values of all lanes lie in the whole matrices, lane after lane.
struct Layout {
  Product of;
  std::vector<uint16_t> a, b, c;
};

Layout make_layout(const Product &product) {
  Layout layout{product, {}, {}, {}};
  const int bytes = bytes_of(product.input), m = product.m, n = product.n, k = product.k;
  auto fill = [&](std::vector<uint16_t> &places, int rows, int columns, auto place) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < rows * columns / 32; ++i) {
        const Place at = product.wmma ? Place{0, i * 32 + (lane ^ static_cast<int>(SCRAMBLE))} : place(lane, i);
        places.push_back(static_cast<uint16_t>(at.row * columns + at.column));
      }
  };
  fill(layout.a, m, k, [&](int lane, int i) { return place_a(lane, i, m, bytes); });
  fill(layout.b, k, n, [&](int lane, int i) { return place_b(lane, i, bytes); });
  fill(layout.c, m, n, [&](int lane, int i) { return place_c(lane, i); });
  return layout;
}

const Layout &layout_of(const Product &product) {
  static std::list<Layout> layouts;
  for (const Layout &known : layouts)
    if (known.of.m == product.m && known.of.n == product.n && known.of.k == product.k && known.of.input == product.input && known.of.wmma == product.wmma)
      return known;
  layouts.push_front(make_layout(product));
  return layouts.front();
}

constexpr int MOST = 32;  // values of a lane

template <class T, class Sum, class Widen> void widen_each(const void *values, int count, Sum *wide, Widen widen) {
  T narrow[MOST];
  std::memcpy(narrow, values, static_cast<size_t>(count) * sizeof(T));
  for (int i = 0; i < count; ++i) wide[i] = static_cast<Sum>(widen(narrow[i]));
}

float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class Sum> void widen(const void *values, int count, Number number, Sum *wide) {
  auto same = [](auto value) { return value; };
  switch (number) {
    case Number::float16: return widen_each<uint16_t>(values, count, wide, [](uint16_t bits) { return _cvtsh_ss(bits); });
    case Number::bfloat16: return widen_each<uint16_t>(values, count, wide, [](uint32_t bits) { return as_float(bits << 16); });
    // the hardware drops the other bits
    case Number::tfloat32: return widen_each<uint32_t>(values, count, wide, [](uint32_t bits) { return as_float(bits & 0xFFFFE000); });
    case Number::float32: return widen_each<float>(values, count, wide, same);
    case Number::int8: return widen_each<int8_t>(values, count, wide, same);
    case Number::uint8: return widen_each<uint8_t>(values, count, wide, same);
    case Number::int32: return widen_each<int32_t>(values, count, wide, same);
  }
}

template <class Sum> void narrow(const Sum *wide, int count, Number number, void *values) {
  if (number != Number::float16) {
    std::memcpy(values, wide, static_cast<size_t>(count) * sizeof *wide);
    return;
  }
  uint16_t bits[MOST];
  for (int i = 0; i < count; ++i) bits[i] = static_cast<uint16_t>(_cvtss_sh(static_cast<float>(wide[i]), _MM_FROUND_TO_NEAREST_INT));
  std::memcpy(values, bits, static_cast<size_t>(count) * sizeof *bits);
}

template <class Sum> void multiply(WarpCall **calls, unsigned) {
  const Product &shape = static_cast<ProductCall *>(calls[0])->product;
  const Layout &layout = layout_of(shape);
  alignas(64) static Sum a[32 * 32], b[32 * 32], c[32 * 32];
  const int m = shape.m, n = shape.n, k = shape.k;
  Sum values[MOST];
  auto collect = [&](const std::vector<uint16_t> &places, const void *Product::*part, Number number, Sum *matrix) {
    const int count = static_cast<int>(places.size()) / 32;
    for (int lane = 0; lane < 32; ++lane) {
      widen(static_cast<ProductCall *>(calls[lane])->product.*part, count, number, values);
      for (int i = 0; i < count; ++i) matrix[places[static_cast<size_t>(lane * count + i)]] = values[i];
    }
  };
  collect(layout.a, &Product::a, shape.input, a);
  collect(layout.b, &Product::b, shape.input, b);
  collect(layout.c, &Product::c, shape.output, c);
  for (int row = 0; row < m; ++row)
    for (int step = 0; step < k; ++step)
      for (int column = 0; column < n; ++column) c[row * n + column] += a[row * k + step] * b[step * n + column];
  const int count = m * n / 32;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < count; ++i) values[i] = c[layout.c[static_cast<size_t>(lane * count + i)]];
    narrow(values, count, shape.output, static_cast<ProductCall *>(calls[lane])->product.d);
  }
}

// The lanes' registers of each 8x8 matrix of 16-bit values, whose rows the lanes of its quarter point to.
void load_matrices(WarpCall **calls, unsigned) {
  const auto &first = *static_cast<MatrixCall *>(calls[0]);
  for (int matrix = 0; matrix < first.count; ++matrix) {
    uint16_t rows[8][8];
    for (int row = 0; row < 8; ++row) std::memcpy(rows[row], static_cast<MatrixCall *>(calls[matrix * 8 + row])->row, sizeof rows[row]);
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      const uint16_t low = first.transposed ? rows[column][row] : rows[row][column];
      const uint16_t high = first.transposed ? rows[column + 1][row] : rows[row][column + 1];
      static_cast<MatrixCall *>(calls[lane])->registers[matrix] = static_cast<uint32_t>(high) << 16 | low;
    }
  }
}

}  // namespace

void product(int line, const Product &product) {
  ProductCall call;
  call.mask = ~0u;
  call.whole = true;
  call.product = product;
  call.all = product.output == Number::int32 ? multiply<int32_t> : multiply<float>;
  wait_for_warp(line, call);
}

void load_matrix(int line, uint32_t *registers, const void *row, int count, bool transposed) {
  if (static_cast<int>(thread_number() % WARP) < count * 8) {
    if (reinterpret_cast<uintptr_t>(row) % 16) misaligned(row, 16, static_cast<unsigned>(line));
    access(row, 16, Access::read, nullptr);
  }
  MatrixCall call;
  call.mask = ~0u;
  call.whole = true;
  call.registers = registers;
  call.row = row;
  call.count = count;
  call.transposed = transposed;
  call.all = load_matrices;
  wait_for_warp(line, call);
}

}  // namespace software_cuda
