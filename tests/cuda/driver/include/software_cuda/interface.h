// What a kernel's library and the driver know of each other. The library exports `software_cuda_module`; the driver fills the
// `State` that it points to before anything in it runs.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
};

namespace software_cuda {

enum class Access : unsigned char { read, write, atomic };
enum class Shuffle : unsigned char { index, up, down, exclusive_or };

// Tensor-core operand types; see Fragments.
enum class Number : unsigned char { float16, bfloat16, tfloat32, float32, int8, uint8, int32 };

// One warp-wide d = a * b + c. Each lane passes pointers to its own part of each matrix. `layout` says which element a lane's
// i-th value is: that of the mma.sync instructions, or one of our own for nvcuda::wmma, which leaves it open.
struct Product {
  int m, n, k;
  Number input, output;
  bool wmma;
  const void *a, *b, *c;
  void *d;
};

// In that layout value i of a lane is element i * 32 + (lane ^ SCRAMBLE) of the matrix, row by row: a lane then seldom holds what it
// would read back itself, so that a missing barrier between lanes shows.
constexpr unsigned SCRAMBLE = 21;

struct Engine {
  void (*barrier)(int line);
  void (*warp_barrier)(int line, unsigned mask);
  unsigned (*active_mask)(int line);
  unsigned (*vote)(int line, unsigned mask, bool value);
  uint64_t (*shuffle)(int line, unsigned mask, uint64_t value, Shuffle kind, int operand, int width);
  void (*product)(int line, const Product &product);
  void (*load_matrix)(int line, uint32_t *registers, const void *row, int count, bool transposed);
  void (*copy_async)(void *shared, const void *global, unsigned bytes, unsigned source_bytes);
  void (*commit_async)();
  void (*wait_async)(unsigned groups);
  void *(*warp_memory)();
  void (*access)(const void *address, unsigned bytes, Access kind, const void *where);
  void (*misaligned)(const void *address, unsigned alignment, unsigned line);
  void (*out_of_bounds)(int64_t index, unsigned line);
};

// Const for the kernel: nothing in it changes during the life of one thread.
struct State {
  uint3 thread, block;
  dim3 block_size, grid_size;
  unsigned char *dynamic_shared;
  const unsigned char *stacks;  // of all threads: local variables
  size_t stacks_bytes;
  int mutation;  // the one of a mutated kernel's faults that is there, -1 for none
  Engine engine;
};

struct Kernel {
  const char *name;
  void (*invoke)(void **parameters);
  unsigned max_threads;  // of __launch_bounds__
  unsigned parameters;
  const unsigned *sizes;
  const bool *pointers;
};

// A __shared__ array: the header tells the driver where its data lie. The room before and after them is out of bounds.
constexpr uint64_t SHARED_MAGIC = 0x646572616873;
constexpr size_t SHARED_GAP = 128;
template <size_t BYTES, size_t ALIGNMENT> struct alignas(SHARED_GAP) Shared {
  static constexpr size_t at = SHARED_GAP > ALIGNMENT ? SHARED_GAP : ALIGNMENT;
  uint64_t magic = SHARED_MAGIC, offset = at, bytes = BYTES;
  alignas(at) unsigned char data[BYTES] = {};
  alignas(SHARED_GAP) unsigned char after[SHARED_GAP] = {};
};

struct Module {
  State *state;
  const Kernel *kernels;
  unsigned kernel_count;
  unsigned granule;  // bytes of the smallest element in its memory: what accesses are compared by
  bool checked;
  unsigned char *shared_begin, *shared_end;
};

}  // namespace software_cuda
