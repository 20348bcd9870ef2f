/* What a session tells about itself: steps with their times, memory. */
#include <string.h>

#include "dims.h"
#include "device.h"

aotc_status rt_set_profiling(aotc_session_t *self, int on, aotc_error *error) {
    if (!session_enter(self)) return session_is_busy(error);
    if (on && !self->profile) memset(self->clocks, 0, self->view->record->steps.count * sizeof *self->clocks);
    self->profile = on != 0;
    session_leave(self);
    return succeed(error);
}

size_t rt_step_count(const aotc_session_t *self) { return self->view->record->steps.count; }

/* Fill in as much of the caller's struct as it has room for; its size stays. */
static void hand_over(void *target, const void *source, size_t known) {
    uint32_t size;
    memcpy(&size, target, sizeof size);
    size_t bytes = size < known ? size : known;
    memcpy((char *)target + sizeof size, (const char *)source + sizeof size, bytes - sizeof size);
}

static aotc_status no_room(const char *name, aotc_error *error) {
    return fail(error, AOTC_INVALID_ARGUMENT, "%s is NULL or its size is not set; set it to sizeof(%s)", name, name);
}

/* The value of an expression in the latest run; 0: none. */
static const char *kernel_name(const plan *plan, const plan_step *step) {
    if (step->kind == STEP_KERNEL) return plan_string(plan, plan->kernels[step->kernel].symbol);
    return step->kind == STEP_LAUNCH ? plan_string(plan, plan->cuda_kernels[step->kernel].symbol) : "";
}

static int64_t latest(const aotc_session_t *self, uint32_t expr) {
    plan_range code = self->view->exprs[expr];
    int64_t value = 0;
    if (!self->current) return 0;
    if (!self->view->dynamic[expr]) value = self->current->exprs[expr];
    else if (dims_evaluate(self->plan->code + code.first, code.count, self->current->symbols, &value)) return 0;
    return value < 0 ? 0 : value;
}

aotc_status rt_step_info(aotc_session_t *self, size_t number, aotc_step_info *info, aotc_error *error) {
    if (!info || info->size < sizeof info->size) return no_room("aotc_step_info", error);
    if (number >= rt_step_count(self))
        return fail(error, AOTC_INVALID_ARGUMENT, "there is no step %zu; the entry point has %zu, counted from 0", number,
                    rt_step_count(self));
    if (!session_enter(self)) return session_is_busy(error);
    const plan_step *step = &self->view->steps[number];
    const step_clock *clock = &self->clocks[number];
    bool jumps = step->kind == STEP_BRANCH || step->kind == STEP_JUMP;
    aotc_step_info filled = {
        .size = sizeof filled,
        .is_copy = step->kind == STEP_COPY,
        .name = plan_string(self->plan, step->source),
        .label = plan_string(self->plan, step->label),
        .kernel = kernel_name(self->plan, step),
        .runs = clock->runs,
        .total_ns = clock->total_ns,
        .last_ns = clock->last_ns,
        .flops = latest(self, step->flops),
        .tasks = latest(self, step->tasks),
        .kind = step->kind,
        .target = jumps ? step->target : 0,
    };
    hand_over(info, &filled, sizeof filled);
    session_leave(self);
    return succeed(error);
}

aotc_status rt_memory_info(aotc_session_t *self, aotc_memory_info *info, aotc_error *error) {
    if (!info || info->size < sizeof info->size) return no_room("aotc_memory_info", error);
    if (!session_enter(self)) return session_is_busy(error);
    uint64_t outputs = 0, dynamic = 0, mirrors = 0;
    const device_session *cuda = self->cuda;
    for (uint32_t i = 0; i < self->view->record->inputs.count; i++) mirrors += self->inputs[i].side.mirror_bytes;
    for (uint32_t i = 0; i < self->view->record->outputs.count; i++) mirrors += self->outputs[i].side.mirror_bytes;
    for (uint32_t i = 0; i < self->view->record->outputs.count; i++) outputs += self->outputs[i].owned_bytes;
    for (uint32_t i = 0; i < self->view->record->buffers.count; i++) dynamic += self->buffers[i].bytes;
    aotc_memory_info filled = {
        .size = sizeof filled,
        .shape_plans = self->plan_count,
        .weights = aotc_weights_size,
        .arena = self->arena_bytes,
        .planned = self->current ? self->current->arena_bytes[MEMORY_HOST] : 0,
        .lower_bound = self->current ? self->current->lower_bound : 0,
        .outputs = outputs,
        .total = self->held,
        .peak = self->peak,
        .dynamic = dynamic,
        .states = self->states ? self->states->bytes + self->states->shared.bytes : 0,
        .device = cuda ? cuda->arena_bytes + mirrors : 0,
        .shared = cuda ? cuda->shared.bytes : 0,
        .device_weights = cuda ? cuda->device->weights_bytes : 0,
    };
    hand_over(info, &filled, sizeof filled);
    session_leave(self);
    return succeed(error);
}
