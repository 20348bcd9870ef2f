/* Running: prepare once after something was bound, then follow the steps. */
#include <inttypes.h>
#include <string.h>

#include "internal.h"

static void log_bytes(const aotc_session_t *self, const char *what, uint64_t bytes) {
    if (!self->log) return;
    text message = {0};
    text_add(&message, "%s: %" PRIu64 " bytes", what, bytes);
    self->log(self->log_context, AOTC_LOG_INFO, message.data);
}

/* Make `*memory` hold `bytes`. What it held is lost, and freed first, so that the peak is the larger of the two. */
static aotc_status reserve(aotc_session_t *self, char **memory, uint64_t *size, uint64_t bytes, const char *what, aotc_error *error) {
    if (*size >= bytes && *memory) return AOTC_OK;
    session_release(self, *memory, *size);
    *memory = NULL;
    *size = 0;
    if (bytes == 0) bytes = PLAN_ALIGNMENT; /* so that there is an address */
    void *made;
    aotc_status status = session_allocate(self, bytes, what, &made, error);
    if (status) return status;
    *memory = made;
    *size = bytes;
    log_bytes(self, what, bytes);
    return AOTC_OK;
}

aotc_status run_reserve_arena(aotc_session_t *self, aotc_error *error) {
    return reserve(self, &self->arena, &self->arena_bytes, self->current->arena_bytes, "the arena", error);
}

/* ---- Outputs ---- */

static bool ranges_overlap(const char *a, uint64_t a_bytes, const char *b, uint64_t b_bytes) {
    return a && b && a_bytes && b_bytes && (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* No output shares memory with an input or with another output; an input lies in none of the session's own outputs. */
static aotc_status check_overlaps(aotc_session_t *self, aotc_error *error) {
    const plan_entry *record = self->view->record;
    for (uint32_t i = 0; i < record->outputs.count; i++) {
        output_slot *slot = &self->outputs[i];
        const char *name = plan_string(self->plan, self->view->outputs[i].name);
        uint64_t bytes = slot->bound ? shapes_tensor_bytes(self->plan, &self->view->outputs[i], self->current->exprs) : slot->owned_bytes;
        for (uint32_t k = 0; k < record->inputs.count; k++) {
            uint64_t input_bytes = shapes_tensor_bytes(self->plan, &self->view->inputs[k], self->current->exprs);
            if (ranges_overlap(slot->data, bytes, self->inputs[k].data, input_bytes))
                return fail(error, AOTC_INVALID_ARGUMENT, "output '%s' and input '%s' share memory; use other memory for one of them", name,
                            plan_string(self->plan, self->view->inputs[k].name));
        }
        for (uint32_t k = 0; k < i; k++) {
            output_slot *other = &self->outputs[k];
            uint64_t other_bytes =
                other->bound ? shapes_tensor_bytes(self->plan, &self->view->outputs[k], self->current->exprs) : other->owned_bytes;
            if (ranges_overlap(slot->data, bytes, other->data, other_bytes))
                return fail(error, AOTC_INVALID_ARGUMENT, "outputs '%s' and '%s' share memory; use other memory for one of them", name,
                            plan_string(self->plan, self->view->outputs[k].name));
        }
    }
    return AOTC_OK;
}

static aotc_status prepare_output(aotc_session_t *self, uint32_t number, aotc_error *error) {
    const plan_tensor *tensor = &self->view->outputs[number];
    output_slot *slot = &self->outputs[number];
    uint32_t rank = tensor->dims.count;
    int64_t stride = 1;
    for (uint32_t axis = rank; axis-- > 0;) {
        slot->dims[axis] = self->current->exprs[self->plan->dims[tensor->dims.first + axis].expr];
        slot->strides[axis] = stride;
        stride *= slot->dims[axis];
    }
    if (!slot->bound) {
        uint64_t bytes = shapes_tensor_bytes(self->plan, tensor, self->current->exprs);
        aotc_status status = reserve(self, &slot->owned, &slot->owned_bytes, bytes, "an output", error);
        slot->data = slot->owned;
        return status;
    }
    if (rank == 0 || memcmp(slot->dims, slot->bound_dims, rank * sizeof *slot->dims) == 0) return AOTC_OK;
    text expected = {0}, got = {0};
    text_shape(&expected, slot->dims, rank);
    text_shape(&got, slot->bound_dims, rank);
    return fail(error, AOTC_INVALID_ARGUMENT,
                "output '%s' has the shape %s for these inputs and is bound to a tensor of shape %s; bind one of the right shape, or NULL "
                "to let the session hold it",
                plan_string(self->plan, tensor->name), expected.data, got.data);
}

static aotc_status prepare(aotc_session_t *self, aotc_error *error) {
    aotc_status status = session_inputs_are_bound(self, error);
    if (!status) status = planning_select(self, error);
    if (!status) status = check_overlaps(self, error);
    if (!status) status = run_reserve_arena(self, error);
    for (uint32_t i = 0; i < self->view->record->outputs.count && !status; i++) status = prepare_output(self, i, error);
    self->ready = status == AOTC_OK;
    return status;
}

/* ---- Steps ---- */

/* One step's work, seen by all threads that share it. */
typedef struct job {
    aotc_kernel kernel;
    aotc_kernel_args arguments;
    int32_t tasks;
    atomic_int code; /* the first result of a part that was not 0 */
    _Atomic int64_t done;
} job;

#define BAD_RANGE INT32_MIN /* parallel_for asked for a range outside the tasks */

static int32_t run_part(void *context, int32_t begin, int32_t end) {
    job *self = context;
    int32_t code = BAD_RANGE;
    if (begin >= 0 && begin <= end && end <= self->tasks) {
        aotc_kernel_args arguments = self->arguments;
        arguments.begin = begin;
        arguments.end = end;
        code = begin < end ? self->kernel(&arguments) : 0;
        atomic_fetch_add_explicit(&self->done, end - begin, memory_order_relaxed);
    }
    int none = 0;
    if (code) atomic_compare_exchange_strong_explicit(&self->code, &none, code, memory_order_relaxed, memory_order_relaxed);
    return code;
}

static void *address(const aotc_session_t *self, const plan_value *value) {
    char *base;
    switch (value->storage) {
    case STORAGE_INPUT: base = self->inputs[value->index].data; break;
    case STORAGE_OUTPUT: base = self->outputs[value->index].data; break;
    case STORAGE_WEIGHT: base = (char *)(uintptr_t)aotc_weights_data; break;
    default: base = self->arena + self->current->offsets[value->index]; break;
    }
    return base ? base + self->current->exprs[value->offset] : NULL;
}

static aotc_status step_failed(const aotc_session_t *self, const plan_step *step, int32_t code, int64_t done, int64_t tasks,
                               aotc_error *error) {
    const char *source = plan_string(self->plan, step->source), *label = plan_string(self->plan, step->label);
    if (code == BAD_RANGE || (code == 0 && done != tasks))
        return fail(error, AOTC_KERNEL_FAILED,
                    "step '%s' (%s): parallel_for should run each of the %" PRId64 " tasks once and ran %" PRId64
                    " in proper ranges; correct it",
                    source, label, tasks, done);
    return fail(error, AOTC_KERNEL_FAILED,
                "step '%s' (%s) failed: its kernel returned %" PRId32 "; report this with the model and its inputs", source, label, code);
}

static aotc_status run_kernel(aotc_session_t *self, const plan_step *step, aotc_error *error) {
    const int64_t *exprs = self->current->exprs;
    const uint32_t *indices = self->plan->indices;
    int64_t tasks = exprs[step->tasks];
    if (tasks == 0) return AOTC_OK;
    for (uint32_t i = 0; i < step->arguments.count; i++)
        self->pointers[i] = address(self, &self->view->values[indices[step->arguments.first + i]]);
    for (uint32_t i = 0; i < step->dims.count; i++) self->dims[i] = exprs[indices[step->dims.first + i]];
    job job = {.kernel = aotc_kernels[step->kernel], .arguments = {.buffers = self->pointers, .dims = self->dims}, .tasks = (int32_t)tasks};
    if (tasks > 1 && self->parallel_for) self->parallel_for(self->parallel_for_context, job.tasks, run_part, &job);
    else run_part(&job, 0, job.tasks);
    int32_t code = atomic_load_explicit(&job.code, memory_order_relaxed);
    int64_t done = atomic_load_explicit(&job.done, memory_order_relaxed);
    return code == 0 && done == tasks ? AOTC_OK : step_failed(self, step, code, done, tasks, error);
}

static void run_copy(const aotc_session_t *self, const plan_step *step) {
    const uint32_t *arguments = self->plan->indices + step->arguments.first;
    const plan_value *from = &self->view->values[arguments[0]], *to = &self->view->values[arguments[1]];
    uint64_t bytes = shapes_value_bytes(self->plan, from, self->current->exprs);
    if (bytes) memcpy(address(self, to), address(self, from), (size_t)bytes);
}

static aotc_status run_steps(aotc_session_t *self, aotc_error *error) {
    uint64_t before = self->profile ? now_ns() : 0;
    for (uint32_t i = 0; i < self->view->record->steps.count; i++) {
        const plan_step *step = &self->view->steps[i];
        aotc_status status = AOTC_OK;
        if (step->kind == STEP_COPY) run_copy(self, step);
        else status = run_kernel(self, step, error);
        if (status) return status;
        if (!self->profile) continue;
        uint64_t after = now_ns();
        self->clocks[i].runs++;
        self->clocks[i].last_ns = after - before;
        self->clocks[i].total_ns += after - before;
        before = after;
    }
    return AOTC_OK;
}

aotc_status rt_run(aotc_session_t *self, aotc_error *error) {
    if (!session_enter(self)) return session_is_busy(error);
    self->has_run = false;
    aotc_status status = self->ready ? AOTC_OK : prepare(self, error);
    if (!status) {
        const aotc_api *pool = self->pool ? *(const aotc_api *const *)self->pool : NULL;
        if (pool) pool->pool_begin(self->pool);
        status = run_steps(self, error);
        if (pool) pool->pool_end(self->pool);
    }
    self->has_run = status == AOTC_OK;
    session_leave(self);
    return status ? status : succeed(error);
}
