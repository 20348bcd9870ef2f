/* Loops, branches, sizes that follow from data: models_control.py. */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "driver.h"

/* A model with one session. */
typedef struct running {
    opened m;
    aotc_session_t *session;
} running;

static running start(const char *name, const aotc_session_options *options) {
    aotc_error error;
    running self = {.m = open_model(name, NULL)};
    OK(self.m.api->session_create(self.m.model, options, &self.session, &error));
    return self;
}

static void stop(running *self) {
    aotc_error error;
    OK(self->m.api->session_destroy(self->session, &error));
    close_model(&self->m);
}

static DLTensor output(const running *self, size_t number) {
    aotc_error error;
    DLTensor got;
    OK(self->m.api->get_output(self->session, number, &got, &error));
    return got;
}

/* ---- A loop ---- */

static int64_t number; /* the bound input */

static void bind_number(const running *self) {
    aotc_error error;
    static tensor input;
    make_tensor(&input, "int64", &number, 0);
    OK(self->m.api->bind_input(self->session, 0, &input.dl, &error));
}

static int64_t check_collatz(const running *self, int64_t n) {
    aotc_error error;
    number = n;
    OK(self->m.api->run(self->session, &error));
    DLTensor path = output(self, 0);
    int64_t trips = 0;
    for (int64_t x = n; x != 1; x = x % 2 ? 3 * x + 1 : x / 2) {
        CHECK(trips < path.shape[0] && ((int64_t *)path.data)[trips] == x);
        trips++;
    }
    CHECK(path.ndim == 1 && path.shape[0] == trips && path.strides[0] == 1 && *(int64_t *)output(self, 1).data == 1);
    return trips;
}

static void loop(void) {
    aotc_error error;
    running r = start("collatz", NULL);
    int64_t shape[1] = {7};
    tensor place;
    static int64_t room[1000];
    bind_number(&r);
    OK(r.m.api->output_shape(r.session, 0, shape, &error));
    CHECK(shape[0] == -1);
    for (int64_t n = 1; n < 100; n++) {
        int64_t trips = check_collatz(&r, n);
        OK(r.m.api->output_shape(r.session, 0, shape, &error)); /* known now */
        CHECK(shape[0] == trips);
    }
    OK(r.m.api->infer_shape(r.m.model, 0, (const int64_t *const[]){NULL}, 0, shape, &error));
    CHECK(shape[0] == -1 && r.m.api->output_info(r.m.model, 0, 0)->dims[0].value == -1);
    CHECK(strcmp(r.m.api->output_info(r.m.model, 0, 0)->dims[0].symbol, "trips") == 0);
    make_tensor(&place, "int64", room, 1, 1000);
    FAILS(r.m.api->bind_output(r.session, 0, &place.dl, &error), AOTC_INVALID_ARGUMENT, "'path' has the shape [trips], which is known only after");
    check_collatz(&r, 27);
    OK(r.m.api->bind_output(r.session, 0, NULL, &error));
    check_collatz(&r, 27);
    stop(&r);
}

/* Nothing is allocated once the largest has been seen; all is counted and given back. */
static void loop_memory(void) {
    aotc_error error;
    counter count;
    aotc_allocator allocator = counting_allocator(&count);
    aotc_session_options options = {.size = sizeof options, .allocator = &allocator};
    running r = start("collatz", &options);
    aotc_memory_info memory = {.size = sizeof memory};
    bind_number(&r);
    int64_t trips = check_collatz(&r, 77031); /* 350 turns, the most below 100000 */
    size_t requests = count.total;
    uint32_t state = 5;
    for (int run = 0; run < 10000; run++) {
        state = state * 1664525u + 1013904223u;
        check_collatz(&r, 1 + (state >> 8) % 99999);
    }
    CHECK(count.total == requests);
    OK(r.m.api->memory_info(r.session, &memory, &error));
    CHECK(memory.total == count.live_bytes && memory.arena == 192 && memory.planned == 192 && memory.shape_plans == 1 && memory.states == 0);
    CHECK(memory.dynamic >= (uint64_t)trips * 8 && memory.dynamic < (uint64_t)trips * 32 && memory.outputs >= (uint64_t)trips * 8 + 8);
    stop(&r);
    CHECK(count.live == 0 && count.live_bytes == 0);
}

static void loop_limit(void) {
    aotc_error error;
    aotc_session_options options = {.size = sizeof options, .memory_limit = 6000};
    running r = start("collatz", &options);
    aotc_memory_info memory = {.size = sizeof memory};
    bind_number(&r);
    check_collatz(&r, 6);
    number = 77031;
    FAILS(r.m.api->run(r.session, &error), AOTC_OUT_OF_MEMORY, "its memory_limit is 6000");
    FAILS(r.m.api->run(r.session, &error), AOTC_OUT_OF_MEMORY, "a tensor whose size depends on the data");
    check_collatz(&r, 7);
    OK(r.m.api->memory_info(r.session, &memory, &error));
    CHECK(memory.peak <= 6000);
    stop(&r);
}

/* Every single request refused once. */
static void loop_refusals(void) {
    aotc_error error;
    counter count;
    aotc_allocator allocator = counting_allocator(&count);
    opened m = open_model("collatz", NULL);
    bool complete = false;
    for (size_t allowed = 0; !complete; allowed++) {
        aotc_session_options options = {.size = sizeof options, .allocator = &allocator};
        running r = {.m = m};
        CHECK(allowed < 100);
        count.refuse_after = count.total + allowed;
        if (m.api->session_create(m.model, &options, &r.session, &error)) continue;
        bind_number(&r);
        number = 27;
        aotc_status status = m.api->run(r.session, &error);
        complete = status == AOTC_OK && count.total < count.refuse_after;
        if (status) FAILS(status, AOTC_OUT_OF_MEMORY, "the allocator refused");
        count.refuse_after = SIZE_MAX;
        check_collatz(&r, 9);
        OK(m.api->session_destroy(r.session, &error));
        CHECK(count.live == 0 && count.live_bytes == 0);
    }
    close_model(&m);
}

static void loop_profile(void) {
    aotc_error error;
    aotc_session_options options = {.size = sizeof options, .profile = 1};
    running r = start("collatz", &options);
    static const uint32_t kinds[] = {AOTC_STEP_COPY,  AOTC_STEP_SHAPE, AOTC_STEP_KERNEL, AOTC_STEP_BRANCH, AOTC_STEP_COPY, AOTC_STEP_KERNEL,
                                     AOTC_STEP_COPY,  AOTC_STEP_SHAPE, AOTC_STEP_JUMP,   AOTC_STEP_SHAPE,  AOTC_STEP_COPY, AOTC_STEP_COPY};
    bind_number(&r);
    uint64_t trips = (uint64_t)check_collatz(&r, 27);
    CHECK(trips == 111 && r.m.api->step_count(r.session) == 12);
    for (size_t i = 0; i < 12; i++) {
        aotc_step_info step = {.size = sizeof step};
        OK(r.m.api->step_info(r.session, i, &step, &error));
        uint64_t runs = i == 2 || i == 3 ? trips + 1 : i >= 4 && i <= 8 ? trips : 1;
        CHECK(step.kind == kinds[i] && step.runs == runs && step.total_ns >= step.last_ns);
        CHECK(step.is_copy == (step.kind == AOTC_STEP_COPY) && (step.kernel[0] != 0) == (step.kind == AOTC_STEP_KERNEL));
        CHECK(step.target == (i == 3 ? 9 : i == 8 ? 2 : 0));
    }
    stop(&r);
}

static void nested_loops(void) {
    aotc_error error;
    running r = start("triangle", NULL);
    static int32_t x[40];
    tensor input;
    for (int i = 0; i < 40; i++) x[i] = i * i - 7;
    for (int n = 0; n < 40; n = n * 2 + 1) {
        make_tensor(&input, "int32", x, 1, n);
        OK(r.m.api->bind_input(r.session, 0, &input.dl, &error));
        OK(r.m.api->run(r.session, &error));
        DLTensor y = output(&r, 0);
        CHECK(y.shape[0] == n && y.shape[1] == n);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) CHECK(((int32_t *)y.data)[i * n + j] == x[i < j ? i : j]);
    }
    stop(&r);
}

/* ---- Sizes from data ---- */

static void bind_positive(const running *self, float *x, int n, int m) {
    aotc_error error;
    static char like[64];
    tensor input, other;
    make_tensor(&input, "float32", x, 1, n);
    make_tensor(&other, "bool", like, 1, m);
    OK(self->m.api->bind_input(self->session, 0, &input.dl, &error));
    OK(self->m.api->bind_input(self->session, 1, &other.dl, &error));
}

static void sizes_from_data(void) {
    aotc_error error;
    running r = start("positive", NULL);
    static float x[64];
    for (uint32_t seed = 0; seed < 200; seed++) {
        int n = (int)(seed % 30), count = 0;
        fill(x, 64, seed);
        for (int i = 0; i < n; i++) count += x[i] > 0;
        bind_positive(&r, x, n, count);
        if (count > 16) {
            FAILS(r.m.api->run(r.session, &error), AOTC_INVALID_ARGUMENT, "step 'where' (size): the data make the size 'count'");
            continue;
        }
        OK(r.m.api->run(r.session, &error));
        DLTensor found = output(&r, 0), halves = output(&r, 1);
        CHECK(found.shape[0] == count && halves.shape[0] == count && halves.shape[1] == 1 && found.data && halves.data);
        for (int i = 0, k = 0; i < n; i++)
            if (x[i] > 0) {
                CHECK(((float *)found.data)[k] == x[i] && ((float *)halves.data)[k] == x[i] / 2);
                k++;
            }
    }
    for (int i = 0; i < 64; i++) x[i] = 1;
    bind_positive(&r, x, 16, 16);
    OK(r.m.api->run(r.session, &error));
    bind_positive(&r, x, 17, 17);
    FAILS(r.m.api->run(r.session, &error), AOTC_INVALID_ARGUMENT, "the size 'count' 17, the model was built for 0 to 16");
    bind_positive(&r, x, 5, 6);
    FAILS(r.m.api->run(r.session, &error), AOTC_INVALID_ARGUMENT, "step 'like' (same size): two sizes should be equal and are 5 and 6");
    stop(&r);
}

/* Ten thousand runs at random sizes: memory is flat after the largest. */
static void sizes_from_data_flat(void) {
    aotc_error error;
    counter count;
    aotc_allocator allocator = counting_allocator(&count);
    aotc_session_options options = {.size = sizeof options, .allocator = &allocator, .shape_plans = 4};
    running r = start("positive", &options);
    static float x[64];
    uint32_t state = 3;
    for (int i = 0; i < 64; i++) x[i] = (float)(i < 16) - 0.5f;
    bind_positive(&r, x, 64, 16);
    OK(r.m.api->run(r.session, &error));
    for (int i = 0; i < 4; i++) {
        bind_positive(&r, x, i, i);
        OK(r.m.api->run(r.session, &error));
    }
    size_t requests = count.total, pages = resident_pages();
    for (int run = 0; run < 10000; run++) {
        state = state * 1664525u + 1013904223u;
        int n = (int)(state >> 10) % 65, found = (int)(state >> 20) % (n < 16 ? n + 1 : 17);
        for (int i = 0; i < n; i++) x[i] = (float)(i < found) - 0.5f;
        bind_positive(&r, x, n, found);
        OK(r.m.api->run(r.session, &error));
        CHECK(output(&r, 1).shape[0] == found);
    }
    CHECK(count.total == requests);
    if (!SANITIZED) CHECK(resident_pages() <= pages + 16);
    stop(&r);
    CHECK(count.live == 0);
}

static void branches(void) {
    aotc_error error;
    running r = start("branches", NULL);
    static float x[64 * 8];
    static char scaled;
    tensor input, flag;
    fill(x, 512, 4);
    for (int round = 0; round < 24; round++) {
        int n = (int[]){9, 2, 0, 4, 5, 64}[round % 6];
        scaled = (char)(round / 6 % 2);
        make_tensor(&input, "float32", x, 2, n, 8);
        make_tensor(&flag, "bool", &scaled, 0);
        OK(r.m.api->bind_input(r.session, 0, &input.dl, &error));
        OK(r.m.api->bind_input(r.session, 1, &flag.dl, &error));
        OK(r.m.api->run(r.session, &error));
        DLTensor y = output(&r, 0), tail = output(&r, 1);
        for (int i = 0; i < n * 8; i++) {
            float w = 0.5f * (float)(i % 8) - 1.0f, sum = x[i] + ((float)(i % 8) - 3.0f);
            CHECK(((float *)y.data)[i] == (scaled ? x[i] * w : sum > 0 ? sum : 0));
        }
        CHECK(tail.shape[0] == (n > 4 ? n - 4 : 0) && (n <= 4 || memcmp(tail.data, x + 32, (size_t)(n - 4) * 32) == 0));
    }
    stop(&r);
}

/* ---- Ending a run ---- */

static void *cancel_soon(void *argument) {
    const running *self = argument;
    usleep(20000);
    self->m.api->cancel(self->session, NULL);
    return NULL;
}

static void cancel(void) {
    aotc_error error;
    running r = start("endless", NULL);
    float x = 2;
    tensor input;
    make_tensor(&input, "float32", &x, 0);
    OK(r.m.api->bind_input(r.session, 0, &input.dl, &error));
    OK(r.m.api->cancel(r.session, &error)); /* nothing runs: no later run ends by it */
    for (int round = 0; round < 2; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, cancel_soon, &r) == 0);
        FAILS(r.m.api->run(r.session, &error), AOTC_CANCELLED, "cancelled in the loop at step 'loop' (jump)");
        pthread_join(thread, NULL);
    }
    stop(&r);
}

const test_case control_cases[] = {{"loop", loop},
                                   {"loop_memory", loop_memory},
                                   {"loop_limit", loop_limit},
                                   {"loop_refusals", loop_refusals},
                                   {"loop_profile", loop_profile},
                                   {"nested_loops", nested_loops},
                                   {"sizes_from_data", sizes_from_data},
                                   {"sizes_from_data_flat", sizes_from_data_flat},
                                   {"branches", branches},
                                   {"cancel", cancel},
                                   {NULL, NULL}};
