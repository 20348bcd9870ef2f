/* What a test sets of the fake driver, and what it counts. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct fake_cuda {
    int sm, integrated;
    bool no_device, no_capture, fail_launch, fail_wait, idle; /* idle, by the variable FAKE_CUDA_IDLE: kernels touch nothing */
    size_t memory_left; /* the largest block; 0: no limit */
    atomic_int contexts, modules, blocks, streams, events, graphs; /* that are there now */
    atomic_int launches, graph_launches, waits, copies_to_device, copies_to_host;
} fake_cuda;

#endif
