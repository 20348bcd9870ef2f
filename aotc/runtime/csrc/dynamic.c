/* Sizes that are known only while running: symbols that steps set, expressions over them, and memory that grows to hold them. */
#include <inttypes.h>

#include "dims.h"
#include "internal.h"

/* Memory that a tensor can need: every element of the widest type. */
#define MAX_DYNAMIC_BYTES (MAX_ELEMENTS * 8)

static aotc_status evaluate(aotc_session_t *self, const plan_step *step, uint32_t expr, aotc_error *error) {
    const shape_plan *current = self->current;
    if (!self->view->dynamic[expr] && current->exprs[expr] != UNKNOWN) return AOTC_OK;
    plan_range code = self->view->exprs[expr];
    const char *problem = dims_evaluate(self->plan->code + code.first, code.count, current->symbols, &current->exprs[expr]);
    if (!problem) return AOTC_OK;
    current->exprs[expr] = UNKNOWN;
    return fail(error, AOTC_INVALID_ARGUMENT, "step '%s' (%s): a size that follows from the data %s; use other inputs",
                step ? plan_string(self->plan, step->source) : "", step ? plan_string(self->plan, step->label) : "an output", problem);
}

static aotc_status evaluate_range(aotc_session_t *self, const plan_step *step, plan_range indices, aotc_error *error) {
    aotc_status status = AOTC_OK;
    for (uint32_t i = 0; i < indices.count && !status; i++)
        status = evaluate(self, step, self->plan->indices[indices.first + i], error);
    return status;
}

static aotc_status hold_buffer(aotc_session_t *self, const plan_step *step, uint32_t buffer, aotc_error *error) {
    uint32_t size = self->view->buffers[buffer].size;
    aotc_status status = evaluate(self, step, size, error);
    if (status || !self->view->dynamic[size]) return status;
    int64_t bytes = self->current->exprs[size];
    if (bytes < 0 || bytes > MAX_DYNAMIC_BYTES)
        return fail(error, AOTC_INVALID_ARGUMENT,
                    "step '%s' (%s) would need %" PRId64 " bytes for one tensor; a tensor holds fewer than 2^31 elements: change the inputs",
                    plan_string(self->plan, step->source), plan_string(self->plan, step->label), bytes);
    growing *memory = &self->buffers[buffer];
    return session_grow(self, &memory->data, &memory->bytes, (uint64_t)bytes, "a tensor whose size depends on the data", error);
}

static aotc_status hold_output(aotc_session_t *self, const plan_step *step, uint32_t output, aotc_error *error) {
    if (!plan_output_is_dynamic(self->plan, self->view, output)) return AOTC_OK;
    const plan_tensor *tensor = &self->view->outputs[output];
    output_slot *slot = &self->outputs[output];
    for (uint32_t axis = 0; axis < tensor->dims.count; axis++) {
        uint32_t expr = self->plan->dims[tensor->dims.first + axis].expr;
        aotc_status status = evaluate(self, step, expr, error);
        if (status) return status;
        slot->dims[axis] = self->current->exprs[expr];
    }
    const char *name = plan_string(self->plan, tensor->name);
    if (!shapes_countable(slot->dims, tensor->dims.count)) return shapes_too_large("output", name, slot->dims, tensor->dims.count, error);
    uint64_t bytes = shapes_tensor_bytes(self->plan, tensor, self->current->exprs);
    aotc_status status = session_grow(self, &slot->owned, &slot->owned_bytes, bytes, name, error);
    slot->data = slot->owned;
    return status;
}

static aotc_status hold_argument(aotc_session_t *self, const plan_step *step, const plan_value *value, aotc_error *error) {
    aotc_status status = evaluate(self, step, value->offset, error);
    if (!status) status = evaluate_range(self, step, value->shape, error);
    if (!status && value->storage == STORAGE_ARENA) status = hold_buffer(self, step, value->index, error);
    if (!status && value->storage == STORAGE_OUTPUT) status = hold_output(self, step, value->index, error);
    return status;
}

aotc_status dynamic_prepare(aotc_session_t *self, uint32_t number, aotc_error *error) {
    const plan_step *step = &self->view->steps[number];
    aotc_status status = evaluate(self, step, step->tasks, error);
    if (!status) status = evaluate_range(self, step, step->dims, error);
    for (uint32_t i = 0; i < step->arguments.count && !status; i++)
        status = hold_argument(self, step, &self->view->values[self->plan->indices[step->arguments.first + i]], error);
    return status ? status : checks_step(self->plan, self->view, number, self->current->exprs, error);
}

aotc_status dynamic_set_symbol(aotc_session_t *self, int64_t value, const plan_step *step, aotc_error *error) {
    const plan_symbol *symbol = &self->view->symbols[step->target];
    self->current->symbols[step->target] = value;
    if (value >= symbol->lower && (!symbol->has_upper || value <= symbol->upper)) return AOTC_OK;
    self->current->symbols[step->target] = symbol->lower;
    text bound = {0};
    if (symbol->has_upper) text_add(&bound, " to %" PRId64, symbol->upper);
    else text_add(&bound, " or more");
    return fail(error, AOTC_INVALID_ARGUMENT,
                "step '%s' (%s): the data make the size '%s' %" PRId64 ", the model was built for %" PRId64 "%s; change the inputs",
                plan_string(self->plan, step->source), plan_string(self->plan, step->label), plan_string(self->plan, symbol->name), value,
                symbol->lower, bound.data);
}

aotc_status dynamic_check(const aotc_session_t *self, const plan_step *step, aotc_error *error) {
    const uint32_t *dims = self->plan->indices + step->dims.first;
    int64_t left = self->current->exprs[dims[0]], right = self->current->exprs[dims[1]];
    if (left == right) return AOTC_OK;
    return fail(error, AOTC_INVALID_ARGUMENT,
                "step '%s' (%s): two sizes should be equal and are %" PRId64 " and %" PRId64 " with these inputs; change the inputs",
                plan_string(self->plan, step->source), plan_string(self->plan, step->label), left, right);
}

aotc_status dynamic_finish(aotc_session_t *self, aotc_error *error) {
    for (uint32_t i = 0; i < self->view->record->outputs.count; i++) {
        if (!plan_output_is_dynamic(self->plan, self->view, i)) continue;
        aotc_status status = hold_output(self, NULL, i, error);
        if (status) return status;
        output_slot *slot = &self->outputs[i];
        int64_t stride = 1;
        for (uint32_t axis = self->view->outputs[i].dims.count; axis-- > 0; stride *= slot->dims[axis]) slot->strides[axis] = stride;
    }
    return AOTC_OK;
}
