/* What one set of input shapes needs: sizes, task counts, offsets in the arena.
 *
 * A session remembers the plans of the shapes it has met, the least recently used giving way, so that a shape that comes again
 * costs a comparison. A plan is checked completely before it is used: after that, a run only follows it. */
#include <string.h>

#include "internal.h"

static aotc_status wrong_plan(const char *what, uint32_t number, const char *problem, aotc_error *error) {
    return fail(error, AOTC_INVALID_FILE, "the plan is wrong at these shapes: %s %u %s; report this with the model", what, (unsigned)number,
                problem);
}

static aotc_status check_outputs(const plan *plan, const plan_view *view, const int64_t *exprs, aotc_error *error) {
    for (uint32_t i = 0; i < view->record->outputs.count; i++) {
        const plan_tensor *tensor = &view->outputs[i];
        int64_t shape[PLAN_MAX_RANK];
        for (uint32_t axis = 0; axis < tensor->dims.count; axis++) shape[axis] = exprs[plan->dims[tensor->dims.first + axis].expr];
        if (!shapes_countable(shape, tensor->dims.count))
            return shapes_too_large("output", plan_string(plan, tensor->name), shape, tensor->dims.count, error);
    }
    return AOTC_OK;
}

/* The user's name of the first step that has the value as an argument. */
static const char *name_of_value(const plan *plan, const plan_view *view, uint32_t value) {
    for (uint32_t i = 0; i < view->record->steps.count; i++)
        for (uint32_t k = 0; k < view->steps[i].arguments.count; k++)
            if (plan->indices[view->steps[i].arguments.first + k] == value) return plan_string(plan, view->steps[i].source);
    return "";
}

static uint64_t storage_bytes(const plan *plan, const plan_view *view, const plan_value *value, const int64_t *exprs) {
    switch (value->storage) {
    case STORAGE_INPUT: return shapes_tensor_bytes(plan, &view->inputs[value->index], exprs);
    case STORAGE_OUTPUT: return shapes_tensor_bytes(plan, &view->outputs[value->index], exprs);
    case STORAGE_WEIGHT: return aotc_weights_size;
    default: return (uint64_t)exprs[view->buffers[value->index].size];
    }
}

/* Every value lies within its input, output, buffer or the weights. */
static aotc_status check_values(const plan *plan, const plan_view *view, const int64_t *exprs, aotc_error *error) {
    for (uint32_t i = 0; i < view->record->values.count; i++) {
        const plan_value *value = &view->values[i];
        int64_t shape[PLAN_MAX_RANK], offset = exprs[value->offset];
        for (uint32_t axis = 0; axis < value->shape.count; axis++) shape[axis] = exprs[plan->indices[value->shape.first + axis]];
        if (!shapes_countable(shape, value->shape.count))
            return shapes_too_large("a tensor of step", name_of_value(plan, view, i), shape, value->shape.count, error);
        uint64_t room = storage_bytes(plan, view, value, exprs), bytes = shapes_value_bytes(plan, value, exprs);
        if (offset < 0 || (uint64_t)offset > room || bytes > room - (uint64_t)offset)
            return wrong_plan("value", i, "leaves its memory", error);
        if (offset % plan_itemsize(value->dtype) != 0) return wrong_plan("value", i, "is not aligned", error);
    }
    return AOTC_OK;
}

static aotc_status check_buffers(const plan_view *view, const int64_t *exprs, aotc_error *error) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < view->record->buffers.count; i++) {
        int64_t size = exprs[view->buffers[i].size];
        if (size < 0 || size > INT64_C(1) << 47) return wrong_plan("buffer", i, "has an impossible size", error);
        total += (uint64_t)size;
        if (total > UINT64_C(1) << 47) return wrong_plan("buffer", i, "has an impossible size", error);
        if (view->buffers[i].has_offset && view->buffers[i].offset > INT64_C(1) << 47)
            return wrong_plan("buffer", i, "has an impossible offset", error);
    }
    return AOTC_OK;
}

/* Offsets that the build fixed: inside the arena, and apart from those that are alive at the same time. */
static aotc_status check_offsets(const plan_view *view, const shape_plan *made, aotc_error *error) {
    for (uint32_t i = 0; i < view->record->buffers.count; i++) {
        const plan_buffer *a = &view->buffers[i];
        uint64_t a_end = made->offsets[i] + (uint64_t)made->exprs[a->size];
        if (a_end > made->arena_bytes) return wrong_plan("buffer", i, "leaves the arena", error);
        if (made->exprs[a->size] == 0) continue;
        for (uint32_t k = 0; k < i; k++) {
            const plan_buffer *b = &view->buffers[k];
            uint64_t b_end = made->offsets[k] + (uint64_t)made->exprs[b->size];
            bool together = a->first_step <= b->last_step && b->first_step <= a->last_step;
            if (together && made->exprs[b->size] && made->offsets[i] < b_end && made->offsets[k] < a_end)
                return wrong_plan("buffer", i, "overlaps another", error);
        }
    }
    return AOTC_OK;
}

/* Whether two values share bytes. */
static bool overlap(const plan *plan, const int64_t *exprs, const plan_value *a, const plan_value *b) {
    if (a->storage != b->storage || a->index != b->index) return false;
    uint64_t a_start = (uint64_t)exprs[a->offset], a_end = a_start + shapes_value_bytes(plan, a, exprs);
    uint64_t b_start = (uint64_t)exprs[b->offset], b_end = b_start + shapes_value_bytes(plan, b, exprs);
    return a_start < a_end && b_start < b_end && a_start < b_end && b_start < a_end;
}

/* Parameters of a kernel that it writes share no bytes with its others: its code relies on that. */
static aotc_status check_steps(const plan *plan, const plan_view *view, const int64_t *exprs, aotc_error *error) {
    for (uint32_t i = 0; i < view->record->steps.count; i++) {
        const plan_step *step = &view->steps[i];
        const uint32_t *arguments = plan->indices + step->arguments.first;
        if (exprs[step->tasks] < 0 || exprs[step->tasks] > MAX_ELEMENTS)
            return wrong_plan("step", i, "has an impossible number of tasks", error);
        for (uint32_t k = 0; k < step->dims.count; k++) {
            int64_t dim = exprs[plan->indices[step->dims.first + k]];
            if (dim < -MAX_ELEMENTS || dim > MAX_ELEMENTS) return wrong_plan("step", i, "has a dim beyond 32 bits", error);
        }
        for (uint32_t k = step->arguments.count - step->outputs; k < step->arguments.count; k++)
            for (uint32_t m = 0; m < k; m++)
                if (overlap(plan, exprs, &view->values[arguments[k]], &view->values[arguments[m]]))
                    return wrong_plan("step", i, "writes what it also reads", error);
        if (step->kind != STEP_COPY) continue;
        const plan_value *from = &view->values[arguments[0]], *to = &view->values[arguments[1]];
        if (shapes_value_bytes(plan, from, exprs) != shapes_value_bytes(plan, to, exprs))
            return wrong_plan("step", i, "copies between sizes", error);
    }
    return AOTC_OK;
}

static aotc_status compute(aotc_session_t *self, shape_plan *made, aotc_error *error) {
    const plan_view *view = self->view;
    int64_t symbols[PLAN_MAX_SYMBOLS];
    aotc_status status = shapes_symbols(self->plan, view, self->input_shapes, symbols, error);
    if (status) return status;
    for (uint32_t i = 0; i < view->record->exprs.count; i++)
        if ((status = shapes_evaluate(self->plan, view, i, symbols, &made->exprs[i], error))) return status;
    if ((status = check_outputs(self->plan, view, made->exprs, error))) return status;
    if ((status = check_buffers(view, made->exprs, error))) return status;
    if ((status = check_values(self->plan, view, made->exprs, error))) return status;
    if ((status = check_steps(self->plan, view, made->exprs, error))) return status;
    if (view->record->arena_size >= 0) {
        for (uint32_t i = 0; i < view->record->buffers.count; i++) made->offsets[i] = (uint64_t)view->buffers[i].offset;
        made->arena_bytes = (uint64_t)view->record->arena_size;
        made->lower_bound =
            view->record->arena_lower_bound >= 0 ? (uint64_t)view->record->arena_lower_bound : memory_lower_bound(view, made->exprs);
        if ((status = check_offsets(view, made, error))) return status;
    } else {
        made->arena_bytes = memory_place(view, made->exprs, self->order, self->placed, made->offsets);
        made->lower_bound = memory_lower_bound(view, made->exprs);
    }
    memcpy(made->key, self->key, view->input_dims * sizeof *made->key);
    return AOTC_OK;
}

/* A plan to fill: one that failed, a new one while there is room, else the one not used for longest. */
static aotc_status vacant(aotc_session_t *self, shape_plan **made, aotc_error *error) {
    shape_plan *oldest = self->plans;
    for (uint32_t i = 1; i < self->plan_count; i++)
        if (self->plans[i].last_use < oldest->last_use) oldest = &self->plans[i];
    *made = oldest;
    if (self->plan_count == self->plan_limit || (self->plan_count && !oldest->last_use)) return AOTC_OK;
    void *memory;
    aotc_status status = session_allocate(self, self->plan_bytes, "the plan for the input shapes", &memory, error);
    if (status) return status;
    *made = &self->plans[self->plan_count++];
    (*made)->key = memory;
    (*made)->exprs = (*made)->key + self->view->input_dims;
    (*made)->offsets = (uint64_t *)((*made)->exprs + self->view->record->exprs.count);
    return AOTC_OK;
}

aotc_status planning_select(aotc_session_t *self, aotc_error *error) {
    size_t key_bytes = self->view->input_dims * sizeof *self->key;
    self->uses++;
    for (uint32_t i = 0; i < self->plan_count; i++) {
        shape_plan *known = &self->plans[i];
        if (!known->last_use || memcmp(known->key, self->key, key_bytes) != 0) continue;
        known->last_use = self->uses;
        self->current = known;
        return AOTC_OK;
    }
    shape_plan *made;
    aotc_status status = vacant(self, &made, error);
    if (status) return status;
    if (self->current == made) self->current = NULL;
    made->last_use = 0; /* not valid until it is complete */
    if ((status = compute(self, made, error))) return status;
    made->last_use = self->uses;
    self->current = made;
    return AOTC_OK;
}
