/* Kernels of the handwritten plans, with the signature that the compiler gives its own. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* y[row][j] = x[row][j] * w[j] */
int32_t k_scale(void *x, void *w, void *y, int32_t n, int32_t begin, int32_t end) {
    for (int64_t row = begin; row < end; row++)
        for (int32_t j = 0; j < n; j++) ((float *)y)[row * n + j] = ((const float *)x)[row * n + j] * ((const float *)w)[j];
    return 0;
}

/* y[row][j] = max(x[row][j] + b[j], 0) */
int32_t k_bias_relu(void *x, void *b, void *y, int32_t n, int32_t begin, int32_t end) {
    for (int64_t row = begin; row < end; row++)
        for (int32_t j = 0; j < n; j++) {
            float sum = ((const float *)x)[row * n + j] + ((const float *)b)[j];
            ((float *)y)[row * n + j] = sum > 0 ? sum : 0;
        }
    return 0;
}

/* y[batch][j] = sum over s of x[batch][s][j] */
int32_t k_row_sum(void *x, void *y, int32_t s, int32_t n, int32_t begin, int32_t end) {
    for (int64_t batch = begin; batch < end; batch++)
        for (int32_t j = 0; j < n; j++) {
            float sum = 0;
            for (int32_t k = 0; k < s; k++) sum += ((const float *)x)[(batch * s + k) * n + j];
            ((float *)y)[batch * n + j] = sum;
        }
    return 0;
}

/* y[i] = x[i] twice over: rows of n become rows of 2 n, through scratch of one row a task */
int32_t k_twice(void *x, void *scratch, void *y, int32_t n, int32_t begin, int32_t end) {
    for (int64_t row = begin; row < end; row++) {
        float *kept = (float *)scratch + row * n;
        for (int32_t j = 0; j < n; j++) kept[j] = ((const float *)x)[row * n + j];
        for (int32_t j = 0; j < 2 * n; j++) ((float *)y)[row * 2 * n + j] = kept[j % n];
    }
    return 0;
}

/* 7 where x[i] is negative */
int32_t k_fail_negative(void *x, void *y, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; i++) {
        if (((const float *)x)[i] < 0) return 7;
        ((float *)y)[i] = ((const float *)x)[i];
    }
    return 0;
}

/* Waits until the flag is set: another thread can act meanwhile. */
int32_t k_wait(void *flag, void *y, int32_t begin, int32_t end) {
    (void)begin;
    (void)end;
    while (!atomic_load((_Atomic int32_t *)flag)) continue;
    *(int32_t *)y = 1;
    return 0;
}

/* y = not x, on bool; counts[0] = number of elements, a scalar */
int32_t k_not(void *x, void *y, void *count, int32_t n, int32_t begin, int32_t end) {
    (void)begin;
    (void)end;
    for (int32_t i = 0; i < n; i++) ((uint8_t *)y)[i] = !((const uint8_t *)x)[i];
    *(int64_t *)count = n;
    return 0;
}

/* Fill n words with a pattern of their own. */
int32_t k_fill(void *y, int32_t n, int32_t seed, int32_t begin, int32_t end) {
    (void)begin;
    (void)end;
    for (int32_t i = 0; i < n; i++) ((int32_t *)y)[i] = seed * 31 + i;
    return 0;
}

/* 9 where the pattern is no longer whole. */
int32_t k_check(void *x, void *y, int32_t n, int32_t seed, int32_t begin, int32_t end) {
    (void)begin;
    (void)end;
    for (int32_t i = 0; i < n; i++)
        if (((const int32_t *)x)[i] != seed * 31 + i) return 9;
    *(int32_t *)y = n;
    return 0;
}

/* A sum whose rounding shows in which order it was made; many tasks. */
int32_t k_mix(void *x, void *y, int32_t n, int32_t begin, int32_t end) {
    for (int64_t row = begin; row < end; row++) {
        float sum = 0.1f;
        for (int32_t j = 0; j < n; j++) sum = sum * 0.99f + ((const float *)x)[row * n + j] / (float)(j + 3);
        ((float *)y)[row] = sum;
    }
    return 0;
}

/* Row r of y[][n] of all of the row before it, of which the first is x; a round of tasks a row. */
int32_t k_relay(void *x, void *y, int32_t n, int32_t begin, int32_t end) {
    for (int32_t task = begin; task < end; task++) {
        const uint32_t *before = task < n ? x : (const uint32_t *)y + (task / n - 1) * n;
        uint32_t sum = (uint32_t)task;
        for (int32_t j = 0; j < n; j++) sum = sum * 31 + before[j];
        ((uint32_t *)y)[task] = sum;
    }
    return 0;
}

/* more = x is not 1, on int64 */
int32_t k_more(void *x, void *more, int32_t begin, int32_t end) {
    (void)begin;
    (void)end;
    *(uint8_t *)more = *(const int64_t *)x != 1;
    return 0;
}

/* The next number of Collatz's sequence. */
int32_t k_collatz(void *x, void *y, int32_t begin, int32_t end) {
    (void)begin;
    (void)end;
    int64_t value = *(const int64_t *)x;
    *(int64_t *)y = value % 2 ? 3 * value + 1 : value / 2;
    return 0;
}

/* The positive ones of x[n] at the front of y, and how many they are. */
int32_t k_positive(void *x, void *y, void *count, int32_t n, int32_t begin, int32_t end) {
    int64_t found = 0;
    (void)begin;
    (void)end;
    for (int32_t i = 0; i < n; i++)
        if (((const float *)x)[i] > 0) ((float *)y)[found++] = ((const float *)x)[i];
    *(int64_t *)count = found;
    return 0;
}

/* total[i] += x, in place */
int32_t k_accumulate(void *x, void *total, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; i++) ((float *)total)[i] += *(const float *)x;
    return 0;
}
