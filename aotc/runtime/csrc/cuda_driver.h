/* The functions of CUDA's driver API that are used, opened by name when a session first needs them. */
#ifndef AOTC_CUDA_DRIVER_H
#define AOTC_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

/* Files without code for GPUs are linked without the sources of what is marked so. Nothing that calls it is then ever reached, but for
 * device_open, whose callers ask whether it is there. */
#define OPTIONAL_PART __attribute__((weak, visibility("hidden")))

/* As in cuda.h, whose names and numbers are ABI. */
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,

    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
    CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,

    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_MEMORYTYPE_HOST = 1,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMHOSTALLOC_DEVICEMAP = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_EVENT_DISABLE_TIMING = 2
};

/* X(member, exported name, parameters) */
#define CUDA_FUNCTIONS(X)                                                                                                                  \
    X(init, "cuInit", (unsigned))                                                                                                          \
    X(driver_version, "cuDriverGetVersion", (int *))                                                                                       \
    X(device_count, "cuDeviceGetCount", (int *))                                                                                           \
    X(device_get, "cuDeviceGet", (CUdevice *, int))                                                                                        \
    X(device_name, "cuDeviceGetName", (char *, int, CUdevice))                                                                             \
    X(device_attribute, "cuDeviceGetAttribute", (int *, int, CUdevice))                                                                    \
    X(context_retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                                                                 \
    X(context_push, "cuCtxPushCurrent_v2", (CUcontext))                                                                                    \
    X(context_pop, "cuCtxPopCurrent_v2", (CUcontext *))                                                                                    \
    X(module_load, "cuModuleLoadData", (CUmodule *, const void *))                                                                         \
    X(module_unload, "cuModuleUnload", (CUmodule))                                                                                         \
    X(module_function, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))                                                      \
    X(function_set, "cuFuncSetAttribute", (CUfunction, int, int))                                                                          \
    X(allocate, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                                                  \
    X(release, "cuMemFree_v2", (CUdeviceptr))                                                                                              \
    X(host_allocate, "cuMemHostAlloc", (void **, size_t, unsigned))                                                                        \
    X(host_release, "cuMemFreeHost", (void *))                                                                                             \
    X(host_device_pointer, "cuMemHostGetDevicePointer_v2", (CUdeviceptr *, void *, unsigned))                                              \
    X(copy_to_device, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream))                                               \
    X(copy_to_host, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream))                                                       \
    X(copy_on_device, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                                \
    X(launch, "cuLaunchKernel",                                                                                                            \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))                      \
    X(stream_create, "cuStreamCreate", (CUstream *, unsigned))                                                                             \
    X(stream_wait, "cuStreamSynchronize", (CUstream))                                                                                      \
    X(stream_destroy, "cuStreamDestroy_v2", (CUstream))                                                                                    \
    X(event_create, "cuEventCreate", (CUevent *, unsigned))                                                                                \
    X(event_record, "cuEventRecord", (CUevent, CUstream))                                                                                  \
    X(event_wait, "cuEventSynchronize", (CUevent))                                                                                         \
    X(event_destroy, "cuEventDestroy_v2", (CUevent))                                                                                       \
    X(pointer_attribute, "cuPointerGetAttribute", (void *, int, CUdeviceptr))                                                              \
    X(capture_begin, "cuStreamBeginCapture_v2", (CUstream, int))                                                                           \
    X(capture_end, "cuStreamEndCapture", (CUstream, CUgraph *))                                                                            \
    X(graph_launch, "cuGraphLaunch", (CUgraphExec, CUstream))                                                                              \
    X(graph_exec_destroy, "cuGraphExecDestroy", (CUgraphExec))                                                                             \
    X(graph_destroy, "cuGraphDestroy", (CUgraph))                                                                                          \
    X(error_name, "cuGetErrorName", (CUresult, const char **))                                                                             \
    X(error_string, "cuGetErrorString", (CUresult, const char **))

typedef struct cuda_driver {
#define CUDA_MEMBER(member, name, parameters) CUresult(*member) parameters;
    CUDA_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
    CUresult (*context_release)(CUdevice); /* of CUDA 11, else its older form */
    CUresult (*graph_instantiate)(CUgraphExec *, CUgraph, unsigned long long); /* NULL before CUDA 11.4, as on JetPack 4 */
} cuda_driver;

/* NVTX: ranges of the host's time by name, which NVIDIA's profilers show and draw above what the GPU did in them. */
typedef struct nvtx_ranges {
    int (*push)(const char *name); /* NULL: nobody asked for ranges */
    int (*pop)(void);
} nvtx_ranges;

/* Open the library of ranges that AOTC_NVTX asks for: 1 for libnvToolsExt.so.1, or its path. AOTC_SYSTEM where it cannot be:
 * an error even where the CPU could stand in. */
OPTIONAL_PART aotc_status nvtx_open(nvtx_ranges *self, aotc_error *error);

/* Open the driver. AOTC_UNSUPPORTED, saying what to do, where there is none or one without some function. */
aotc_status cuda_driver_open(cuda_driver *self, aotc_error *error);

/* AOTC_OK for success; else a status and a message: `what` says what was tried. */
OPTIONAL_PART aotc_status cuda_driver_check(const cuda_driver *self, CUresult result, const char *what, aotc_error *error);

#endif
