// cp.async: the bytes move when the thread waits for them and not before, as late as the hardware may.
#include <algorithm>
#include <cstring>

#include "checks.h"
#include "machine.h"

namespace software_cuda {

// Bytes of the target beyond `source_bytes` become 0.
void copy_async(void *shared, const void *global, unsigned bytes, unsigned source_bytes) {
  if (source_bytes) access(global, source_bytes, Access::read, __builtin_return_address(0));
  if (reinterpret_cast<uintptr_t>(shared) % bytes) misaligned(shared, bytes, 0);
  if (source_bytes && reinterpret_cast<uintptr_t>(global) % bytes) misaligned(global, bytes, 0);
  begin_async_write(shared, bytes);
  machine.current->copies.push_back({static_cast<unsigned char *>(shared), static_cast<const unsigned char *>(global), bytes, source_bytes, machine.current->group});
}

void commit_async() { ++machine.current->group; }

// Waits for all committed groups but the latest `groups`.
void wait_async(unsigned groups) {
  Thread &thread = *machine.current;
  auto pending = std::stable_partition(thread.copies.begin(), thread.copies.end(), [&](const AsyncCopy &copy) { return copy.group + groups < thread.group; });
  for (auto copy = thread.copies.begin(); copy != pending; ++copy) {
    std::memset(copy->target, 0, copy->bytes);
    if (copy->source_bytes) std::memcpy(copy->target, copy->source, copy->source_bytes);
    end_async_write(copy->target, copy->bytes);
  }
  thread.copies.erase(thread.copies.begin(), pending);
}

}  // namespace software_cuda
