/* What the test cases share. A case is a function without arguments that exits with a message where something is wrong. */
#ifndef DRIVER_H
#define DRIVER_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aotc.h"

#define CHECK(condition)                                                                                                                   \
    do {                                                                                                                                   \
        if (!(condition)) {                                                                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                                        \
            exit(1);                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

/* The call succeeds; its message is shown if not. */
#define OK(call)                                                                                                                           \
    do {                                                                                                                                   \
        if ((call) != AOTC_OK) {                                                                                                           \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, error.message);                                                  \
            exit(1);                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

/* The call fails with this status and a message that contains this text. */
#define FAILS(call, expected, part)                                                                                                        \
    do {                                                                                                                                   \
        aotc_status got_ = (call);                                                                                                         \
        if (got_ != (expected) || error.status != got_ || !strstr(error.message, part)) {                                                  \
            fprintf(stderr, "%s:%d: %s gave %d: %s\n", __FILE__, __LINE__, #call, (int)got_, error.message);                               \
            exit(1);                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

/* A built model. Closed by closing. */
typedef struct opened {
    void *library;
    const aotc_api *api;
    aotc_model_t *model;
} opened;

/* Where the models lie. */
const char *models_folder(void);

opened open_model(const char *name, const aotc_model_options *options);
void close_model(opened *self);

/* Tensors of the caller, row-major. */
typedef struct tensor {
    DLTensor dl;
    int64_t shape[8];
} tensor;

DLDataType dtype_of(const char *name);
/* The address of `self` must stay: the struct points to its own shape. */
void make_tensor(tensor *self, const char *dtype, void *data, int rank, ...);

/* Values that look random and are the same each time, in [-1, 1). */
void fill(float *data, size_t count, uint32_t seed);

/* Memory that counts what is out, and refuses after a number of requests. */
typedef struct counter {
    size_t live_bytes, live, total, refuse_after; /* SIZE_MAX: never */
    size_t offset;                                /* added to each address */
} counter;
aotc_allocator counting_allocator(counter *self);

typedef struct test_case {
    const char *name;
    void (*run)(void);
} test_case;

/* Pages of the process's own memory. */
size_t resident_pages(void);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

extern const test_case basic_cases[], error_cases[], memory_cases[], thread_cases[], control_cases[], state_cases[], cuda_cases[], cuda_driver_cases[];

#endif
