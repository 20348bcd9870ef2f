// Atomic operations: one host thread runs all of a kernel, so plain code is atomic. Each returns the old value.
#pragma once

namespace software_cuda {
template <class T, class Change> __noinline__ SOFTWARE_CUDA_PLAIN T atomic(T *address, Change change) {
  software_cuda_state.engine.access(address, sizeof(T), Access::atomic, __builtin_return_address(0));
  T old = *address;
  *address = change(old);
  return old;
}
}  // namespace software_cuda

#define SOFTWARE_CUDA_ATOMIC(name, expression)                                                  \
  template <class T> T name(T *address, std::common_type_t<T> value) {                          \
    return software_cuda::atomic(address, [value](T old) -> T { return expression; });          \
  }
SOFTWARE_CUDA_ATOMIC(atomicAdd, old + value)
SOFTWARE_CUDA_ATOMIC(atomicSub, old - value)
SOFTWARE_CUDA_ATOMIC(atomicMax, old < value ? value : old)
SOFTWARE_CUDA_ATOMIC(atomicMin, value < old ? value : old)
SOFTWARE_CUDA_ATOMIC(atomicAnd, old & value)
SOFTWARE_CUDA_ATOMIC(atomicOr, old | value)
SOFTWARE_CUDA_ATOMIC(atomicXor, old ^ value)
SOFTWARE_CUDA_ATOMIC(atomicExch, (static_cast<void>(old), value))
#undef SOFTWARE_CUDA_ATOMIC
template <class T> T atomicCAS(T *address, std::common_type_t<T> expected, std::common_type_t<T> value) {
  return software_cuda::atomic(address, [=](T old) -> T { return old == expected ? value : old; });
}
