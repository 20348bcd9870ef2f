// Barriers and what the lanes of a warp do together. The line of the call tells apart calls in divergent code.
#pragma once

inline void __syncthreads(int line = __builtin_LINE()) { software_cuda_state.engine.barrier(line); }
inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) { software_cuda_state.engine.warp_barrier(line, mask); }
inline unsigned __activemask(int line = __builtin_LINE()) { return software_cuda_state.engine.active_mask(line); }
inline unsigned __ballot_sync(unsigned mask, int value, int line = __builtin_LINE()) {
  return software_cuda_state.engine.vote(line, mask, value != 0);
}
inline int __any_sync(unsigned mask, int value, int line = __builtin_LINE()) { return __ballot_sync(mask, value, line) != 0; }
inline int __all_sync(unsigned mask, int value, int line = __builtin_LINE()) { return __ballot_sync(mask, !value, line) == 0; }
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace software_cuda {
template <class T> T shuffle(int line, unsigned mask, T value, Shuffle kind, int operand, int width) {
  static_assert(sizeof(T) <= 8);
  uint64_t word = 0;
  memcpy(&word, &value, sizeof value);
  word = software_cuda_state.engine.shuffle(line, mask, word, kind, operand, width);
  memcpy(&value, &word, sizeof value);
  return value;
}
}  // namespace software_cuda

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32, int line = __builtin_LINE()) {
  return software_cuda::shuffle(line, mask, value, software_cuda::Shuffle::index, lane, width);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
  return software_cuda::shuffle(line, mask, value, software_cuda::Shuffle::up, delta, width);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
  return software_cuda::shuffle(line, mask, value, software_cuda::Shuffle::down, delta, width);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, int line = __builtin_LINE()) {
  return software_cuda::shuffle(line, mask, value, software_cuda::Shuffle::exclusive_or, lanes, width);
}

namespace software_cuda {
// Where value 0 of the lane's part of a wmma fragment lies in the matrix; each further value is 32 elements on.
inline unsigned fragment_lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32 ^ SCRAMBLE; }

// For stand-ins of instructions that need it.
inline void need_alignment(const void *address, unsigned bytes, int line) {
  if (reinterpret_cast<uintptr_t>(address) % bytes) software_cuda_state.engine.misaligned(address, bytes, static_cast<unsigned>(line));
}
}  // namespace software_cuda

// For aotc's own headers of intrinsics: 8 KB of memory that the lanes of a warp share, which no check looks at.
inline void *aotc_warp_memory() { return software_cuda_state.engine.warp_memory(); }
