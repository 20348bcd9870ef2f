// The part of the CUDA driver API that is here; values as in NVIDIA's documentation of the driver API.
#pragma once
#include <cstddef>
#include <cstdint>

#define CUDA_ERRORS(X)                                                                   \
  X(CUDA_SUCCESS, 0, "no error")                                                         \
  X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                     \
  X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                        \
  X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                               \
  X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                     \
  X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                            \
  X(CUDA_ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                     \
  X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                           \
  X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for execution on the device") \
  X(CUDA_ERROR_INVALID_PTX, 218, "a PTX JIT compilation failed")                         \
  X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222, "the provided PTX was compiled with an unsupported toolchain.") \
  X(CUDA_ERROR_FILE_NOT_FOUND, 301, "file not found")                                    \
  X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                           \
  X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                                 \
  X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                       \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")         \
  X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")  \
  X(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address")                            \
  X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                         \
  X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing") \
  X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture") \
  X(CUDA_ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state")

namespace software_cuda {
#define X(name, value, text) name = value,
enum Status : int { CUDA_ERRORS(X) };
#undef X

enum Attribute : int {
  MAX_THREADS_PER_BLOCK = 1,
  MAX_BLOCK_DIM_X = 2,
  MAX_BLOCK_DIM_Y = 3,
  MAX_BLOCK_DIM_Z = 4,
  MAX_GRID_DIM_X = 5,
  MAX_GRID_DIM_Y = 6,
  MAX_GRID_DIM_Z = 7,
  MAX_SHARED_MEMORY_PER_BLOCK = 8,
  WARP_SIZE = 10,
  MAX_REGISTERS_PER_BLOCK = 12,
  CLOCK_RATE = 13,
  MULTIPROCESSOR_COUNT = 16,
  INTEGRATED = 18,
  CAN_MAP_HOST_MEMORY = 19,
  MEMORY_CLOCK_RATE = 36,
  GLOBAL_MEMORY_BUS_WIDTH = 37,
  L2_CACHE_SIZE = 38,
  MAX_THREADS_PER_MULTIPROCESSOR = 39,
  UNIFIED_ADDRESSING = 41,
  COMPUTE_CAPABILITY_MAJOR = 75,
  COMPUTE_CAPABILITY_MINOR = 76,
  MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
  MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
  MANAGED_MEMORY = 83,
  PAGEABLE_MEMORY_ACCESS = 88,
  CONCURRENT_MANAGED_ACCESS = 89,
  CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
  MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};

enum FunctionAttribute : int { FUNCTION_MAX_DYNAMIC_SHARED = 8, FUNCTION_PREFERRED_CARVEOUT = 9 };

enum PointerAttribute : int {
  POINTER_CONTEXT = 1,
  POINTER_MEMORY_TYPE = 2,
  POINTER_DEVICE_POINTER = 3,
  POINTER_HOST_POINTER = 4,
  POINTER_IS_MANAGED = 8,
  POINTER_DEVICE_ORDINAL = 9,
  POINTER_RANGE_START = 11,
  POINTER_RANGE_SIZE = 12,
};
constexpr unsigned MEMORY_TYPE_HOST = 1, MEMORY_TYPE_DEVICE = 2;
}  // namespace software_cuda
