/* The runtime's own structs. Functions of the C API carry the prefix rt_ here; api.c puts them into the table. */
#ifndef AOTC_INTERNAL_H
#define AOTC_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "blobs.h"
#include "error.h"
#include "plan.h"

/* Bytes: what CUDA kernels may take for granted of the addresses that they get. */
#define DEVICE_ALIGNMENT 16u

/* ---- Models ---- */

typedef struct entry {
    plan_view view;
    aotc_tensor_info *inputs, *outputs;
} entry;

/* A mapped file of weights. */
typedef struct mapping {
    void *data;
    size_t size;
} mapping;

struct aotc_model_t {
    const aotc_api *api; /* first in every handle */
    plan plan;
    uint32_t entry_count;
    entry *entries;
    aotc_tensor_info *states;
    int64_t *state_shapes; /* PLAN_MAX_RANK places for each */
    const char *weights;
    mapping beside; /* the file that holds the weights if this one does not */
    pthread_mutex_t device_lock;
    struct device *device; /* NULL until a session needs it */
    const char *path;
    void *library;
    aotc_allocator allocator;
    aotc_log_fn log;
    void *log_context;
    size_t bytes;      /* of this struct with all that follows it */
    atomic_uint users; /* sessions and pools */
};

/* ---- Sessions ---- */

/* What one set of input shapes needs. Symbols and expressions that are dynamic change while a run goes on. */
typedef struct shape_plan {
    uint64_t last_use;
    uint64_t arena_bytes[MEMORY_COUNT]; /* of each memory's arena */
    uint64_t lower_bound;               /* of the host's */
    int64_t *key;      /* the dims of all inputs in a row */
    int64_t *symbols;  /* the value of each symbol */
    int64_t *exprs;    /* the value of each expression, UNKNOWN where it has none */
    uint64_t *offsets; /* of each buffer in its arena */
    uint8_t *sound;    /* of each step: its sizes are known and checked; else dynamic.c does so when it runs */
} shape_plan;

/* An expression that cannot be evaluated, or only while running. */
#define UNKNOWN INT64_MIN

/* Memory that grows while a run goes on and keeps its content. */
typedef struct growing {
    char *data;
    uint64_t bytes;
} growing;

/* A tensor of the caller for the processor that does not see the caller's memory. */
typedef struct other_side {
    uint64_t device;       /* the caller's memory as the GPU sees it; 0: it does not */
    uint64_t mirror;       /* the session's memory on the GPU instead */
    uint64_t mirror_bytes;
    growing staging; /* the session's memory for the host where the caller's is the GPU's alone */
} other_side;

typedef struct input_slot {
    bool bound;
    char *data;    /* NULL where it is the GPU's alone */
    int64_t *dims; /* as bound; in the session's key */
    other_side side;
} input_slot;

typedef struct output_slot {
    bool bound;
    char *data;          /* the bound memory, NULL where it is the GPU's alone; else `owned` */
    other_side side;
    int64_t *bound_dims; /* the shape of the bound memory */
    int64_t *dims;       /* of the latest prepared run, with its strides */
    int64_t *strides;
    char *owned; /* the session's memory */
    uint64_t owned_bytes;
} output_slot;

typedef struct step_clock {
    uint64_t runs, total_ns, last_ns;
} step_clock;

/* Memory that host and GPU see: one where they have one in common, else two. */
typedef struct shared_memory {
    char *host;
    uint64_t device;
    uint64_t bytes;
} shared_memory;

/* The states of one session, or of several that share them. */
typedef struct state_set {
    aotc_allocator allocator;
    atomic_uint users;
    atomic_flag busy; /* a session that has them runs */
    size_t bytes;     /* of this struct with all that follows it */
    char **data;      /* of each state */
    struct device *device; /* NULL: the GPU sees them not, and they follow this struct */
    shared_memory shared;
} state_set;

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
    aotc_rounds_fn rounds; /* NULL: without a pool that shares out rounds of tasks they run in the caller */
    size_t bytes; /* of this struct with all that follows it */
    uint64_t held, peak, limit;

    input_slot *inputs;
    output_slot *outputs;
    char *arena;
    uint64_t arena_bytes;
    growing *buffers;  /* of each buffer whose size is dynamic */
    state_set *states; /* NULL: none */
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
    struct device_session *cuda; /* NULL: the entry point runs on the host alone */

    bool ready;   /* nothing was bound since the latest successful prepare */
    bool has_run; /* outputs hold the result of the latest run, once the device is done */
    bool profile;
    atomic_bool cancelled;
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

/* Bytes of a huge page on x86-64 and, with pages of 4 KB, on aarch64. */
#define HUGE_PAGE ((size_t)2 << 20)

/* Advise the system to back the memory, or what is read of the file that it maps, with huge pages. */
void memory_prefer_huge_pages(const void *memory, size_t bytes);

/* Memory at a multiple of PLAN_ALIGNMENT. `what` names it in the message. */
aotc_status memory_allocate(const aotc_allocator *allocator, uint64_t bytes, const char *what, void **memory, aotc_error *error);

/* Memory that counts towards the session's total and limit. */
aotc_status session_allocate(aotc_session_t *self, uint64_t bytes, const char *what, void **memory, aotc_error *error);
void session_release(aotc_session_t *self, void *pointer, uint64_t bytes);

/* Count memory that is not the allocator's, before it is made; and no longer. */
aotc_status session_count(aotc_session_t *self, uint64_t bytes, const char *what, aotc_error *error);
void session_discount(aotc_session_t *self, uint64_t bytes);

/* Make the memory hold `bytes`, twice what it was at least, with what it held. Nothing changes on failure. */
aotc_status session_grow(aotc_session_t *self, char **memory, uint64_t *size, uint64_t bytes, const char *what, aotc_error *error);

/* Bytes of a buffer in the arena: none where its size is impossible, which the steps that use it notice. */
#define MAX_BUFFER_BYTES (INT64_C(1) << 47)
static inline uint64_t memory_buffer_bytes(const plan_view *view, const int64_t *exprs, uint32_t buffer) {
    int64_t size = exprs[view->buffers[buffer].size];
    return size < 0 || size > MAX_BUFFER_BYTES ? 0 : (uint64_t)size;
}

/* Give each buffer of the entry point an offset in its arena, and `arena_bytes` the sizes of the arenas. */
void memory_place(const plan_view *view, const int64_t *exprs, uint32_t *order, uint32_t *placed, uint64_t *offsets,
                  uint64_t *arena_bytes);

/* The largest sum of sizes of the host's buffers that are alive at once. */
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

/* Wait for a run that was started and not waited for. */
aotc_status session_wait(aotc_session_t *self, aotc_error *error);

/* Reserve the arena that the current plan needs. */
aotc_status run_reserve_arena(aotc_session_t *self, aotc_error *error);

/* ---- steps.c ---- */

aotc_status steps_run(aotc_session_t *self, aotc_error *error);

/* ---- dynamic.c: sizes that are known only while running ---- */

/* Before a step that is not sound in the current plan: evaluate its sizes, make its buffers hold them, check it. */
aotc_status dynamic_prepare(aotc_session_t *self, uint32_t step, aotc_error *error);

/* A step that sets a symbol, and one that compares two dims. */
aotc_status dynamic_set_symbol(aotc_session_t *self, int64_t value, const plan_step *step, aotc_error *error);
aotc_status dynamic_check(const aotc_session_t *self, const plan_step *step, aotc_error *error);

/* After the steps: the shapes of outputs that depend on the data. */
aotc_status dynamic_finish(aotc_session_t *self, aotc_error *error);

/* ---- planning.c ---- */

/* Make the plan for the shapes of the bound inputs the current one. */
aotc_status planning_select(aotc_session_t *self, aotc_error *error);

/* ---- checks.c: a step whose sizes are known ---- */

/* All that a kernel, a copy or the runtime relies on: values lie in their memory, nothing is written that is also read, counts fit. */
aotc_status checks_step(const plan *plan, const plan_view *view, uint32_t number, const int64_t *exprs, aotc_error *error);

aotc_status checks_wrong(const char *what, uint32_t number, const char *problem, aotc_error *error);

/* ---- states.c ---- */

/* Set up the session's states: shared with another session, or its own with their first values. */
aotc_status states_attach(aotc_session_t *self, aotc_session_t *shared, aotc_error *error);
void states_detach(aotc_session_t *self);

/* Enter and leave: one run at a time on a set of states. */
aotc_status states_enter(aotc_session_t *self, aotc_error *error);
void states_leave(aotc_session_t *self);

/* ---- weights.c ---- */

/* Where the weights are; maps the file beside the model's if they are not in it. */
aotc_status weights_open(const char *path, const char **weights, mapping *beside, aotc_error *error);
void weights_close(mapping *beside);

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
void rt_pool_rounds(void *pool, int32_t tasks, int32_t round, aotc_task_fn task, void *task_context);
aotc_status rt_session_create(aotc_model_t *model, const aotc_session_options *options, aotc_session_t **session, aotc_error *error);
aotc_status rt_session_destroy(aotc_session_t *session, aotc_error *error);
aotc_status rt_bind_input(aotc_session_t *session, size_t input, const DLTensor *tensor, aotc_error *error);
aotc_status rt_bind_output(aotc_session_t *session, size_t output, const DLTensor *tensor, aotc_error *error);
aotc_status rt_output_shape(aotc_session_t *session, size_t output, int64_t *shape, aotc_error *error);
aotc_status rt_run(aotc_session_t *session, aotc_error *error);
aotc_status rt_run_async(aotc_session_t *session, void **event, aotc_error *error);
aotc_status rt_wait(aotc_session_t *session, aotc_error *error);
aotc_status rt_get_output(aotc_session_t *session, size_t output, DLTensor *tensor, aotc_error *error);
aotc_status rt_set_profiling(aotc_session_t *session, int on, aotc_error *error);
size_t rt_step_count(const aotc_session_t *session);
aotc_status rt_step_info(aotc_session_t *session, size_t step, aotc_step_info *info, aotc_error *error);
aotc_status rt_memory_info(aotc_session_t *session, aotc_memory_info *info, aotc_error *error);
aotc_status rt_session_reset(aotc_session_t *session, aotc_error *error);
aotc_status rt_cancel(aotc_session_t *session, aotc_error *error);
size_t rt_state_count(const aotc_model_t *model);
const aotc_tensor_info *rt_state_info(const aotc_model_t *model, size_t state);
aotc_status rt_get_state(aotc_session_t *session, size_t state, DLTensor *tensor, aotc_error *error);

extern const aotc_api rt_api;

#endif
