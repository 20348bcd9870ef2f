/* The runtime's own structs. Functions of the C API carry the prefix rt_ here; api.c puts them into the table. */
#ifndef AOTC_INTERNAL_H
#define AOTC_INTERNAL_H

#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "blobs.h"
#include "error.h"
#include "plan.h"

/* ---- Models ---- */

typedef struct entry {
    plan_view view;
    aotc_tensor_info *inputs, *outputs;
} entry;

struct aotc_model_t {
    const aotc_api *api; /* first in every handle */
    plan plan;
    uint32_t entry_count;
    entry *entries;
    const char *path;
    void *library;
    aotc_allocator allocator;
    aotc_log_fn log;
    void *log_context;
    size_t bytes;      /* of this struct with all that follows it */
    atomic_uint users; /* sessions and pools */
};

/* ---- Sessions ---- */

/* What one set of input shapes needs. */
typedef struct shape_plan {
    uint64_t last_use;
    uint64_t arena_bytes, lower_bound;
    int64_t *key;      /* the dims of all inputs in a row */
    int64_t *exprs;    /* the value of each expression */
    uint64_t *offsets; /* of each buffer in the arena */
} shape_plan;

typedef struct input_slot {
    bool bound;
    char *data;
    int64_t *dims; /* as bound; in the session's key */
} input_slot;

typedef struct output_slot {
    bool bound;
    char *data;          /* the bound memory, else `owned` */
    int64_t *bound_dims; /* the shape of the bound memory */
    int64_t *dims;       /* of the latest prepared run, with its strides */
    int64_t *strides;
    char *owned; /* the session's memory */
    uint64_t owned_bytes;
} output_slot;

typedef struct step_clock {
    uint64_t runs, total_ns, last_ns;
} step_clock;

struct aotc_session_t {
    const aotc_api *api;
    aotc_model_t *model;
    const plan *plan;
    const plan_view *view;
    aotc_allocator allocator;
    aotc_log_fn log;
    void *log_context;
    aotc_pool_t *pool, *own_pool;
    aotc_parallel_for_fn parallel_for; /* NULL: steps run in the caller */
    void *parallel_for_context;
    size_t bytes; /* of this struct with all that follows it */
    uint64_t held, peak, limit;

    input_slot *inputs;
    output_slot *outputs;
    char *arena;
    uint64_t arena_bytes;
    shape_plan *plans;
    uint32_t plan_limit, plan_count;
    size_t plan_bytes;
    shape_plan *current; /* the latest, or NULL */
    uint64_t uses;
    int64_t *key;                 /* the dims of all inputs in a row: the slots' dims point into it */
    const int64_t **input_shapes; /* each slot's dims */
    uint32_t *order, *placed;     /* scratch of memory.c: one for each buffer */
    void **pointers;              /* scratch of one step */
    int64_t *dims;                /* scratch of one step */
    step_clock *clocks;

    bool ready;   /* nothing was bound since the latest successful prepare */
    bool has_run; /* outputs hold the result of the latest run */
    bool profile;
    atomic_flag busy;
};

/* Enter and leave: a session is for one thread at a time. */
static inline bool session_enter(aotc_session_t *self) { return !atomic_flag_test_and_set_explicit(&self->busy, memory_order_acquire); }
static inline void session_leave(aotc_session_t *self) { atomic_flag_clear_explicit(&self->busy, memory_order_release); }
aotc_status session_is_busy(aotc_error *error);
aotc_status session_inputs_are_bound(const aotc_session_t *self, aotc_error *error);

static inline uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* ---- Arrays behind a struct in one allocation. With base NULL it only counts. ---- */

typedef struct carver {
    char *base;
    size_t used;
} carver;

static inline void *carve(carver *self, size_t count, size_t size) {
    size_t start = (self->used + 15) & ~(size_t)15;
    self->used = start + count * size;
    return self->base ? self->base + start : NULL;
}

/* ---- memory.c ---- */

extern const aotc_allocator memory_default;

/* Memory at a multiple of PLAN_ALIGNMENT. `what` names it in the message. */
aotc_status memory_allocate(const aotc_allocator *allocator, uint64_t bytes, const char *what, void **memory, aotc_error *error);

/* Memory that counts towards the session's total and limit. */
aotc_status session_allocate(aotc_session_t *self, uint64_t bytes, const char *what, void **memory, aotc_error *error);
void session_release(aotc_session_t *self, void *pointer, uint64_t bytes);

/* Give each buffer of the entry point an offset; returns the arena's size. */
uint64_t memory_place(const plan_view *view, const int64_t *exprs, uint32_t *order, uint32_t *placed, uint64_t *offsets);

/* The largest sum of sizes of buffers that are alive at once. */
uint64_t memory_lower_bound(const plan_view *view, const int64_t *exprs);

/* ---- shapes.c ---- */

/* The values of the symbols, from and checked against the inputs' shapes. */
aotc_status shapes_symbols(const plan *plan, const plan_view *view, const int64_t *const *input_shapes, int64_t *symbols,
                           aotc_error *error);

/* The shape of an output for known symbols. */
aotc_status shapes_output(const plan *plan, const plan_view *view, const int64_t *symbols, size_t output, int64_t *shape,
                          aotc_error *error);

aotc_status shapes_evaluate(const plan *plan, const plan_view *view, uint32_t expr, const int64_t *symbols, int64_t *result,
                            aotc_error *error);

/* Dims are not negative and the tensor's elements can be counted in int32; and the message if not. */
#define MAX_ELEMENTS INT64_C(0x7fffffff)
bool shapes_countable(const int64_t *dims, uint32_t rank);
aotc_status shapes_too_large(const char *what, const char *name, const int64_t *dims, uint32_t rank, aotc_error *error);

/* "[batch, 3, 224]": the shape that the model was built for. */
void shapes_declared(text *self, const plan *plan, const plan_view *view, const plan_tensor *tensor);

/* Bytes of a tensor or value of a checked shape plan. */
uint64_t shapes_tensor_bytes(const plan *plan, const plan_tensor *tensor, const int64_t *exprs);
uint64_t shapes_value_bytes(const plan *plan, const plan_value *value, const int64_t *exprs);

/* ---- run.c ---- */

/* Reserve the arena that the current plan needs. */
aotc_status run_reserve_arena(aotc_session_t *self, aotc_error *error);

/* ---- planning.c ---- */

/* Make the plan for the shapes of the bound inputs the current one. */
aotc_status planning_select(aotc_session_t *self, aotc_error *error);

/* ---- The API ---- */

aotc_status rt_model_create(const aotc_model_options *options, aotc_model_t **model, aotc_error *error);
aotc_status rt_model_destroy(aotc_model_t *model, aotc_error *error);
void *rt_model_library(const aotc_model_t *model);
const char *rt_manifest(const aotc_model_t *model, size_t *length);
size_t rt_entry_point_count(const aotc_model_t *model);
const char *rt_entry_point_name(const aotc_model_t *model, size_t entry_point);
size_t rt_input_count(const aotc_model_t *model, size_t entry_point);
size_t rt_output_count(const aotc_model_t *model, size_t entry_point);
const aotc_tensor_info *rt_input_info(const aotc_model_t *model, size_t entry_point, size_t input);
const aotc_tensor_info *rt_output_info(const aotc_model_t *model, size_t entry_point, size_t output);
aotc_status rt_infer_shape(const aotc_model_t *model, size_t entry_point, const int64_t *const *input_shapes, size_t output, int64_t *shape,
                           aotc_error *error);
aotc_status rt_pool_create(aotc_model_t *model, uint32_t num_threads, aotc_pool_t **pool, aotc_error *error);
aotc_status rt_pool_destroy(aotc_pool_t *pool, aotc_error *error);
void rt_pool_acquire(aotc_pool_t *pool);
void rt_pool_release(aotc_pool_t *pool);
void rt_pool_begin(aotc_pool_t *pool);
void rt_pool_end(aotc_pool_t *pool);
void rt_pool_parallel_for(void *pool, int32_t tasks, aotc_task_fn task, void *task_context);
aotc_status rt_session_create(aotc_model_t *model, const aotc_session_options *options, aotc_session_t **session, aotc_error *error);
aotc_status rt_session_destroy(aotc_session_t *session, aotc_error *error);
aotc_status rt_bind_input(aotc_session_t *session, size_t input, const DLTensor *tensor, aotc_error *error);
aotc_status rt_bind_output(aotc_session_t *session, size_t output, const DLTensor *tensor, aotc_error *error);
aotc_status rt_output_shape(aotc_session_t *session, size_t output, int64_t *shape, aotc_error *error);
aotc_status rt_run(aotc_session_t *session, aotc_error *error);
aotc_status rt_get_output(aotc_session_t *session, size_t output, DLTensor *tensor, aotc_error *error);
aotc_status rt_set_profiling(aotc_session_t *session, int on, aotc_error *error);
size_t rt_step_count(const aotc_session_t *session);
aotc_status rt_step_info(aotc_session_t *session, size_t step, aotc_step_info *info, aotc_error *error);
aotc_status rt_memory_info(aotc_session_t *session, aotc_memory_info *info, aotc_error *error);

extern const aotc_api rt_api;

#endif
