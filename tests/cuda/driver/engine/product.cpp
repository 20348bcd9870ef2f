// Tensor cores: the lanes of a warp bring their fragments, and the product is computed once for all of them.
#include <immintrin.h>

#include <algorithm>
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
        const Place at = product.wmma ? Place{0, i * 32 + lane} : place(lane, i);
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

template <class Sum> Sum widened(const void *values, int i, Number number) {
  auto at = [&]<class T>(T value) {
    std::memcpy(&value, static_cast<const char *>(values) + i * static_cast<int>(sizeof value), sizeof value);
    return value;
  };
  auto as_float = [](uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  };
  switch (number) {
    case Number::float16: return static_cast<Sum>(_cvtsh_ss(at(uint16_t{})));
    case Number::bfloat16: return static_cast<Sum>(as_float(static_cast<uint32_t>(at(uint16_t{})) << 16));
    case Number::tfloat32: return static_cast<Sum>(as_float(at(uint32_t{}) & 0xFFFFE000));  // the hardware drops the other bits
    case Number::float32: return static_cast<Sum>(at(float{}));
    case Number::int8: return static_cast<Sum>(at(int8_t{}));
    case Number::uint8: return static_cast<Sum>(at(uint8_t{}));
    case Number::int32: return static_cast<Sum>(at(int32_t{}));
  }
  return Sum{};
}

void store(void *values, int i, Number number, float sum) {
  if (number == Number::float16) {
    const uint16_t bits = static_cast<uint16_t>(_cvtss_sh(sum, _MM_FROUND_TO_NEAREST_INT));
    std::memcpy(static_cast<char *>(values) + 2 * i, &bits, sizeof bits);
  } else {
    std::memcpy(static_cast<char *>(values) + 4 * i, &sum, sizeof sum);
  }
}
void store(void *values, int i, Number, int32_t sum) { std::memcpy(static_cast<char *>(values) + 4 * i, &sum, sizeof sum); }

template <class Sum> void multiply(WarpCall **calls, unsigned) {
  const Product &shape = static_cast<ProductCall *>(calls[0])->product;
  const Layout &layout = layout_of(shape);
  static Sum a[32 * 32], b[32 * 32], c[32 * 32];
  const int m = shape.m, n = shape.n, k = shape.k;
  auto each = [&](const std::vector<uint16_t> &places, auto use) {
    const int count = static_cast<int>(places.size()) / 32;
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < count; ++i) use(static_cast<ProductCall *>(calls[lane])->product, i, places[static_cast<size_t>(lane * count + i)]);
  };
  each(layout.a, [&](const Product &mine, int i, int place) { a[place] = widened<Sum>(mine.a, i, shape.input); });
  each(layout.b, [&](const Product &mine, int i, int place) { b[place] = widened<Sum>(mine.b, i, shape.input); });
  each(layout.c, [&](const Product &mine, int i, int place) { c[place] = widened<Sum>(mine.c, i, shape.output); });
  for (int row = 0; row < m; ++row)
    for (int step = 0; step < k; ++step)
      for (int column = 0; column < n; ++column) c[row * n + column] += a[row * k + step] * b[step * n + column];
  each(layout.c, [&](const Product &mine, int i, int place) { store(mine.d, i, shape.output, c[place]); });
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
