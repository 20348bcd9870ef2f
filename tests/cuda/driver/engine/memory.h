// Device memory and pinned host memory: two ranges of addresses of our own, so that every pointer can be judged.
#pragma once
#include <cstddef>
#include <cstdint>

namespace software_cuda {

enum class Place { device, pinned };

struct Allocation {
  uintptr_t base;
  size_t bytes;
  Place place;
};

// Null when the device (or the host) has no more. Filled with 0xFF: NaN as any floating-point number.
void *allocate(size_t bytes, Place place);
bool release(void *pointer, Place place);
const Allocation *find_allocation(uintptr_t address);
size_t allocated_bytes(Place place);
void release_all();

// Device memory cannot be touched by the host but while a `DeviceAccess` lives.
struct DeviceAccess {
  DeviceAccess();
  ~DeviceAccess();
};

// Both ranges as one: where an address lies in it, for the shadow.
constexpr size_t RANGE = size_t{16} << 30, MEMORY_RANGE = 2 * RANGE;
uintptr_t memory_base();

}  // namespace software_cuda
