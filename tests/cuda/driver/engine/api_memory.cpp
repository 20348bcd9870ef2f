// Memory and copies.
#include <cstring>
#include <vector>

#include "context.h"
#include "memory.h"
#include "streams.h"

using namespace software_cuda;

namespace {

bool within(const void *pointer, size_t bytes, bool device_only) {
  const Allocation *allocation = find_allocation(reinterpret_cast<uintptr_t>(pointer));
  if (!allocation || (device_only && allocation->place != Place::device)) return false;
  return reinterpret_cast<uintptr_t>(pointer) - allocation->base + bytes <= allocation->bytes;
}

bool in_device_memory(const void *pointer) {
  const Allocation *allocation = find_allocation(reinterpret_cast<uintptr_t>(pointer));
  return allocation && allocation->place == Place::device;
}

bool pinned(const void *pointer) {
  const Allocation *allocation = find_allocation(reinterpret_cast<uintptr_t>(pointer));
  return allocation && allocation->place == Place::pinned;
}

void *as_pointer(uint64_t device_pointer) { return reinterpret_cast<void *>(device_pointer); }

void copy_later(Stream &stream, void *target, const void *source, size_t bytes) {
  enqueue(stream, [=] {
    if (context.error) return;
    DeviceAccess device;
    std::memcpy(target, source, bytes);
  });
}

// A host may change pageable memory as soon as the call returns.
void copy_now_or_later(Stream &stream, void *target, const void *source, size_t bytes) {
  if (pinned(source) || stream.capture) return copy_later(stream, target, source, bytes);
  const auto *first = static_cast<const unsigned char *>(source);
  enqueue(stream, [target, kept = std::vector<unsigned char>(first, first + bytes)] {
    if (context.error) return;
    DeviceAccess device;
    std::memcpy(target, kept.data(), kept.size());
  });
}

Status allocate_into(void **pointer, size_t bytes, Place place) {
  if (!pointer || !bytes) return CUDA_ERROR_INVALID_VALUE;
  if (capture_forbids()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  *pointer = allocate(bytes, place);
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

Status release_from(void *pointer, Place place) {
  if (capture_forbids()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  run_all();  // the real call waits for the work that may use it
  return release(pointer, place) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUDA_FUNCTION cuMemAlloc_v2(uint64_t *pointer, size_t bytes) {
  Entry entry;
  if (entry.status) return entry.status;
  void *memory = nullptr;
  Status status = allocate_into(&memory, bytes, Place::device);
  if (!status) *pointer = reinterpret_cast<uint64_t>(memory);
  return status;
}

CUDA_FUNCTION cuMemFree_v2(uint64_t pointer) {
  Entry entry;
  if (entry.status) return entry.status;
  return release_from(as_pointer(pointer), Place::device);
}

CUDA_FUNCTION cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  Entry entry;
  if (entry.status) return entry.status;
  if (flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
  return allocate_into(pointer, bytes, Place::pinned);
}

CUDA_FUNCTION cuMemFreeHost(void *pointer) {
  Entry entry;
  if (entry.status) return entry.status;
  return release_from(pointer, Place::pinned);
}

CUDA_FUNCTION cuMemHostGetDevicePointer_v2(uint64_t *device_pointer, void *pointer, unsigned flags) {
  Entry entry;
  if (entry.status) return entry.status;
  if (flags || !pinned(pointer)) return CUDA_ERROR_INVALID_VALUE;
  *device_pointer = reinterpret_cast<uint64_t>(pointer);
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *handle) {
  Entry entry;
  const auto stream = find_stream(handle);
  if (entry.status) return entry.status;
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!within(as_pointer(target), bytes, false) || in_device_memory(source)) return CUDA_ERROR_INVALID_VALUE;
  ++context.counters["copies_to_device"];
  copy_now_or_later(*stream, as_pointer(target), source, bytes);
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, void *handle) {
  Entry entry;
  const auto stream = find_stream(handle);
  if (entry.status) return entry.status;
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!within(as_pointer(source), bytes, false) || in_device_memory(target)) return CUDA_ERROR_INVALID_VALUE;
  ++context.counters["copies_to_host"];
  copy_later(*stream, target, as_pointer(source), bytes);
  if (!pinned(target) && !stream->capture) run_until(*stream, stream->enqueued);
  return context.error;
}

CUDA_FUNCTION cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void *handle) {
  Entry entry;
  const auto stream = find_stream(handle);
  if (entry.status) return entry.status;
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!within(as_pointer(target), bytes, false) || !within(as_pointer(source), bytes, false)) return CUDA_ERROR_INVALID_VALUE;
  copy_later(*stream, as_pointer(target), as_pointer(source), bytes);
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuMemsetD8Async(uint64_t target, unsigned char value, size_t bytes, void *handle) {
  Entry entry;
  const auto stream = find_stream(handle);
  if (entry.status) return entry.status;
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!within(as_pointer(target), bytes, false)) return CUDA_ERROR_INVALID_VALUE;
  enqueue(*stream, [=] {
    if (context.error) return;
    DeviceAccess device;
    std::memset(as_pointer(target), value, bytes);
  });
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuPointerGetAttribute(void *data, int attribute, uint64_t pointer) {
  Entry entry;
  if (entry.status) return entry.status;
  const Allocation *allocation = find_allocation(pointer);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  auto give = [data](auto value) {
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case POINTER_CONTEXT: return give(&context);
    case POINTER_MEMORY_TYPE: return give(allocation->place == Place::device ? MEMORY_TYPE_DEVICE : MEMORY_TYPE_HOST);
    case POINTER_DEVICE_POINTER: return give(pointer);
    case POINTER_HOST_POINTER: return allocation->place == Place::pinned ? give(pointer) : CUDA_ERROR_INVALID_VALUE;
    case POINTER_IS_MANAGED: return give(0u);
    case POINTER_DEVICE_ORDINAL: return give(0);
    case POINTER_RANGE_START: return give(allocation->base);
    case POINTER_RANGE_SIZE: return give(allocation->bytes);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}
