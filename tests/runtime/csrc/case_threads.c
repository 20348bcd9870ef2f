/* Threads: the same bits however work is shared out, sessions side by side, pools that sleep. */
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

#define MAX_ROWS 96
#define ROW (32 * 64)

/* z of models.py's mixing, by one thread without the runtime. */
static float mix(const float *x, int n) {
    float sum = 0.1f;
    for (int j = 0; j < n; j++) sum = sum * 0.99f + x[j] / (float)(j + 3);
    return sum;
}

static void expected_mixing(const float *x, int rows, float *z) {
    for (int row = 0; row < rows; row++) {
        float inner[32];
        for (int k = 0; k < 32; k++) inner[k] = mix(x + row * ROW + k * 64, 64);
        z[row] = mix(inner, 32);
    }
}

static void run_mixing(const aotc_api *api, aotc_session_t *session, const float *x, int rows, float *z) {
    aotc_error error;
    tensor input, output;
    make_tensor(&input, "float32", (void *)(uintptr_t)x, 3, rows, 32, 64);
    make_tensor(&output, "float32", z, 1, rows);
    OK(api->bind_input(session, 0, &input.dl, &error));
    OK(api->bind_output(session, 0, &output.dl, &error));
    OK(api->run(session, &error));
}

/* An application's own loop: three uneven pieces, the last first. */
static void backwards(void *context, int32_t tasks, aotc_task_fn task, void *task_context) {
    int32_t third = tasks / 3;
    ++*(int *)context;
    task(task_context, tasks - third, tasks);
    task(task_context, third, tasks - third);
    task(task_context, 0, third);
}

static void same_bits(void) {
    aotc_error error;
    opened m = open_model("mixing", NULL);
    static float x[MAX_ROWS * ROW], z[MAX_ROWS], expected[MAX_ROWS];
    static const int sizes[] = {1, 2, 3, 17, 96};
    int calls = 0;
    fill(x, MAX_ROWS * ROW, 4);
    for (uint32_t threads = 0; threads <= 7; threads++) {
        aotc_session_options options = {.size = sizeof options, .num_threads = threads};
        aotc_session_t *session;
        if (threads == 7)
            options = (aotc_session_options){.size = sizeof options, .parallel_for = backwards, .parallel_for_context = &calls};
        OK(m.api->session_create(m.model, &options, &session, &error));
        for (int round = 0; round < 20; round++) {
            int rows = sizes[round % 5];
            memset(z, 0, sizeof z);
            expected_mixing(x, rows, expected);
            run_mixing(m.api, session, x, rows, z);
            CHECK(memcmp(z, expected, (size_t)rows * sizeof *z) == 0);
        }
        OK(m.api->session_destroy(session, &error));
    }
    CHECK(calls > 20);
    close_model(&m);
}

#define LEGS 300

static void run_relay(const aotc_api *api, const aotc_session_options *options, aotc_model_t *model) {
    aotc_error error;
    aotc_session_t *session;
    tensor input, count, output;
    uint32_t x[8] = {3, 1, 4, 1, 5, 9, 2, 6};
    static uint32_t y[LEGS * 8], expected[LEGS * 8];
    static int8_t n[LEGS];
    for (int task = 0; task < LEGS * 8; task++) {
        const uint32_t *before = task < 8 ? x : expected + (task / 8 - 1) * 8;
        uint32_t sum = (uint32_t)task;
        for (int j = 0; j < 8; j++) sum = sum * 31 + before[j];
        expected[task] = sum;
    }
    OK(api->session_create(model, options, &session, &error));
    make_tensor(&input, "int32", x, 1, 8);
    make_tensor(&count, "int8", n, 1, LEGS);
    make_tensor(&output, "int32", y, 2, LEGS, 8);
    OK(api->bind_input(session, 0, &input.dl, &error));
    OK(api->bind_input(session, 1, &count.dl, &error));
    OK(api->bind_output(session, 0, &output.dl, &error));
    for (int i = 0; i < 5; i++) {
        memset(y, 0, sizeof y);
        OK(api->run(session, &error));
        CHECK(memcmp(y, expected, sizeof y) == 0);
    }
    OK(api->session_destroy(session, &error));
}

/* Tasks in rounds, with all kinds of threads: more than there are processors, another file's pool, an application's own loop. */
static void in_rounds(void) {
    aotc_error error;
    opened m = open_model("relay", NULL), owner = open_model("static", NULL);
    int calls = 0;
    for (uint32_t threads = 0; threads <= 6; threads++)
        run_relay(m.api, &(aotc_session_options){.size = sizeof(aotc_session_options), .num_threads = threads}, m.model);
    aotc_session_options own = {.size = sizeof own, .parallel_for = backwards, .parallel_for_context = &calls};
    run_relay(m.api, &own, m.model);
    CHECK(calls == 0);
    aotc_session_options shared = {.size = sizeof shared};
    OK(owner.api->pool_create(owner.model, 2, &shared.pool, &error));
    run_relay(m.api, &shared, m.model);
    OK(owner.api->pool_destroy(shared.pool, &error));
    close_model(&m);
    close_model(&owner);
}

typedef struct client {
    const aotc_api *api;
    aotc_model_t *model;
    aotc_pool_t *pool;
    int number;
} client;

/* Its own session, its own data; every result is checked. */
static void *serve(void *argument) {
    const client *self = argument;
    aotc_error error;
    aotc_session_options options = {.size = sizeof options, .pool = self->pool};
    aotc_session_t *session;
    float *x = malloc(MAX_ROWS * ROW * sizeof *x), z[MAX_ROWS], expected[MAX_ROWS];
    fill(x, MAX_ROWS * ROW, (uint32_t)self->number + 10);
    OK(self->api->session_create(self->model, &options, &session, &error));
    for (int round = 0; round < 40; round++) {
        int rows = 1 + (round * 7 + self->number) % 24;
        expected_mixing(x, rows, expected);
        run_mixing(self->api, session, x, rows, z);
        CHECK(memcmp(z, expected, (size_t)rows * sizeof *z) == 0);
    }
    OK(self->api->session_destroy(session, &error));
    free(x);
    return NULL;
}

static void serve_all(client *clients, int count) {
    pthread_t threads[8];
    for (int i = 0; i < count; i++) CHECK(pthread_create(&threads[i], NULL, serve, &clients[i]) == 0);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

static void shared_pool(void) {
    aotc_error error;
    opened m = open_model("mixing", NULL);
    aotc_pool_t *pool;
    client clients[6];
    OK(m.api->pool_create(m.model, 4, &pool, &error));
    for (int i = 0; i < 6; i++) clients[i] = (client){m.api, m.model, pool, i};
    serve_all(clients, 6);
    OK(m.api->pool_destroy(pool, &error));
    close_model(&m);
}

static void parallel_sessions(void) {
    opened m = open_model("mixing", NULL);
    client clients[8];
    for (int i = 0; i < 8; i++) clients[i] = (client){m.api, m.model, NULL, i};
    serve_all(clients, 8);
    close_model(&m);
}

/* The pool comes from another file. */
static void foreign_pool(void) {
    aotc_error error;
    opened owner = open_model("static", NULL), m = open_model("mixing", NULL);
    aotc_pool_t *pool;
    OK(owner.api->pool_create(owner.model, 3, &pool, &error));
    client clients[2] = {{m.api, m.model, pool, 1}, {m.api, m.model, pool, 2}};
    serve_all(clients, 2);
    OK(owner.api->pool_destroy(pool, &error));
    close_model(&m);
    close_model(&owner);
}

static void half(void *context, int32_t tasks, aotc_task_fn task, void *task_context) {
    (void)context;
    task(task_context, 0, tasks / 2);
}

static void beyond(void *context, int32_t tasks, aotc_task_fn task, void *task_context) {
    (void)context;
    CHECK(task(task_context, 0, tasks + 1) != 0);
}

static void bad_parallel_for(void) {
    aotc_error error;
    opened m = open_model("mixing", NULL);
    aotc_session_t *session;
    static float x[ROW * 4];
    float z[4], expected[4];
    tensor input;
    fill(x, ROW * 4, 2);
    make_tensor(&input, "float32", x, 3, 4, 32, 64);
    aotc_parallel_for_fn loops[] = {half, beyond};
    for (int i = 0; i < 2; i++) {
        aotc_session_options options = {.size = sizeof options, .parallel_for = loops[i]};
        OK(m.api->session_create(m.model, &options, &session, &error));
        OK(m.api->bind_input(session, 0, &input.dl, &error));
        FAILS(m.api->run(session, &error), AOTC_KERNEL_FAILED, "parallel_for should run each of the 128 tasks once");
        OK(m.api->session_destroy(session, &error));
    }
    expected_mixing(x, 4, expected);
    OK(m.api->session_create(m.model, NULL, &session, &error));
    run_mixing(m.api, session, x, 4, z);
    CHECK(memcmp(z, expected, sizeof z) == 0);
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
}

/* Pools that come and go leave nothing; affinity stays; an idle pool takes no time. */
static void quiet(void) {
    aotc_error error;
    opened m = open_model("mixing", NULL);
    cpu_set_t before, after;
    struct rusage start, end;
    static float x[ROW * 8];
    float z[8];
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    for (int i = 0; i < 50; i++) {
        aotc_session_options options = {.size = sizeof options, .num_threads = 4};
        aotc_session_t *session;
        OK(m.api->session_create(m.model, &options, &session, &error));
        if (i % 2) run_mixing(m.api, session, x, 8, z);
        OK(m.api->session_destroy(session, &error));
    }
    aotc_session_options options = {.size = sizeof options, .num_threads = 4};
    aotc_session_t *session;
    OK(m.api->session_create(m.model, &options, &session, &error));
    run_mixing(m.api, session, x, 8, z);
    usleep(10000);
    getrusage(RUSAGE_SELF, &start);
    usleep(400000);
    getrusage(RUSAGE_SELF, &end);
    double used = (double)(end.ru_utime.tv_sec - start.ru_utime.tv_sec) + (double)(end.ru_utime.tv_usec - start.ru_utime.tv_usec) * 1e-6;
    CHECK(used < 0.1);
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0 && CPU_EQUAL(&before, &after));
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
}

/* Denormals flushed to zero in the caller are flushed in workers too. */
static void arithmetic_mode(void) {
#if defined(__x86_64__)
    aotc_error error;
    opened m = open_model("mixing", NULL);
    aotc_session_options options = {.size = sizeof options, .num_threads = 3};
    aotc_session_t *session;
    static float x[ROW * 12];
    float z[12], expected[12], flushed[12];
    for (int i = 0; i < ROW * 12; i++) x[i] = 1e-39f * (float)(i % 7) - 0.1f * (i % 64 == 0 && i % 3 == 0);
    OK(m.api->session_create(m.model, &options, &session, &error));
    expected_mixing(x, 12, expected);
    run_mixing(m.api, session, x, 12, z);
    CHECK(memcmp(z, expected, sizeof z) == 0);
    unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040);
    expected_mixing(x, 12, flushed);
    for (int i = 0; i < 20; i++) {
        run_mixing(m.api, session, x, 12, z);
        CHECK(memcmp(z, flushed, sizeof z) == 0);
    }
    __builtin_ia32_ldmxcsr(mode);
    for (int i = 0; i < 20; i++) {
        run_mixing(m.api, session, x, 12, z);
        CHECK(memcmp(z, expected, sizeof z) == 0);
    }
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
#endif
}

/* A forked child has no workers: its runs end all the same. */
static void forked(void) {
#if !defined(__SANITIZE_THREAD__)
    aotc_error error;
    opened m = open_model("mixing", NULL);
    aotc_session_options options = {.size = sizeof options, .num_threads = 3};
    aotc_session_t *session;
    static float x[ROW * 12];
    float z[12], expected[12];
    int status = -1;
    fill(x, ROW * 12, 6);
    expected_mixing(x, 12, expected);
    OK(m.api->session_create(m.model, &options, &session, &error));
    run_mixing(m.api, session, x, 12, z);
    pid_t child = fork();
    if (child == 0) {
        memset(z, 0, sizeof z);
        run_mixing(m.api, session, x, 12, z);
        _exit(memcmp(z, expected, sizeof z) != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
#endif
}

const test_case thread_cases[] = {{"same_bits", same_bits}, {"in_rounds", in_rounds},
                                  {"shared_pool", shared_pool},
                                  {"parallel_sessions", parallel_sessions},
                                  {"foreign_pool", foreign_pool},
                                  {"bad_parallel_for", bad_parallel_for},
                                  {"quiet", quiet},
                                  {"arithmetic_mode", arithmetic_mode},
                                  {"forked", forked},
                                  {NULL, NULL}};
