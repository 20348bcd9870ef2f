/* Tensors of the caller: checked once, when they are bound. */
#include <inttypes.h>
#include <string.h>

#include "device.h"

static const char *device_name(int32_t device) {
    switch (device) {
    case kDLCUDA: return "CUDA memory";
    case kDLCUDAManaged: return "CUDA managed memory";
    default: return "a device";
    }
}

static const char *dtype_name(DLDataType dtype, text *unknown) {
    for (uint32_t i = 0; i < PLAN_DTYPE_COUNT && dtype.lanes == 1; i++)
        if (plan_dtypes[i].code == dtype.code && plan_dtypes[i].bits == dtype.bits) return plan_dtypes[i].name;
    text_add(unknown, "DLPack type %u of %u bits, %u lanes", (unsigned)dtype.code, (unsigned)dtype.bits, (unsigned)dtype.lanes);
    return unknown->data;
}

static bool is_compact(const DLTensor *tensor) {
    int64_t expected = 1;
    bool compact = true;
    if (!tensor->strides) return true;
    for (int32_t axis = tensor->ndim; axis-- > 0;) {
        if (tensor->shape[axis] == 0) return true;
        compact &= tensor->shape[axis] == 1 || tensor->strides[axis] == expected;
        expected *= tensor->shape[axis];
    }
    return compact;
}

/* Who is bound, for messages. */
typedef struct subject {
    const aotc_session_t *session;
    const plan_tensor *tensor;
    const char *kind, *name;
    aotc_error *error;
} subject;

static aotc_status check_shape(const subject *self, const DLTensor *tensor) {
    const plan *plan = self->session->plan;
    text declared = {0}, got = {0};
    shapes_declared(&declared, plan, self->session->view, self->tensor);
    if (tensor->ndim != (int32_t)self->tensor->dims.count)
        return fail(self->error, AOTC_INVALID_ARGUMENT, "%s '%s' should have %u dims, %s, and has %d; reshape it", self->kind, self->name,
                    (unsigned)self->tensor->dims.count, declared.data, (int)tensor->ndim);
    if (tensor->ndim && !tensor->shape)
        return fail(self->error, AOTC_INVALID_ARGUMENT, "%s '%s' has %d dims and its shape is NULL; give the shape", self->kind, self->name,
                    (int)tensor->ndim);
    text_shape(&got, tensor->shape, self->tensor->dims.count);
    for (uint32_t axis = 0; axis < self->tensor->dims.count; axis++) {
        const plan_dim *dim = &plan->dims[self->tensor->dims.first + axis];
        int64_t extent = tensor->shape[axis];
        if (extent >= dim->minimum && (dim->maximum < 0 || extent <= dim->maximum)) continue;
        text range = {0};
        text_add(&range, "%" PRId64, dim->minimum);
        if (dim->maximum < 0) text_add(&range, " or more");
        else if (dim->maximum != dim->minimum) text_add(&range, " to %" PRId64, dim->maximum);
        return fail(self->error, AOTC_INVALID_ARGUMENT,
                    "%s '%s' should have the shape %s and has %s: dim %u must be %s; change the tensor, or build the model for such shapes",
                    self->kind, self->name, declared.data, got.data, (unsigned)axis, range.data);
    }
    if (!shapes_countable(tensor->shape, self->tensor->dims.count))
        return shapes_too_large(self->kind, self->name, tensor->shape, self->tensor->dims.count, self->error);
    return AOTC_OK;
}

static aotc_status check_memory(const subject *self, const DLTensor *tensor, char **data) {
    if (!is_compact(tensor))
        return fail(self->error, AOTC_INVALID_ARGUMENT,
                    "%s '%s' should lie in memory row by row without gaps and has other strides; make it contiguous", self->kind,
                    self->name);
    uint64_t bytes = plan_itemsize(self->tensor->dtype);
    for (uint32_t axis = 0; axis < self->tensor->dims.count; axis++) bytes *= (uint64_t)tensor->shape[axis];
    if (!tensor->data && bytes)
        return fail(self->error, AOTC_INVALID_ARGUMENT, "%s '%s' has %" PRIu64 " bytes and its data pointer is NULL; give the memory",
                    self->kind, self->name, bytes);
    *data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
    if ((uintptr_t)*data % plan_itemsize(self->tensor->dtype) != 0)
        return fail(self->error, AOTC_INVALID_ARGUMENT,
                    "%s '%s' is at the address %p, which is not a multiple of its element size %u; align it", self->kind, self->name,
                    (void *)*data, (unsigned)plan_itemsize(self->tensor->dtype));
    return AOTC_OK;
}

static aotc_status check_tensor(const subject *self, const DLTensor *tensor, char **data) {
    const plan_dtype *expected = &plan_dtypes[self->tensor->dtype];
    text unknown = {0};
    bool is_cuda = tensor->device.device_type == kDLCUDA || tensor->device.device_type == kDLCUDAManaged;
    if (tensor->device.device_type != kDLCPU && tensor->device.device_type != kDLCUDAHost && !(is_cuda && self->session->cuda))
        return fail(self->error, AOTC_INVALID_ARGUMENT,
                    "%s '%s' should be in host memory%s and is in %s (DLPack device %d); copy it to the host", self->kind, self->name,
                    self->session->cuda ? " or CUDA memory" : "", device_name((int32_t)tensor->device.device_type),
                    (int)tensor->device.device_type);
    if (tensor->dtype.code != expected->code || tensor->dtype.bits != expected->bits || tensor->dtype.lanes != 1)
        return fail(self->error, AOTC_INVALID_ARGUMENT, "%s '%s' should be %s and is %s; convert it", self->kind, self->name,
                    expected->name, dtype_name(tensor->dtype, &unknown));
    aotc_status status = check_shape(self, tensor);
    if (!status) status = check_memory(self, tensor, data);
    if (status || !is_cuda || (uintptr_t)*data % DEVICE_ALIGNMENT == 0) return status;
    return fail(self->error, AOTC_INVALID_ARGUMENT, "%s '%s' is at the GPU's address %p, which is not a multiple of %u; align it",
                self->kind, self->name, (void *)*data, DEVICE_ALIGNMENT);
}

static aotc_status no_such(const char *kind, size_t number, uint32_t count, aotc_error *error) {
    return fail(error, AOTC_INVALID_ARGUMENT, "there is no %s %zu; the entry point has %u, counted from 0", kind, number, (unsigned)count);
}

static aotc_status bind_input(aotc_session_t *self, size_t number, const DLTensor *tensor, aotc_error *error) {
    if (number >= self->view->record->inputs.count) return no_such("input", number, self->view->record->inputs.count, error);
    const plan_tensor *declared = &self->view->inputs[number];
    subject subject = {self, declared, "input", plan_string(self->plan, declared->name), error};
    if (!tensor) return fail(error, AOTC_INVALID_ARGUMENT, "the tensor for input '%s' is NULL; give one", subject.name);
    char *data = NULL;
    aotc_status status = check_tensor(&subject, tensor, &data);
    if (status) return status;
    input_slot *slot = &self->inputs[number];
    if (self->cuda) device_bind(self, &slot->side, &data, (int32_t)tensor->device.device_type);
    slot->bound = true;
    slot->data = data;
    if (tensor->ndim) memcpy(slot->dims, tensor->shape, (size_t)tensor->ndim * sizeof *slot->dims);
    self->ready = false;
    return succeed(error);
}

static aotc_status is_dynamic(const subject *self) {
    text declared = {0};
    shapes_declared(&declared, self->session->plan, self->session->view, self->tensor);
    return fail(self->error, AOTC_INVALID_ARGUMENT,
                "output '%s' has the shape %s, which is known only after a run, so it cannot be bound: get it after the run", self->name,
                declared.data);
}

static aotc_status bind_output(aotc_session_t *self, size_t number, const DLTensor *tensor, aotc_error *error) {
    if (number >= self->view->record->outputs.count) return no_such("output", number, self->view->record->outputs.count, error);
    const plan_tensor *declared = &self->view->outputs[number];
    subject subject = {self, declared, "output", plan_string(self->plan, declared->name), error};
    if (tensor && plan_output_is_dynamic(self->plan, self->view, (uint32_t)number)) return is_dynamic(&subject);
    output_slot *slot = &self->outputs[number];
    char *data = slot->owned;
    aotc_status status = tensor ? check_tensor(&subject, tensor, &data) : AOTC_OK;
    if (status) return status;
    slot->side.device = 0;
    if (tensor && self->cuda) device_bind(self, &slot->side, &data, (int32_t)tensor->device.device_type);
    slot->bound = tensor != NULL;
    slot->data = data;
    if (tensor && tensor->ndim) memcpy(slot->bound_dims, tensor->shape, (size_t)tensor->ndim * sizeof *slot->bound_dims);
    self->ready = false;
    self->has_run = false;
    return succeed(error);
}

aotc_status rt_bind_input(aotc_session_t *self, size_t input, const DLTensor *tensor, aotc_error *error) {
    if (!session_enter(self)) return session_is_busy(error);
    aotc_status status = session_wait(self, error);
    if (!status) status = bind_input(self, input, tensor, error);
    session_leave(self);
    return status;
}

aotc_status rt_bind_output(aotc_session_t *self, size_t output, const DLTensor *tensor, aotc_error *error) {
    if (!session_enter(self)) return session_is_busy(error);
    aotc_status status = session_wait(self, error);
    if (!status) status = bind_output(self, output, tensor, error);
    session_leave(self);
    return status;
}

static aotc_status get_output(aotc_session_t *self, size_t number, DLTensor *tensor, aotc_error *error) {
    if (number >= self->view->record->outputs.count) return no_such("output", number, self->view->record->outputs.count, error);
    if (!tensor) return fail(error, AOTC_INVALID_ARGUMENT, "the place for the tensor is NULL");
    if (!self->has_run)
        return fail(error, AOTC_INVALID_ARGUMENT, "there is no result to get: run first, and get outputs before anything is bound to one");
    const plan_dtype *dtype = &plan_dtypes[self->view->outputs[number].dtype];
    output_slot *slot = &self->outputs[number];
    bool on_host = slot->data || !slot->side.device;
    *tensor = (DLTensor){.data = on_host ? (void *)slot->data : (void *)(uintptr_t)slot->side.device,
                         .device = {.device_type = on_host ? kDLCPU : kDLCUDA, .device_id = 0},
                         .ndim = (int32_t)self->view->outputs[number].dims.count,
                         .dtype = {.code = dtype->code, .bits = dtype->bits, .lanes = 1},
                         .shape = slot->dims,
                         .strides = slot->strides,
                         .byte_offset = 0};
    return succeed(error);
}

aotc_status rt_get_output(aotc_session_t *self, size_t output, DLTensor *tensor, aotc_error *error) {
    if (!session_enter(self)) return session_is_busy(error);
    aotc_status status = session_wait(self, error);
    if (!status) status = get_output(self, output, tensor, error);
    session_leave(self);
    return status;
}

aotc_status rt_output_shape(aotc_session_t *self, size_t output, int64_t *shape, aotc_error *error) {
    if (!session_enter(self)) return session_is_busy(error);
    int64_t symbols[PLAN_MAX_SYMBOLS];
    aotc_status status = AOTC_OK;
    if (output >= self->view->record->outputs.count) status = no_such("output", output, self->view->record->outputs.count, error);
    else if (!shape && self->view->outputs[output].dims.count)
        status = fail(error, AOTC_INVALID_ARGUMENT, "the place for the shape is NULL");
    if (!status) status = session_inputs_are_bound(self, error);
    if (!status && self->ready && self->has_run) {
        memcpy(shape, self->outputs[output].dims, self->view->outputs[output].dims.count * sizeof *shape);
        status = succeed(error);
    } else if (!status) {
        status = shapes_symbols(self->plan, self->view, self->input_shapes, symbols, error);
        if (!status) status = shapes_output(self->plan, self->view, symbols, output, shape, error);
    }
    session_leave(self);
    return status;
}

aotc_status session_inputs_are_bound(const aotc_session_t *self, aotc_error *error) {
    for (uint32_t i = 0; i < self->view->record->inputs.count; i++)
        if (!self->inputs[i].bound)
            return fail(error, AOTC_INVALID_ARGUMENT, "input '%s' is not bound; bind a tensor to each input first",
                        plan_string(self->plan, self->view->inputs[i].name));
    return AOTC_OK;
}
