/* What is refused, with which words; and that a session goes on afterwards. */
#include <pthread.h>
#include <stdatomic.h>

#include "driver.h"

static void bad_inputs(void) {
    aotc_error error;
    opened m = open_model("dynamic", NULL);
    aotc_session_t *session;
    _Alignas(64) static float x[4096];
    static char mask[64];
    tensor good, masks, bad;
    int64_t strides[3] = {16, 8, 1};
    OK(m.api->session_create(m.model, NULL, &session, &error));
    make_tensor(&good, "float32", x, 3, 2, 3, 8);
    make_tensor(&masks, "bool", mask, 2, 2, 6);
    FAILS(m.api->run(session, &error), AOTC_INVALID_ARGUMENT, "input 'x' is not bound");
    OK(m.api->bind_input(session, 0, &good.dl, &error));
    FAILS(m.api->run(session, &error), AOTC_INVALID_ARGUMENT, "input 'mask' is not bound");
    OK(m.api->bind_input(session, 1, &masks.dl, &error));
    FAILS(m.api->bind_input(session, 2, &good.dl, &error), AOTC_INVALID_ARGUMENT, "no input 2; the entry point has 2");
    FAILS(m.api->bind_input(session, 0, NULL, &error), AOTC_INVALID_ARGUMENT, "NULL");

    make_tensor(&bad, "float64", x, 3, 2, 3, 8);
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "should be float32 and is float64");
    bad.dl.dtype = (DLDataType){kDLFloat, 32, 4};
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "4 lanes");
    make_tensor(&bad, "float32", x, 2, 2, 24);
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "3 dims, [batch, sequence, 8], and has 2");
    bad.dl.ndim = -1;
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "has -1");
    make_tensor(&bad, "float32", x, 3, 2, 3, 7);
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "[batch, sequence, 8] and has [2, 3, 7]: dim 2 must be 8");
    make_tensor(&bad, "float32", x, 3, 65, 3, 8);
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "dim 0 must be 1 to 64");
    make_tensor(&bad, "float32", x, 3, 2, -3, 8);
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "dim 1 must be 0 or more");
    make_tensor(&bad, "float32", x, 3, 64, 1 << 30, 8);
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "2^31");
    bad.dl.shape = NULL;
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "its shape is NULL");

    make_tensor(&bad, "float32", NULL, 3, 2, 3, 8);
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "192 bytes and its data pointer is NULL");
    make_tensor(&bad, "float32", (char *)x + 2, 3, 2, 3, 8);
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "element size 4");
    make_tensor(&bad, "float32", x, 3, 2, 3, 8);
    bad.dl.strides = strides;
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "make it contiguous");
    bad.dl.strides = NULL;
    bad.dl.device.device_type = kDLCUDA;
    FAILS(m.api->bind_input(session, 0, &bad.dl, &error), AOTC_INVALID_ARGUMENT, "host memory and is in CUDA memory");

    OK(m.api->run(session, &error)); /* what failed has changed nothing */
    strides[0] = 24;
    bad.dl = good.dl;
    bad.dl.strides = strides;
    bad.dl.byte_offset = 4;
    OK(m.api->bind_input(session, 0, &bad.dl, &error));
    OK(m.api->run(session, &error));
    make_tensor(&masks, "bool", mask, 2, 2, 5);
    OK(m.api->bind_input(session, 1, &masks.dl, &error));
    FAILS(m.api->run(session, &error), AOTC_INVALID_ARGUMENT,
          "'mask' should have the shape [batch, 2*sequence] and has [2, 5]: dim 1 must be 6");
    make_tensor(&masks, "bool", mask, 2, 2, 6);
    OK(m.api->bind_input(session, 1, &masks.dl, &error));
    OK(m.api->run(session, &error));
    int64_t shape[2];
    FAILS(m.api->infer_shape(m.model, 0, (const int64_t *const[]){(int64_t[]){0, 3, 8}, (int64_t[]){0, 6}}, 0, shape, &error),
          AOTC_INVALID_ARGUMENT, "has 0 in dim 0 ('batch'), the model was built for 1 to 64");
    FAILS(m.api->infer_shape(m.model, 0, NULL, 0, shape, &error), AOTC_INVALID_ARGUMENT, "'x' is NULL");
    FAILS(m.api->infer_shape(m.model, 0, NULL, 2, shape, &error), AOTC_INVALID_ARGUMENT, "no output 2");
    CHECK(m.api->bind_input(session, 9, NULL, NULL) == AOTC_INVALID_ARGUMENT); /* messages are optional */
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
}

static void bad_outputs(void) {
    aotc_error error;
    opened m = open_model("entries", NULL);
    aotc_session_t *session;
    aotc_session_options options = {.size = sizeof options, .entry_point = "any"};
    float x[64], y[64];
    tensor input, output;
    DLTensor got;
    OK(m.api->session_create(m.model, &options, &session, &error));
    fill(x, 64, 5);
    make_tensor(&input, "float32", x, 2, 4, 8);
    OK(m.api->bind_input(session, 0, &input.dl, &error));
    FAILS(m.api->get_output(session, 0, &got, &error), AOTC_INVALID_ARGUMENT, "run first");
    make_tensor(&output, "float32", y, 2, 5, 8);
    OK(m.api->bind_output(session, 0, &output.dl, &error));
    FAILS(m.api->run(session, &error), AOTC_INVALID_ARGUMENT,
          "output 'y' has the shape [4, 8] for these inputs and is bound to a tensor of shape [5, 8]");
    FAILS(m.api->get_output(session, 0, &got, &error), AOTC_INVALID_ARGUMENT, "run first");
    make_tensor(&output, "float32", x + 31, 2, 4, 8);
    OK(m.api->bind_output(session, 0, &output.dl, &error));
    FAILS(m.api->run(session, &error), AOTC_INVALID_ARGUMENT, "output 'y' and input 'x' share memory");
    make_tensor(&output, "float32", y, 2, 4, 8);
    OK(m.api->bind_output(session, 0, &output.dl, &error));
    make_tensor(&output, "float32", y + 31, 2, 4, 8);
    OK(m.api->bind_output(session, 1, &output.dl, &error));
    FAILS(m.api->run(session, &error), AOTC_INVALID_ARGUMENT, "outputs 'same' and 'y' share memory");
    make_tensor(&output, "float32", y + 32, 2, 4, 8);
    OK(m.api->bind_output(session, 1, &output.dl, &error));
    OK(m.api->run(session, &error));
    CHECK(memcmp(y + 32, x, 32 * sizeof *x) == 0);
    FAILS(m.api->bind_output(session, 2, NULL, &error), AOTC_INVALID_ARGUMENT, "no output 2");
    FAILS(m.api->get_output(session, 0, NULL, &error), AOTC_INVALID_ARGUMENT, "NULL");

    /* The session's own output as its own next input. */
    OK(m.api->bind_output(session, 0, NULL, &error));
    OK(m.api->run(session, &error));
    OK(m.api->get_output(session, 0, &got, &error));
    DLTensor own = got;
    own.shape = input.shape;
    own.strides = NULL;
    OK(m.api->bind_input(session, 0, &own, &error));
    FAILS(m.api->run(session, &error), AOTC_INVALID_ARGUMENT, "share memory");
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
}

static void failing_kernel(void) {
    aotc_error error;
    opened m = open_model("failing", NULL);
    aotc_session_t *session;
    float x[6] = {1, 2, 3, 4, -5, 6};
    tensor input;
    make_tensor(&input, "float32", x, 1, 6);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        aotc_session_options options = {.size = sizeof options, .num_threads = threads};
        x[4] = -5;
        OK(m.api->session_create(m.model, &options, &session, &error));
        OK(m.api->bind_input(session, 0, &input.dl, &error));
        FAILS(m.api->run(session, &error), AOTC_KERNEL_FAILED, "step 'guard' (identity) failed: its kernel returned 7");
        x[4] = 5;
        OK(m.api->run(session, &error));
        CHECK(error.message[0] == 0);
        OK(m.api->session_destroy(session, &error));
    }
    close_model(&m);
}

static void bad_options(void) {
    aotc_error error;
    opened m = open_model("static", NULL);
    aotc_session_t *session;
    aotc_pool_t *pool;
    aotc_allocator half = {0};
    OK(m.api->pool_create(m.model, 2, &pool, &error));
    aotc_session_options options = {.size = sizeof options, .num_threads = 2, .pool = pool};
    FAILS(m.api->session_create(m.model, &options, &session, &error), AOTC_INVALID_ARGUMENT, "exclude each other");
    options = (aotc_session_options){.size = 0};
    FAILS(m.api->session_create(m.model, &options, &session, &error), AOTC_INVALID_ARGUMENT, "sizeof(aotc_session_options)");
    options = (aotc_session_options){.size = sizeof options, .allocator = &half};
    FAILS(m.api->session_create(m.model, &options, &session, &error), AOTC_INVALID_ARGUMENT, "lacks allocate");
    options = (aotc_session_options){.size = sizeof options, .shape_plans = 100000};
    FAILS(m.api->session_create(m.model, &options, &session, &error), AOTC_INVALID_ARGUMENT, "at most 4096");
    options = (aotc_session_options){.size = sizeof options, .num_threads = 100000};
    FAILS(m.api->session_create(m.model, &options, &session, &error), AOTC_INVALID_ARGUMENT, "at most 1024");
    FAILS(m.api->session_create(m.model, NULL, NULL, &error), AOTC_INVALID_ARGUMENT, "NULL");
    options = (aotc_session_options){.size = 4}; /* an older application's struct: only its size */
    OK(m.api->session_create(m.model, &options, &session, &error));
    FAILS(m.api->model_destroy(m.model, &error), AOTC_BUSY, "2 sessions or pools");
    OK(m.api->session_destroy(session, &error));
    options = (aotc_session_options){.size = sizeof options, .pool = pool};
    OK(m.api->session_create(m.model, &options, &session, &error));
    FAILS(m.api->pool_destroy(pool, &error), AOTC_BUSY, "1 sessions still use the pool");
    OK(m.api->session_destroy(session, &error));
    OK(m.api->pool_destroy(pool, &error));
    OK(m.api->session_destroy(NULL, &error));
    OK(m.api->pool_destroy(NULL, &error));
    OK(m.api->model_destroy(NULL, &error));
    close_model(&m);
}

typedef struct runner {
    const opened *m;
    aotc_session_t *session;
    atomic_int started;
} runner;

static void *run_in_thread(void *argument) {
    runner *self = argument;
    aotc_error error;
    atomic_store(&self->started, 1);
    aotc_status status = AOTC_BUSY;
    while (status == AOTC_BUSY) status = self->m->api->run(self->session, &error); /* the other thread may be inside just then */
    OK(status);
    return NULL;
}

/* A second thread that uses a session during a run gets an error, not a wrong answer. */
static void busy(void) {
    aotc_error error;
    opened m = open_model("waiting", NULL);
    runner runner = {.m = &m};
    _Atomic int32_t flag = 0;
    int64_t shape[1];
    tensor input;
    DLTensor got;
    pthread_t thread;
    make_tensor(&input, "int32", &flag, 0);
    OK(m.api->session_create(m.model, NULL, &runner.session, &error));
    OK(m.api->bind_input(runner.session, 0, &input.dl, &error));
    CHECK(pthread_create(&thread, NULL, run_in_thread, &runner) == 0);
    while (!atomic_load(&runner.started)) continue;
    /* The run has begun or is about to: try something harmless until it has. */
    while (m.api->set_profiling(runner.session, 0, &error) != AOTC_BUSY) continue;
    aotc_memory_info memory = {.size = sizeof memory};
    aotc_step_info step = {.size = sizeof step};
    FAILS(m.api->run(runner.session, &error), AOTC_BUSY, "give each thread a session of its own");
    FAILS(m.api->bind_input(runner.session, 0, &input.dl, &error), AOTC_BUSY, "another thread");
    FAILS(m.api->bind_output(runner.session, 0, NULL, &error), AOTC_BUSY, "another thread");
    FAILS(m.api->get_output(runner.session, 0, &got, &error), AOTC_BUSY, "another thread");
    FAILS(m.api->output_shape(runner.session, 0, shape, &error), AOTC_BUSY, "another thread");
    FAILS(m.api->memory_info(runner.session, &memory, &error), AOTC_BUSY, "another thread");
    FAILS(m.api->step_info(runner.session, 0, &step, &error), AOTC_BUSY, "another thread");
    FAILS(m.api->session_destroy(runner.session, &error), AOTC_BUSY, "another thread");
    atomic_store(&flag, 1);
    pthread_join(thread, NULL);
    OK(m.api->get_output(runner.session, 0, &got, &error));
    CHECK(*(int32_t *)got.data == 1);
    OK(m.api->session_destroy(runner.session, &error));
    close_model(&m);
}

const test_case error_cases[] = {{"bad_inputs", bad_inputs},
                                 {"bad_outputs", bad_outputs},
                                 {"failing_kernel", failing_kernel},
                                 {"bad_options", bad_options},
                                 {"busy", busy},
                                 {NULL, NULL}};
