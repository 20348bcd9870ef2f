/* The loader's own behaviour: null handles, names, two files at once, a pool shared by both, files closed in every order. */
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "aotc.h"

static void check_null_handles(void) {
    aotc_error error;
    aotc_model_t *model;
    size_t length;
    assert(aotc_open(NULL, &model, &error) == AOTC_INVALID_ARGUMENT && strstr(error.message, "must not be NULL"));
    assert(aotc_session_create(NULL, NULL, NULL, &error) == AOTC_INVALID_ARGUMENT && strstr(error.message, "aotc_session_create: model"));
    assert(aotc_run(NULL, &error) == AOTC_INVALID_ARGUMENT && strstr(error.message, "aotc_run: session"));
    assert(aotc_run(NULL, NULL) == AOTC_INVALID_ARGUMENT);
    assert(aotc_close(NULL, &error) == AOTC_OK && error.message[0] == 0);
    assert(aotc_session_destroy(NULL, NULL) == AOTC_OK && aotc_pool_destroy(NULL, NULL) == AOTC_OK);
    assert(aotc_manifest(NULL, &length) == NULL && aotc_input_count(NULL, 0) == 0 && aotc_find_input(NULL, 0, "x") == -1);
    assert(strcmp(aotc_status_name(AOTC_BUSY), "busy") == 0 && strcmp(aotc_status_name((aotc_status)99), "unknown") == 0);
}

static void check_names(aotc_model_t *model) {
    size_t length;
    const char *manifest = aotc_manifest(model, &length);
    assert(manifest[0] == '{' && manifest[length - 1] == '}' && strlen(manifest) == length);
    assert(aotc_entry_point_count(model) == 1 && aotc_find_entry_point(model, "main") == 0 && aotc_find_entry_point(model, "x") == -1);
    assert(aotc_find_input(model, 0, "ids") == 1 && aotc_find_output(model, 0, "scores") == 0 && aotc_find_output(model, 0, "ids") == -1);
    assert(aotc_find_input(model, 7, "ids") == -1 && aotc_find_input(model, 0, NULL) == -1);
}

static aotc_session_t *session_on(aotc_model_t *model, aotc_pool_t *pool) {
    aotc_error error;
    aotc_session_t *session;
    aotc_session_options options = {.size = sizeof options, .pool = pool};
    assert(aotc_session_create(model, &options, &session, &error) == AOTC_OK);
    return session;
}

static void run(aotc_session_t *session, float *scores) {
    float image[8] = {1, 1, 1, 1, -1, -1, -1, -1};
    int64_t ids[2] = {1, 2}, image_shape[2] = {2, 4}, ids_shape[1] = {2};
    DLTensor tensors[2] = {{image, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, image_shape, NULL, 0}, {ids, {kDLCPU, 0}, 1, {kDLInt, 64, 1}, ids_shape, NULL, 0}};
    DLTensor out;
    for (size_t i = 0; i < 2; i++) assert(aotc_bind_input(session, i, &tensors[i], NULL) == AOTC_OK);
    assert(aotc_run(session, NULL) == AOTC_OK && aotc_get_output(session, 0, &out, NULL) == AOTC_OK);
    assert(out.ndim == 2 && out.shape[0] == 2 && out.shape[1] == 3);
    memcpy(scores, out.data, 6 * sizeof *scores);
}

int main(int count, char **paths) {
    aotc_error error;
    aotc_model_t *first, *second;
    aotc_pool_t *pool;
    float a[6], b[6];
    assert(count == 3);
    check_null_handles();
    assert(aotc_open(paths[1], &first, &error) == AOTC_OK && aotc_open(paths[2], &second, &error) == AOTC_OK);
    check_names(first);
    assert(aotc_pool_create(first, 2, &pool, &error) == AOTC_OK);
    aotc_session_t *one = session_on(first, pool), *two = session_on(second, pool);
    run(one, a);
    run(two, b);
    for (int i = 0; i < 6; i++) printf("%.7g %.7g\n", (double)a[i], (double)b[i]);
    assert(aotc_close(first, &error) == AOTC_BUSY && aotc_pool_destroy(pool, &error) == AOTC_BUSY);
    assert(aotc_session_destroy(two, &error) == AOTC_OK && aotc_close(second, &error) == AOTC_OK);
    run(one, b);
    assert(memcmp(a, b, sizeof a) == 0);
    assert(aotc_session_destroy(one, &error) == AOTC_OK && aotc_pool_destroy(pool, &error) == AOTC_OK && aotc_close(first, &error) == AOTC_OK);
    return 0;
}
