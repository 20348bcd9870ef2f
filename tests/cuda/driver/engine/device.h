// The simulated device; what it is comes from the environment, so that a test chooses the board.
#pragma once
#include <cstddef>

namespace software_cuda {
int device_sm();            // AOTC_SOFTWARE_CUDA_SM, default 87
bool device_integrated();   // AOTC_SOFTWARE_CUDA_DEVICE: integrated (default) or discrete
size_t device_memory();     // AOTC_SOFTWARE_CUDA_MEMORY in bytes, default 8 GiB
int device_count();         // AOTC_SOFTWARE_CUDA_DEVICES, default 1
int driver_version();       // AOTC_SOFTWARE_CUDA_VERSION, default 12060
int device_attribute(int attribute);  // -1 for one that is not known
}  // namespace software_cuda
