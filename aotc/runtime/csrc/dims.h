/* Dims that are known when running: postfix expressions over the entry point's symbols. */
#ifndef AOTC_DIMS_H
#define AOTC_DIMS_H

#include "plan.h"

/* NULL, or why the code is not an expression over `symbols` symbols. */
const char *dims_check(const plan_code *code, uint32_t count, uint32_t symbols);

/* NULL and the value in *result, or why there is none. `code` has been checked. */
const char *dims_evaluate(const plan_code *code, uint32_t count, const int64_t *symbols, int64_t *result);

#endif
