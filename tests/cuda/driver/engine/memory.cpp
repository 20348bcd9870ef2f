#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "device.h"

namespace software_cuda {

namespace {

constexpr size_t GAP = 4096;  // out of bounds, between allocations
std::map<uintptr_t, Allocation> allocations;
size_t used[2];
uintptr_t tops[2];
unsigned device_accesses;

uintptr_t round_up(uintptr_t value, size_t to) { return (value + to - 1) / to * to; }

// First fit between the allocations of a range.
uintptr_t find_room(size_t bytes, Place place) {
  const uintptr_t first = memory_base() + (place == Place::pinned ? RANGE : 0);
  uintptr_t at = first + GAP;
  for (auto it = allocations.lower_bound(first); it != allocations.end() && it->first < first + RANGE; ++it) {
    if (at + bytes + GAP <= it->first) return at;
    at = round_up(it->first + it->second.bytes + GAP, 512);
  }
  return at + bytes + GAP <= first + RANGE ? at : 0;
}

void protect_device(int protection) {
  const uintptr_t top = tops[static_cast<int>(Place::device)];
  if (top) mprotect(reinterpret_cast<void *>(memory_base()), round_up(top - memory_base(), 4096), protection);
}

}  // namespace

uintptr_t memory_base() {
  static const uintptr_t base = [] {
    void *room = mmap(nullptr, MEMORY_RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) abort();
    return reinterpret_cast<uintptr_t>(room);
  }();
  return base;
}

void *allocate(size_t bytes, Place place) {
  const int index = static_cast<int>(place);
  if (place == Place::device && used[index] + bytes > device_memory()) return nullptr;
  const uintptr_t base = find_room(bytes, place);
  if (!base) return nullptr;
  allocations[base] = {base, bytes, place};
  used[index] += bytes;
  if (base + bytes > tops[index]) tops[index] = base + bytes;
  DeviceAccess device;
  if (place == Place::pinned) {
    const uintptr_t first = base / 4096 * 4096;
    mprotect(reinterpret_cast<void *>(first), round_up(base + bytes - first, 4096), PROT_READ | PROT_WRITE);
  }
  std::memset(reinterpret_cast<void *>(base), 0xFF, bytes);
  return reinterpret_cast<void *>(base);
}

bool release(void *pointer, Place place) {
  auto it = allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == allocations.end() || it->second.place != place) return false;
  used[static_cast<int>(place)] -= it->second.bytes;
  allocations.erase(it);
  return true;
}

const Allocation *find_allocation(uintptr_t address) {
  auto it = allocations.upper_bound(address);
  if (it == allocations.begin()) return nullptr;
  --it;
  return address - it->first < it->second.bytes ? &it->second : nullptr;
}

size_t allocated_bytes(Place place) { return used[static_cast<int>(place)]; }

void release_all() {
  allocations.clear();
  used[0] = used[1] = 0;
}

DeviceAccess::DeviceAccess() {
  if (device_accesses++ == 0) protect_device(PROT_READ | PROT_WRITE);
}

DeviceAccess::~DeviceAccess() {
  if (--device_accesses == 0) protect_device(PROT_NONE);
}

}  // namespace software_cuda
