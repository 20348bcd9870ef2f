/* Opening a plan: its header and tables, and the views of its entry points. */
#include "plan.h"

#include <string.h>

#include "error.h"

const plan_dtype plan_dtypes[PLAN_DTYPE_COUNT] = {
    {"float16", kDLFloat, 16}, {"float32", kDLFloat, 32}, {"float64", kDLFloat, 64}, {"int8", kDLInt, 8},
    {"int16", kDLInt, 16},     {"int32", kDLInt, 32},     {"int64", kDLInt, 64},     {"uint8", kDLUInt, 8},
    {"uint16", kDLUInt, 16},   {"uint32", kDLUInt, 32},   {"uint64", kDLUInt, 64},   {"bool", kDLBool, 8},
    {"bfloat16", kDLBfloat, 16},
    {"float8_e4m3fn", AOTC_FLOAT8_E4M3FN, 8},
    {"float8_e4m3fnuz", AOTC_FLOAT8_E4M3FNUZ, 8},
    {"float8_e5m2", AOTC_FLOAT8_E5M2, 8},
    {"float8_e5m2fnuz", AOTC_FLOAT8_E5M2FNUZ, 8},
    {"float8_e8m0fnu", AOTC_FLOAT8_E8M0FNU, 8},
    {"float6_e2m3fn", AOTC_FLOAT6_E2M3FN, 6},
    {"float6_e3m2fn", AOTC_FLOAT6_E3M2FN, 6},
    {"float4_e2m1fn", AOTC_FLOAT4_E2M1FN, 4},
    {"int4", kDLInt, 4},
    {"uint4", kDLUInt, 4},
    {"int2", kDLInt, 2},
    {"uint2", kDLUInt, 2},
};

static const uint32_t record_bytes[TABLE_COUNT] = {
    1,
    sizeof(uint32_t),
    sizeof(plan_dim),
    sizeof(plan_code),
    sizeof(plan_expr),
    sizeof(plan_symbol),
    sizeof(plan_kernel),
    sizeof(plan_tensor),
    sizeof(plan_value),
    sizeof(plan_buffer),
    sizeof(plan_step),
    sizeof(plan_state),
    sizeof(plan_entry),
    sizeof(plan_cuda_kernel),
    sizeof(plan_cubin),
    sizeof(plan_device),
};

_Static_assert(sizeof(plan_header) == 32 + 8 * TABLE_COUNT, "planfile.py writes this layout");
_Static_assert(sizeof(plan_buffer) == 24 && sizeof(plan_cuda_kernel) == 40 && sizeof(plan_cubin) == 24, "planfile.py writes this layout");
_Static_assert(sizeof(plan_step) == 48 && sizeof(plan_entry) == 80 && sizeof(plan_value) == 24 && sizeof(plan_state) == 32,
               "planfile.py writes this layout");

uint64_t plan_hash(const void *data, uint64_t size) {
    const unsigned char *bytes = data;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint64_t i = 0; i < size; i += 8) { /* the size of a plan is a multiple of 8 */
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        if (i == offsetof(plan_header, hash)) word = 0;
        hash = (hash ^ word) * UINT64_C(0x100000001b3);
        hash ^= hash >> 32;
    }
    return hash;
}

static const void *table(const plan_header *header, uint32_t number) { return (const char *)header + header->tables[number].offset; }

static aotc_status check_header(const void *data, uint64_t size, aotc_error *error) {
    const plan_header *header = data;
    if (((uintptr_t)data & 7) != 0 || size < sizeof *header || memcmp(header->magic, PLAN_MAGIC, 8) != 0)
        return fail(error, AOTC_INVALID_FILE, "the file holds no plan (%llu bytes without its mark); build or copy it again",
                    (unsigned long long)size);
    if (header->version != PLAN_VERSION)
        return fail(error, AOTC_WRONG_VERSION, "the plan has format %u, this runtime reads %u; build the file again",
                    (unsigned)header->version, PLAN_VERSION);
    if (header->header_bytes != sizeof *header || header->total_bytes != size || size % 8 != 0)
        return fail(error, AOTC_INVALID_FILE, "the plan should be %llu bytes and is %llu; build or copy the file again",
                    (unsigned long long)header->total_bytes, (unsigned long long)size);
    if (plan_hash(data, size) != header->hash)
        return fail(error, AOTC_INVALID_FILE, "the plan's hash does not fit its bytes: the file is damaged; build or copy it again");
    for (uint32_t i = 0; i < TABLE_COUNT; i++) {
        uint64_t end = header->tables[i].offset + (uint64_t)header->tables[i].count * record_bytes[i];
        if (header->tables[i].offset % 8 != 0 || header->tables[i].offset < sizeof *header || end > size)
            return fail(error, AOTC_INVALID_FILE, "the plan is damaged: table %u leaves it; build or copy the file again", (unsigned)i);
    }
    return AOTC_OK;
}

aotc_status plan_open(const void *data, uint64_t size, uint32_t kernels, uint64_t cubins, plan *out, aotc_error *error) {
    aotc_status status = check_header(data, size, error);
    if (status) return status;
    const plan_header *header = data;
    *out = (plan){.header = header,
                  .strings = table(header, TABLE_STRINGS),
                  .indices = table(header, TABLE_INDICES),
                  .dims = table(header, TABLE_DIMS),
                  .code = table(header, TABLE_CODE),
                  .kernels = table(header, TABLE_KERNELS),
                  .cuda_kernels = table(header, TABLE_CUDA_KERNELS),
                  .cubins = table(header, TABLE_CUBINS),
                  .states = table(header, TABLE_STATES),
                  .entries = table(header, TABLE_ENTRIES)};
    return plan_check(out, kernels, cubins, error);
}

plan_view plan_entry_view(const plan *self, uint32_t number) {
    const plan_header *header = self->header;
    const plan_entry *entry = &self->entries[number];
    plan_view view = {
        .record = entry,
        .inputs = (const plan_tensor *)table(header, TABLE_TENSORS) + entry->inputs.first,
        .outputs = (const plan_tensor *)table(header, TABLE_TENSORS) + entry->outputs.first,
        .symbols = (const plan_symbol *)table(header, TABLE_SYMBOLS) + entry->symbols.first,
        .exprs = (const plan_expr *)table(header, TABLE_EXPRS) + entry->exprs.first,
        .values = (const plan_value *)table(header, TABLE_VALUES) + entry->values.first,
        .buffers = (const plan_buffer *)table(header, TABLE_BUFFERS) + entry->buffers.first,
        .steps = (const plan_step *)table(header, TABLE_STEPS) + entry->steps.first,
    };
    for (uint32_t i = 0; i < entry->steps.count; i++) {
        if (view.steps[i].arguments.count > view.max_arguments) view.max_arguments = view.steps[i].arguments.count;
        if (view.steps[i].dims.count > view.max_dims) view.max_dims = view.steps[i].dims.count;
        view.branches |= view.steps[i].kind == STEP_BRANCH;
        view.uses_device |= plan_is_device_step(view.steps[i].kind) || plan_is_crossing(view.steps[i].kind);
    }
    for (uint32_t i = 0; i < entry->values.count; i++) view.uses_states |= view.values[i].storage == STORAGE_STATE;
    for (uint32_t i = 0; i < entry->inputs.count; i++) view.input_dims += view.inputs[i].dims.count;
    for (uint32_t i = 0; i < entry->outputs.count; i++) view.output_dims += view.outputs[i].dims.count;
    return view;
}

bool plan_is_dynamic(const plan *self, const plan_view *view, uint32_t expr) {
    plan_range code = view->exprs[expr];
    for (uint32_t i = 0; i < code.count; i++) {
        const plan_code *each = &self->code[code.first + i];
        if (each->op == CODE_SYMBOL && view->symbols[each->value].input == PLAN_NO_INPUT) return true;
    }
    return false;
}

bool plan_output_is_dynamic(const plan *self, const plan_view *view, uint32_t output) {
    plan_range dims = view->outputs[output].dims;
    for (uint32_t axis = 0; axis < dims.count; axis++)
        if (view->dynamic[self->dims[dims.first + axis].expr]) return true;
    return false;
}

int64_t plan_device_weights(const plan *self) {
    const plan_device *device = table(self->header, TABLE_DEVICES);
    return self->header->tables[TABLE_DEVICES].count ? device->weights : 0;
}

uint64_t plan_state_bytes(const plan *self, uint32_t state) {
    plan_range dims = self->states[state].dims;
    uint64_t bytes = plan_itemsize(self->states[state].dtype);
    for (uint32_t axis = 0; axis < dims.count; axis++) bytes *= (uint64_t)self->dims[dims.first + axis].minimum;
    return bytes;
}
