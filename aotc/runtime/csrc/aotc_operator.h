/* What a custom operator written in C includes (docs/custom_operators.md). It defines one function:
 *
 *     int32_t aotc_operator(const aotc_tensor *inputs, const aotc_tensor *outputs, int32_t begin, int32_t end);
 *
 * It computes parts [begin, end) of the operator's tasks, [0, 1) unless the operator says how many there are, and writes to its
 * own parts of the outputs only: other threads may compute the other parts at the same time. It returns 0, or anything else to fail
 * the run. It may call libm, memcpy, memmove and memset, and keeps nothing between calls; other functions and data are static.
 *
 * Before this file is compiled, these are defined for the node at hand:
 *
 *     AOTC_INPUTS, AOTC_OUTPUTS          how many there are
 *     aotc_input0, aotc_output0, ...     types of their elements; float16 is _Float16, a bool is uint8_t
 *     ATTR_<name>                        each attribute: a number or a text; of a sequence an array, with ATTR_<name>_COUNT */
#ifndef AOTC_OPERATOR_H
#define AOTC_OPERATOR_H
#include <stdint.h>

/* A dense row-major tensor; outputs are not initialised. */
typedef struct aotc_tensor {
    void *data;
    int32_t rank;
    int32_t shape[16];
} aotc_tensor;

int64_t static inline aotc_elements(const aotc_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t axis = 0; axis < tensor->rank; axis++)
        count *= tensor->shape[axis];
    return count;
}
#endif
