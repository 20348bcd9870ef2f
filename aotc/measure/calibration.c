/* Fused multiply-adds in registers alone: the rate that no kernel can pass. calibration.py compiles and calls this; each function runs
 * `turns` turns of TWELVE multiply-adds of vectors of float and returns nanoseconds. Twelve sums that do not depend on each other cover
 * the latency of every processor that has 16 registers; Arm has 32 of them and gets 24. */
#include <stdint.h>
#include <time.h>

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(i) VECTOR a##i = SPLAT(i * 0.1f);
#define STEP(i) \
    a##i = MULTIPLY_ADD(a##i, x, y); \
    __asm__ volatile("" : CONSTRAINT(a##i));
#define BODY(AGAIN) \
    VECTOR x = SPLAT(0.999f), y = SPLAT(1e-3f); \
    TWELVE(DECLARE) \
    int64_t begin = now(); \
    for (int64_t turn = 0; turn < turns; turn++) { TWELVE(STEP) AGAIN } \
    return now() - begin;

#ifdef __x86_64__
#include <immintrin.h>
#define CONSTRAINT "+v"

#define VECTOR __m512
#define SPLAT _mm512_set1_ps
#define MULTIPLY_ADD _mm512_fmadd_ps
__attribute__((target("avx512f"))) int64_t multiply_add_avx512(int64_t turns) { BODY() }
#undef VECTOR
#undef SPLAT
#undef MULTIPLY_ADD

#define VECTOR __m256
#define SPLAT _mm256_set1_ps
#define MULTIPLY_ADD _mm256_fmadd_ps
__attribute__((target("avx2,fma"))) int64_t multiply_add_avx2(int64_t turns) { BODY() }
#undef VECTOR
#undef SPLAT
#undef MULTIPLY_ADD
#undef CONSTRAINT

#define CONSTRAINT "+x"
#define VECTOR __m128
#define SPLAT _mm_set1_ps
#define MULTIPLY_ADD(a, x, y) _mm_add_ps(_mm_mul_ps(a, x), y)
int64_t multiply_add_sse(int64_t turns) { BODY() }

#else
#include <arm_neon.h>
#define CONSTRAINT "+w"
#define VECTOR float32x4_t
#define SPLAT vdupq_n_f32
#define MULTIPLY_ADD(a, x, y) vfmaq_f32(y, a, x)
#define DECLARE_MORE(i) VECTOR b##i = SPLAT(i * 0.2f);
#define STEP_MORE(i) \
    b##i = MULTIPLY_ADD(b##i, x, y); \
    __asm__ volatile("" : CONSTRAINT(b##i));
int64_t multiply_add_neon(int64_t turns) {
    TWELVE(DECLARE_MORE)
    BODY(TWELVE(STEP_MORE))
}
#endif
