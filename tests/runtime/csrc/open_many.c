/* Opens each file named on stdin, runs it once if it opens, and prints "status message" for each: for files that may be hostile. */
#include <stdio.h>
#include <string.h>

#include "aotc.h"

static aotc_status run(const char *path, aotc_error *error) {
    aotc_model_t *model;
    aotc_session_t *session = NULL;
    float image[8] = {0};
    int64_t ids[2] = {1, 2}, image_shape[2] = {2, 4}, ids_shape[1] = {2};
    DLTensor tensors[2] = {{image, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, image_shape, NULL, 0}, {ids, {kDLCPU, 0}, 1, {kDLInt, 64, 1}, ids_shape, NULL, 0}};
    aotc_status status = aotc_open(path, &model, error);
    if (status) return status;
    status = aotc_session_create(model, NULL, &session, error);
    for (size_t i = 0; i < 2 && !status; i++) status = aotc_bind_input(session, i, &tensors[i], error);
    if (!status) status = aotc_run(session, error);
    aotc_session_destroy(session, NULL);
    aotc_close(model, NULL);
    return status;
}

int main(void) {
    char path[4096];
    while (fgets(path, sizeof path, stdin)) {
        aotc_error error;
        path[strcspn(path, "\n")] = 0;
        aotc_status status = run(path, &error);
        printf("%s: %s\n", aotc_status_name(status), status ? error.message : "");
    }
    return 0;
}
