/* Entry points that use a GPU, on the driver of fake_cuda.c. models_cuda.py has the plans. */
#include <dlfcn.h>
#include <pthread.h>

#include "driver.h"
#include "fake_cuda.h"

static const float w[8] = {-1, -0.5f, 0, 0.5f, 1, 1.5f, 2, 2.5f}; /* and b[j] = j - 3 */
static float x[64 * 8], y[64 * 8], z[64 * 8];

/* The fake, as it is before its first use. */
static fake_cuda *driver_named(const char *name) {
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

static fake_cuda *fake_driver(void) { return driver_named("fake_cuda.so"); }

static void check_results(const float *got_y, const float *got_z, int rows) {
    for (int row = 0; row < rows; row++)
        for (int j = 0; j < 8; j++) {
            float scaled = x[row * 8 + j] * w[j], sum = scaled + ((float)j - 3), product = scaled * w[j] * w[j] * w[j];
            CHECK(got_y[row * 8 + j] == (sum > 0 ? sum : 0));
            CHECK(got_z[row * 8 + j] == product);
        }
}

static aotc_session_t *make(const opened *m, const char *entry_point) {
    aotc_error error;
    aotc_session_t *session;
    aotc_session_options options = {.size = sizeof options, .entry_point = entry_point};
    OK(m->api->session_create(m->model, &options, &session, &error));
    return session;
}

static void bind(const opened *m, aotc_session_t *session, int rows, void *in, void *out_y, void *out_z, DLDeviceType device) {
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

static void run_bound(const opened *m, aotc_session_t *session, int rows) {
    aotc_error error;
    memset(y, 0, sizeof y);
    memset(z, 0, sizeof z);
    OK(m->api->run(session, &error));
    check_results(y, z, rows);
}

static void nothing_is_left(const fake_cuda *fake) {
    CHECK(fake->blocks == 0 && fake->streams == 0 && fake->events == 0 && fake->graphs == 0 && fake->modules == 0 && fake->contexts == 0);
}

/* Host memory on either side; the third run is two graphs. */
static void cuda_host_memory(void) {
    aotc_error error;
    fake_cuda *fake = fake_driver();
    for (fake->integrated = 0; fake->integrated < 2; fake->integrated++) {
        opened m = open_model("cuda", NULL);
        aotc_session_t *session = make(&m, NULL);
        bind(&m, session, 4, x, y, z, kDLCPU);
        fake->launches = fake->graph_launches = fake->copies_to_device = fake->copies_to_host = 0;
        run_bound(&m, session, 4);
        CHECK(fake->launches == 4 && fake->graph_launches == 0);
        CHECK(fake->copies_to_device == (fake->integrated ? 1 : 2) && fake->copies_to_host == (fake->integrated ? 2 : 3));
        run_bound(&m, session, 4);
        run_bound(&m, session, 4);
        CHECK(fake->launches == 9 && fake->graph_launches == 2); /* of three launches; the last one stands alone */
        aotc_memory_info info = {.size = sizeof info};
        OK(m.api->memory_info(session, &info, &error));
        CHECK(info.device_weights == 96 && info.shared == 256 && info.arena == 128 && info.device == 4 * 128 && info.total >= 768);
        bind(&m, session, 4, x, NULL, NULL, kDLCPU);
        OK(m.api->run(session, &error));
        DLTensor got[2];
        for (size_t i = 0; i < 2; i++) OK(m.api->get_output(session, i, &got[i], &error));
        check_results(got[0].data, got[1].data, 4);
        OK(m.api->session_destroy(session, &error));
        close_model(&m);
        nothing_is_left(fake);
    }
}

static void *driver_function(const char *name) {
    void *found = dlsym(dlopen(getenv("AOTC_LIBCUDA"), RTLD_NOW), name);
    CHECK(found);
    return found;
}

/* The driver's functions that an application would use. */
static struct {
    int (*allocate)(uint64_t *, size_t), (*release)(uint64_t), (*pin)(void **, size_t, unsigned), (*unpin)(void *), (*push)(void *), (*pop)(void **);
    int (*copy)(void *, uint64_t, size_t, void *), (*send)(uint64_t, const void *, size_t, void *), (*wait)(void *);
} cuda;

static void find_driver(void) {
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

static char *pinned_memory(fake_cuda *fake, size_t bytes) {
    void *pinned, *context;
    CHECK(cuda.push(fake) == 0 && cuda.pin(&pinned, bytes, 2) == 0 && cuda.pop(&context) == 0);
    return pinned;
}

static void free_pinned(fake_cuda *fake, char *pinned) {
    void *context;
    CHECK(cuda.push(fake) == 0 && cuda.unpin(pinned) == 0 && cuda.pop(&context) == 0);
}

/* Memory of the caller's on the device, and pinned memory, are used where they are. */
static void cuda_bound_on_device(void) {
    aotc_error error;
    fake_cuda *fake = fake_driver();
    opened m = open_model("cuda", NULL);
    aotc_session_t *session = make(&m, NULL);
    find_driver();
    uint64_t memory;
    void *context;
    CHECK(cuda.push(fake) == 0 && cuda.allocate(&memory, 3 * 128) == 0);
    CHECK(cuda.send(memory, x, 128, NULL) == 0 && cuda.wait(NULL) == 0 && cuda.pop(&context) == 0);
    char *device = (char *)(uintptr_t)memory, *host = pinned_memory(fake, 3 * 128);

    bind(&m, session, 4, device, device + 128, device + 256, kDLCUDA);
    fake->copies_to_device = fake->copies_to_host = 0;
    for (int i = 0; i < 3; i++) OK(m.api->run(session, &error));
    CHECK(fake->copies_to_device == 0 && fake->copies_to_host == 0);
    DLTensor got;
    OK(m.api->get_output(session, 0, &got, &error));
    CHECK(got.device.device_type == kDLCUDA && got.data == device + 128);
    CHECK(cuda.push(fake) == 0 && cuda.copy(y, memory + 128, 128, NULL) == 0 && cuda.copy(z, memory + 256, 128, NULL) == 0);
    CHECK(cuda.pop(&context) == 0);
    check_results(y, z, 4);

    memcpy(host, x, 128);
    bind(&m, session, 4, host, host + 128, host + 256, kDLCUDAHost);
    fake->copies_to_device = fake->copies_to_host = 0;
    for (int i = 0; i < 3; i++) OK(m.api->run(session, &error));
    CHECK(fake->copies_to_device == 0 && fake->copies_to_host == 0);
    check_results((float *)(host + 128), (float *)(host + 256), 4);

    tensor input;
    make_tensor(&input, "float32", device + 4, 2, 4, 8);
    input.dl.device.device_type = kDLCUDA;
    FAILS(m.api->bind_input(session, 0, &input.dl, &error), AOTC_INVALID_ARGUMENT, "not a multiple of 16");
    bind(&m, session, 4, host, host + 64, host + 256, kDLCUDAHost);
    FAILS(m.api->run(session, &error), AOTC_INVALID_ARGUMENT, "share memory");
    OK(m.api->session_destroy(session, &error));
    CHECK(cuda.push(fake) == 0 && cuda.release(memory) == 0 && cuda.pop(&context) == 0);
    free_pinned(fake, host);
    close_model(&m);
    nothing_is_left(fake);
}

/* Shapes come and go; each has graphs of its own, until an arena grows. */
static void cuda_shapes(void) {
    aotc_error error;
    fake_cuda *fake = fake_driver();
    opened m = open_model("cuda_rows", NULL);
    aotc_session_t *session, *few;
    aotc_session_options options = {.size = sizeof options, .shape_plans = 1};
    OK(m.api->session_create(m.model, &options, &few, &error));
    static const int turns[] = {6, 5, 4, 6, 5, 6};
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        bind(&m, few, turns[i], x, y, z, kDLCPU);
        for (int run = 0; run < (i ? 3 : 1); run++) run_bound(&m, few, turns[i]);
    }
    OK(m.api->session_destroy(few, &error));
    find_driver();
    session = make(&m, NULL);
    char *host = pinned_memory(fake, 3 * 2048); /* its addresses stay while the arenas grow */
    memcpy(host, x, 2048);
    static const int growing[] = {3, 3, 3, 64, 3, 3};
    for (size_t i = 0; i < sizeof growing / sizeof *growing; i++) {
        memset(host + 2048, 0, 4096);
        bind(&m, session, growing[i], host, host + 2048, host + 4096, kDLCUDAHost);
        OK(m.api->run(session, &error));
        check_results((float *)(host + 2048), (float *)(host + 4096), growing[i]);
    }
    OK(m.api->session_destroy(session, &error));
    free_pinned(fake, host);
    fake->graph_launches = 0;
    session = make(&m, NULL);
    static const int rows[] = {3, 3, 3, 5, 5, 5, 3, 3, 0, 64, 64, 1, 2, 3, 4, 5, 6, 7, 64, 64};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bind(&m, session, rows[i], x, y, z, kDLCPU);
        run_bound(&m, session, rows[i]);
    }
    CHECK(fake->graph_launches > 4);
    fake->no_capture = true; /* as on a stream that cannot be captured: launches one by one */
    for (int i = 0; i < 3; i++) {
        bind(&m, session, 9, x, y, z, kDLCPU);
        run_bound(&m, session, 9);
    }
    OK(m.api->set_profiling(session, 1, &error));
    run_bound(&m, session, 9);
    aotc_step_info step = {.size = sizeof step};
    OK(m.api->step_info(session, 1, &step, &error));
    CHECK(step.kind == AOTC_STEP_LAUNCH && step.runs == 1 && strcmp(step.kernel, "c_scale") == 0);
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
    nothing_is_left(fake);
}

/* The host does not write what the device still reads. */
static void cuda_turns(void) {
    aotc_error error;
    fake_cuda *fake = fake_driver();
    for (fake->integrated = 0; fake->integrated < 2; fake->integrated++) {
        opened m = open_model("cuda_turns", NULL);
        aotc_session_t *session = make(&m, NULL);
        tensor input, output;
        make_tensor(&input, "float32", x, 2, 4, 8);
        make_tensor(&output, "float32", y, 2, 4, 8);
        OK(m.api->bind_input(session, 0, &input.dl, &error));
        OK(m.api->bind_output(session, 0, &output.dl, &error));
        for (int run = 0; run < 3; run++) {
            memset(y, 0, sizeof y);
            OK(m.api->run(session, &error));
            for (int i = 0; i < 32; i++) CHECK(y[i] == x[i] * w[i % 8] + x[i] * w[i % 8] * w[i % 8]);
        }
        OK(m.api->session_destroy(session, &error));
        close_model(&m);
        nothing_is_left(fake);
    }
}

static void cuda_states(void) {
    aotc_error error;
    fake_cuda *fake = fake_driver();
    for (fake->integrated = 0; fake->integrated < 2; fake->integrated++) {
        opened m = open_model("cuda_states", NULL);
        aotc_session_t *read = make(&m, "read"), *add;
        aotc_session_options options = {.size = sizeof options, .entry_point = "add", .share_state = read};
        OK(m.api->session_create(m.model, &options, &add, &error));
        tensor input;
        make_tensor(&input, "float32", x, 2, 1, 8);
        OK(m.api->bind_input(add, 0, &input.dl, &error));
        DLTensor got;
        float total[8];
        for (int j = 0; j < 8; j++) total[j] = (float)j - 3;
        for (int run = 0; run < 6; run++) {
            if (run == 4) {
                OK(m.api->session_reset(read, &error));
                for (int j = 0; j < 8; j++) total[j] = (float)j - 3;
            }
            OK(m.api->run_async(add, NULL, &error));
            OK(m.api->run(read, &error));
            OK(m.api->get_output(add, 0, &got, &error));
            for (int j = 0; j < 8; j++) CHECK(((float *)got.data)[j] == (total[j] = x[j] + total[j]));
            OK(m.api->get_output(read, 0, &got, &error));
            for (int j = 0; j < 8; j++) CHECK(((float *)got.data)[j] == total[j]);
        }
        find_driver();
        float *doubled = (float *)pinned_memory(fake, 32);
        aotc_session_t *twice;
        options.entry_point = "twice";
        OK(m.api->session_create(m.model, &options, &twice, &error));
        tensor output;
        make_tensor(&output, "float32", doubled, 2, 1, 8);
        OK(m.api->bind_output(twice, 0, &output.dl, &error));
        OK(m.api->run_async(twice, NULL, &error));
        OK(m.api->session_reset(read, &error)); /* the state is another session's to change when the call returns */
        OK(m.api->wait(twice, &error));
        for (int j = 0; j < 8; j++) CHECK(doubled[j] == 2 * total[j]);
        OK(m.api->session_destroy(twice, &error));
        free_pinned(fake, (char *)doubled);
        OK(m.api->session_destroy(read, &error));
        OK(m.api->run(add, &error));
        OK(m.api->session_destroy(add, &error));
        close_model(&m);
        nothing_is_left(fake);
    }
}

/* A run that goes on when the call has returned. */
static void run_async(int integrated) {
    aotc_error error;
    fake_cuda *fake = fake_driver();
    fake->integrated = integrated;
    opened m = open_model("cuda_rows", NULL);
    aotc_session_t *session = make(&m, NULL);
    void *event = NULL;
    bind(&m, session, 4, x, NULL, NULL, kDLCPU);
    OK(m.api->wait(session, &error));
    for (int run = 0; run < 4; run++) {
        OK(m.api->run_async(session, &event, &error));
        CHECK(event);
        if (run % 2) OK(m.api->wait(session, &error));
        DLTensor got[2];
        for (size_t i = 0; i < 2; i++) OK(m.api->get_output(session, i, &got[i], &error));
        check_results(got[0].data, got[1].data, 4);
    }
    find_driver();
    char *host = pinned_memory(fake, 3 * 128); /* copies to it come late, or none are needed */
    memcpy(host, x, 128);
    bind(&m, session, 4, host, host + 128, host + 256, kDLCUDAHost);
    for (int run = 0; run < 4; run++) {
        DLTensor got;
        memset(host + 128, 0, 256);
        if (run == 3) OK(m.api->run_async(session, NULL, &error)); /* two runs one behind the other */
        OK(m.api->run_async(session, NULL, &error));
        OK(m.api->get_output(session, 0, &got, &error));
        check_results((float *)(host + 128), (float *)(host + 256), 4);
    }
    OK(m.api->run_async(session, NULL, &error));
    OK(m.api->session_destroy(session, &error));
    free_pinned(fake, host);
    close_model(&m);
    nothing_is_left(fake);
}

static void cuda_async(void) {
    run_async(0);
    run_async(1);
}

/* A driver of CUDA 10.2, without graphs of this kind. */
static void cuda_old_driver(void) {
    aotc_error error;
    fake_cuda *fake = driver_named("fake_cuda_old.so");
    opened m = open_model("cuda", NULL);
    aotc_session_t *session = make(&m, NULL);
    bind(&m, session, 4, x, y, z, kDLCPU);
    for (int run = 0; run < 3; run++) run_bound(&m, session, 4);
    CHECK(fake->launches == 12 && fake->graph_launches == 0);
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
    nothing_is_left(fake);
}

/* Work in a stream of the application's, which stays. */
static void cuda_stream(void) {
    aotc_error error;
    fake_cuda *fake = fake_driver();
    opened m = open_model("cuda", NULL);
    int (*create)(void **, unsigned), (*destroy)(void *);
    *(void **)&create = driver_function("cuStreamCreate");
    *(void **)&destroy = driver_function("cuStreamDestroy_v2");
    void *stream;
    CHECK(create(&stream, 1) == 0);
    aotc_session_t *session;
    aotc_session_options options = {.size = sizeof options, .cuda_stream = stream};
    OK(m.api->session_create(m.model, &options, &session, &error));
    CHECK(fake->streams == 1);
    bind(&m, session, 4, x, y, z, kDLCPU);
    for (int run = 0; run < 3; run++) run_bound(&m, session, 4);
    OK(m.api->session_destroy(session, &error));
    CHECK(fake->streams == 1 && destroy(stream) == 0);
    close_model(&m);
    nothing_is_left(fake);
}

static void *run_thread(void *argument) {
    const opened *m = argument;
    aotc_error error;
    float out[2][32];
    aotc_session_t *session = make(m, NULL);
    bind(m, session, 4, x, out[0], out[1], kDLCPU);
    for (int run = 0; run < 20; run++) {
        OK(m->api->run(session, &error));
        check_results(out[0], out[1], 4);
    }
    OK(m->api->session_destroy(session, &error));
    return NULL;
}

/* Sessions of several threads share code and weights; the first one loads them. */
static void cuda_threads(void) {
    const fake_cuda *fake = fake_driver();
    opened m = open_model("cuda", NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, run_thread, &m) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(fake->modules == 1 && fake->contexts == 1);
    close_model(&m);
    nothing_is_left(fake);
}

static aotc_status try_session(const opened *m, uint64_t limit, aotc_error *error) {
    aotc_session_t *session;
    aotc_session_options options = {.size = sizeof options, .memory_limit = limit};
    aotc_status status = m->api->session_create(m->model, &options, &session, error);
    if (!status) CHECK(m->api->session_destroy(session, error) == AOTC_OK);
    return status;
}

static void cuda_refused(void) {
    aotc_error error;
    fake_cuda *fake = fake_driver();
    opened m = open_model("cuda", NULL);
    CHECK(setenv("AOTC_LIBCUDA", "/nowhere/libcuda.so.1", 1) == 0);
    FAILS(try_session(&m, 0, &error), AOTC_UNSUPPORTED, "no CUDA driver (libcuda.so.1) can be loaded here");
    fake_driver();
    fake->no_device = true;
    FAILS(try_session(&m, 0, &error), AOTC_UNSUPPORTED, "the CUDA driver finds none");
    fake->no_device = false;
    fake->sm = 86;
    FAILS(try_session(&m, 0, &error), AOTC_UNSUPPORTED, "Fake GPU 0, is sm_86 and the model was built for sm_72, sm_87");
    nothing_is_left(fake);
    fake->sm = 72;
    OK(try_session(&m, 0, &error));
    fake->memory_left = 100;
    FAILS(try_session(&m, 0, &error), AOTC_OUT_OF_MEMORY, "128 bytes on the GPU for the GPU's arena");
    fake->memory_left = 0;
    FAILS(try_session(&m, 2000, &error), AOTC_OUT_OF_MEMORY, "memory_limit is 2000");
    aotc_session_t *session = make(&m, NULL);
    bind(&m, session, 4, x, y, z, kDLCPU);
    fake->fail_launch = true;
    FAILS(m.api->run(session, &error), AOTC_DEVICE_FAILED, "step 'layer' (c_scale): the CUDA driver says CUDA_ERROR_LAUNCH_FAILED (719");
    fake->fail_launch = false;
    fake->fail_wait = true;
    FAILS(m.api->run(session, &error), AOTC_DEVICE_FAILED, "running on the GPU: the CUDA driver says CUDA_ERROR_LAUNCH_FAILED");
    fake->fail_wait = false;
    run_bound(&m, session, 4);
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
    nothing_is_left(fake);
}

/* Memory that is refused when a larger shape comes leaves a session that works on. */
static void cuda_no_room(void) {
    aotc_error error;
    fake_cuda *fake = fake_driver();
    for (fake->integrated = 0; fake->integrated < 2; fake->integrated++) {
        opened m = open_model("cuda_rows", NULL);
        aotc_session_t *session = make(&m, NULL);
        for (int turn = 0; turn < 3; turn++) {
            bind(&m, session, 3, x, y, z, kDLCPU);
            for (int run = 0; run < 3; run++) run_bound(&m, session, 3);
            fake->memory_left = 1000;
            bind(&m, session, 64, x, y, z, kDLCPU);
            FAILS(m.api->run(session, &error), AOTC_OUT_OF_MEMORY, "2048 bytes on the GPU");
            FAILS(m.api->run(session, &error), AOTC_OUT_OF_MEMORY, "the GPU is out of memory");
            fake->memory_left = 0;
        }
        run_bound(&m, session, 64);
        OK(m.api->session_destroy(session, &error));
        close_model(&m);
        nothing_is_left(fake);
    }
}

static char logged[1024];

static void keep_log(void *context, aotc_log_level level, const char *message) {
    (void)context;
    if (level == AOTC_LOG_WARNING) snprintf(logged, sizeof logged, "%s", message);
}

/* Without a driver the host's entry point stands in, and only then. */
static void cuda_fallback(void) {
    aotc_error error;
    fake_cuda *fake = fake_driver();
    aotc_model_options options = {.size = sizeof options, .log = keep_log};
    for (int driver = 0; driver < 2; driver++) {
        opened m = open_model("cuda_or_host", &options);
        CHECK(m.api->entry_point_count(m.model) == 1);
        logged[0] = 0;
        if (!driver) CHECK(setenv("AOTC_LIBCUDA", "/nowhere/libcuda.so.1", 1) == 0);
        aotc_session_t *session = make(&m, NULL);
        CHECK((strstr(logged, "on the CPU instead of the GPU: the model needs a GPU and no CUDA driver") != NULL) == !driver);
        bind(&m, session, 4, x, y, z, kDLCPU);
        fake->launches = 0;
        run_bound(&m, session, 4);
        CHECK((fake->launches > 0) == driver);
        OK(m.api->run_async(session, NULL, &error));
        OK(m.api->wait(session, &error));
        OK(m.api->session_destroy(session, &error));
        close_model(&m);
        fake_driver();
    }
    nothing_is_left(fake);
}

const test_case cuda_cases[] = {{"cuda_host_memory", cuda_host_memory},
                                {"cuda_bound_on_device", cuda_bound_on_device},
                                {"cuda_shapes", cuda_shapes},
                                {"cuda_turns", cuda_turns},
                                {"cuda_states", cuda_states},
                                {"cuda_async", cuda_async},
                                {"cuda_old_driver", cuda_old_driver},
                                {"cuda_stream", cuda_stream},
                                {"cuda_threads", cuda_threads},
                                {"cuda_refused", cuda_refused},
                                {"cuda_no_room", cuda_no_room},
                                {"cuda_fallback", cuda_fallback},
                                {NULL, NULL}};
