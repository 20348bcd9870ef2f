/* The peak of one machine: roofline THREADS prints fused multiply-adds of float32 and copies of large arrays, the best of many trials.
 * Vectors are as wide as the compiler's target has them; -ffp-contract=fast makes the products and sums fused. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
#define BYTES 64
#define REGISTER "+v"
#elif defined(__AVX__)
#define BYTES 32
#define REGISTER "+x"
#elif defined(__aarch64__)
#define BYTES 16
#define REGISTER "+w"
#else
#define BYTES 16
#define REGISTER "+x"
#endif
typedef float vector __attribute__((vector_size(BYTES)));

#define CHAINS 12 /* more than latency times units, fewer than registers */
#define ROUNDS 200000
#define COPIED (64u << 20)

static int threads;
static pthread_barrier_t gate;
static double (*kernel)(void *); /* work done, in operations or bytes */
static double begins[64], ends[64], works[64];
static int done;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double multiply_add(void *unused) {
    vector sums[CHAINS], x, y;
    (void)unused;
    for (unsigned i = 0; i < BYTES / 4; i++) x[i] = 0.999f, y[i] = 1e-3f;
    for (int i = 0; i < CHAINS; i++) sums[i] = x;
    for (int round = 0; round < ROUNDS; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            sums[i] = sums[i] * x + y;
            __asm__ volatile("" : REGISTER(sums[i]));
        }
    }
    return 2.0 * ROUNDS * CHAINS * (BYTES / 4);
}

static double copy(void *buffer) { /* bytes read and written */
    memcpy(buffer, (char *)buffer + COPIED, COPIED);
    __asm__ volatile("" : : "r"(buffer) : "memory");
    return 2.0 * COPIED;
}

static void *work(void *number) {
    long self = (long)number;
    char *buffer = malloc(2u * COPIED);
    if (!buffer) abort();
    memset(buffer, 1, 2u * COPIED);
    for (;;) {
        pthread_barrier_wait(&gate);
        if (done) break;
        begins[self] = now();
        works[self] = kernel(buffer);
        ends[self] = now();
        pthread_barrier_wait(&gate);
    }
    free(buffer);
    return NULL;
}

static void measure(const char *name, double (*chosen)(void *)) {
    double best = 0, until = now() + 1.0;
    kernel = chosen;
    for (int trial = 0; trial < 5 || now() < until; trial++) {
        double first = 1e300, last = 0, total = 0;
        pthread_barrier_wait(&gate);
        pthread_barrier_wait(&gate);
        for (int i = 0; i < threads; i++) {
            if (begins[i] < first) first = begins[i];
            if (ends[i] > last) last = ends[i];
            total += works[i];
        }
        if (total / (last - first) > best) best = total / (last - first);
    }
    printf("%s %.3f\n", name, best / 1e9);
}

int main(int count, char **words) {
    pthread_t started[64];
    threads = count > 1 ? atoi(words[1]) : 1;
    if (threads < 1 || threads > 64) return 2;
    pthread_barrier_init(&gate, NULL, (unsigned)threads + 1);
    for (long i = 0; i < threads; i++) pthread_create(&started[i], NULL, work, (void *)i);
    measure("gflops", multiply_add);
    measure("copy_gbytes", copy);
    done = 1;
    pthread_barrier_wait(&gate);
    for (int i = 0; i < threads; i++) pthread_join(started[i], NULL);
    return 0;
}
