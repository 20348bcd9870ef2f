// Modules, launches, streams, events and graphs.
#include <cstring>

#include "context.h"
#include "device.h"
#include "memory.h"
#include "streams.h"

using namespace software_cuda;

namespace {

// A launch with its own copy of the parameters' values.
struct StoredLaunch {
  const Function *function;
  dim3 grid, block;
  unsigned shared_bytes;
  std::vector<unsigned char> values;

  StoredLaunch(const Function *function, dim3 grid, dim3 block, unsigned shared_bytes, void **parameters)
      : function(function), grid(grid), block(block), shared_bytes(shared_bytes) {
    for (unsigned i = 0; i < function->kernel->parameters; ++i) {
      const auto *first = static_cast<const unsigned char *>(parameters[i]);
      values.resize((values.size() + 7) / 8 * 8);
      values.insert(values.end(), first, first + function->kernel->sizes[i]);
    }
  }

  void operator()() const {
    if (context.error) return;
    std::vector<void *> parameters;
    size_t at = 0;
    auto copy = values;
    for (unsigned i = 0; i < function->kernel->parameters; ++i) {
      at = (at + 7) / 8 * 8;
      parameters.push_back(copy.data() + at);
      at += function->kernel->sizes[i];
    }
    const Launch launch{function->module->record, function->kernel, grid, block, shared_bytes, parameters.data()};
    DeviceAccess device;
    Finding finding;
    ++context.counters["launches"];
    if (pointers_are_ours(launch, finding) && run(launch, finding)) return;
    context.error = finding.status;
    report(*function, finding);
  }

  // In a build without checks, too, a pointer to memory that a GPU cannot see is found.
  static bool pointers_are_ours(const Launch &launch, Finding &finding) {
    for (unsigned i = 0; i < launch.kernel->parameters; ++i) {
      uintptr_t pointer = 0;
      if (!launch.kernel->pointers[i]) continue;
      std::memcpy(&pointer, launch.parameters[i], sizeof pointer);
      if (!pointer || find_allocation(pointer)) continue;
      finding = {CUDA_ERROR_ILLEGAL_ADDRESS, "out of bounds", "parameter " + std::to_string(i) + " points to no memory of the device", nullptr};
      return false;
    }
    return true;
  }
};

Event *as_event(void *handle) {
  auto *event = static_cast<Event *>(handle);
  return events().count(event) ? event : nullptr;
}

}  // namespace

CUDA_FUNCTION cuModuleLoadData(void **handle, const void *image) {
  Entry entry;
  if (entry.status) return entry.status;
  if (!handle || !image) return CUDA_ERROR_INVALID_VALUE;
  LoadedModule *module = nullptr;
  Status status = load_module(image, module);
  if (!status) *handle = module;
  return status;
}

CUDA_FUNCTION cuModuleUnload(void *handle) {
  Entry entry;
  if (entry.status) return entry.status;
  if (!is_module(handle)) return CUDA_ERROR_INVALID_HANDLE;
  run_all();
  unload_module(static_cast<LoadedModule *>(handle));
  return context.error;
}

CUDA_FUNCTION cuModuleGetFunction(void **function, void *handle, const char *name) {
  Entry entry;
  if (entry.status) return entry.status;
  if (!is_module(handle)) return CUDA_ERROR_INVALID_HANDLE;
  auto &functions = static_cast<LoadedModule *>(handle)->functions;
  auto it = functions.find(name);
  if (it == functions.end()) return CUDA_ERROR_NOT_FOUND;
  *function = &it->second;
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuFuncSetAttribute(void *handle, int attribute, int value) {
  Entry entry;
  if (entry.status) return entry.status;
  auto *function = static_cast<Function *>(handle);
  if (attribute == FUNCTION_PREFERRED_CARVEOUT) return CUDA_SUCCESS;
  const int limit = device_attribute(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) - static_cast<int>(function->static_shared);
  if (attribute != FUNCTION_MAX_DYNAMIC_SHARED || value < 0 || value > limit) return CUDA_ERROR_INVALID_VALUE;
  function->dynamic_limit = static_cast<unsigned>(value);
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuLaunchKernel(void *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, void *stream_handle, void **parameters, void **extra) {
  Entry entry;
  const auto stream = find_stream(stream_handle);
  if (entry.status) return entry.status;
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  const auto *function = static_cast<const Function *>(handle);
  const dim3 grid{grid_x, grid_y, grid_z}, block{block_x, block_y, block_z};
  if (extra || (!parameters && function->kernel->parameters)) return CUDA_ERROR_INVALID_VALUE;
  if (Status status = check_limits(*function, grid, block, shared_bytes)) return status;
  enqueue(*stream, StoredLaunch(function, grid, block, shared_bytes, parameters));
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuStreamCreate(void **handle, unsigned flags) {
  Entry entry;
  if (entry.status) return entry.status;
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  *handle = create_stream(flags == 0);
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuStreamSynchronize(void *handle) {
  Entry entry;
  const auto stream = find_stream(handle);
  if (entry.status) return entry.status;
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  run_until(*stream, stream->enqueued);
  return context.error;
}

CUDA_FUNCTION cuStreamDestroy_v2(void *handle) {
  Entry entry;
  if (!handle || !find_stream(handle)) return CUDA_ERROR_INVALID_HANDLE;
  destroy_stream(handle);
  return entry.status;
}

CUDA_FUNCTION cuEventCreate(void **handle, unsigned) {
  Entry entry;
  if (entry.status) return entry.status;
  *handle = *events().insert(new Event).first;
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuEventRecord(void *handle, void *stream_handle) {
  Entry entry;
  Event *event = as_event(handle);
  const auto stream = find_stream(stream_handle);
  if (entry.status) return entry.status;
  if (!event || !stream) return CUDA_ERROR_INVALID_HANDLE;
  event->capture = stream->capture;
  if (stream->capture) return CUDA_SUCCESS;
  event->stream = stream;
  event->position = stream->enqueued;
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuEventSynchronize(void *handle) {
  Entry entry;
  Event *event = as_event(handle);
  if (entry.status) return entry.status;
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) {
    event->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (event->stream) run_until(*event->stream, event->position);
  return context.error;
}

CUDA_FUNCTION cuEventDestroy_v2(void *handle) {
  Entry entry;
  Event *event = as_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  events().erase(event);
  delete event;
  return entry.status;
}

CUDA_FUNCTION cuStreamWaitEvent(void *stream_handle, void *handle, unsigned) {
  Entry entry;
  Event *event = as_event(handle);
  const auto stream = find_stream(stream_handle);
  if (entry.status) return entry.status;
  if (!event || !stream) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) {
    stream->capture = event->capture;  // the waiting stream joins the capture
  } else if (event->stream) {
    enqueue(*stream, [of = event->stream, position = event->position] { run_until(*of, position); });
  }
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuStreamBeginCapture_v2(void *handle, int mode) {
  Entry entry;
  const auto stream = find_stream(handle);
  if (entry.status) return entry.status;
  if (!handle || !stream || mode < 0 || mode > 2) return handle ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = std::make_shared<Graph>();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->captures = true;
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuStreamEndCapture(void *handle, void **graph) {
  Entry entry;
  const auto stream = find_stream(handle);
  if (entry.status) return entry.status;
  if (!stream || !stream->captures) return CUDA_ERROR_ILLEGAL_STATE;
  const auto captured = stream->capture;
  end_capture(captured);
  *graph = captured->invalid ? nullptr : new Graph(*captured);
  return captured->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUDA_FUNCTION cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) {
  Entry entry;
  if (entry.status) return entry.status;
  *executable = new Graph(*static_cast<const Graph *>(graph));
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuGraphLaunch(void *executable, void *handle) {
  Entry entry;
  const auto stream = find_stream(handle);
  if (entry.status) return entry.status;
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  ++context.counters["graph_launches"];
  enqueue(*stream, [graph = *static_cast<const Graph *>(executable)] {
    for (const Operation &operation : graph.operations) operation();
  });
  return CUDA_SUCCESS;
}

CUDA_FUNCTION cuGraphExecDestroy(void *executable) {
  Entry entry;
  delete static_cast<Graph *>(executable);
  return entry.status;
}

CUDA_FUNCTION cuGraphDestroy(void *graph) {
  Entry entry;
  delete static_cast<Graph *>(graph);
  return entry.status;
}
