/* The plan as bytes: little-endian tables of fixed records, used where they lie (the section .aotc.plan).
 *
 * A table is named in the header by its offset and its number of records. Records refer to each other by number: to strings and
 * kernels by their place in the file's tables, to everything else by their place in the entry point's own range. plan_open checks
 * every reference once, so that the rest of the runtime follows them without looking. packaging/planfile.py writes this format.
 */
#ifndef AOTC_PLAN_H
#define AOTC_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "aotc.h"

#define PLAN_MAGIC "AOTCPLAN"
#define PLAN_VERSION 1u
#define PLAN_ALIGNMENT 64u
#define PLAN_MAX_RANK 16u
#define PLAN_MAX_SYMBOLS 64u
#define PLAN_MAX_DEPTH 64u /* stack places that an expression may need */

enum {
    TABLE_STRINGS, /* bytes; each string ends with a zero byte */
    TABLE_INDICES, /* uint32_t: dims of values and steps, arguments of steps */
    TABLE_DIMS,    /* plan_dim: dims of inputs and outputs */
    TABLE_CODE,    /* plan_code */
    TABLE_EXPRS,   /* plan_expr */
    TABLE_SYMBOLS, /* plan_symbol */
    TABLE_KERNELS, /* plan_kernel */
    TABLE_TENSORS, /* plan_tensor */
    TABLE_VALUES,  /* plan_value */
    TABLE_BUFFERS, /* plan_buffer */
    TABLE_STEPS,   /* plan_step */
    TABLE_ENTRIES, /* plan_entry */
    TABLE_COUNT
};

typedef struct plan_range {
    uint32_t first, count;
} plan_range;

typedef struct plan_table {
    uint32_t offset; /* bytes from the start of the plan, a multiple of 8 */
    uint32_t count;  /* records */
} plan_table;

typedef struct plan_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t total_bytes;
    uint64_t hash; /* plan_hash of all bytes with this field zero */
    plan_table tables[TABLE_COUNT];
} plan_header;

enum { CODE_CONSTANT, CODE_SYMBOL, CODE_ADD, CODE_MULTIPLY, CODE_FLOORDIV, CODE_MODULO, CODE_MINIMUM, CODE_MAXIMUM, CODE_COUNT };

/* One instruction of a postfix expression. */
typedef struct plan_code {
    uint32_t op;
    uint32_t reserved;
    int64_t value; /* the constant, or the number of the symbol */
} plan_code;

typedef plan_range plan_expr; /* in TABLE_CODE */

typedef struct plan_symbol {
    uint32_t name;
    uint32_t input, axis;
    uint32_t has_upper;
    int64_t lower, upper;
} plan_symbol;

typedef struct plan_kernel {
    uint32_t symbol;
    uint32_t buffers, dims;
    uint32_t reserved;
} plan_kernel;

typedef struct plan_dim {
    uint32_t expr;
    uint32_t text; /* empty for a constant */
    int64_t minimum;
    int64_t maximum; /* -1: without bound */
} plan_dim;

typedef struct plan_tensor {
    uint32_t name;
    uint32_t dtype;
    plan_range dims; /* in TABLE_DIMS */
} plan_tensor;

enum { STORAGE_INPUT, STORAGE_OUTPUT, STORAGE_WEIGHT, STORAGE_ARENA, STORAGE_COUNT };

typedef struct plan_value {
    uint32_t dtype;
    uint32_t storage;
    uint32_t index;
    uint32_t offset;  /* expression: bytes */
    plan_range shape; /* in TABLE_INDICES: expressions */
} plan_value;

typedef struct plan_buffer {
    uint32_t size; /* expression: bytes */
    uint32_t first_step, last_step;
    uint32_t has_offset;
    int64_t offset;
} plan_buffer;

enum { STEP_KERNEL, STEP_COPY, STEP_COUNT };

typedef struct plan_step {
    uint32_t kind;
    uint32_t kernel;
    plan_range arguments; /* in TABLE_INDICES: values */
    plan_range dims;      /* in TABLE_INDICES: expressions */
    uint32_t tasks;       /* expression */
    uint32_t outputs;
    uint32_t source, label;
    uint32_t flops; /* expression */
    uint32_t reserved;
} plan_step;

typedef struct plan_entry {
    uint32_t name;
    uint32_t reserved;
    plan_range inputs, outputs; /* in TABLE_TENSORS */
    plan_range symbols, exprs, values, buffers, steps;
    int64_t arena_size; /* -1: planned by the session */
    int64_t arena_lower_bound;
} plan_entry;

/* One entry point with its ranges resolved. */
typedef struct plan_view {
    const plan_entry *record;
    const plan_tensor *inputs, *outputs;
    const plan_symbol *symbols;
    const plan_expr *exprs;
    const plan_value *values;
    const plan_buffer *buffers;
    const plan_step *steps;
    uint32_t max_arguments, max_dims; /* of any step */
    uint32_t input_dims, output_dims; /* ranks, summed */
} plan_view;

typedef struct plan {
    const plan_header *header;
    const char *strings;
    const uint32_t *indices;
    const plan_dim *dims;
    const plan_code *code;
    const plan_kernel *kernels;
    const plan_entry *entries;
} plan;

/* Check everything and fill in `out`. `kernels`: how many the file's code has. */
aotc_status plan_open(const void *data, uint64_t size, uint32_t kernels, plan *out, aotc_error *error);

/* The view of entry point `number` of a checked plan. */
plan_view plan_entry_view(const plan *self, uint32_t number);

uint64_t plan_hash(const void *data, uint64_t size);

static inline const char *plan_string(const plan *self, uint32_t offset) { return self->strings + offset; }

/* dtypes: number, name, DLPack type and size. */
typedef struct plan_dtype {
    const char *name;
    uint8_t code, bits;
} plan_dtype;

extern const plan_dtype plan_dtypes[];
#define PLAN_DTYPE_COUNT 12u

static inline uint32_t plan_itemsize(uint32_t dtype) { return plan_dtypes[dtype].bits / 8u; }

#endif
