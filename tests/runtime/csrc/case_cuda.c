/* Entry points that use a GPU, on the driver of fake_cuda.c: memory, shapes, states. */
#include "cuda_cases.h"

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

const test_case cuda_cases[] = {{"cuda_host_memory", cuda_host_memory},
                                {"cuda_bound_on_device", cuda_bound_on_device},
                                {"cuda_shapes", cuda_shapes},
                                {"cuda_turns", cuda_turns},
                                {"cuda_states", cuda_states},
                                {"cuda_async", cuda_async},
                                {NULL, NULL}};
