// Shared arrays and the table of kernels. host_code.py writes the uses of these macros.
#pragma once
#include <utility>

// In place of `__shared__ T name[8][9];`, the dims last.
#define SOFTWARE_CUDA_SHARED(T, name, alignment, ...)                                                                             \
  __attribute__((section("software_cuda_shared"))) static software_cuda::Shared<sizeof(T __VA_ARGS__), (alignment)> name##_place; \
  auto &name = reinterpret_cast<T(&) __VA_ARGS__>(name##_place.data)

// In place of `extern __shared__ T name[];`, in or before a kernel.
#define SOFTWARE_CUDA_DYNAMIC_SHARED(T, name) \
  static T *const &name = reinterpret_cast<T *const &>(software_cuda_state.dynamic_shared)

// 1 where fault number `n` of a mutated kernel is to be there (mutations.py), else 0.
#define SOFTWARE_CUDA_MUTATED(n) (software_cuda_state.mutation == (n))

namespace software_cuda {
template <auto kernel> struct Signature;
template <class... Parameters, void (*kernel)(Parameters...)> struct Signature<kernel> {
  template <size_t... i> SOFTWARE_CUDA_PLAIN static void call(void **parameters, std::index_sequence<i...>) {
    kernel(*static_cast<std::remove_cv_t<Parameters> *>(parameters[i])...);
  }
  SOFTWARE_CUDA_PLAIN static void invoke(void **parameters) { call(parameters, std::index_sequence_for<Parameters...>{}); }
  static constexpr unsigned count = sizeof...(Parameters);
  static constexpr unsigned sizes[count + 1] = {sizeof(Parameters)..., 0};
  static constexpr bool pointers[count + 1] = {std::is_pointer_v<Parameters>..., false};
};
template <auto kernel> constexpr Kernel describe(const char *name, unsigned max_threads) {
  using It = Signature<kernel>;
  return {name, It::invoke, max_threads, It::count, It::sizes, It::pointers};
}
}  // namespace software_cuda

extern "C" {
extern __attribute__((visibility("hidden"), weak)) unsigned char __start_software_cuda_shared[], __stop_software_cuda_shared[];
}

// At the end of the translation unit: `SOFTWARE_CUDA_MODULE(granule, {software_cuda::describe<name>("name", 256), ...})`.
#ifdef SOFTWARE_CUDA_CHECKED
#define SOFTWARE_CUDA_IS_CHECKED true
#else
#define SOFTWARE_CUDA_IS_CHECKED false
#endif
#define SOFTWARE_CUDA_MODULE(granule, ...)                                                                              \
  static const software_cuda::Kernel software_cuda_kernels[] = __VA_ARGS__;                                             \
  extern "C" __attribute__((visibility("default"))) const software_cuda::Module software_cuda_module = {                \
      const_cast<software_cuda::State *>(&software_cuda_state), software_cuda_kernels,                                  \
      sizeof software_cuda_kernels / sizeof *software_cuda_kernels, granule, SOFTWARE_CUDA_IS_CHECKED,                  \
      __start_software_cuda_shared, __stop_software_cuda_shared}
