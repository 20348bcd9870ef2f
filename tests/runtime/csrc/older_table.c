/* A file whose function table ends where that of aotc 0.1 did: what is newer is refused by name, and nothing beyond the table is read. */
#include <stdio.h>
#include <string.h>

#include "aotc.h"

static aotc_status create(aotc_model_t *model, const aotc_session_options *options, aotc_session_t **session, aotc_error *error) {
    (void)options;
    (void)error;
    *session = (aotc_session_t *)(void *)model;
    return AOTC_OK;
}

static int lacks(aotc_status status, const aotc_error *error) {
    return status == AOTC_WRONG_VERSION && strstr(error->message, "built by aotc 0.1, which lacks it: build it again");
}

int main(void) {
    const aotc_api old = {
        .size = offsetof(aotc_api, session_reset), .abi_version = AOTC_ABI_VERSION, .runtime_version = "0.1", .session_create = create};
    const aotc_api *handle = &old;
    aotc_model_t *model = (aotc_model_t *)(void *)&handle;
    aotc_session_t *session, *other;
    aotc_session_options options = {.size = sizeof options};
    aotc_error error;
    DLTensor tensor;
    int right = aotc_session_create(model, &options, &session, &error) == AOTC_OK;
    options.share_state = session;
    right &= lacks(aotc_session_create(model, &options, &other, &error), &error);
    options.size = offsetof(aotc_session_options, share_state); /* of an older application: the field is not there */
    right &= aotc_session_create(model, &options, &other, &error) == AOTC_OK;
    options = (aotc_session_options){.size = sizeof options, .cuda_stream = session};
    right &= lacks(aotc_session_create(model, &options, &other, &error), &error);
    right &= lacks(aotc_run_async(session, NULL, &error), &error) && lacks(aotc_wait(session, &error), &error);
    right &= lacks(aotc_session_reset(session, &error), &error) && lacks(aotc_cancel(session, &error), &error);
    right &= lacks(aotc_get_state(session, 0, &tensor, &error), &error);
    right &= aotc_state_count(model) == 0 && aotc_state_info(model, 0) == NULL && aotc_find_state(model, "x") == -1;
    puts(right ? "right" : error.message);
    return !right;
}
