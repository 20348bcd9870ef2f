/* Copies of floats by vector loads and stores, for machine.py: memcpy of some C libraries is several times slower than that for small
 * sizes on some processors (rep movsb on Zen 3). */
#include <stddef.h>

void aotc_copy(float *restrict target, const float *restrict source, size_t count, size_t times) {
    for (size_t time = 0; time < times; time++) {
        for (size_t i = 0; i < count; i++) target[i] = source[i];
        __asm__ volatile("" : : "r"(target), "r"(source) : "memory");
    }
}
