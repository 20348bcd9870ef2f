#include "device.h"

#include <cstdlib>
#include <cstring>

#include "cuda_api.h"

namespace software_cuda {

namespace {

long number(const char *name, long otherwise) {
  const char *text = std::getenv(name);
  return text && *text ? std::strtol(text, nullptr, 10) : otherwise;
}

struct Board {
  int sm, multiprocessors, shared_optin, shared_multiprocessor, registers, threads_multiprocessor;
};
// Compute capabilities as in the CUDA programming guide; multiprocessors of one board each.
constexpr Board BOARDS[] = {
    {53, 1, 48 << 10, 64 << 10, 32 << 10, 2048},     {62, 2, 48 << 10, 64 << 10, 32 << 10, 2048},
    {72, 8, 96 << 10, 96 << 10, 64 << 10, 2048},     {87, 8, 163 << 10, 164 << 10, 64 << 10, 1536},
    {90, 132, 227 << 10, 228 << 10, 64 << 10, 2048}, {110, 20, 227 << 10, 228 << 10, 64 << 10, 1536},
};

const Board &board() {
  for (const Board &known : BOARDS)
    if (known.sm == device_sm()) return known;
  return BOARDS[3];
}

}  // namespace

int device_sm() { return static_cast<int>(number("AOTC_SOFTWARE_CUDA_SM", 87)); }
bool device_integrated() {
  const char *kind = std::getenv("AOTC_SOFTWARE_CUDA_DEVICE");
  return !kind || std::strcmp(kind, "discrete") != 0;
}
size_t device_memory() { return static_cast<size_t>(number("AOTC_SOFTWARE_CUDA_MEMORY", 8l << 30)); }
int device_count() { return static_cast<int>(number("AOTC_SOFTWARE_CUDA_DEVICES", 1)); }
int driver_version() { return static_cast<int>(number("AOTC_SOFTWARE_CUDA_VERSION", 12060)); }

int device_attribute(int attribute) {
  switch (attribute) {
    case MAX_THREADS_PER_BLOCK:
    case MAX_BLOCK_DIM_X:
    case MAX_BLOCK_DIM_Y: return 1024;
    case MAX_BLOCK_DIM_Z: return 64;
    case MAX_GRID_DIM_X: return 0x7FFFFFFF;
    case MAX_GRID_DIM_Y:
    case MAX_GRID_DIM_Z: return 65535;
    case MAX_SHARED_MEMORY_PER_BLOCK: return 48 << 10;
    case WARP_SIZE: return 32;
    case MAX_REGISTERS_PER_BLOCK: return board().registers;
    case CLOCK_RATE: return 1'000'000;
    case MULTIPROCESSOR_COUNT: return board().multiprocessors;
    case INTEGRATED: return device_integrated();
    case CAN_MAP_HOST_MEMORY: return 1;
    case MEMORY_CLOCK_RATE: return 2'000'000;
    case GLOBAL_MEMORY_BUS_WIDTH: return 128;
    case L2_CACHE_SIZE: return 2 << 20;
    case MAX_THREADS_PER_MULTIPROCESSOR: return board().threads_multiprocessor;
    case UNIFIED_ADDRESSING: return 1;
    case COMPUTE_CAPABILITY_MAJOR: return device_sm() / 10;
    case COMPUTE_CAPABILITY_MINOR: return device_sm() % 10;
    case MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return board().shared_multiprocessor;
    case MAX_REGISTERS_PER_MULTIPROCESSOR: return 64 << 10;
    case MANAGED_MEMORY: return 1;
    case PAGEABLE_MEMORY_ACCESS: return 0;
    case CONCURRENT_MANAGED_ACCESS: return static_cast<int>(number("AOTC_SOFTWARE_CUDA_CONCURRENT", !device_integrated()));
    case CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: return 1;
    case MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return board().shared_optin;
    default: return -1;
  }
}

}  // namespace software_cuda
