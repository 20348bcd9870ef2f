/* Times the entry points of a built file beside each other. */
#ifndef AOTC_BOARD_TIMING_H
#define AOTC_BOARD_TIMING_H

#include "protocol.h"

#include <stddef.h>

typedef struct timing_job {
    const char *path; /* of the built file */
    time_request request;
    const uint32_t *entries;
    const input_request *inputs;
    volatile int32_t *current; /* gets the place of the entry point that runs */
} timing_job;

typedef struct timing_result {
    void *data; /* time_answer and what follows it; malloc */
    size_t bytes;
    char message[1200]; /* why it failed */
} timing_result;

uint64_t now_ns(void);

/* 0, or -1 with a message. Meant to run in a process of its own: what it holds it does not give back. */
int time_entries(const timing_job *job, timing_result *result);

#endif
