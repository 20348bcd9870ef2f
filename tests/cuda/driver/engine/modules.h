// A loaded cubin: its figures from its ELF headers, its code from the library that was made from the same source.
#pragma once
#include <map>
#include <string>

#include "cuda_api.h"
#include "machine.h"

namespace software_cuda {

struct LoadedModule;
struct Function {
  LoadedModule *module;
  const Kernel *kernel;
  unsigned registers;             // of a thread; 0 where the cubin does not say
  unsigned static_shared;
  unsigned dynamic_limit;         // what cuFuncSetAttribute has allowed
};

struct LoadedModule {
  void *library;
  const Module *record;
  std::map<std::string, Function> functions;
};

// Loads `$AOTC_SOFTWARE_CUDA/<sha256 of the cubin>.so`.
Status load_module(const void *image, LoadedModule *&module);
void unload_module(LoadedModule *module);
void unload_all_modules();
bool is_module(const void *handle);

// Whether a launch keeps to the limits of the device and the kernel.
Status check_limits(const Function &function, const dim3 &grid, const dim3 &block, unsigned shared_bytes);

std::string sha256(const unsigned char *data, size_t bytes);

}  // namespace software_cuda
