/* The throughput of several sessions that share one pool, each driven by a thread of its own:
 *
 *     sessions model.so SESSIONS POOL_THREADS SECONDS
 *
 * prints the inferences a second of all together. Inputs are zeros of the model's fixed shapes. scaling.py compiles and runs it. */
#include "aotc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAXIMUM_INPUTS = 8, MAXIMUM_SESSIONS = 64 };

typedef struct worker {
    pthread_t thread;
    aotc_session_t *session;
    DLTensor inputs[MAXIMUM_INPUTS];
    double runs_per_second;
} worker;

static atomic_int stop;
static pthread_barrier_t gate;
static worker workers[MAXIMUM_SESSIONS];

static void die(const char *what) {
    fprintf(stderr, "sessions: %s\n", what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void bind_zeros(const aotc_model_t *model, worker *each) {
    aotc_error error;
    if (aotc_input_count(model, 0) > MAXIMUM_INPUTS) die("the model has too many inputs");
    for (size_t i = 0; i < aotc_input_count(model, 0); i++) {
        const aotc_tensor_info *info = aotc_input_info(model, 0, i);
        DLTensor *tensor = &each->inputs[i];
        size_t bytes = (info->dtype.bits + 7u) / 8u;
        tensor->device.device_type = kDLCPU;
        tensor->dtype = info->dtype;
        tensor->ndim = info->rank;
        tensor->shape = calloc((size_t)info->rank + 1, sizeof *tensor->shape);
        if (!tensor->shape) die("out of memory");
        for (int32_t axis = 0; axis < info->rank; axis++) {
            if (info->dims[axis].value < 0) die("the model's shapes must be fixed");
            tensor->shape[axis] = info->dims[axis].value;
            bytes *= (size_t)tensor->shape[axis];
        }
        tensor->data = calloc(bytes + 1, 1);
        if (!tensor->data || aotc_bind_input(each->session, i, tensor, &error)) die("an input cannot be bound");
    }
}

static void *drive(void *argument) {
    worker *each = argument;
    aotc_error error;
    if (aotc_run(each->session, &error)) die(error.message);
    pthread_barrier_wait(&gate);
    double begin = now();
    long runs = 0;
    while (!atomic_load(&stop)) {
        if (aotc_run(each->session, &error)) die(error.message);
        runs++;
    }
    each->runs_per_second = (double)runs / (now() - begin);
    return NULL;
}

int main(int count, char **words) {
    if (count != 5) die("usage: sessions model.so SESSIONS POOL_THREADS SECONDS");
    int sessions = atoi(words[2]);
    if (sessions < 1 || sessions > MAXIMUM_SESSIONS) die("the number of sessions must be 1 to 64");
    aotc_error error;
    aotc_model_t *model;
    aotc_pool_t *pool;
    if (aotc_open(words[1], &model, &error) || aotc_pool_create(model, (uint32_t)atoi(words[3]), &pool, &error)) die(error.message);
    pthread_barrier_init(&gate, NULL, (unsigned)sessions + 1);
    for (int i = 0; i < sessions; i++) {
        aotc_session_options options = {.size = sizeof options, .pool = pool};
        if (aotc_session_create(model, &options, &workers[i].session, &error)) die(error.message);
        bind_zeros(model, &workers[i]);
        if (pthread_create(&workers[i].thread, NULL, drive, &workers[i])) die("a thread cannot be started");
    }
    pthread_barrier_wait(&gate);
    double seconds = atof(words[4]), total = 0;
    struct timespec pause = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
    atomic_store(&stop, 1);
    for (int i = 0; i < sessions; i++) {
        pthread_join(workers[i].thread, NULL);
        total += workers[i].runs_per_second;
        aotc_session_destroy(workers[i].session, &error);
    }
    printf("%.6f\n", total);
    return 0;
}
