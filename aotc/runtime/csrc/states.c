/* Tensors that stay from run to run, in one session or in several that share them. */
#include <string.h>

#include "device.h"

/* The set's tables in `tables`, the states' contents in `contents`, which may be the same. */
static state_set *lay_out(const plan *plan, carver *tables, carver *contents) {
    uint32_t count = plan_state_count(plan);
    state_set *self = carve(tables, 1, sizeof *self);
    char **data = carve(tables, count, sizeof *data);
    contents->used = (contents->used + PLAN_ALIGNMENT - 1) & ~(size_t)(PLAN_ALIGNMENT - 1);
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes = ((size_t)plan_state_bytes(plan, i) + PLAN_ALIGNMENT - 1) & ~(size_t)(PLAN_ALIGNMENT - 1);
        char *place = carve(contents, bytes, 1);
        if (data) data[i] = place;
    }
    if (self) self->data = data;
    return self;
}

/* Write the first values. */
static void put_back(const aotc_model_t *model, const state_set *self) {
    const plan *plan = &model->plan;
    for (uint32_t i = 0; i < plan_state_count(plan); i++) {
        size_t bytes = (size_t)plan_state_bytes(plan, i);
        if (plan->states[i].has_initial) memcpy(self->data[i], model->weights + plan->states[i].initial, bytes);
        else memset(self->data[i], 0, bytes);
    }
}

static aotc_status share(aotc_session_t *self, uint64_t bytes, shared_memory *memory, aotc_error *error) {
    aotc_status status = session_count(self, bytes, "the states", error);
    if (status) return status;
    status = device_enter(self->model->device, error);
    if (!status) {
        status = device_share(self->model->device, bytes ? bytes : PLAN_ALIGNMENT, "the states", memory, error);
        device_leave(self->model->device);
    }
    if (status) session_discount(self, bytes);
    return status;
}

aotc_status states_attach(aotc_session_t *self, aotc_session_t *shared, aotc_error *error) {
    if (shared && shared->model != self->model)
        return fail(error, AOTC_INVALID_ARGUMENT, "share_state is a session of another model; share between sessions of one opened file");
    if (shared && shared->states) {
        self->states = shared->states;
        atomic_fetch_add(&self->states->users, 1);
        return AOTC_OK;
    }
    if (plan_state_count(self->plan) == 0) return AOTC_OK;
    bool apart = plan_cuda_kernel_count(self->plan) && device_open && device_open(self->model, NULL) == AOTC_OK; /* where the GPU sees them */
    carver count = {0}, contents = {0};
    lay_out(self->plan, &count, apart ? &contents : &count);
    void *base;
    shared_memory memory_apart = {0};
    aotc_status status = session_allocate(self, count.used, "the states", &base, error);
    if (!status && apart && (status = share(self, contents.used, &memory_apart, error))) session_release(self, base, count.used);
    if (status) return status;
    carver memory = {.base = base};
    contents = (carver){.base = memory_apart.host};
    state_set *made = lay_out(self->plan, &memory, apart ? &contents : &memory);
    made->allocator = self->allocator;
    made->bytes = count.used;
    made->device = apart ? self->model->device : NULL;
    made->shared = memory_apart;
    atomic_init(&made->users, 1);
    atomic_flag_clear(&made->busy);
    put_back(self->model, made);
    self->states = made;
    return AOTC_OK;
}

void states_detach(aotc_session_t *self) {
    state_set *states = self->states;
    if (!states || atomic_fetch_sub(&states->users, 1) != 1) return;
    aotc_allocator allocator = states->allocator;
    if (states->device && device_enter(states->device, NULL) == AOTC_OK) {
        device_unshare(states->device, &states->shared);
        device_leave(states->device);
    }
    allocator.release(allocator.context, states, states->bytes);
}

aotc_status states_enter(aotc_session_t *self, aotc_error *error) {
    if (!self->states || !atomic_flag_test_and_set_explicit(&self->states->busy, memory_order_acquire)) return AOTC_OK;
    return fail(error, AOTC_BUSY, "another session runs on the states that this one shares; run one at a time, or give each its own states");
}

void states_leave(aotc_session_t *self) {
    if (self->states) atomic_flag_clear_explicit(&self->states->busy, memory_order_release);
}

aotc_status rt_session_reset(aotc_session_t *self, aotc_error *error) {
    if (!session_enter(self)) return session_is_busy(error);
    aotc_status status = states_enter(self, error);
    if (!status && self->states) {
        put_back(self->model, self->states);
        states_leave(self);
    }
    session_leave(self);
    return status ? status : succeed(error);
}

aotc_status rt_cancel(aotc_session_t *self, aotc_error *error) {
    atomic_store_explicit(&self->cancelled, true, memory_order_relaxed);
    return succeed(error);
}

size_t rt_state_count(const aotc_model_t *self) { return plan_state_count(&self->plan); }

const aotc_tensor_info *rt_state_info(const aotc_model_t *self, size_t state) {
    return state < rt_state_count(self) ? &self->states[state] : NULL;
}

aotc_status rt_get_state(aotc_session_t *self, size_t number, DLTensor *tensor, aotc_error *error) {
    if (number >= rt_state_count(self->model))
        return fail(error, AOTC_INVALID_ARGUMENT, "there is no state %zu; the model has %zu, counted from 0", number,
                    rt_state_count(self->model));
    if (!tensor) return fail(error, AOTC_INVALID_ARGUMENT, "the place for the tensor is NULL");
    const aotc_tensor_info *info = &self->model->states[number];
    *tensor = (DLTensor){.data = self->states->data[number],
                         .device = {.device_type = kDLCPU, .device_id = 0},
                         .ndim = info->rank,
                         .dtype = info->dtype,
                         .shape = self->model->state_shapes + (size_t)number * PLAN_MAX_RANK};
    return succeed(error);
}
