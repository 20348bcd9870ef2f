/* Entry points that use a GPU and what they find: drivers, streams, other threads, too little memory, nothing at all. */
#include "cuda_cases.h"

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

const test_case cuda_driver_cases[] = {{"cuda_old_driver", cuda_old_driver},
                                       {"cuda_stream", cuda_stream},
                                       {"cuda_threads", cuda_threads},
                                       {"cuda_refused", cuda_refused},
                                       {"cuda_no_room", cuda_no_room},
                                       {"cuda_fallback", cuda_fallback},
                                       {NULL, NULL}};
