/* States: kept from run to run, shared between sessions, put back. models_control.py: states. */
#include <pthread.h>

#include "driver.h"

typedef struct pair {
    opened m;
    aotc_session_t *add, *read;
} pair;

static float x;

static aotc_session_t *make(const opened *m, const char *entry_point, aotc_session_t *shared, const aotc_allocator *allocator) {
    aotc_error error;
    aotc_session_t *session;
    aotc_session_options options = {.size = sizeof options, .entry_point = entry_point, .share_state = shared, .allocator = allocator};
    OK(m->api->session_create(m->model, &options, &session, &error));
    if (m->api->input_count(m->model, entry_point[0] == 'r')) {
        tensor input;
        make_tensor(&input, "float32", &x, 0);
        OK(m->api->bind_input(session, 0, &input.dl, &error));
    }
    return session;
}

/* The state is b (j - 3) plus what was added, and so is the output; turns, if given, is the other state. */
static void check_sum(const opened *m, aotc_session_t *session, float added, const float *turns) {
    aotc_error error;
    DLTensor got;
    OK(m->api->run(session, &error));
    OK(m->api->get_output(session, 0, &got, &error));
    for (int j = 0; j < 8; j++) CHECK(((float *)got.data)[j] == (float)j - 3.0f + added);
    if (!turns) return;
    OK(m->api->get_output(session, 1, &got, &error));
    CHECK(*(float *)got.data == *turns);
}

static void kept_and_reset(void) {
    aotc_error error;
    opened m = open_model("states", NULL);
    aotc_session_t *first = make(&m, "add", NULL, NULL), *second = make(&m, "add", NULL, NULL);
    DLTensor state;
    CHECK(m.api->state_count(m.model) == 2 && m.api->state_info(m.model, 2) == NULL);
    CHECK(strcmp(m.api->state_info(m.model, 0)->name, "total") == 0 && m.api->state_info(m.model, 0)->dims[0].value == 8);
    CHECK(m.api->state_info(m.model, 1)->rank == 0);
    x = 2;
    for (int run = 1; run <= 5; run++) check_sum(&m, first, 2 * (float)run, NULL);
    check_sum(&m, second, 2, NULL); /* has states of its own */
    OK(m.api->session_reset(first, &error));
    check_sum(&m, first, 2, NULL);
    check_sum(&m, second, 4, NULL);
    OK(m.api->get_state(first, 0, &state, &error));
    CHECK(state.ndim == 1 && state.shape[0] == 8 && ((float *)state.data)[3] == 2);
    for (int j = 0; j < 8; j++) ((float *)state.data)[j] += 10; /* filled in between runs */
    check_sum(&m, first, 14, NULL);
    FAILS(m.api->get_state(first, 2, &state, &error), AOTC_INVALID_ARGUMENT, "no state 2");
    OK(m.api->session_destroy(first, &error));
    OK(m.api->session_destroy(second, &error));
    close_model(&m);
}

/* Two entry points on the same states, whichever session goes first; the memory is that of the first. */
static void shared(void) {
    aotc_error error;
    opened m = open_model("states", NULL);
    counter count;
    aotc_allocator allocator = counting_allocator(&count);
    for (int order = 0; order < 2; order++) {
        aotc_session_t *add = make(&m, "add", NULL, &allocator), *read = make(&m, "read", add, NULL);
        aotc_memory_info memory = {.size = sizeof memory};
        float turns = 0;
        check_sum(&m, read, 0, &turns);
        x = 0.5f;
        check_sum(&m, add, 0.5f, NULL);
        check_sum(&m, add, 1, NULL);
        turns = 2; /* the weight that is added has the value 1 */
        check_sum(&m, read, 1, &turns);
        OK(m.api->memory_info(read, &memory, &error));
        CHECK(memory.states >= 128);
        OK(m.api->session_reset(read, &error));
        check_sum(&m, add, 0.5f, NULL);
        aotc_session_t *third = make(&m, "read", read, NULL);
        OK(m.api->session_destroy(order ? add : read, &error));
        turns = 1;
        check_sum(&m, third, 0.5f, &turns);
        OK(m.api->session_destroy(order ? read : add, &error));
        check_sum(&m, third, 0.5f, &turns);
        CHECK(count.live == 1); /* the states alone */
        OK(m.api->session_destroy(third, &error));
        CHECK(count.live == 0);
    }
    close_model(&m);
}

static void refused(void) {
    aotc_error error;
    opened m = open_model("states", NULL), again = open_model("states", NULL);
    aotc_session_t *session = make(&m, "add", NULL, NULL), *other = NULL;
    aotc_session_options options = {.size = sizeof options, .share_state = session};
    DLTensor state;
    tensor input;
    FAILS(again.api->session_create(again.model, &options, &other, &error), AOTC_INVALID_ARGUMENT, "share_state is a session of another model");
    CHECK(other == NULL);
    OK(m.api->get_state(session, 1, &state, &error));
    make_tensor(&input, "float32", state.data, 0);
    OK(m.api->bind_input(session, 0, &input.dl, &error));
    FAILS(m.api->run(session, &error), AOTC_INVALID_ARGUMENT, "input 'x' lies in the memory of a state");
    options = (aotc_session_options){.size = sizeof options, .memory_limit = 2600};
    aotc_status status = m.api->session_create(m.model, &options, &other, &error);
    CHECK(status == AOTC_OK || status == AOTC_OUT_OF_MEMORY);
    OK(m.api->session_destroy(other, &error));
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
    close_model(&again);
}

/* ---- One run at a time on shared states ---- */

static const opened *the_model;
static _Atomic int busy_seen;

static void *run_many(void *argument) {
    aotc_error error;
    for (int run = 0; run < 2000; run++) {
        aotc_status status = the_model->api->run(argument, &error);
        CHECK(status == AOTC_OK || (status == AOTC_BUSY && strstr(error.message, "another session runs on the states")));
        busy_seen += status == AOTC_BUSY;
    }
    return NULL;
}

static void in_threads(void) {
    aotc_error error;
    opened m = open_model("states", NULL);
    aotc_session_t *add = make(&m, "add", NULL, NULL), *second = make(&m, "add", add, NULL), *read = make(&m, "read", add, NULL);
    pthread_t threads[2];
    DLTensor turns;
    the_model = &m;
    x = 1;
    CHECK(pthread_create(&threads[0], NULL, run_many, add) == 0 && pthread_create(&threads[1], NULL, run_many, second) == 0);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    OK(m.api->run(read, &error));
    OK(m.api->get_output(read, 1, &turns, &error));
    CHECK(*(float *)turns.data == (float)(4000 - busy_seen));
    OK(m.api->session_destroy(add, &error));
    OK(m.api->session_destroy(second, &error));
    OK(m.api->session_destroy(read, &error));
    close_model(&m);
}

const test_case state_cases[] = {
    {"kept_and_reset", kept_and_reset}, {"shared", shared}, {"refused_states", refused}, {"states_in_threads", in_threads}, {NULL, NULL}};
