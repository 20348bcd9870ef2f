/* Checking a plan: every offset, count and reference, once, so that the rest of the runtime follows them without looking. */
#include "dims.h"
#include "error.h"
#include "plan.h"

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

static aotc_status check_symbols(const checker *self) {
    const plan_entry *entry = self->view->record;
    if (entry->symbols.count > PLAN_MAX_SYMBOLS) return damaged(self, "symbol", entry->symbols.count, "too many");
    for (uint32_t i = 0; i < entry->symbols.count; i++) {
        const plan_symbol *symbol = &self->view->symbols[i];
        if (!is_string(self, symbol->name)) return damaged(self, "symbol", i, "its name");
        bool dynamic = symbol->input == PLAN_NO_INPUT;
        if (!dynamic && (symbol->input >= entry->inputs.count || symbol->axis >= self->view->inputs[symbol->input].dims.count))
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
            if (tensors == self->view->inputs && plan_is_dynamic(self->plan, self->view, dim->expr))
                return damaged(self, what, i, "a dim that only a step sets");
        }
    }
    return AOTC_OK;
}

static aotc_status check_states(const checker *self) {
    for (uint32_t i = 0; i < plan_state_count(self->plan); i++) {
        const plan_state *state = &self->plan->states[i];
        if (!is_string(self, state->name) || state->dtype >= PLAN_DTYPE_COUNT) return damaged(self, "state", i, "its name or dtype");
        if (state->dims.count > PLAN_MAX_RANK || !in_range(state->dims, table_size(self->plan, TABLE_DIMS)))
            return damaged(self, "state", i, "its rank");
        uint64_t elements = 1;
        for (uint32_t axis = 0; axis < state->dims.count; axis++) {
            const plan_dim *dim = &self->plan->dims[state->dims.first + axis];
            if (dim->minimum < 0 || dim->minimum > INT32_MAX || dim->maximum != dim->minimum) return damaged(self, "state", i, "its dims");
            elements *= (uint64_t)dim->minimum;
            if (elements > INT32_MAX) return damaged(self, "state", i, "its size");
        }
        if (state->has_initial && (state->initial < 0 || state->initial % PLAN_ALIGNMENT != 0))
            return damaged(self, "state", i, "where its first value lies");
    }
    return AOTC_OK;
}

static aotc_status check_values(const checker *self) {
    const plan_entry *entry = self->view->record;
    const uint32_t limits[STORAGE_COUNT] = {entry->inputs.count, entry->outputs.count, 1, entry->buffers.count,
                                            plan_state_count(self->plan)};
    for (uint32_t i = 0; i < entry->values.count; i++) {
        const plan_value *value = &self->view->values[i];
        if (value->dtype >= PLAN_DTYPE_COUNT || value->storage >= STORAGE_COUNT) return damaged(self, "value", i, "its dtype or storage");
        if (value->index >= limits[value->storage]) return damaged(self, "value", i, "its input, output, buffer or state");
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
        bool placed = entry->arena_size >= 0 && !plan_is_dynamic(self->plan, self->view, buffer->size);
        if (placed != (buffer->has_offset != 0)) return damaged(self, "buffer", i, "offset without an arena size, or none with one");
        bool for_device = buffer->memory != MEMORY_HOST;
        if (buffer->memory >= MEMORY_COUNT || (for_device && !self->view->uses_device) ||
            (for_device && plan_is_dynamic(self->plan, self->view, buffer->size)))
            return damaged(self, "buffer", i, "its memory");
        if (buffer->has_offset && (buffer->offset < 0 || buffer->offset % PLAN_ALIGNMENT != 0))
            return damaged(self, "buffer", i, "its offset");
    }
    return entry->arena_size >= -1 ? AOTC_OK : damaged(self, "arena of", (uint64_t)entry->arena_size, "its size");
}

static bool is_dynamic_output(const checker *self, uint32_t output) {
    plan_range dims = self->view->outputs[output].dims;
    for (uint32_t axis = 0; axis < dims.count; axis++)
        if (plan_is_dynamic(self->plan, self->view, self->plan->dims[dims.first + axis].expr)) return true;
    return false;
}

/* Buffers are alive where they are used, by the processor that sees them, and what is written may be written. */
static const char *argument_problem(const checker *self, uint32_t step, const plan_value *value, bool written) {
    uint32_t kind = self->view->steps[step].kind;
    if (written && (value->storage == STORAGE_INPUT || value->storage == STORAGE_WEIGHT)) return "it writes an input or a weight";
    if ((plan_is_device_step(kind) || plan_is_crossing(kind)) && value->storage == STORAGE_OUTPUT && is_dynamic_output(self, value->index))
        return "it uses an output on the device whose size a run tells";
    if (kind == STEP_DELIVER && value->storage != STORAGE_OUTPUT) return "it delivers what is no output";
    if (plan_is_crossing(kind) && value->storage == STORAGE_WEIGHT) return "it moves a weight";
    if (value->storage != STORAGE_ARENA) return NULL;
    const plan_buffer *buffer = &self->view->buffers[value->index];
    if (buffer->memory != MEMORY_SHARED && (plan_is_crossing(kind) || plan_is_device_step(kind) != (buffer->memory == MEMORY_DEVICE)))
        return "it uses a buffer that its processor does not see";
    return step < buffer->first_step || step > buffer->last_step ? "it uses a buffer outside its lifetime" : NULL;
}

static const char *kernel_problem(const checker *self, const plan_step *step) {
    if (step->kernel >= table_size(self->plan, TABLE_KERNELS)) return "its kernel";
    const plan_kernel *kernel = &self->plan->kernels[step->kernel];
    bool fits = kernel->buffers == step->arguments.count && kernel->dims == step->dims.count;
    return fits ? NULL : "its kernel takes another number of arguments";
}

static const char *launch_problem(const checker *self, const plan_step *step) {
    if (step->kernel >= plan_cuda_kernel_count(self->plan)) return "its kernel";
    const plan_cuda_kernel *kernel = &self->plan->cuda_kernels[step->kernel];
    bool fits = kernel->buffers == step->arguments.count && (uint64_t)kernel->dims + 3 == step->dims.count;
    return fits ? NULL : "its kernel takes another number of arguments";
}

static const char *shape_problem(const checker *self, const plan_step *step) {
    if (step->target >= self->view->record->symbols.count || self->view->symbols[step->target].input != PLAN_NO_INPUT)
        return "the symbol that it sets";
    return step->arguments.count > 1 || step->outputs || step->dims.count != 1 ? "it sets a symbol from one argument or one dim" : NULL;
}

/* A jump or a branch. */
static const char *target_problem(const checker *self, const plan_step *step) {
    if (step->target > self->view->record->steps.count) return "the step that it goes on with";
    if (step->outputs || step->arguments.count > (step->kind == STEP_BRANCH)) return "its arguments";
    return step->kind == STEP_JUMP || step->arguments.count || step->dims.count == 2 ? NULL : "it compares two dims";
}

static const char *kind_problem(const checker *self, const plan_step *step) {
    switch (step->kind) {
    case STEP_KERNEL: return kernel_problem(self, step);
    case STEP_LAUNCH: return launch_problem(self, step);
    case STEP_COPY:
    case STEP_DEVICE_COPY: return step->arguments.count != 2 || step->outputs != 1 ? "a copy has two arguments" : NULL;
    case STEP_TO_DEVICE:
    case STEP_TO_HOST:
    case STEP_DELIVER: return step->outputs || step->dims.count || step->target > 1 ? "it moves arguments and nothing else" : NULL;
    case STEP_SHAPE: return shape_problem(self, step);
    case STEP_CHECK: return step->arguments.count || step->outputs || step->dims.count != 2 ? "it compares two dims" : NULL;
    default: return target_problem(self, step);
    }
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
    const char *problem = kind_problem(self, step);
    for (uint32_t i = 0; i < step->arguments.count && !problem; i++) {
        const plan_value *value = &self->view->values[self->plan->indices[step->arguments.first + i]];
        problem = argument_problem(self, number, value, i >= step->arguments.count - step->outputs);
        if (step->kind == STEP_SHAPE && value->dtype != DTYPE_INT64) problem = "its argument is not int64";
        if (step->kind == STEP_BRANCH && value->dtype != DTYPE_BOOL) problem = "its argument is not bool";
    }
    return problem ? damaged(self, "step", number, problem) : AOTC_OK;
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

/* Kernels name their code, and the code lies in its blob. */
static aotc_status check_cuda(const checker *self, uint64_t cubins_bytes) {
    const plan *plan = self->plan;
    for (uint32_t i = 0; i < table_size(plan, TABLE_CUBINS); i++) {
        uint64_t offset = (uint64_t)plan->cubins[i].offset, size = (uint64_t)plan->cubins[i].size;
        if (offset > cubins_bytes || size > cubins_bytes - offset || offset % 8 != 0) return damaged(self, "cubin", i, "its place");
    }
    for (uint32_t i = 0; i < plan_cuda_kernel_count(plan); i++) {
        const plan_cuda_kernel *kernel = &plan->cuda_kernels[i];
        if (!is_string(self, kernel->symbol)) return damaged(self, "CUDA kernel", i, "its name");
        if (!indices_below(self, kernel->cubins, table_size(plan, TABLE_CUBINS))) return damaged(self, "CUDA kernel", i, "its code");
    }
    if (table_size(plan, TABLE_DEVICES) != (plan_cuda_kernel_count(plan) != 0) || plan_device_weights(plan) < 0)
        return damaged(self, "device table of", table_size(plan, TABLE_DEVICES), "its size");
    return AOTC_OK;
}

/* A fallback is a later entry point that needs no device and takes and gives the same. */
static aotc_status check_fallback(const checker *self, uint32_t number) {
    uint32_t fallback = self->view->record->fallback;
    if (fallback == PLAN_NO_FALLBACK) return AOTC_OK;
    if (fallback <= number || fallback >= table_size(self->plan, TABLE_ENTRIES)) return damaged(self, "entry point", number, "its fallback");
    const plan_entry *other = &self->plan->entries[fallback];
    bool same = other->inputs.count == self->view->record->inputs.count && other->outputs.count == self->view->record->outputs.count;
    return same && other->fallback == PLAN_NO_FALLBACK ? AOTC_OK : damaged(self, "entry point", number, "its fallback");
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

aotc_status plan_check(const plan *plan, uint32_t kernels, uint64_t cubins, aotc_error *error) {
    checker self = {.plan = plan, .error = error};
    aotc_status status = AOTC_OK;
    uint32_t strings = table_size(plan, TABLE_STRINGS);
    if (strings == 0 || plan->strings[strings - 1] != 0) return damaged(&self, "string table of", strings, "its end");
    if (table_size(plan, TABLE_KERNELS) != kernels) return damaged(&self, "kernel table of", kernels, "not the code's number of kernels");
    for (uint32_t i = 0; i < kernels; i++)
        if (!is_string(&self, plan->kernels[i].symbol)) return damaged(&self, "kernel", i, "its name");
    if ((status = check_states(&self))) return status;
    if ((status = check_cuda(&self, cubins))) return status;
    if (table_size(plan, TABLE_ENTRIES) == 0) return damaged(&self, "entry point", 0, "there is none");
    for (uint32_t i = 0; i < table_size(plan, TABLE_ENTRIES); i++) {
        if (!has_valid_ranges(plan, &plan->entries[i])) return damaged(&self, "entry point", i, "its ranges");
        plan_view view = plan_entry_view(plan, i);
        self.view = &view;
        if ((status = check_entry(&self))) return status;
        if ((status = check_fallback(&self, i))) return status;
    }
    return AOTC_OK;
}
