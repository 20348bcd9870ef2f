/* Memory: counted, limited, flat over many runs, given back; and buffers that never meet. */
#include <malloc.h>
#include <unistd.h>

#include "driver.h"

#define MAX_BATCH 64
#define MAX_SEQUENCE 64

static float x[MAX_BATCH * MAX_SEQUENCE * 8];
static char mask[MAX_BATCH * MAX_SEQUENCE * 2];

static void run_shape(const opened *m, aotc_session_t *session, int batch, int sequence) {
    aotc_error error;
    tensor input, masks;
    make_tensor(&input, "float32", x, 3, batch, sequence, 8);
    make_tensor(&masks, "bool", mask, 2, batch, 2 * sequence);
    OK(m->api->bind_input(session, 0, &input.dl, &error));
    OK(m->api->bind_input(session, 1, &masks.dl, &error));
    OK(m->api->run(session, &error));
}

static void flat(void) {
    aotc_error error;
    opened m = open_model("dynamic", NULL);
    counter count;
    aotc_allocator allocator = counting_allocator(&count);
    aotc_session_options options = {.size = sizeof options, .allocator = &allocator, .shape_plans = 8, .profile = 1};
    aotc_session_t *session;
    aotc_memory_info memory = {.size = sizeof memory};
    uint32_t state = 1;
    OK(m.api->session_create(m.model, &options, &session, &error));
    run_shape(&m, session, MAX_BATCH, MAX_SEQUENCE);
    for (int i = 1; i <= 8; i++) run_shape(&m, session, i, i);
    size_t requests = count.total, pages = resident_pages();
    for (int run = 0; run < 10000; run++) {
        state = state * 1664525u + 1013904223u;
        run_shape(&m, session, 1 + (int)(state >> 8) % MAX_BATCH, (int)(state >> 16) % (MAX_SEQUENCE + 1));
    }
    CHECK(count.total == requests); /* after the largest shape nothing was asked for again */
    if (!SANITIZED) CHECK(resident_pages() <= pages + 16);
    OK(m.api->memory_info(session, &memory, &error));
    CHECK(memory.total == count.live_bytes && memory.peak == memory.total && memory.shape_plans == 8);
    OK(m.api->session_destroy(session, &error));
    CHECK(count.live == 0 && count.live_bytes == 0);
    close_model(&m);
}

/* Growing step by step frees what it replaces, and what it tells is what the allocator sees. */
static void growing(void) {
    aotc_error error;
    opened m = open_model("dynamic", NULL);
    counter count;
    aotc_allocator allocator = counting_allocator(&count);
    aotc_session_options options = {.size = sizeof options, .allocator = &allocator};
    aotc_session_t *session;
    aotc_memory_info memory = {.size = sizeof memory};
    OK(m.api->session_create(m.model, &options, &session, &error));
    OK(m.api->memory_info(session, &memory, &error));
    CHECK(memory.arena == 0 && memory.planned == 0 && memory.outputs == 0 && memory.total == count.live_bytes && memory.weights == 96);
    for (int size = 1; size <= 40; size += 3) {
        run_shape(&m, session, size, size);
        OK(m.api->memory_info(session, &memory, &error));
        /* models.py: the product of steps 0 meets nothing; two rows of sums are alive together later */
        uint64_t product = (uint64_t)size * (uint64_t)size * 32, sums = ((uint64_t)size * 32 + 63) / 64 * 64;
        uint64_t bound = (product + 63) / 64 * 64 > 2 * sums ? (product + 63) / 64 * 64 : 2 * sums;
        CHECK(memory.planned == bound && memory.lower_bound == bound && memory.arena == bound);
        CHECK(memory.outputs == (uint64_t)size * (32 + 64) && memory.total == count.live_bytes);
    }
    run_shape(&m, session, 1, 1);
    OK(m.api->memory_info(session, &memory, &error));
    CHECK(memory.planned == 128 && memory.arena == 40 * 40 * 32);
    OK(m.api->session_destroy(session, &error));
    CHECK(count.live == 0);
    close_model(&m);
}

static void no_allocation_in_run(void) {
    aotc_error error;
    opened m = open_model("dynamic", NULL);
    for (uint32_t threads = 1; threads <= 2; threads++) {
        aotc_session_options options = {.size = sizeof options, .num_threads = threads};
        aotc_session_t *session;
        OK(m.api->session_create(m.model, &options, &session, &error));
        for (int size = 1; size < 10; size++) run_shape(&m, session, size, size);
        size_t before = SANITIZED ? 0 : mallinfo2().uordblks;
        for (int size = 1; size < 10; size++) run_shape(&m, session, size, size);
        CHECK((SANITIZED ? 0 : mallinfo2().uordblks) == before);
        OK(m.api->session_destroy(session, &error));
    }
    close_model(&m);
}

static void limit(void) {
    aotc_error error;
    opened m = open_model("dynamic", NULL);
    aotc_session_t *session;
    aotc_memory_info memory = {.size = sizeof memory};
    aotc_session_options options = {.size = sizeof options, .memory_limit = 100};
    tensor input, masks;
    FAILS(m.api->session_create(m.model, &options, &session, &error), AOTC_OUT_OF_MEMORY, "its memory_limit is 100");
    options.memory_limit = 40000;
    OK(m.api->session_create(m.model, &options, &session, &error));
    run_shape(&m, session, 4, 4);
    make_tensor(&input, "float32", x, 3, 40, 40, 8);
    make_tensor(&masks, "bool", mask, 2, 40, 80);
    OK(m.api->bind_input(session, 0, &input.dl, &error));
    OK(m.api->bind_input(session, 1, &masks.dl, &error));
    FAILS(m.api->run(session, &error), AOTC_OUT_OF_MEMORY, "the arena needs 51200 bytes");
    FAILS(m.api->run(session, &error), AOTC_OUT_OF_MEMORY, "raise the limit or use smaller inputs");
    run_shape(&m, session, 5, 5);
    OK(m.api->memory_info(session, &memory, &error));
    CHECK(memory.peak <= 40000);
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
}

/* Every single request refused once: an error each time, nothing lost, and the session works when memory is back. */
static void refusals(void) {
    aotc_error error;
    counter count;
    aotc_allocator allocator = counting_allocator(&count);
    aotc_model_options model_options = {.size = sizeof model_options, .allocator = &allocator};
    opened m = open_model("dynamic", &model_options);
    tensor input, masks;
    make_tensor(&input, "float32", x, 3, 9, 9, 8);
    make_tensor(&masks, "bool", mask, 2, 9, 18);
    bool complete = false;
    for (size_t allowed = 0; !complete; allowed++) {
        aotc_session_t *session = NULL;
        aotc_session_options options = {.size = sizeof options, .num_threads = 2};
        CHECK(allowed < 100);
        count.refuse_after = count.total + allowed;
        aotc_status status = m.api->session_create(m.model, &options, &session, &error);
        if (status) {
            FAILS(status, AOTC_OUT_OF_MEMORY, "the allocator refused");
            CHECK(count.live == 1 && session == NULL);
            continue;
        }
        OK(m.api->bind_input(session, 0, &input.dl, &error));
        OK(m.api->bind_input(session, 1, &masks.dl, &error));
        status = m.api->run(session, &error);
        complete = status == AOTC_OK;
        if (!complete) FAILS(status, AOTC_OUT_OF_MEMORY, "the allocator refused");
        count.refuse_after = SIZE_MAX;
        run_shape(&m, session, 3, 4);
        OK(m.api->session_destroy(session, &error));
        CHECK(count.live == 1);
    }
    count.refuse_after = SIZE_MAX;
    close_model(&m);
    CHECK(count.live == 0 && count.live_bytes == 0);
    count.offset = 32;
    opened other = open_model("dynamic", NULL);
    aotc_session_t *session;
    aotc_session_options options = {.size = sizeof options, .allocator = &allocator};
    FAILS(other.api->session_create(other.model, &options, &session, &error), AOTC_INVALID_ARGUMENT, "aligned to 64");
    CHECK(count.live == 0);
    close_model(&other);
}

/* Buffers with random lifetimes: kernels fill them where they begin and check them where they end. */
static void patterns(void) {
    aotc_error error;
    opened m = open_model("patterns", NULL);
    aotc_session_t *session;
    static char input_data[4096];
    tensor input;
    OK(m.api->session_create(m.model, NULL, &session, &error));
    for (int n = 1; n <= 4096; n = n * 3 + 1) {
        aotc_memory_info memory = {.size = sizeof memory};
        make_tensor(&input, "int8", input_data, 1, n);
        OK(m.api->bind_input(session, 0, &input.dl, &error));
        OK(m.api->run(session, &error));
        OK(m.api->memory_info(session, &memory, &error));
        CHECK(memory.planned >= memory.lower_bound && memory.planned <= memory.lower_bound * 5 / 4);
    }
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
}

static void log_growth(void *context, aotc_log_level level, const char *message) {
    if (level == AOTC_LOG_INFO && strstr(message, "the arena: ")) ++*(int *)context;
}

static void logging(void) {
    aotc_error error;
    int messages = 0;
    aotc_model_options options = {.size = sizeof options, .log = log_growth, .log_context = &messages};
    opened m = open_model("dynamic", &options);
    aotc_session_t *session;
    OK(m.api->session_create(m.model, NULL, &session, &error));
    run_shape(&m, session, 2, 2);
    run_shape(&m, session, 8, 8);
    run_shape(&m, session, 2, 2);
    CHECK(messages == 2);
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
}

const test_case memory_cases[] = {{"flat", flat},
                                  {"growing", growing},
                                  {"no_allocation_in_run", no_allocation_in_run},
                                  {"limit", limit},
                                  {"refusals", refusals},
                                  {"patterns", patterns},
                                  {"logging", logging},
                                  {NULL, NULL}};
