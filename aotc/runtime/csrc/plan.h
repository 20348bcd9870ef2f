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
#define PLAN_VERSION 3u
#define PLAN_ALIGNMENT 64u
#define PLAN_MAX_RANK 16u
#define PLAN_MAX_SYMBOLS 512u
#define PLAN_MAX_DEPTH 64u /* stack places that an expression may need */

enum {
    TABLE_STRINGS, /* bytes; each string ends with a zero byte */
    TABLE_INDICES, /* uint32_t: dims of values and steps, arguments of steps */
    TABLE_DIMS,    /* plan_dim: dims of inputs, outputs and states */
    TABLE_CODE,    /* plan_code */
    TABLE_EXPRS,   /* plan_expr */
    TABLE_SYMBOLS, /* plan_symbol */
    TABLE_KERNELS, /* plan_kernel */
    TABLE_TENSORS, /* plan_tensor */
    TABLE_VALUES,  /* plan_value */
    TABLE_BUFFERS, /* plan_buffer */
    TABLE_STEPS,   /* plan_step */
    TABLE_STATES,  /* plan_state */
    TABLE_ENTRIES, /* plan_entry */
    TABLE_CUDA_KERNELS, /* plan_cuda_kernel */
    TABLE_CUBINS,       /* plan_cubin */
    TABLE_DEVICES,      /* plan_device: one where there are CUDA kernels, else none */
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

#define PLAN_NO_INPUT UINT32_MAX

typedef struct plan_symbol {
    uint32_t name;
    uint32_t input, axis; /* input PLAN_NO_INPUT: dynamic, a step sets it */
    uint32_t has_upper;
    int64_t lower, upper;
} plan_symbol;

typedef struct plan_kernel {
    uint32_t symbol;
    uint32_t buffers, dims;
    uint32_t reserved;
} plan_kernel;

typedef struct plan_cuda_kernel {
    uint32_t symbol;
    uint32_t buffers, dims;
    uint32_t block[3];
    uint32_t shared_bytes; /* dynamic shared memory of a block */
    plan_range cubins;     /* in TABLE_INDICES: cubins, one for each compute capability */
    uint32_t reserved;
} plan_cuda_kernel;

typedef struct plan_cubin {
    uint32_t sm; /* 87: compute capability 8.7 */
    uint32_t ptx; /* 1: PTX for that and all above */
    int64_t offset, size; /* bytes, in the cubins' blob */
} plan_cubin;

typedef struct plan_device {
    int64_t weights; /* CUDA kernels read this many bytes of the weights, the first */
} plan_device;

typedef struct plan_dim {
    uint32_t expr; /* 0 for a state */
    uint32_t text; /* empty for a constant */
    int64_t minimum;
    int64_t maximum; /* -1: without bound */
} plan_dim;

typedef struct plan_tensor {
    uint32_t name;
    uint32_t dtype;
    plan_range dims; /* in TABLE_DIMS */
} plan_tensor;

enum { STORAGE_INPUT, STORAGE_OUTPUT, STORAGE_WEIGHT, STORAGE_ARENA, STORAGE_STATE, STORAGE_COUNT };

typedef struct plan_value {
    uint32_t dtype;
    uint32_t storage;
    uint32_t index;
    uint32_t offset;  /* expression: bytes */
    plan_range shape; /* in TABLE_INDICES: expressions */
} plan_value;

/* Each has an arena of its own; see lowering/plan.py. */
enum { MEMORY_HOST, MEMORY_DEVICE, MEMORY_SHARED, MEMORY_COUNT };

typedef struct plan_buffer {
    uint32_t size; /* expression: bytes */
    uint32_t first_step, last_step;
    uint16_t has_offset, memory;
    int64_t offset;
} plan_buffer;

/* What each does is told in lowering/plan.py. */
enum {
    STEP_KERNEL,
    STEP_COPY,
    STEP_SHAPE,
    STEP_CHECK,
    STEP_BRANCH,
    STEP_JUMP,
    STEP_LAUNCH,
    STEP_DEVICE_COPY,
    STEP_TO_DEVICE,
    STEP_TO_HOST,
    STEP_DELIVER,
    STEP_COUNT
};

typedef struct plan_step {
    uint32_t kind;
    uint32_t kernel;
    plan_range arguments; /* in TABLE_INDICES: values */
    plan_range dims;      /* in TABLE_INDICES: expressions */
    uint32_t tasks;       /* expression */
    uint32_t outputs;
    uint32_t source, label;
    uint32_t flops;  /* expression */
    uint32_t target; /* a symbol, or the step to go on with, or of a delivery 1 where the outputs lie on the device */
} plan_step;

typedef struct plan_state {
    uint32_t name;
    uint32_t dtype;
    plan_range dims; /* in TABLE_DIMS: each with its extent as least and largest */
    uint32_t has_initial, reserved;
    int64_t initial; /* bytes from the start of the weights */
} plan_state;

#define PLAN_NO_FALLBACK UINT32_MAX

typedef struct plan_entry {
    uint32_t name;
    uint32_t fallback;          /* the entry point for where there is no device, or PLAN_NO_FALLBACK */
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
    const uint8_t *dynamic;               /* of each expression: whether it mentions a dynamic symbol; the model's */
    bool branches, uses_states;           /* some step is a branch; some value is a state */
    bool uses_device;                     /* some step is the device's */
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
    const plan_cuda_kernel *cuda_kernels;
    const plan_cubin *cubins;
    const plan_state *states;
    const plan_entry *entries;
} plan;

/* Check everything and fill in `out`. `kernels`: how many the file's code has; `cubins`: the bytes of their blob. */
aotc_status plan_open(const void *data, uint64_t size, uint32_t kernels, uint64_t cubins, plan *out, aotc_error *error);

/* The part of plan_open that looks at the tables' contents (plan_check.c). */
aotc_status plan_check(const plan *plan, uint32_t kernels, uint64_t cubins, aotc_error *error);

/* The view of entry point `number` of a checked plan. */
plan_view plan_entry_view(const plan *self, uint32_t number);

/* Whether an expression mentions a dynamic symbol. */
bool plan_is_dynamic(const plan *self, const plan_view *view, uint32_t expr);

/* Whether an output's shape is known only while running. */
bool plan_output_is_dynamic(const plan *self, const plan_view *view, uint32_t output);

/* The first bytes of the weights, which CUDA kernels read; 0 without such kernels. */
int64_t plan_device_weights(const plan *self);

static inline uint32_t plan_cuda_kernel_count(const plan *self) { return self->header->tables[TABLE_CUDA_KERNELS].count; }

static inline bool plan_is_device_step(uint32_t kind) { return kind == STEP_LAUNCH || kind == STEP_DEVICE_COPY; }

static inline bool plan_is_crossing(uint32_t kind) { return kind == STEP_TO_DEVICE || kind == STEP_TO_HOST || kind == STEP_DELIVER; }

static inline uint32_t plan_state_count(const plan *self) { return self->header->tables[TABLE_STATES].count; }

uint64_t plan_state_bytes(const plan *self, uint32_t state);

uint64_t plan_hash(const void *data, uint64_t size);

static inline const char *plan_string(const plan *self, uint32_t offset) { return self->strings + offset; }

/* dtypes: number, name, DLPack type and size. Elements of less than 8 bits take a byte each. */
typedef struct plan_dtype {
    const char *name;
    uint8_t code, bits;
} plan_dtype;

extern const plan_dtype plan_dtypes[];
#define PLAN_DTYPE_COUNT 25u
enum { DTYPE_INT64 = 6, DTYPE_BOOL = 11 };

static inline uint32_t plan_itemsize(uint32_t dtype) { return (plan_dtypes[dtype].bits + 7u) / 8u; }

#endif
