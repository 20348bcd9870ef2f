/* The kernel ABI: what the runtime calls for one step.
 *
 * The compiler makes, for each kernel, machine code of the plain C function
 *
 *     int32_t name(void *buffer0, ..., int32_t dim0, ..., int32_t begin, int32_t end);
 *
 * and a stub of the uniform signature below that spreads the arguments. Rules both sides keep:
 * - 0 is success; any other value stops the run with an error that names the step.
 * - [begin, end) is a part of the kernel's outermost loop. Parts run in any order, on any thread, at the same time, and give
 *   the same bits however the range is cut. Where a step says that tasks come in rounds (recurrent layers: a round a time step),
 *   parts are of one round, or begin and end with whole rounds, and a round begins after the one before it has ended.
 * - Buffers are in the order inputs, scratch, outputs. No two of them overlap, except two that are only read.
 * - A buffer in the arena or the weights is aligned to 64 bytes plus the value's offset; the caller's inputs and outputs are
 *   aligned to their element size and no more.
 * - A kernel allocates nothing, takes no lock, keeps no state and calls nothing but libm, memcpy, memmove and memset.
 */
#ifndef AOTC_KERNEL_H
#define AOTC_KERNEL_H

#include <stdint.h>

typedef struct aotc_kernel_args {
    void *const *buffers; /* one pointer a parameter */
    const int64_t *dims;  /* one value an integer parameter, each within int32 */
    int32_t begin, end;   /* the tasks to run */
} aotc_kernel_args;

typedef int32_t (*aotc_kernel)(const aotc_kernel_args *args);

#endif
