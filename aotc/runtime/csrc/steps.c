/* Following the steps of an entry point. */
#include <inttypes.h>
#include <string.h>

#include "device.h"

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
    if (self->cuda && (value->storage == STORAGE_INPUT || value->storage == STORAGE_OUTPUT)) return device_host_address(self, value);
    switch (value->storage) {
    case STORAGE_INPUT: base = self->inputs[value->index].data; break;
    case STORAGE_OUTPUT: base = self->outputs[value->index].data; break;
    case STORAGE_WEIGHT: base = (char *)(uintptr_t)self->model->weights; break;
    case STORAGE_STATE: base = self->states->data[value->index]; break;
    default:
        if (self->view->buffers[value->index].memory != MEMORY_HOST) return device_host_address(self, value);
        base = self->buffers[value->index].data;
        if (!self->view->dynamic[self->view->buffers[value->index].size]) base = self->arena + self->current->offsets[value->index];
        break;
    }
    return base ? base + self->current->exprs[value->offset] : NULL;
}

static const plan_value *argument(const aotc_session_t *self, const plan_step *step, uint32_t number) {
    return &self->view->values[self->plan->indices[step->arguments.first + number]];
}

static int64_t dim(const aotc_session_t *self, const plan_step *step, uint32_t number) {
    return self->current->exprs[self->plan->indices[step->dims.first + number]];
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
    int64_t tasks = self->current->exprs[step->tasks];
    if (tasks == 0) return AOTC_OK;
    for (uint32_t i = 0; i < step->arguments.count; i++) self->pointers[i] = address(self, argument(self, step, i));
    for (uint32_t i = 0; i < step->dims.count; i++) self->dims[i] = dim(self, step, i);
    job job = {.kernel = aotc_kernels[step->kernel], .arguments = {.buffers = self->pointers, .dims = self->dims}, .tasks = (int32_t)tasks};
    bool whole = tasks < 2 || (step->target ? !self->rounds : !self->parallel_for);
    if (whole) run_part(&job, 0, job.tasks);
    else if (step->target) self->rounds(self->pool, job.tasks, (int32_t)step->target, run_part, &job);
    else self->parallel_for(self->parallel_for_context, job.tasks, run_part, &job);
    int32_t code = atomic_load_explicit(&job.code, memory_order_relaxed);
    int64_t done = atomic_load_explicit(&job.done, memory_order_relaxed);
    return code == 0 && done == tasks ? AOTC_OK : step_failed(self, step, code, done, tasks, error);
}

static void run_copy(const aotc_session_t *self, const plan_step *step) {
    const plan_value *from = argument(self, step, 0), *to = argument(self, step, 1);
    uint64_t bytes = shapes_value_bytes(self->plan, from, self->current->exprs);
    if (bytes) memcpy(address(self, to), address(self, from), (size_t)bytes);
}

static aotc_status run_shape(aotc_session_t *self, const plan_step *step, aotc_error *error) {
    int64_t value = dim(self, step, 0);
    if (step->arguments.count) {
        const char *data = address(self, argument(self, step, 0));
        memcpy(&value, data + value * (int64_t)sizeof value, sizeof value);
    }
    return dynamic_set_symbol(self, value, step, error);
}

/* Whether a branch goes on at its target. */
static bool takes_branch(const aotc_session_t *self, const plan_step *step) {
    if (step->arguments.count) return !*(const unsigned char *)address(self, argument(self, step, 0));
    return dim(self, step, 0) >= dim(self, step, 1);
}

/* Run a step; *next becomes the one to go on with. */
static aotc_status run_step(aotc_session_t *self, uint32_t number, uint32_t *next, aotc_error *error) {
    const plan_step *step = &self->view->steps[number];
    aotc_status status = self->current->sound[number] ? AOTC_OK : dynamic_prepare(self, number, error);
    *next = number + 1;
    if (!status && self->cuda && step->outputs && !plan_is_device_step(step->kind)) status = device_before_write(self, step, error);
    if (status) return status;
    switch (step->kind) {
    case STEP_KERNEL: return run_kernel(self, step, error);
    case STEP_COPY: run_copy(self, step); return AOTC_OK;
    case STEP_SHAPE: return run_shape(self, step, error);
    case STEP_CHECK: return dynamic_check(self, step, error);
    case STEP_BRANCH:
        if (takes_branch(self, step)) *next = step->target;
        return AOTC_OK;
    case STEP_JUMP: *next = step->target; return AOTC_OK;
    default: return device_step(self, number, next, error);
    }
}

static aotc_status cancelled(const aotc_session_t *self, const plan_step *step, aotc_error *error) {
    return fail(error, AOTC_CANCELLED, "the run was cancelled in the loop at step '%s' (%s)", plan_string(self->plan, step->source),
                plan_string(self->plan, step->label));
}

aotc_status steps_run(aotc_session_t *self, aotc_error *error) {
    const plan_view *view = self->view;
    for (uint32_t i = 0; i < view->record->symbols.count; i++)
        if (view->symbols[i].input == PLAN_NO_INPUT) self->current->symbols[i] = view->symbols[i].lower;
    const nvtx_ranges *ranges = self->cuda && self->cuda->device->ranges.push ? &self->cuda->device->ranges : NULL;
    uint64_t before = self->profile ? now_ns() : 0;
    for (uint32_t at = 0, next; at < view->record->steps.count; at = next) {
        if (ranges) ranges->push(plan_string(self->plan, view->steps[at].source));
        aotc_status status = run_step(self, at, &next, error);
        if (ranges) ranges->pop();
        if (status) return status;
        if (next <= at && atomic_load_explicit(&self->cancelled, memory_order_relaxed)) return cancelled(self, &view->steps[at], error);
        if (!self->profile) continue;
        uint64_t after = now_ns();
        self->clocks[at].runs++;
        self->clocks[at].last_ns = after - before;
        self->clocks[at].total_ns += after - before;
        before = after;
    }
    return AOTC_OK;
}
