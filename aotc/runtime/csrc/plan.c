/* Opening a plan: every offset, count and reference is checked here, once. */
#include "plan.h"

#include <string.h>

#include "dims.h"
#include "error.h"

const plan_dtype plan_dtypes[PLAN_DTYPE_COUNT] = {
    {"float16", kDLFloat, 16}, {"float32", kDLFloat, 32}, {"float64", kDLFloat, 64}, {"int8", kDLInt, 8},
    {"int16", kDLInt, 16},     {"int32", kDLInt, 32},     {"int64", kDLInt, 64},     {"uint8", kDLUInt, 8},
    {"uint16", kDLUInt, 16},   {"uint32", kDLUInt, 32},   {"uint64", kDLUInt, 64},   {"bool", kDLBool, 8},
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
    sizeof(plan_entry),
};

_Static_assert(sizeof(plan_header) == 32 + 8 * TABLE_COUNT, "planfile.py writes this layout");
_Static_assert(sizeof(plan_step) == 48 && sizeof(plan_entry) == 80 && sizeof(plan_value) == 24, "planfile.py writes this layout");

/* Where a check stands, for its message. */
typedef struct checker {
    const plan *plan;
    const plan_view *view;
    aotc_error *error;
} checker;

static aotc_status damaged(const checker *self, const char *what, uint64_t number, const char *problem) {
    return fail(self->error, AOTC_INVALID_FILE, "the plan is damaged: %s %llu: %s; build or copy the file again", what,
                (unsigned long long)number, problem);
}

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

static uint32_t table_size(const plan *self, uint32_t number) { return self->header->tables[number].count; }

static bool in_range(plan_range range, uint32_t count) { return range.first <= count && range.count <= count - range.first; }

static bool is_string(const checker *self, uint32_t offset) { return offset < table_size(self->plan, TABLE_STRINGS); }

/* All of a range of TABLE_INDICES are below `limit`. */
static bool indices_below(const checker *self, plan_range range, uint32_t limit) {
    if (!in_range(range, table_size(self->plan, TABLE_INDICES))) return false;
    for (uint32_t i = 0; i < range.count; i++)
        if (self->plan->indices[range.first + i] >= limit) return false;
    return true;
}

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

static aotc_status check_symbols(const checker *self) {
    const plan_entry *entry = self->view->record;
    if (entry->symbols.count > PLAN_MAX_SYMBOLS) return damaged(self, "symbol", entry->symbols.count, "too many");
    for (uint32_t i = 0; i < entry->symbols.count; i++) {
        const plan_symbol *symbol = &self->view->symbols[i];
        if (!is_string(self, symbol->name)) return damaged(self, "symbol", i, "its name");
        if (symbol->input >= entry->inputs.count || symbol->axis >= self->view->inputs[symbol->input].dims.count)
            return damaged(self, "symbol", i, "the input that defines it");
        if (symbol->lower < 0 || (symbol->has_upper && symbol->upper < symbol->lower)) return damaged(self, "symbol", i, "its bounds");
    }
    return AOTC_OK;
}

static aotc_status check_expressions(const checker *self) {
    const plan_entry *entry = self->view->record;
    for (uint32_t i = 0; i < entry->exprs.count; i++) {
        plan_range code = self->view->exprs[i];
        if (!in_range(code, table_size(self->plan, TABLE_CODE))) return damaged(self, "expression", i, "its range");
        const char *problem = dims_check(self->plan->code + code.first, code.count, entry->symbols.count);
        if (problem) return damaged(self, "expression", i, problem);
    }
    return AOTC_OK;
}

/* Bounds are in order; a dim that is known equals both of them. */
static bool has_sound_bounds(const checker *self, const plan_dim *dim) {
    plan_range code = self->view->exprs[dim->expr];
    const plan_code *first = &self->plan->code[code.first];
    if (dim->minimum < 0 || (dim->maximum != -1 && dim->maximum < dim->minimum)) return false;
    return code.count != 1 || first->op != CODE_CONSTANT || (first->value == dim->minimum && first->value == dim->maximum);
}

static aotc_status check_tensors(const checker *self, const plan_tensor *tensors, uint32_t count, const char *what) {
    for (uint32_t i = 0; i < count; i++) {
        const plan_tensor *tensor = &tensors[i];
        if (!is_string(self, tensor->name) || tensor->dtype >= PLAN_DTYPE_COUNT) return damaged(self, what, i, "its name or dtype");
        if (tensor->dims.count > PLAN_MAX_RANK || !in_range(tensor->dims, table_size(self->plan, TABLE_DIMS)))
            return damaged(self, what, i, "its rank");
        for (uint32_t axis = 0; axis < tensor->dims.count; axis++) {
            const plan_dim *dim = &self->plan->dims[tensor->dims.first + axis];
            if (dim->expr >= self->view->record->exprs.count || !is_string(self, dim->text)) return damaged(self, what, i, "its dims");
            if (!has_sound_bounds(self, dim)) return damaged(self, what, i, "its bounds");
        }
    }
    return AOTC_OK;
}

static aotc_status check_values(const checker *self) {
    const plan_entry *entry = self->view->record;
    const uint32_t limits[STORAGE_COUNT] = {entry->inputs.count, entry->outputs.count, 1, entry->buffers.count};
    for (uint32_t i = 0; i < entry->values.count; i++) {
        const plan_value *value = &self->view->values[i];
        if (value->dtype >= PLAN_DTYPE_COUNT || value->storage >= STORAGE_COUNT) return damaged(self, "value", i, "its dtype or storage");
        if (value->index >= limits[value->storage]) return damaged(self, "value", i, "its input, output or buffer");
        if (value->offset >= entry->exprs.count) return damaged(self, "value", i, "its offset");
        if (value->shape.count > PLAN_MAX_RANK || !indices_below(self, value->shape, entry->exprs.count))
            return damaged(self, "value", i, "its shape");
    }
    return AOTC_OK;
}

static aotc_status check_buffers(const checker *self) {
    const plan_entry *entry = self->view->record;
    for (uint32_t i = 0; i < entry->buffers.count; i++) {
        const plan_buffer *buffer = &self->view->buffers[i];
        if (buffer->size >= entry->exprs.count) return damaged(self, "buffer", i, "its size");
        if (buffer->first_step > buffer->last_step || buffer->last_step >= entry->steps.count)
            return damaged(self, "buffer", i, "its lifetime");
        if ((entry->arena_size >= 0) != (buffer->has_offset != 0))
            return damaged(self, "buffer", i, "offset without an arena size, or none with one");
        if (buffer->has_offset && (buffer->offset < 0 || buffer->offset % PLAN_ALIGNMENT != 0))
            return damaged(self, "buffer", i, "its offset");
    }
    return entry->arena_size >= -1 ? AOTC_OK : damaged(self, "arena of", (uint64_t)entry->arena_size, "its size");
}

/* Buffers are alive where they are used, and what is written may be written. */
static const char *argument_problem(const checker *self, uint32_t step, const plan_value *value, bool written) {
    if (written && value->storage != STORAGE_OUTPUT && value->storage != STORAGE_ARENA) return "it writes an input or a weight";
    if (value->storage != STORAGE_ARENA) return NULL;
    const plan_buffer *buffer = &self->view->buffers[value->index];
    return step < buffer->first_step || step > buffer->last_step ? "it uses a buffer outside its lifetime" : NULL;
}

static aotc_status check_step(const checker *self, uint32_t number) {
    const plan_entry *entry = self->view->record;
    const plan_step *step = &self->view->steps[number];
    if (step->kind >= STEP_COUNT || !is_string(self, step->source) || !is_string(self, step->label))
        return damaged(self, "step", number, "its kind or name");
    if (!indices_below(self, step->arguments, entry->values.count) || step->outputs > step->arguments.count)
        return damaged(self, "step", number, "its arguments");
    if (!indices_below(self, step->dims, entry->exprs.count) || step->tasks >= entry->exprs.count || step->flops >= entry->exprs.count)
        return damaged(self, "step", number, "its dims");
    const uint32_t *arguments = self->plan->indices + step->arguments.first;
    if (step->kind == STEP_COPY) {
        if (step->arguments.count != 2 || step->outputs != 1) return damaged(self, "step", number, "a copy has two arguments");
    } else {
        if (step->kernel >= table_size(self->plan, TABLE_KERNELS)) return damaged(self, "step", number, "its kernel");
        const plan_kernel *kernel = &self->plan->kernels[step->kernel];
        if (kernel->buffers != step->arguments.count || kernel->dims != step->dims.count)
            return damaged(self, "step", number, "its kernel takes another number of arguments");
    }
    for (uint32_t i = 0; i < step->arguments.count; i++) {
        bool written = i >= step->arguments.count - step->outputs;
        const char *problem = argument_problem(self, number, &self->view->values[arguments[i]], written);
        if (problem) return damaged(self, "step", number, problem);
    }
    return AOTC_OK;
}

/* Some step writes the output. */
static bool is_written(const checker *self, uint32_t output) {
    for (uint32_t i = 0; i < self->view->record->steps.count; i++) {
        const plan_step *step = &self->view->steps[i];
        for (uint32_t k = step->arguments.count - step->outputs; k < step->arguments.count; k++) {
            const plan_value *value = &self->view->values[self->plan->indices[step->arguments.first + k]];
            if (value->storage == STORAGE_OUTPUT && value->index == output) return true;
        }
    }
    return false;
}

static aotc_status check_entry(const checker *self) {
    const plan_view *view = self->view;
    const plan_entry *entry = view->record;
    aotc_status status = AOTC_OK;
    if ((status = check_expressions(self))) return status;
    if ((status = check_tensors(self, view->inputs, entry->inputs.count, "input"))) return status;
    if ((status = check_tensors(self, view->outputs, entry->outputs.count, "output"))) return status;
    if ((status = check_symbols(self))) return status;
    if ((status = check_values(self))) return status;
    if ((status = check_buffers(self))) return status;
    for (uint32_t i = 0; i < entry->steps.count; i++)
        if ((status = check_step(self, i))) return status;
    for (uint32_t i = 0; i < entry->outputs.count; i++)
        if (!is_written(self, i)) return damaged(self, "output", i, "no step writes it");
    return AOTC_OK;
}

static bool has_valid_ranges(const plan *self, const plan_entry *entry) {
    return in_range(entry->inputs, table_size(self, TABLE_TENSORS)) && in_range(entry->outputs, table_size(self, TABLE_TENSORS)) &&
           in_range(entry->symbols, table_size(self, TABLE_SYMBOLS)) && in_range(entry->exprs, table_size(self, TABLE_EXPRS)) &&
           in_range(entry->values, table_size(self, TABLE_VALUES)) && in_range(entry->buffers, table_size(self, TABLE_BUFFERS)) &&
           in_range(entry->steps, table_size(self, TABLE_STEPS)) && entry->name < table_size(self, TABLE_STRINGS);
}

aotc_status plan_open(const void *data, uint64_t size, uint32_t kernels, plan *out, aotc_error *error) {
    aotc_status status = check_header(data, size, error);
    if (status) return status;
    const plan_header *header = data;
    *out = (plan){.header = header,
                  .strings = table(header, TABLE_STRINGS),
                  .indices = table(header, TABLE_INDICES),
                  .dims = table(header, TABLE_DIMS),
                  .code = table(header, TABLE_CODE),
                  .kernels = table(header, TABLE_KERNELS),
                  .entries = table(header, TABLE_ENTRIES)};
    checker self = {.plan = out, .error = error};
    uint32_t strings = table_size(out, TABLE_STRINGS);
    if (strings == 0 || out->strings[strings - 1] != 0) return damaged(&self, "string table of", strings, "its end");
    if (table_size(out, TABLE_KERNELS) != kernels) return damaged(&self, "kernel table of", kernels, "not the code's number of kernels");
    for (uint32_t i = 0; i < kernels; i++)
        if (!is_string(&self, out->kernels[i].symbol)) return damaged(&self, "kernel", i, "its name");
    if (table_size(out, TABLE_ENTRIES) == 0) return damaged(&self, "entry point", 0, "there is none");
    for (uint32_t i = 0; i < table_size(out, TABLE_ENTRIES); i++) {
        if (!has_valid_ranges(out, &out->entries[i])) return damaged(&self, "entry point", i, "its ranges");
        plan_view view = plan_entry_view(out, i);
        self.view = &view;
        if ((status = check_entry(&self))) return status;
    }
    return AOTC_OK;
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
    }
    for (uint32_t i = 0; i < entry->inputs.count; i++) view.input_dims += view.inputs[i].dims.count;
    for (uint32_t i = 0; i < entry->outputs.count; i++) view.output_dims += view.outputs[i].dims.count;
    return view;
}
