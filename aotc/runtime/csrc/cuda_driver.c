#include "cuda_driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Of NVIDIA's package, of its development part, and of JetPack (in aarch64-linux-gnu/tegra, which its loader's cache has). */
static const char *const names[] = {"libcuda.so.1", "libcuda.so", "libcuda.so.1.1"};

/* The library stays open for the life of the process: drivers do not bear to be closed while threads of theirs run. */
static void *open_library(void) {
    const char *chosen = getenv("AOTC_LIBCUDA");
    if (chosen && *chosen) return dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static const char *find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found); /* ISO C knows no conversion between the two kinds of pointers */
    return found ? NULL : name;
}

aotc_status cuda_driver_open(cuda_driver *self, aotc_error *error) {
    void *library = open_library();
    if (!library)
        return fail(error, AOTC_UNSUPPORTED,
                    "the model needs a GPU and no CUDA driver (libcuda.so.1) can be loaded here; install NVIDIA's driver, run on the board "
                    "that the model was built for, or build it with --device auto or cpu");
    const char *missing = NULL;
#define CUDA_FIND(member, name, parameters)                                                                                                \
    if (!missing) missing = find(library, name, &self->member);
    CUDA_FUNCTIONS(CUDA_FIND)
#undef CUDA_FIND
    if (find(library, "cuDevicePrimaryCtxRelease_v2", &self->context_release) && !missing)
        missing = find(library, "cuDevicePrimaryCtxRelease", &self->context_release);
    find(library, "cuGraphInstantiateWithFlags", &self->graph_instantiate);
    if (missing)
        return fail(error, AOTC_UNSUPPORTED, "the CUDA driver here has no %s; it must be of CUDA 10.2 or later: update it", missing);
    return AOTC_OK;
}

aotc_status cuda_driver_check(const cuda_driver *self, CUresult result, const char *what, aotc_error *error) {
    if (result == CUDA_SUCCESS) return AOTC_OK;
    const char *name = NULL, *text = NULL;
    if (self->error_name(result, &name) || !name) name = "an unknown error";
    if (self->error_string(result, &text) || !text) text = "no description";
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return fail(error, AOTC_OUT_OF_MEMORY, "%s: the GPU is out of memory (%s); free memory or use smaller inputs", what, name);
    return fail(error, AOTC_DEVICE_FAILED, "%s: the CUDA driver says %s (%d, %s)", what, name, (int)result, text);
}

aotc_status nvtx_open(nvtx_ranges *self, aotc_error *error) {
    const char *wanted = getenv("AOTC_NVTX");
    *self = (nvtx_ranges){0};
    if (!wanted || !*wanted || strcmp(wanted, "0") == 0) return AOTC_OK;
    const char *name = strcmp(wanted, "1") == 0 ? "libnvToolsExt.so.1" : wanted;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library && !find(library, "nvtxRangePushA", &self->push) && !find(library, "nvtxRangePop", &self->pop)) return AOTC_OK;
    return fail(error, AOTC_SYSTEM,
                "AOTC_NVTX asks for ranges and %s cannot be loaded or has none; name the path of NVIDIA's libnvToolsExt.so.1, or unset it",
                name);
}
