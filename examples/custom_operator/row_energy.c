#include "aotc_operator.h"
#include <math.h>

/* y[i] = sum over j of |x[i][j]|^power, a row a task */
int32_t aotc_operator(const aotc_tensor *inputs, const aotc_tensor *outputs, int32_t begin, int32_t end)
{
    const int64_t columns = inputs[0].shape[inputs[0].rank - 1];
    const int64_t rows = aotc_elements(&outputs[0]) / inputs[0].shape[0];
    for (int64_t row = begin * rows; row < end * rows; row++) {
        const float *x = (const float *)inputs[0].data + row * columns;
        float sum = 0;
        for (int64_t j = 0; j < columns; j++)
            sum += ATTR_power == 2 ? x[j] * x[j] : powf(fabsf(x[j]), (float)ATTR_power);
        ((float *)outputs[0].data)[row] = sum;
    }
    return 0;
}
