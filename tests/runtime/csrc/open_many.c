/* Opens each file named on stdin, runs it once if it opens and no argument is given, and prints "status message" for each: for files that may be hostile. */
#include <stdio.h>
#include <string.h>

#include "aotc.h"

/* Zeros for an input; a dim that is open is 2. */
static aotc_status bind_zeros(aotc_model_t *model, aotc_session_t *session, size_t input, aotc_error *error) {
    static char zeros[1 << 16];
    const aotc_tensor_info *info = aotc_input_info(model, 0, input);
    int64_t shape[16];
    for (int32_t axis = 0; axis < info->rank; axis++) shape[axis] = info->dims[axis].value < 0 ? 2 : info->dims[axis].value;
    DLTensor tensor = {zeros, {kDLCPU, 0}, info->rank, info->dtype, shape, NULL, 0};
    return aotc_bind_input(session, input, &tensor, error);
}

static aotc_status run(const char *path, int open_only, aotc_error *error) {
    aotc_model_t *model;
    aotc_session_t *session = NULL;
    aotc_status status = aotc_open(path, &model, error);
    if (status) return status;
    if (open_only) return aotc_close(model, error);
    status = aotc_session_create(model, NULL, &session, error);
    for (size_t i = 0; i < aotc_input_count(model, 0) && !status; i++) status = bind_zeros(model, session, i, error);
    if (!status) status = aotc_run(session, error);
    aotc_session_destroy(session, NULL);
    aotc_close(model, NULL);
    return status;
}

int main(int count, char **arguments) {
    (void)arguments;
    char path[4096];
    while (fgets(path, sizeof path, stdin)) {
        aotc_error error;
        path[strcspn(path, "\n")] = 0;
        aotc_status status = run(path, count > 1, &error);
        printf("%s: %s\n", aotc_status_name(status), status ? error.message : "");
    }
    return 0;
}
