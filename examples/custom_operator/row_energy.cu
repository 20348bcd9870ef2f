#include "aotc_operator.h"

/* y[i] = sum over j of |x[i][j]|^power: a block takes what stands under one index of the first axis, its threads share the rows */
__device__ int32_t aotc_operator(const aotc_tensor *inputs, const aotc_tensor *outputs, int32_t begin, int32_t end)
{
    const int32_t columns = inputs[0].shape[inputs[0].rank - 1];
    const int32_t rows = (int32_t)aotc_elements(&outputs[0]) / inputs[0].shape[0];
    for (int32_t row = begin * rows + threadIdx.x; row < end * rows; row += blockDim.x) {
        const float *x = (const float *)inputs[0].data + row * columns;
        float sum = 0;
        for (int32_t j = 0; j < columns; j++)
            sum += ATTR_power == 2 ? x[j] * x[j] : powf(fabsf(x[j]), (float)ATTR_power);
        ((float *)outputs[0].data)[row] = sum;
    }
    return 0;
}
