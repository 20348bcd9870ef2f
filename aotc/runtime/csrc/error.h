/* Statuses with messages. */
#ifndef AOTC_ERROR_H
#define AOTC_ERROR_H

#include <stdarg.h>

#include "aotc.h"

/* Write status and message (printf's format) unless error is NULL; returns status. */
aotc_status fail(aotc_error *error, aotc_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Success: an empty message. */
aotc_status succeed(aotc_error *error);

/* A text of bounded length that is put together piece by piece. */
typedef struct text {
    char data[240];
    size_t used;
} text;

void text_add(text *self, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "[1, 3, 224, 224]" */
void text_shape(text *self, const int64_t *dims, uint32_t rank);

#endif
