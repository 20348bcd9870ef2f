/* What the cases of entry points that use a GPU share: the fake driver, tensors, results. models_cuda.py has the plans. */
#ifndef CUDA_CASES_H
#define CUDA_CASES_H

#include <dlfcn.h>
#include <pthread.h>

#include "driver.h"
#include "fake_cuda.h"

static const float w[8] = {-1, -0.5f, 0, 0.5f, 1, 1.5f, 2, 2.5f}; /* and b[j] = j - 3 */
static float x[64 * 8], y[64 * 8], z[64 * 8];

/* The fake, as it is before its first use. */
static inline fake_cuda *driver_named(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", models_folder(), name);
    CHECK(setenv("AOTC_LIBCUDA", path, 1) == 0);
    void *library = dlopen(path, RTLD_NOW);
    CHECK(library);
    fake_cuda *fake = dlsym(library, "fake");
    CHECK(fake);
    fill(x, sizeof x / sizeof *x, 5);
    return fake;
}

static inline fake_cuda *fake_driver(void) { return driver_named("fake_cuda.so"); }

static inline void check_results(const float *got_y, const float *got_z, int rows) {
    for (int row = 0; row < rows; row++)
        for (int j = 0; j < 8; j++) {
            float scaled = x[row * 8 + j] * w[j], sum = scaled + ((float)j - 3), product = scaled * w[j] * w[j] * w[j];
            CHECK(got_y[row * 8 + j] == (sum > 0 ? sum : 0));
            CHECK(got_z[row * 8 + j] == product);
        }
}

static inline aotc_session_t *make(const opened *m, const char *entry_point) {
    aotc_error error;
    aotc_session_t *session;
    aotc_session_options options = {.size = sizeof options, .entry_point = entry_point};
    OK(m->api->session_create(m->model, &options, &session, &error));
    return session;
}

static inline void bind(const opened *m, aotc_session_t *session, int rows, void *in, void *out_y, void *out_z, DLDeviceType device) {
    aotc_error error;
    tensor input, outputs[2];
    make_tensor(&input, "float32", in, 2, rows, 8);
    make_tensor(&outputs[0], "float32", out_y, 2, rows, 8);
    make_tensor(&outputs[1], "float32", out_z, 2, rows, 8);
    input.dl.device.device_type = outputs[0].dl.device.device_type = outputs[1].dl.device.device_type = device;
    OK(m->api->bind_input(session, 0, &input.dl, &error));
    OK(m->api->bind_output(session, 0, out_y ? &outputs[0].dl : NULL, &error));
    OK(m->api->bind_output(session, 1, out_z ? &outputs[1].dl : NULL, &error));
}

static inline void run_bound(const opened *m, aotc_session_t *session, int rows) {
    aotc_error error;
    memset(y, 0, sizeof y);
    memset(z, 0, sizeof z);
    OK(m->api->run(session, &error));
    check_results(y, z, rows);
}

static inline void nothing_is_left(const fake_cuda *fake) {
    CHECK(fake->blocks == 0 && fake->streams == 0 && fake->events == 0 && fake->graphs == 0 && fake->modules == 0 && fake->contexts == 0);
}

static inline void *driver_function(const char *name) {
    void *found = dlsym(dlopen(getenv("AOTC_LIBCUDA"), RTLD_NOW), name);
    CHECK(found);
    return found;
}

/* The driver's functions that an application would use. */
static struct {
    int (*allocate)(uint64_t *, size_t), (*release)(uint64_t), (*pin)(void **, size_t, unsigned), (*unpin)(void *), (*push)(void *), (*pop)(void **);
    int (*copy)(void *, uint64_t, size_t, void *), (*send)(uint64_t, const void *, size_t, void *), (*wait)(void *);
} cuda;

static inline void find_driver(void) {
    *(void **)&cuda.allocate = driver_function("cuMemAlloc_v2");
    *(void **)&cuda.release = driver_function("cuMemFree_v2");
    *(void **)&cuda.pin = driver_function("cuMemHostAlloc");
    *(void **)&cuda.unpin = driver_function("cuMemFreeHost");
    *(void **)&cuda.push = driver_function("cuCtxPushCurrent_v2");
    *(void **)&cuda.pop = driver_function("cuCtxPopCurrent_v2");
    *(void **)&cuda.copy = driver_function("cuMemcpyDtoHAsync_v2");
    *(void **)&cuda.send = driver_function("cuMemcpyHtoDAsync_v2");
    *(void **)&cuda.wait = driver_function("cuStreamSynchronize");
}

static inline char *pinned_memory(fake_cuda *fake, size_t bytes) {
    void *pinned, *context;
    CHECK(cuda.push(fake) == 0 && cuda.pin(&pinned, bytes, 2) == 0 && cuda.pop(&context) == 0);
    return pinned;
}

static inline void free_pinned(fake_cuda *fake, char *pinned) {
    void *context;
    CHECK(cuda.push(fake) == 0 && cuda.unpin(pinned) == 0 && cuda.pop(&context) == 0);
}

#endif
