/* What the linker adds to the runtime to make one model's file: the plan, the manifest, the weights and the kernels. */
#ifndef AOTC_BLOBS_H
#define AOTC_BLOBS_H

#include "aotc_kernel.h"

extern const unsigned char aotc_plan_data[]; /* aligned to 64 */
extern const uint64_t aotc_plan_size;
extern const char aotc_manifest_data[]; /* JSON, then a zero byte that the size leaves out */
extern const uint64_t aotc_manifest_size;
extern const unsigned char aotc_weights_data[]; /* aligned to 64 */
extern const uint64_t aotc_weights_size;
/* Of the file of weights beside this one (packaging/weights_file.py); zeros where aotc_weights_data holds them. */
extern const unsigned char aotc_weights_header[];
/* CUDA code, which the plan's cubins point into; aligned to 64, and no cubin where there is none. */
extern const unsigned char aotc_cubins_data[];
extern const uint64_t aotc_cubins_size;
extern const char aotc_version[]; /* of the aotc that built the file */

/* In the order of the plan's kernel table; stubs.py writes it. */
extern const aotc_kernel aotc_kernels[];
extern const uint32_t aotc_kernel_count;

#endif
