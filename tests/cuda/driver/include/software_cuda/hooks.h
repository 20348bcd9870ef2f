// What -fsanitize=thread, alignment, bounds and object-size call. The sanitizers' own run-time libraries are not linked.
#pragma once

#define SOFTWARE_CUDA_HOOK extern "C" __attribute__((visibility("hidden"), no_sanitize("thread", "undefined"))) void
// A thread's own variables need no check; most of what the hooks see are they.
#define SOFTWARE_CUDA_ACCESS(address, bytes, kind)                                                                           \
  if (static_cast<size_t>(static_cast<unsigned char *>(address) - software_cuda_state.stacks) >= software_cuda_state.stacks_bytes) \
    software_cuda_state.engine.access(address, static_cast<unsigned>(bytes), software_cuda::Access::kind, __builtin_return_address(0))
#define SOFTWARE_CUDA_HOOKS(bytes)                                                                              \
  SOFTWARE_CUDA_HOOK __tsan_read##bytes(void *address) { SOFTWARE_CUDA_ACCESS(address, bytes, read); }          \
  SOFTWARE_CUDA_HOOK __tsan_write##bytes(void *address) { SOFTWARE_CUDA_ACCESS(address, bytes, write); }        \
  SOFTWARE_CUDA_HOOK __tsan_unaligned_read##bytes(void *address) { SOFTWARE_CUDA_ACCESS(address, bytes, read); } \
  SOFTWARE_CUDA_HOOK __tsan_unaligned_write##bytes(void *address) { SOFTWARE_CUDA_ACCESS(address, bytes, write); }
SOFTWARE_CUDA_HOOKS(1)
SOFTWARE_CUDA_HOOKS(2)
SOFTWARE_CUDA_HOOKS(4)
SOFTWARE_CUDA_HOOKS(8)
SOFTWARE_CUDA_HOOKS(16)
#undef SOFTWARE_CUDA_HOOKS
SOFTWARE_CUDA_HOOK __tsan_read_range(void *address, unsigned long bytes) { SOFTWARE_CUDA_ACCESS(address, bytes, read); }
SOFTWARE_CUDA_HOOK __tsan_write_range(void *address, unsigned long bytes) { SOFTWARE_CUDA_ACCESS(address, bytes, write); }
#undef SOFTWARE_CUDA_ACCESS
SOFTWARE_CUDA_HOOK __tsan_vptr_read(void **) {}
SOFTWARE_CUDA_HOOK __tsan_vptr_update(void **, void *) {}
SOFTWARE_CUDA_HOOK __tsan_func_entry(void *) {}
SOFTWARE_CUDA_HOOK __tsan_func_exit() {}
SOFTWARE_CUDA_HOOK __tsan_init() {}

namespace software_cuda {
struct SourceLocation {
  const char *file;
  unsigned line, column;
};
struct TypeMismatch {
  SourceLocation location;
  const void *type;
  unsigned char log_alignment, kind;
};
}  // namespace software_cuda
// Of alignment, and of object-size where the address is aligned.
SOFTWARE_CUDA_HOOK __ubsan_handle_type_mismatch_v1(software_cuda::TypeMismatch *data, void *address) {
  software_cuda_state.engine.misaligned(address, 1u << data->log_alignment, data->location.line);
}
SOFTWARE_CUDA_HOOK __ubsan_handle_out_of_bounds(software_cuda::SourceLocation *location, void *index) {
  software_cuda_state.engine.out_of_bounds(reinterpret_cast<intptr_t>(index), location->line);
}
#undef SOFTWARE_CUDA_HOOK
