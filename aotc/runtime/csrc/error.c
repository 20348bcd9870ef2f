#include "error.h"

#include <inttypes.h>
#include <stdio.h>

aotc_status fail(aotc_error *error, aotc_status status, const char *format, ...) {
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        error->status = status;
        if (vsnprintf(error->message, sizeof error->message, format, arguments) < 0) error->message[0] = 0;
        va_end(arguments);
    }
    return status;
}

aotc_status succeed(aotc_error *error) {
    if (error) {
        error->status = AOTC_OK;
        error->message[0] = 0;
    }
    return AOTC_OK;
}

void text_add(text *self, const char *format, ...) {
    if (self->used + 1 >= sizeof self->data) return;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(self->data + self->used, sizeof self->data - self->used, format, arguments);
    va_end(arguments);
    if (length > 0) self->used += (size_t)length;
    if (self->used >= sizeof self->data) self->used = sizeof self->data - 1;
}

void text_shape(text *self, const int64_t *dims, uint32_t rank) {
    text_add(self, "[");
    for (uint32_t i = 0; i < rank; i++) text_add(self, i ? ", %" PRId64 : "%" PRId64, dims[i]);
    text_add(self, "]");
}
