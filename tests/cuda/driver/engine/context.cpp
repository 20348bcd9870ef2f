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

namespace {

// The line of the kernel's source, by binutils' addr2line; without it the place in the library.
std::string line_of(const void *where) {
  Dl_info info;
  if (!where || !dladdr(where, &info)) return "";
  char command[4200], line[4200];
  const auto offset = static_cast<const char *>(where) - static_cast<const char *>(info.dli_fbase) - 1;
  std::snprintf(command, sizeof command, "addr2line -i -e '%s' %#tx 2>/dev/null", info.dli_fname, offset);
  FILE *tool = popen(command, "r");
  bool found = false;
  while (tool && !found && std::fgets(line, sizeof line, tool)) found = std::strstr(line, "kernel.cu:");
  if (tool) pclose(tool);
  if (!found) return std::string(", at ") + info.dli_fname + "+" + std::to_string(offset);
  return std::string(", line ") + std::to_string(std::atoi(std::strrchr(line, ':') + 1));
}

}  // namespace

void report(const Function &function, const Finding &finding) {
  const uint3 &block = function.module->record->state->block;
  char text[256];
  std::snprintf(text, sizeof text, "%s: kernel %s, block (%u,%u,%u): ", finding.kind, function.kernel->name, block.x, block.y, block.z);
  context.finding = text + finding.text + line_of(finding.where);
  std::fprintf(stderr, "software CUDA: %s\n", context.finding.c_str());
}

void end_context() {
  destroy_streams();
  unload_all_modules();
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

// For tests: what the last launch that failed was stopped for, in words.
extern "C" __attribute__((visibility("default"))) const char *software_cuda_finding() { return context.finding.c_str(); }

// NVRTC 13 asks a driver that it finds in the process for tables of hooks; it makes do with one that has no entry (its size comes first).
CUDA_FUNCTION cuGetExportTable(const void **table, const void *) {
  static const uint64_t empty[1] = {sizeof empty};
  *table = empty;
  return CUDA_SUCCESS;
}
