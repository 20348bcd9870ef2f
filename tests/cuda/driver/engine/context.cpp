#include "context.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.h"
#include "memory.h"
#include "streams.h"

namespace software_cuda {

Context context;
std::recursive_mutex api_mutex;

namespace {

thread_local std::vector<void *> current;
void *primary() { return &context; }

}  // namespace

Entry::Entry(bool needs_context) {
  status = !context.initialised ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
  if (!status && needs_context) status = current.empty() || !context.retained ? CUDA_ERROR_INVALID_CONTEXT : context.error;
}

// To stderr, and as a line of JSON to the file AOTC_SOFTWARE_CUDA_REPORT.
void report(const Function &function, const Finding &finding) {
  const uint3 &block = function.module->record->state->block;
  std::string where;
  Dl_info info;
  if (finding.where && dladdr(finding.where, &info)) {
    char text[32];
    std::snprintf(text, sizeof text, "+%#tx", static_cast<const char *>(finding.where) - static_cast<const char *>(info.dli_fbase));
    where = info.dli_fname + std::string(text);
  }
  std::fprintf(stderr, "software CUDA: %s: kernel %s, block (%u,%u,%u): %s%s%s\n", finding.kind, function.kernel->name, block.x, block.y, block.z,
               finding.text.c_str(), where.empty() ? "" : ", at ", where.c_str());
  const char *path = std::getenv("AOTC_SOFTWARE_CUDA_REPORT");
  if (FILE *file = path ? std::fopen(path, "a") : nullptr) {
    std::fprintf(file, "{\"kind\": \"%s\", \"kernel\": \"%s\", \"block\": [%u, %u, %u], \"text\": \"%s\", \"where\": \"%s\"}\n", finding.kind,
                 function.kernel->name, block.x, block.y, block.z, finding.text.c_str(), where.c_str());
    std::fclose(file);
  }
}

void end_context() {
  destroy_streams();
  release_all();
  context.error = CUDA_SUCCESS;
}

}  // namespace software_cuda

using namespace software_cuda;

CUDA_FUNCTION cuInit(unsigned flags) {
  std::lock_guard<std::recursive_mutex> lock(api_mutex);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (device_count() < 1) return CUDA_ERROR_NO_DEVICE;
  context.initialised = true;
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuDriverGetVersion(int *version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = driver_version();
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuDeviceGetCount(int *count) {
  Entry entry(false);
  if (!entry.status) *count = device_count();
  return entry.status;
}

CUDA_FUNCTION cuDeviceGet(int *device, int ordinal) {
  Entry entry(false);
  if (entry.status) return entry.status;
  if (ordinal < 0 || ordinal >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuDeviceGetName(char *name, int length, int device) {
  Entry entry(false);
  if (entry.status) return entry.status;
  if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "Software CUDA sm_%d", device_sm());
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuDeviceGetAttribute(int *value, int attribute, int device) {
  Entry entry(false);
  if (entry.status) return entry.status;
  if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *value = device_attribute(attribute);
  return *value < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUDA_FUNCTION cuDevicePrimaryCtxRetain(void **handle, int device) {
  Entry entry(false);
  if (entry.status) return entry.status;
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  ++context.retained;
  *handle = primary();
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuDevicePrimaryCtxRelease_v2(int device) {
  Entry entry(false);
  if (entry.status) return entry.status;
  if (device != 0 || !context.retained) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context.retained == 0) end_context();
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuCtxPushCurrent_v2(void *handle) {
  Entry entry(false);
  if (entry.status) return entry.status;
  if (handle != primary() || !context.retained) return CUDA_ERROR_INVALID_CONTEXT;
  current.push_back(handle);
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuCtxPopCurrent_v2(void **handle) {
  Entry entry(false);
  if (entry.status) return entry.status;
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle) *handle = current.back();
  current.pop_back();
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuGetErrorName(int error, const char **name) {
#define X(which, value, text) \
  if (error == value) return *name = #which, CUDA_SUCCESS;
  CUDA_ERRORS(X)
#undef X
  return *name = nullptr, CUDA_ERROR_INVALID_VALUE;
}

CUDA_FUNCTION cuGetErrorString(int error, const char **name) {
#define X(which, value, text) \
  if (error == value) return *name = text, CUDA_SUCCESS;
  CUDA_ERRORS(X)
#undef X
  return *name = nullptr, CUDA_ERROR_INVALID_VALUE;
}

// For tests: how often something was done (launches, graph_launches, copies_to_device, copies_to_host) or how much memory is in use
// (device_bytes, pinned_bytes).
extern "C" __attribute__((visibility("default"))) unsigned long software_cuda_count(const char *what) {
  std::lock_guard<std::recursive_mutex> lock(api_mutex);
  if (!std::strcmp(what, "device_bytes")) return allocated_bytes(Place::device);
  if (!std::strcmp(what, "pinned_bytes")) return allocated_bytes(Place::pinned);
  return context.counters[what];
}
