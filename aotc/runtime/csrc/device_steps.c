/* The steps that concern the GPU. */
#include <string.h>

#include "device.h"

static const plan_value *argument(const aotc_session_t *self, const plan_step *step, uint32_t number) {
    return &self->view->values[self->plan->indices[step->arguments.first + number]];
}

static aotc_status check(const aotc_session_t *self, const plan_step *step, CUresult result, aotc_error *error) {
    if (result == CUDA_SUCCESS) return AOTC_OK;
    text what = {0};
    text_add(&what, "step '%s' (%s)", plan_string(self->plan, step->source), plan_string(self->plan, step->label));
    return cuda_driver_check(&self->cuda->device->driver, result, what.data, error);
}

static aotc_status launch(aotc_session_t *self, const plan_step *step, aotc_error *error) {
    device_session *cuda = self->cuda;
    const plan_cuda_kernel *kernel = &self->plan->cuda_kernels[step->kernel];
    const uint32_t *dims = self->plan->indices + step->dims.first;
    unsigned grid[3];
    for (uint32_t i = 0; i < 3; i++) grid[i] = (unsigned)self->current->exprs[dims[kernel->dims + i]];
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return AOTC_OK;
    for (uint32_t i = 0; i < kernel->buffers; i++) {
        cuda->addresses[i] = device_address(self, argument(self, step, i));
        cuda->parameters[i] = &cuda->addresses[i];
    }
    for (uint32_t i = 0; i < kernel->dims; i++) {
        cuda->dims[i] = (int32_t)self->current->exprs[dims[i]];
        cuda->parameters[kernel->buffers + i] = &cuda->dims[i];
    }
    CUresult result = cuda->device->driver.launch(cuda->device->functions[step->kernel], grid[0], grid[1], grid[2], kernel->block[0],
                                                  kernel->block[1], kernel->block[2], kernel->shared_bytes, cuda->stream, cuda->parameters, NULL);
    return check(self, step, result, error);
}

aotc_status device_enqueue(aotc_session_t *self, const plan_step *step, aotc_error *error) {
    const device_session *cuda = self->cuda;
    if (step->kind == STEP_LAUNCH) return launch(self, step, error);
    const plan_value *from = argument(self, step, 0), *to = argument(self, step, 1);
    uint64_t bytes = shapes_value_bytes(self->plan, from, self->current->exprs);
    if (bytes == 0) return AOTC_OK;
    CUresult result = cuda->device->driver.copy_on_device((CUdeviceptr)device_address(self, to), (CUdeviceptr)device_address(self, from),
                                                          (size_t)bytes, cuda->stream);
    return check(self, step, result, error);
}

/* ---- Crossings ---- */

typedef enum crossing { NOTHING, TO_DEVICE, TO_HOST } crossing;

/* What has to be copied so that the other processor sees the value: nothing where both see the same memory, and nothing of an input
 * that the caller gave where it is needed. */
static crossing needed(const aotc_session_t *self, const plan_step *step, const plan_value *value) {
    bool to_host = step->kind == STEP_TO_HOST;
    if (value->storage == STORAGE_ARENA || value->storage == STORAGE_STATE)
        return self->cuda->device->mapped ? NOTHING : to_host ? TO_HOST : TO_DEVICE;
    const char *data = value->storage == STORAGE_INPUT ? self->inputs[value->index].data : self->outputs[value->index].data;
    const other_side *side = value->storage == STORAGE_INPUT ? &self->inputs[value->index].side : &self->outputs[value->index].side;
    if (data && side->device) return NOTHING;
    if (step->kind == STEP_DELIVER) return step->target ? (data ? TO_HOST : NOTHING) : (data ? NOTHING : TO_DEVICE);
    if (value->storage == STORAGE_INPUT && to_host == (data != NULL)) return NOTHING;
    return to_host ? TO_HOST : TO_DEVICE;
}

static aotc_status cross(aotc_session_t *self, const plan_step *step, aotc_error *error) {
    device_session *cuda = self->cuda;
    const cuda_driver *driver = &cuda->device->driver;
    bool waits = false; /* for the device: not for what the caller gave to the host */
    for (uint32_t i = 0; i < step->arguments.count; i++) {
        const plan_value *value = argument(self, step, i);
        uint64_t bytes = shapes_value_bytes(self->plan, value, self->current->exprs);
        waits |= step->kind == STEP_TO_HOST && (value->storage != STORAGE_INPUT || !self->inputs[value->index].data);
        crossing way = bytes ? needed(self, step, value) : NOTHING;
        if (way == NOTHING) continue;
        CUdeviceptr device = (CUdeviceptr)device_address(self, value);
        char *host = device_host_address(self, value);
        CUresult result = way == TO_DEVICE ? driver->copy_to_device(device, host, (size_t)bytes, cuda->stream)
                                           : driver->copy_to_host(host, device, (size_t)bytes, cuda->stream);
        cuda->pending = true;
        aotc_status status = check(self, step, result, error);
        if (status) return status;
    }
    return waits ? device_wait(self, error) : AOTC_OK;
}

aotc_status device_step(aotc_session_t *self, uint32_t number, uint32_t *next, aotc_error *error) {
    const plan_step *step = &self->view->steps[number];
    uint32_t end = number;
    if (plan_is_crossing(step->kind)) return cross(self, step, error);
    self->cuda->pending = true;
    aotc_status status = self->profile ? AOTC_OK : graphs_run(self, number, &end, error);
    if (end != number) *next = end;
    else if (!status) status = device_enqueue(self, step, error);
    return status || !self->profile ? status : device_wait(self, error);
}
