/* What one set of input shapes needs: sizes, task counts, offsets in the arena.
 *
 * A session remembers the plans of the shapes it has met, the least recently used giving way, so that a shape that comes again
 * costs a comparison. A plan is checked completely before it is used: after that, a run only follows it. */
#include <string.h>

#include "device.h"

static aotc_status check_outputs(const plan *plan, const plan_view *view, const int64_t *exprs, aotc_error *error) {
    for (uint32_t i = 0; i < view->record->outputs.count; i++) {
        if (plan_output_is_dynamic(plan, view, i)) continue;
        const plan_tensor *tensor = &view->outputs[i];
        int64_t shape[PLAN_MAX_RANK];
        for (uint32_t axis = 0; axis < tensor->dims.count; axis++) shape[axis] = exprs[plan->dims[tensor->dims.first + axis].expr];
        if (!shapes_countable(shape, tensor->dims.count))
            return shapes_too_large("output", plan_string(plan, tensor->name), shape, tensor->dims.count, error);
    }
    return AOTC_OK;
}

/* Sizes of the arena's buffers. One that is impossible may belong to a branch that such inputs do not take: its steps tell. */
static aotc_status check_buffers(const plan_view *view, const int64_t *exprs, aotc_error *error) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < view->record->buffers.count; i++) {
        int64_t size = exprs[view->buffers[i].size];
        if (view->dynamic[view->buffers[i].size]) continue;
        if (!view->branches && (size < 0 || size > MAX_BUFFER_BYTES)) return checks_wrong("buffer", i, "has an impossible size", error);
        total += memory_buffer_bytes(view, exprs, i);
        if (total > (uint64_t)MAX_BUFFER_BYTES) return checks_wrong("buffer", i, "has an impossible size", error);
        if (view->buffers[i].has_offset && view->buffers[i].offset > MAX_BUFFER_BYTES)
            return checks_wrong("buffer", i, "has an impossible offset", error);
    }
    return AOTC_OK;
}

/* Offsets that the build fixed: inside the arena, and apart from those that are alive at the same time. */
static aotc_status check_offsets(const plan_view *view, const shape_plan *made, aotc_error *error) {
    for (uint32_t i = 0; i < view->record->buffers.count; i++) {
        const plan_buffer *a = &view->buffers[i];
        uint64_t a_bytes = memory_buffer_bytes(view, made->exprs, i), a_end = made->offsets[i] + a_bytes;
        if (a_end > made->arena_bytes[a->memory]) return checks_wrong("buffer", i, "leaves the arena", error);
        if (a_bytes == 0) continue;
        for (uint32_t k = 0; k < i; k++) {
            const plan_buffer *b = &view->buffers[k];
            uint64_t b_bytes = memory_buffer_bytes(view, made->exprs, k), b_end = made->offsets[k] + b_bytes;
            bool together = a->memory == b->memory && a->first_step <= b->last_step && b->first_step <= a->last_step;
            if (together && b_bytes && made->offsets[i] < b_end && made->offsets[k] < a_end)
                return checks_wrong("buffer", i, "overlaps another", error);
        }
    }
    return AOTC_OK;
}

/* All expressions but dynamic ones. One that has no value may belong to a branch that such inputs do not take. */
static aotc_status evaluate_all(const plan *plan, const plan_view *view, shape_plan *made, aotc_error *error) {
    for (uint32_t i = 0; i < view->record->exprs.count; i++) {
        made->exprs[i] = UNKNOWN;
        if (view->dynamic[i]) continue;
        aotc_status status = shapes_evaluate(plan, view, i, made->symbols, &made->exprs[i], error);
        if (status && !view->branches) return status;
    }
    return AOTC_OK;
}

/* Whether a size of the step is known only while running. */
static bool is_dynamic(const plan *plan, const plan_view *view, const plan_step *step) {
    bool dynamic = view->dynamic[step->tasks];
    for (uint32_t i = 0; i < step->dims.count; i++) dynamic |= view->dynamic[plan->indices[step->dims.first + i]];
    for (uint32_t i = 0; i < step->arguments.count && !dynamic; i++) {
        const plan_value *value = &view->values[plan->indices[step->arguments.first + i]];
        dynamic |= view->dynamic[value->offset];
        for (uint32_t axis = 0; axis < value->shape.count; axis++) dynamic |= view->dynamic[plan->indices[value->shape.first + axis]];
        if (value->storage == STORAGE_ARENA) dynamic |= view->dynamic[view->buffers[value->index].size];
        if (value->storage == STORAGE_OUTPUT) dynamic |= plan_output_is_dynamic(plan, view, value->index);
    }
    return dynamic;
}

/* Steps whose sizes are all known. One that is wrong may be one that such inputs do not reach, where there are branches. */
static aotc_status check_steps(const plan *plan, const plan_view *view, shape_plan *made, aotc_error *error) {
    for (uint32_t i = 0; i < view->record->steps.count; i++) {
        made->sound[i] = false;
        if (is_dynamic(plan, view, &view->steps[i])) continue;
        aotc_status status = checks_step(plan, view, i, made->exprs, error);
        if (status && !view->branches) return status;
        made->sound[i] = status == AOTC_OK;
    }
    return AOTC_OK;
}

/* The offsets and sizes that the build fixed. The sizes of the device's arenas follow from the offsets. */
static void take_fixed(const plan_view *view, shape_plan *made) {
    made->arena_bytes[MEMORY_HOST] = (uint64_t)view->record->arena_size;
    for (uint32_t i = 0; i < view->record->buffers.count; i++) {
        const plan_buffer *buffer = &view->buffers[i];
        uint64_t end = (uint64_t)buffer->offset + memory_buffer_bytes(view, made->exprs, i), *total = &made->arena_bytes[buffer->memory];
        made->offsets[i] = (uint64_t)buffer->offset;
        if (buffer->memory != MEMORY_HOST && end > *total) *total = end;
    }
    made->lower_bound =
        view->record->arena_lower_bound >= 0 ? (uint64_t)view->record->arena_lower_bound : memory_lower_bound(view, made->exprs);
}

static aotc_status compute(aotc_session_t *self, shape_plan *made, aotc_error *error) {
    const plan_view *view = self->view;
    aotc_status status = shapes_symbols(self->plan, view, self->input_shapes, made->symbols, error);
    if (status) return status;
    if ((status = evaluate_all(self->plan, view, made, error))) return status;
    if ((status = check_outputs(self->plan, view, made->exprs, error))) return status;
    if ((status = check_buffers(view, made->exprs, error))) return status;
    if ((status = check_steps(self->plan, view, made, error))) return status;
    memset(made->arena_bytes, 0, sizeof made->arena_bytes);
    if (view->record->arena_size >= 0) {
        take_fixed(view, made);
        if ((status = check_offsets(view, made, error))) return status;
    } else {
        memory_place(view, made->exprs, self->order, self->placed, made->offsets, made->arena_bytes);
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
    if (self->plan_count == self->plan_limit || (self->plan_count && !oldest->last_use)) {
        if (self->cuda) graphs_forget(self, oldest);
        return AOTC_OK;
    }
    void *memory;
    aotc_status status = session_allocate(self, self->plan_bytes, "the plan for the input shapes", &memory, error);
    if (status) return status;
    *made = &self->plans[self->plan_count++];
    (*made)->key = memory;
    (*made)->symbols = (*made)->key + self->view->input_dims;
    (*made)->exprs = (*made)->symbols + self->view->record->symbols.count;
    (*made)->offsets = (uint64_t *)((*made)->exprs + self->view->record->exprs.count);
    (*made)->sound = (uint8_t *)((*made)->offsets + self->view->record->buffers.count);
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
