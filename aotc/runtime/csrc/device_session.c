/* A session's part of the GPU: its stream, its memory there, and where both processors see each tensor. */
#include <string.h>

#include "device.h"

static aotc_status check(const aotc_session_t *self, CUresult result, const char *what, aotc_error *error) {
    return cuda_driver_check(&self->cuda->device->driver, result, what, error);
}

aotc_status device_wait(aotc_session_t *self, aotc_error *error) {
    device_session *cuda = self->cuda;
    if (!cuda->pending) return AOTC_OK;
    cuda->pending = false;
    return check(self, cuda->device->driver.stream_wait(cuda->stream), "running on the GPU", error);
}

/* ---- Opening ---- */

static device_session *lay_out(const plan_view *view, carver *memory) {
    const plan_entry *record = view->record;
    device_session *self = carve(memory, 1, sizeof *self);
    bool *used = carve(memory, 2 * ((size_t)record->inputs.count + record->outputs.count), sizeof *used);
    uint64_t *addresses = carve(memory, view->max_arguments, sizeof *addresses);
    int32_t *dims = carve(memory, view->max_dims, sizeof *dims);
    void **parameters = carve(memory, (size_t)view->max_arguments + view->max_dims, sizeof *parameters);
    if (!self) return NULL;
    self->input_used = used;
    self->input_on_host = used + record->inputs.count;
    self->output_used = used + 2 * (size_t)record->inputs.count;
    self->output_on_host = self->output_used + record->outputs.count;
    self->addresses = addresses;
    self->dims = dims;
    self->parameters = parameters;
    return self;
}

/* Which tensors of the caller each processor needs to see. */
static void find_uses(const aotc_session_t *self) {
    const plan_view *view = self->view;
    for (uint32_t i = 0; i < view->record->steps.count; i++) {
        const plan_step *step = &view->steps[i];
        bool crossing = plan_is_crossing(step->kind) && step->kind != STEP_DELIVER, device = plan_is_device_step(step->kind);
        for (uint32_t k = 0; k < step->arguments.count; k++) {
            const plan_value *value = &view->values[self->plan->indices[step->arguments.first + k]];
            bool is_input = value->storage == STORAGE_INPUT;
            if (!is_input && value->storage != STORAGE_OUTPUT) continue;
            bool *used = is_input ? self->cuda->input_used : self->cuda->output_used;
            bool *on_host = is_input ? self->cuda->input_on_host : self->cuda->output_on_host;
            used[value->index] |= device || crossing;
            on_host[value->index] |= (!device && step->kind != STEP_DELIVER) || crossing;
        }
    }
}

static aotc_status open_stream(aotc_session_t *self, void *stream, aotc_error *error) {
    device_session *cuda = self->cuda;
    const cuda_driver *driver = &cuda->device->driver;
    CUresult result = driver->event_create(&cuda->finished, CU_EVENT_DISABLE_TIMING);
    cuda->stream = stream;
    if (!result && !stream) {
        result = driver->stream_create(&cuda->stream, CU_STREAM_NON_BLOCKING);
        cuda->own_stream = result == CUDA_SUCCESS;
    }
    return check(self, result, "making a stream on the GPU", error);
}

aotc_status device_session_open(aotc_session_t *self, void *stream, aotc_error *error) {
    carver count = {0};
    lay_out(self->view, &count);
    void *base;
    aotc_status status = session_allocate(self, count.used, "the session's tables for the GPU", &base, error);
    if (status) return status;
    memset(base, 0, count.used);
    carver memory = {.base = base};
    self->cuda = lay_out(self->view, &memory);
    self->cuda->bytes = count.used;
    self->cuda->device = self->model->device;
    find_uses(self);
    status = device_enter(self->cuda->device, error);
    if (status) return status;
    status = open_stream(self, stream, error);
    if (!status) status = graphs_open(self, error);
    device_leave(self->cuda->device);
    return status;
}

static void release(aotc_session_t *self, uint64_t *address, uint64_t *bytes) {
    device_release(self->cuda->device, *address);
    session_discount(self, *bytes);
    *address = *bytes = 0;
}

static void release_side(aotc_session_t *self, other_side *side) {
    release(self, &side->mirror, &side->mirror_bytes);
    session_release(self, side->staging.data, side->staging.bytes);
}

void device_session_close(aotc_session_t *self) {
    device_session *cuda = self->cuda;
    if (!cuda) return;
    if (device_enter(cuda->device, NULL) == AOTC_OK) {
        device_wait(self, NULL);
        graphs_close(self);
        for (uint32_t i = 0; i < self->view->record->inputs.count; i++) release_side(self, &self->inputs[i].side);
        for (uint32_t i = 0; i < self->view->record->outputs.count; i++) release_side(self, &self->outputs[i].side);
        release(self, &cuda->arena, &cuda->arena_bytes);
        session_discount(self, cuda->shared.bytes);
        device_unshare(cuda->device, &cuda->shared);
        if (cuda->finished) cuda->device->driver.event_destroy(cuda->finished);
        if (cuda->own_stream) cuda->device->driver.stream_destroy(cuda->stream);
        device_leave(cuda->device);
    }
    session_release(self, cuda, cuda->bytes);
    self->cuda = NULL;
}

/* ---- What the caller binds ---- */

void device_bind(const aotc_session_t *self, other_side *side, char **data, int32_t device_type) {
    const device *device = self->cuda->device;
    bool is_device = device_type == kDLCUDA || device_type == kDLCUDAManaged;
    unsigned kind = 0;
    CUdeviceptr address = 0;
    side->device = 0;
    if (!*data || device_enter(device, NULL)) return;
    /* Memory that the driver does not know is the host's alone. */
    if (device->driver.pointer_attribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)*data)) kind = 0;
    if (is_device || kind == CU_MEMORYTYPE_DEVICE) {
        side->device = (uintptr_t)*data;
        *data = NULL;
    } else if (kind == CU_MEMORYTYPE_HOST && device->mapped && !device->driver.host_device_pointer(&address, *data, 0)) {
        side->device = address % DEVICE_ALIGNMENT == 0 ? (uint64_t)address : 0;
    }
    device_leave(device);
}

/* ---- Memory for a run ---- */

/* Make the device's memory hold `bytes`; what it held is lost. */
static aotc_status reserve(aotc_session_t *self, uint64_t *address, uint64_t *held, uint64_t bytes, const char *what, aotc_error *error) {
    if (*address && *held >= bytes) return AOTC_OK;
    if (bytes == 0) bytes = PLAN_ALIGNMENT;
    graphs_forget(self, NULL);
    release(self, address, held);
    aotc_status status = session_count(self, bytes, what, error);
    if (status) return status;
    status = device_allocate(self->cuda->device, bytes, what, address, error);
    if (status) session_discount(self, bytes);
    else *held = bytes;
    return status;
}

static aotc_status reserve_shared(aotc_session_t *self, uint64_t bytes, aotc_error *error) {
    device_session *cuda = self->cuda;
    if (cuda->shared.bytes >= bytes) return AOTC_OK;
    graphs_forget(self, NULL);
    session_discount(self, cuda->shared.bytes);
    device_unshare(cuda->device, &cuda->shared);
    aotc_status status = session_count(self, bytes, "the arena that host and GPU see", error);
    if (status) return status;
    status = device_share(cuda->device, bytes, "the arena", &cuda->shared, error);
    if (status) session_discount(self, bytes);
    return status;
}

/* Memory for the processor that does not see the caller's, if it needs to see the tensor. */
static aotc_status prepare_side(aotc_session_t *self, other_side *side, const char *data, uint64_t bytes, bool used, bool on_host,
                                const char *name, aotc_error *error) {
    aotc_status status = AOTC_OK;
    if (used && !side->device) status = reserve(self, &side->mirror, &side->mirror_bytes, bytes, name, error);
    if (!status && on_host && !data) status = session_grow(self, &side->staging.data, &side->staging.bytes, bytes, name, error);
    return status;
}

aotc_status device_reserve_arenas(aotc_session_t *self, aotc_error *error) {
    device_session *cuda = self->cuda;
    const uint64_t *bytes = self->current->arena_bytes;
    aotc_status status = reserve(self, &cuda->arena, &cuda->arena_bytes, bytes[MEMORY_DEVICE], "the GPU's arena", error);
    return status ? status : reserve_shared(self, bytes[MEMORY_SHARED], error);
}

aotc_status device_prepare(aotc_session_t *self, aotc_error *error) {
    const device_session *cuda = self->cuda;
    const plan_entry *record = self->view->record;
    const shape_plan *current = self->current;
    aotc_status status = device_reserve_arenas(self, error);
    for (uint32_t i = 0; i < record->inputs.count && !status; i++) {
        const plan_tensor *tensor = &self->view->inputs[i];
        status = prepare_side(self, &self->inputs[i].side, self->inputs[i].data, shapes_tensor_bytes(self->plan, tensor, current->exprs),
                              cuda->input_used[i], cuda->input_on_host[i], plan_string(self->plan, tensor->name), error);
    }
    for (uint32_t i = 0; i < record->outputs.count && !status; i++) {
        const plan_tensor *tensor = &self->view->outputs[i];
        if (plan_output_is_dynamic(self->plan, self->view, i)) continue; /* it is the host's */
        status = prepare_side(self, &self->outputs[i].side, self->outputs[i].data, shapes_tensor_bytes(self->plan, tensor, current->exprs),
                              cuda->output_used[i], cuda->output_on_host[i], plan_string(self->plan, tensor->name), error);
    }
    return status;
}

/* ---- Where a value is ---- */

char *device_host_address(const aotc_session_t *self, const plan_value *value) {
    char *base = NULL;
    switch (value->storage) {
    case STORAGE_INPUT: base = self->inputs[value->index].data ? self->inputs[value->index].data : self->inputs[value->index].side.staging.data; break;
    case STORAGE_OUTPUT:
        base = self->outputs[value->index].data ? self->outputs[value->index].data : self->outputs[value->index].side.staging.data;
        break;
    case STORAGE_STATE: base = self->states->data[value->index]; break;
    case STORAGE_WEIGHT: base = (char *)(uintptr_t)self->model->weights; break;
    default: base = self->cuda->shared.host + self->current->offsets[value->index]; break;
    }
    return base ? base + self->current->exprs[value->offset] : NULL;
}

static uint64_t side_address(const other_side *side) { return side->device ? side->device : side->mirror; }

uint64_t device_address(const aotc_session_t *self, const plan_value *value) {
    const state_set *states = self->states;
    uint64_t base = 0;
    switch (value->storage) {
    case STORAGE_INPUT: base = side_address(&self->inputs[value->index].side); break;
    case STORAGE_OUTPUT: base = side_address(&self->outputs[value->index].side); break;
    case STORAGE_STATE: base = states->shared.device + (uint64_t)(states->data[value->index] - states->shared.host); break;
    case STORAGE_WEIGHT: base = self->cuda->device->weights; break;
    default:
        base = self->view->buffers[value->index].memory == MEMORY_SHARED ? self->cuda->shared.device : self->cuda->arena;
        base += self->current->offsets[value->index];
        break;
    }
    return base + (uint64_t)self->current->exprs[value->offset];
}

aotc_status device_before_write(aotc_session_t *self, const plan_step *step, aotc_error *error) {
    if (!self->cuda->pending) return AOTC_OK;
    for (uint32_t k = step->arguments.count - step->outputs; k < step->arguments.count; k++) {
        const plan_value *value = &self->view->values[self->plan->indices[step->arguments.first + k]];
        if (value->storage != STORAGE_ARENA || self->view->buffers[value->index].memory == MEMORY_SHARED) return device_wait(self, error);
    }
    return AOTC_OK;
}
