// The one primary context and what every entry point of the API begins with.
#pragma once
#include <map>
#include <mutex>
#include <string>

#include "cuda_api.h"
#include "machine.h"
#include "modules.h"

#define CUDA_FUNCTION extern "C" __attribute__((visibility("default"))) int

namespace software_cuda {

struct Context {
  bool initialised = false;
  unsigned retained = 0;
  Status error = CUDA_SUCCESS;  // of a kernel: every call returns it from then on, as the real driver does
  std::string finding;
  std::map<std::string, unsigned long> counters;
};
extern Context context;
extern std::recursive_mutex api_mutex;

// One of these at the head of each entry point; `status` says whether it may go on.
struct Entry {
  std::lock_guard<std::recursive_mutex> lock{api_mutex};
  Status status;
  explicit Entry(bool needs_context = true);
};

void report(const Function &function, const Finding &finding);
void end_context();

}  // namespace software_cuda
