// What is known of every address that a kernel may touch.
#pragma once
#include "machine.h"

namespace software_cuda {

void enter_launch();
void leave_launch();
void enter_block();
void pass_barrier();
void pass_warp_barrier(unsigned warp);

// Called by instrumented code before each access.
void access(const void *address, unsigned bytes, Access kind, const void *where);
void misaligned(const void *address, unsigned alignment, unsigned line);
void out_of_bounds(int64_t index, unsigned line);

// An asynchronous copy has begun that writes here, or has ended.
void begin_async_write(const void *address, unsigned bytes);
void end_async_write(const void *address, unsigned bytes);

bool on_fiber_stack(uintptr_t address);
bool in_warp_memory(uintptr_t address);
unsigned char *dynamic_shared();

}  // namespace software_cuda
