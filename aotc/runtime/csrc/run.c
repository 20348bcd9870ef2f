/* Running: prepare once after something was bound, then follow the steps (steps.c). */
#include <inttypes.h>
#include <string.h>

#include "device.h"

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
    return reserve(self, &self->arena, &self->arena_bytes, self->current->arena_bytes[MEMORY_HOST], "the arena", error);
}

/* ---- Outputs ---- */

static bool ranges_overlap(const char *a, uint64_t a_bytes, const char *b, uint64_t b_bytes) {
    return a && b && a_bytes && b_bytes && (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* Whether two tensors of the caller share memory of host or GPU. */
static bool tensors_overlap(const char *a, const other_side *a_side, uint64_t a_bytes, const char *b, const other_side *b_side,
                            uint64_t b_bytes) {
    const char *a_device = (const char *)(uintptr_t)a_side->device, *b_device = (const char *)(uintptr_t)b_side->device;
    return ranges_overlap(a, a_bytes, b, b_bytes) || ranges_overlap(a_device, a_bytes, b_device, b_bytes);
}

/* What the caller bound lies apart from the states. */
static aotc_status check_states(const aotc_session_t *self, aotc_error *error) {
    const plan_entry *record = self->view->record;
    const state_set *states = self->states;
    for (uint32_t i = 0; states && i < record->inputs.count + record->outputs.count; i++) {
        bool is_input = i < record->inputs.count;
        uint32_t number = is_input ? i : i - record->inputs.count;
        if (!is_input && !self->outputs[number].bound) continue;
        const plan_tensor *tensor = is_input ? &self->view->inputs[number] : &self->view->outputs[number];
        const char *data = is_input ? self->inputs[number].data : self->outputs[number].data;
        uint64_t bytes = shapes_tensor_bytes(self->plan, tensor, self->current->exprs);
        if (ranges_overlap(data, bytes, (const char *)states, states->bytes) ||
            ranges_overlap(data, bytes, states->shared.host, states->shared.bytes))
            return fail(error, AOTC_INVALID_ARGUMENT, "%s '%s' lies in the memory of a state; use memory of your own",
                        is_input ? "input" : "output", plan_string(self->plan, tensor->name));
    }
    return AOTC_OK;
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
            if (tensors_overlap(slot->data, &slot->side, bytes, self->inputs[k].data, &self->inputs[k].side, input_bytes))
                return fail(error, AOTC_INVALID_ARGUMENT, "output '%s' and input '%s' share memory; use other memory for one of them", name,
                            plan_string(self->plan, self->view->inputs[k].name));
        }
        for (uint32_t k = 0; k < i; k++) {
            output_slot *other = &self->outputs[k];
            uint64_t other_bytes =
                other->bound ? shapes_tensor_bytes(self->plan, &self->view->outputs[k], self->current->exprs) : other->owned_bytes;
            if (tensors_overlap(slot->data, &slot->side, bytes, other->data, &other->side, other_bytes))
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
    if (plan_output_is_dynamic(self->plan, self->view, number)) return AOTC_OK; /* dynamic.c does it */
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
    if (!status) status = check_states(self, error);
    if (!status) status = run_reserve_arena(self, error);
    for (uint32_t i = 0; i < self->view->record->outputs.count && !status; i++) status = prepare_output(self, i, error);
    if (!status && self->cuda) status = device_prepare(self, error);
    self->ready = status == AOTC_OK;
    return status;
}

/* ---- Running ---- */

static aotc_status run(aotc_session_t *self, aotc_error *error) {
    aotc_status status = self->ready ? AOTC_OK : prepare(self, error);
    if (status) return status;
    if (self->cuda) graphs_select(self);
    const aotc_api *pool = self->pool ? *(const aotc_api *const *)self->pool : NULL;
    if (pool) pool->pool_begin(self->pool);
    status = steps_run(self, error);
    if (pool) pool->pool_end(self->pool);
    return status ? status : dynamic_finish(self, error);
}

/* A run in the GPU's context, after which the GPU is done, unless `event` gets what tells when. */
static aotc_status run_on_device(aotc_session_t *self, void **event, aotc_error *error) {
    device_session *cuda = self->cuda;
    aotc_status status = device_enter(cuda->device, error);
    if (status) return status;
    status = run(self, error); /* behind a run that nobody waited for, as all that the stream is given */
    if (!status && event && !self->states) { /* states are others' to use when this returns */
        const cuda_driver *driver = &cuda->device->driver;
        status = cuda_driver_check(driver, driver->event_record(cuda->finished, cuda->stream), "recording an event", error);
        if (!status) *event = cuda->finished;
    }
    if (status || !event || self->states) {
        aotc_status waited = device_wait(self, status ? NULL : error);
        if (!status) status = waited;
    }
    device_leave(cuda->device);
    return status;
}

static aotc_status enter_and_run(aotc_session_t *self, void **event, aotc_error *error) {
    if (!session_enter(self)) return session_is_busy(error);
    self->has_run = false;
    atomic_store_explicit(&self->cancelled, false, memory_order_relaxed);
    aotc_status status = states_enter(self, error);
    if (!status) {
        status = self->cuda ? run_on_device(self, event, error) : run(self, error);
        states_leave(self);
    }
    self->has_run = status == AOTC_OK;
    session_leave(self);
    return status ? status : succeed(error);
}

aotc_status rt_run(aotc_session_t *self, aotc_error *error) { return enter_and_run(self, NULL, error); }

aotc_status rt_run_async(aotc_session_t *self, void **event, aotc_error *error) {
    void *unwanted, **place = event ? event : &unwanted;
    *place = NULL;
    return enter_and_run(self, place, error);
}

aotc_status session_wait(aotc_session_t *self, aotc_error *error) {
    if (!self->cuda || !self->cuda->pending) return AOTC_OK;
    aotc_status status = device_enter(self->cuda->device, error);
    if (status) return status;
    status = device_wait(self, error);
    device_leave(self->cuda->device);
    if (status) self->has_run = false;
    return status;
}

aotc_status rt_wait(aotc_session_t *self, aotc_error *error) {
    if (!session_enter(self)) return session_is_busy(error);
    aotc_status status = session_wait(self, error);
    session_leave(self);
    return status ? status : succeed(error);
}
