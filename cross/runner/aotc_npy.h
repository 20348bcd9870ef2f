/* Reads and writes NumPy's .npy files of the dtypes that models have. */
#ifndef AOTC_NPY_H
#define AOTC_NPY_H

#include "aotc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Read a file in C order and native byte order. `out->data` and `out->shape` are one allocation each, for npy_free. Returns 0, or
 * -1 with a reason in `message` (256 bytes). */
int npy_read(const char *path, DLTensor *out, char *message);

/* Write a dense tensor in host memory; types that NumPy lacks (bfloat16, float8, int4, ...) as unsigned integers of the same bits. Returns 0, or -1 with a reason in `message` (256 bytes). */
int npy_write(const char *path, const DLTensor *tensor, char *message);

void npy_free(DLTensor *tensor);

/* The bytes of a dense tensor's data. */
uint64_t npy_bytes(const DLTensor *tensor);

#ifdef __cplusplus
}
#endif

#endif
