/* Right answers, and what models and sessions tell about themselves. */
#include "driver.h"

/* relu(x * w + b) of models.py's dense_entry */
static float dense(float x, int j) {
    float sum = x * (0.5f * (float)j - 1.0f) + ((float)j - 3.0f);
    return sum > 0 ? sum : 0;
}

static void static_model(void) {
    aotc_error error;
    opened m = open_model("static", NULL);
    aotc_session_t *session;
    float x[32], y[32];
    tensor input, output;
    DLTensor got;
    fill(x, 32, 1);
    make_tensor(&input, "float32", x, 2, 4, 8);
    make_tensor(&output, "float32", y, 2, 4, 8);
    OK(m.api->session_create(m.model, NULL, &session, &error));
    OK(m.api->bind_input(session, 0, &input.dl, &error));
    for (int run = 0; run < 3; run++) {
        x[5] = (float)run; /* refilled between runs */
        if (run == 1) OK(m.api->bind_output(session, 0, &output.dl, &error));
        if (run == 2) OK(m.api->bind_output(session, 0, NULL, &error));
        OK(m.api->run(session, &error));
        OK(m.api->get_output(session, 0, &got, &error));
        CHECK((got.data == y) == (run == 1));
        CHECK(got.ndim == 2 && got.shape[0] == 4 && got.shape[1] == 8 && got.strides[0] == 8 && got.strides[1] == 1);
        CHECK(got.dtype.code == kDLFloat && got.dtype.bits == 32 && got.dtype.lanes == 1 && got.device.device_type == kDLCPU);
        for (int i = 0; i < 32; i++) CHECK(((float *)got.data)[i] == dense(x[i], i % 8));
        OK(m.api->get_output(session, 1, &got, &error));
        CHECK(memcmp(got.data, x, sizeof x) == 0 && got.data != x);
    }
    int64_t shape[2];
    OK(m.api->output_shape(session, 1, shape, &error));
    CHECK(shape[0] == 4 && shape[1] == 8);
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
}

static void info(void) {
    aotc_model_options options = {.size = sizeof options, .path = "/somewhere/model.so", .library = &options};
    opened m = open_model("dynamic", &options);
    size_t length;
    CHECK(strcmp(m.api->manifest(m.model, &length), "{\"name\": \"handwritten\"}") == 0 && length == 23);
    CHECK(strcmp(m.api->runtime_version, "test") == 0);
    CHECK(m.api->model_library(m.model) == &options);
    CHECK(m.api->entry_point_count(m.model) == 1 && strcmp(m.api->entry_point_name(m.model, 0), "main") == 0);
    CHECK(m.api->entry_point_name(m.model, 1) == NULL);
    CHECK(m.api->input_count(m.model, 0) == 2 && m.api->output_count(m.model, 0) == 2 && m.api->input_count(m.model, 1) == 0);
    CHECK(m.api->input_info(m.model, 0, 2) == NULL && m.api->output_info(m.model, 0, 2) == NULL &&
          m.api->output_info(m.model, 9, 0) == NULL);
    const aotc_tensor_info *x = m.api->input_info(m.model, 0, 0), *mask = m.api->input_info(m.model, 0, 1);
    CHECK(strcmp(x->name, "x") == 0 && x->rank == 3 && x->dtype.code == kDLFloat && x->dtype.bits == 32 && x->dtype.lanes == 1);
    CHECK(x->dims[0].value == -1 && x->dims[0].minimum == 1 && x->dims[0].maximum == 64 && strcmp(x->dims[0].symbol, "batch") == 0);
    CHECK(x->dims[1].value == -1 && x->dims[1].minimum == 0 && x->dims[1].maximum == -1 && strcmp(x->dims[1].symbol, "sequence") == 0);
    CHECK(x->dims[2].value == 8 && x->dims[2].minimum == 8 && x->dims[2].maximum == 8 && x->dims[2].symbol == NULL);
    CHECK(mask->dtype.code == kDLBool && strcmp(mask->dims[1].symbol, "2*sequence") == 0);
    CHECK(strcmp(m.api->output_info(m.model, 0, 1)->name, "wide") == 0 && m.api->output_info(m.model, 0, 1)->dims[1].value == 16);
    close_model(&m);
}

static void check_dynamic(const opened *m, aotc_session_t *session, int batch, int sequence) {
    aotc_error error;
    size_t count = (size_t)batch * (size_t)sequence * 8;
    float *x = malloc(count * sizeof *x + 1);
    char *mask = calloc((size_t)batch * (size_t)sequence * 2 + 1, 1);
    tensor input, masks;
    DLTensor total, wide;
    int64_t shape[2];
    fill(x, count, (uint32_t)(batch * 1000 + sequence));
    make_tensor(&input, "float32", x, 3, batch, sequence, 8);
    make_tensor(&masks, "bool", mask, 2, batch, 2 * sequence);
    OK(m->api->bind_input(session, 0, &input.dl, &error));
    OK(m->api->bind_input(session, 1, &masks.dl, &error));
    OK(m->api->output_shape(session, 1, shape, &error));
    CHECK(shape[0] == batch && shape[1] == 16);
    shape[0] = 0;
    OK(m->api->infer_shape(m->model, 0, (const int64_t *const[]){input.shape, masks.shape}, 0, shape, &error));
    CHECK(shape[0] == batch && shape[1] == 8);
    OK(m->api->run(session, &error));
    OK(m->api->get_output(session, 0, &total, &error));
    OK(m->api->get_output(session, 1, &wide, &error));
    CHECK(total.shape[0] == batch && wide.shape[0] == batch && wide.shape[1] == 16 && wide.strides[0] == 16);
    for (int b = 0; b < batch; b++) {
        for (int j = 0; j < 8; j++) {
            float sum = 0;
            for (int s = 0; s < sequence; s++) sum += x[(b * sequence + s) * 8 + j];
            CHECK(((float *)total.data)[b * 8 + j] == sum);
            CHECK(((float *)wide.data)[b * 16 + j] == sum && ((float *)wide.data)[b * 16 + 8 + j] == sum);
        }
    }
    free(x);
    free(mask);
}

static void dynamic_model(void) {
    aotc_error error;
    opened m = open_model("dynamic", NULL);
    for (uint32_t plans = 0; plans < 4; plans++) { /* also with fewer remembered shapes than are met */
        aotc_session_options options = {.size = sizeof options, .shape_plans = plans};
        aotc_session_t *session;
        OK(m.api->session_create(m.model, &options, &session, &error));
        for (int round = 0; round < 3; round++)
            for (int batch = 1; batch <= 5; batch += 2)
                for (int sequence = 0; sequence <= 9; sequence += 3) check_dynamic(&m, session, batch, sequence);
        aotc_memory_info memory = {.size = sizeof memory};
        OK(m.api->memory_info(session, &memory, &error));
        CHECK(memory.shape_plans == (plans ? plans : 12));
        OK(m.api->session_destroy(session, &error));
    }
    close_model(&m);
}

static void scalars_and_empty(void) {
    aotc_error error;
    opened m = open_model("logic", NULL);
    aotc_session_t *session;
    tensor input;
    DLTensor got;
    uint8_t x[5] = {1, 0, 0, 1, 1};
    OK(m.api->session_create(m.model, NULL, &session, &error));
    for (int n = 5; n >= 0; n -= 5) {
        make_tensor(&input, "bool", n ? x : NULL, 1, n);
        OK(m.api->bind_input(session, 0, &input.dl, &error));
        OK(m.api->run(session, &error));
        OK(m.api->get_output(session, 0, &got, &error));
        CHECK(got.shape[0] == n && got.dtype.code == kDLBool);
        for (int i = 0; i < n; i++) CHECK(((uint8_t *)got.data)[i] == !x[i]);
        OK(m.api->get_output(session, 1, &got, &error));
        CHECK(got.ndim == 0 && got.dtype.code == kDLInt && got.dtype.bits == 64 && *(int64_t *)got.data == n);
    }
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
}

static void entry_points(void) {
    aotc_error error;
    opened m = open_model("entries", NULL);
    aotc_session_t *session;
    aotc_session_options options = {.size = sizeof options, .entry_point = "any"};
    float x[56];
    tensor input;
    DLTensor got;
    CHECK(m.api->entry_point_count(m.model) == 2);
    OK(m.api->session_create(m.model, &options, &session, &error));
    fill(x, 56, 3);
    make_tensor(&input, "float32", x, 2, 7, 8);
    OK(m.api->bind_input(session, 0, &input.dl, &error));
    OK(m.api->run(session, &error));
    OK(m.api->get_output(session, 0, &got, &error));
    for (int i = 0; i < 56; i++) CHECK(((float *)got.data)[i] == dense(x[i], i % 8));
    OK(m.api->session_destroy(session, &error));
    options.entry_point = "six";
    FAILS(m.api->session_create(m.model, &options, &session, &error), AOTC_INVALID_ARGUMENT, "'six'; the model has four, any");
    CHECK(session == NULL);
    close_model(&m);
}

static void profile(void) {
    aotc_error error;
    opened m = open_model("static", NULL);
    aotc_session_t *session;
    aotc_step_info step = {.size = sizeof step};
    float x[32] = {0};
    tensor input;
    make_tensor(&input, "float32", x, 2, 4, 8);
    OK(m.api->session_create(m.model, NULL, &session, &error));
    OK(m.api->bind_input(session, 0, &input.dl, &error));
    OK(m.api->run(session, &error));
    CHECK(m.api->step_count(session) == 3);
    OK(m.api->step_info(session, 1, &step, &error));
    CHECK(step.runs == 0 && step.total_ns == 0 && step.flops == 64 && step.tasks == 4 && !step.is_copy);
    CHECK(strcmp(step.name, "layer/relu") == 0 && strcmp(step.label, "add+relu") == 0 && strcmp(step.kernel, "k_bias_relu") == 0);
    OK(m.api->set_profiling(session, 1, &error));
    for (int i = 0; i < 5; i++) OK(m.api->run(session, &error));
    OK(m.api->step_info(session, 2, &step, &error));
    CHECK(step.runs == 5 && step.is_copy && step.kernel[0] == 0 && step.last_ns <= step.total_ns);
    OK(m.api->set_profiling(session, 0, &error));
    OK(m.api->run(session, &error));
    OK(m.api->step_info(session, 0, &step, &error));
    CHECK(step.runs == 5);
    OK(m.api->set_profiling(session, 1, &error));
    OK(m.api->step_info(session, 0, &step, &error));
    CHECK(step.runs == 0);
    FAILS(m.api->step_info(session, 3, &step, &error), AOTC_INVALID_ARGUMENT, "no step 3");
    step.size = 0;
    FAILS(m.api->step_info(session, 0, &step, &error), AOTC_INVALID_ARGUMENT, "sizeof(aotc_step_info)");
    OK(m.api->session_destroy(session, &error));
    close_model(&m);
}

/* Two files with the same names inside live side by side, and one file is opened twice. */
static void two_models(void) {
    aotc_error error;
    opened a = open_model("static", NULL), b = open_model("dynamic", NULL), again = open_model("static", NULL);
    aotc_session_t *first, *second, *third;
    float x[32];
    tensor input;
    DLTensor got;
    fill(x, 32, 9);
    make_tensor(&input, "float32", x, 2, 4, 8);
    OK(a.api->session_create(a.model, NULL, &first, &error));
    OK(b.api->session_create(b.model, NULL, &second, &error));
    OK(again.api->session_create(again.model, NULL, &third, &error));
    CHECK(a.api != b.api && a.model != again.model);
    check_dynamic(&b, second, 2, 3);
    OK(a.api->bind_input(first, 0, &input.dl, &error));
    OK(a.api->run(first, &error));
    OK(a.api->get_output(first, 0, &got, &error));
    for (int i = 0; i < 32; i++) CHECK(((float *)got.data)[i] == dense(x[i], i % 8));
    OK(a.api->session_destroy(first, &error));
    OK(b.api->session_destroy(second, &error));
    OK(again.api->session_destroy(third, &error));
    close_model(&a);
    close_model(&b);
    close_model(&again);
}

const test_case basic_cases[] = {
    {"static", static_model},       {"info", info},       {"dynamic", dynamic_model}, {"scalars_and_empty", scalars_and_empty},
    {"entry_points", entry_points}, {"profile", profile}, {"two_models", two_models}, {NULL, NULL}};
