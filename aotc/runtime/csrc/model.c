/* Models: the checked plan, and what it says about inputs and outputs in the API's structs. */
#include <string.h>

#include "device.h"

static DLDataType dtype_of(uint32_t dtype) { return (DLDataType){.code = plan_dtypes[dtype].code, .bits = plan_dtypes[dtype].bits, .lanes = 1}; }

static void describe_tensors(const plan *plan, const plan_view *view, const plan_tensor *tensors, uint32_t count, aotc_tensor_info *infos,
                             carver *memory) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rank = tensors[i].dims.count;
        aotc_dim *dims = carve(memory, rank, sizeof *dims);
        if (!infos) continue;
        for (uint32_t axis = 0; axis < rank; axis++) {
            const plan_dim *dim = &plan->dims[tensors[i].dims.first + axis];
            const plan_code *code = &plan->code[view->exprs[dim->expr].first];
            bool constant = view->exprs[dim->expr].count == 1 && code->op == CODE_CONSTANT;
            dims[axis] = (aotc_dim){.value = constant ? code->value : -1,
                                    .minimum = constant ? code->value : dim->minimum,
                                    .maximum = constant ? code->value : dim->maximum,
                                    .symbol = constant ? NULL : plan_string(plan, dim->text)};
        }
        infos[i] = (aotc_tensor_info){.name = plan_string(plan, tensors[i].name),
                                      .dtype = dtype_of(tensors[i].dtype),
                                      .rank = (int32_t)rank,
                                      .dims = rank ? dims : NULL};
    }
}

/* States: their shapes are extents. `shapes`: PLAN_MAX_RANK places for each. */
static void describe_states(const plan *plan, aotc_tensor_info *infos, int64_t *shapes, carver *memory) {
    for (uint32_t i = 0; i < plan_state_count(plan); i++) {
        const plan_state *state = &plan->states[i];
        aotc_dim *dims = carve(memory, state->dims.count, sizeof *dims);
        if (!infos) continue;
        for (uint32_t axis = 0; axis < state->dims.count; axis++) {
            int64_t extent = plan->dims[state->dims.first + axis].minimum;
            dims[axis] = (aotc_dim){.value = extent, .minimum = extent, .maximum = extent};
            shapes[(size_t)i * PLAN_MAX_RANK + axis] = extent;
        }
        infos[i] = (aotc_tensor_info){.name = plan_string(plan, state->name),
                                      .dtype = dtype_of(state->dtype),
                                      .rank = (int32_t)state->dims.count,
                                      .dims = state->dims.count ? dims : NULL};
    }
}

/* Entry points that stand in for others where there is no GPU come last, and are not to be seen. */
static uint32_t visible_entries(const plan *plan, uint32_t count) {
    uint32_t visible = count;
    for (uint32_t i = 0; i < count; i++)
        if (plan->entries[i].fallback < visible) visible = plan->entries[i].fallback;
    return visible;
}

/* Lay the model out in `memory`; with base NULL only its size is found. */
static aotc_model_t *lay_out(const plan *plan, const char *path, carver *memory) {
    aotc_model_t *self = carve(memory, 1, sizeof *self);
    char *path_copy = carve(memory, strlen(path) + 1, 1);
    uint32_t count = plan->header->tables[TABLE_ENTRIES].count;
    entry *entries = carve(memory, count, sizeof *entries);
    for (uint32_t i = 0; i < count; i++) {
        plan_view view = plan_entry_view(plan, i);
        uint8_t *dynamic = carve(memory, view.record->exprs.count, sizeof *dynamic);
        for (uint32_t k = 0; dynamic && k < view.record->exprs.count; k++) dynamic[k] = plan_is_dynamic(plan, &view, k);
        view.dynamic = dynamic;
        uint32_t inputs = view.record->inputs.count, outputs = view.record->outputs.count;
        aotc_tensor_info *input_infos = carve(memory, inputs, sizeof *input_infos);
        aotc_tensor_info *output_infos = carve(memory, outputs, sizeof *output_infos);
        describe_tensors(plan, &view, view.inputs, inputs, input_infos, memory);
        describe_tensors(plan, &view, view.outputs, outputs, output_infos, memory);
        if (entries) entries[i] = (entry){.view = view, .inputs = input_infos, .outputs = output_infos};
    }
    aotc_tensor_info *states = carve(memory, plan_state_count(plan), sizeof *states);
    int64_t *state_shapes = carve(memory, (size_t)plan_state_count(plan) * PLAN_MAX_RANK, sizeof *state_shapes);
    describe_states(plan, states, state_shapes, memory);
    if (self) {
        memcpy(path_copy, path, strlen(path) + 1);
        self->path = path_copy;
        self->plan = *plan;
        self->entries = entries;
        self->entry_count = visible_entries(plan, count);
        self->states = states;
        self->state_shapes = state_shapes;
    }
    return self;
}

static aotc_status read_options(const aotc_model_options *given, aotc_model_options *options, aotc_error *error) {
    *options = (aotc_model_options){.size = sizeof *options};
    if (given) {
        if (given->size < sizeof(uint32_t))
            return fail(error, AOTC_INVALID_ARGUMENT, "aotc_model_options.size is %u; set it to sizeof(aotc_model_options)",
                        (unsigned)given->size);
        memcpy(options, given, given->size < sizeof *options ? given->size : sizeof *options);
    }
    if (!options->path) options->path = "";
    if (!options->allocator) options->allocator = &memory_default;
    if (!options->allocator->allocate || !options->allocator->release)
        return fail(error, AOTC_INVALID_ARGUMENT, "the allocator lacks allocate or release; give both or no allocator");
    return AOTC_OK;
}

/* The first values of states lie in the weights. */
static aotc_status check_states(const plan *plan, aotc_error *error) {
    for (uint32_t i = 0; i < plan_state_count(plan); i++) {
        uint64_t first = (uint64_t)plan->states[i].initial;
        if (plan->states[i].has_initial && (first > aotc_weights_size || plan_state_bytes(plan, i) > aotc_weights_size - first))
            return checks_wrong("state", i, "begins outside the weights", error);
    }
    return AOTC_OK;
}

static aotc_status make(const plan *plan, const aotc_model_options *options, const char *weights, mapping beside, aotc_model_t **model,
                        aotc_error *error) {
    carver count = {0};
    lay_out(plan, options->path, &count);
    void *base;
    aotc_status status = memory_allocate(options->allocator, count.used, "the model's tables", &base, error);
    if (status) return status;
    memset(base, 0, count.used);
    carver memory = {.base = base};
    aotc_model_t *self = lay_out(plan, options->path, &memory);
    self->api = &rt_api;
    self->library = options->library;
    self->allocator = *options->allocator;
    self->log = options->log;
    self->log_context = options->log_context;
    self->weights = weights;
    self->beside = beside;
    self->bytes = count.used;
    pthread_mutex_init(&self->device_lock, NULL);
    atomic_init(&self->users, 0);
    *model = self;
    return succeed(error);
}

aotc_status rt_model_create(const aotc_model_options *given, aotc_model_t **model, aotc_error *error) {
    if (!model) return fail(error, AOTC_INVALID_ARGUMENT, "the place for the model is NULL");
    *model = NULL;
    aotc_model_options options;
    plan plan;
    const char *weights;
    mapping beside = {0};
    aotc_status status = read_options(given, &options, error);
    if (!status) status = plan_open(aotc_plan_data, aotc_plan_size, aotc_kernel_count, aotc_cubins_size, &plan, error);
    if (!status) status = check_states(&plan, error);
    if (!status && (uint64_t)plan_device_weights(&plan) > aotc_weights_size)
        status = fail(error, AOTC_INVALID_FILE, "the plan is wrong: the GPU's weights leave the file's; build or copy the file again");
    if (!status) status = weights_open(options.path, &weights, &beside, error);
    if (status) return status;
    status = make(&plan, &options, weights, beside, model, error);
    if (status) weights_close(&beside);
    return status;
}

aotc_status rt_model_destroy(aotc_model_t *self, aotc_error *error) {
    if (!self) return succeed(error);
    unsigned users = atomic_load(&self->users);
    if (users) return fail(error, AOTC_BUSY, "%u sessions or pools of the model %s are still open; destroy them first", users, self->path);
    aotc_allocator allocator = self->allocator;
    if (self->device) device_close(self);
    pthread_mutex_destroy(&self->device_lock);
    weights_close(&self->beside);
    allocator.release(allocator.context, self, self->bytes);
    return succeed(error);
}

void *rt_model_library(const aotc_model_t *self) { return self->library; }

const char *rt_manifest(const aotc_model_t *self, size_t *length) {
    (void)self;
    if (length) *length = (size_t)aotc_manifest_size;
    return aotc_manifest_data;
}

size_t rt_entry_point_count(const aotc_model_t *self) { return self->entry_count; }

static const entry *entry_at(const aotc_model_t *self, size_t number) { return number < self->entry_count ? &self->entries[number] : NULL; }

const char *rt_entry_point_name(const aotc_model_t *self, size_t number) {
    const entry *entry = entry_at(self, number);
    return entry ? plan_string(&self->plan, entry->view.record->name) : NULL;
}

size_t rt_input_count(const aotc_model_t *self, size_t number) {
    const entry *entry = entry_at(self, number);
    return entry ? entry->view.record->inputs.count : 0;
}

size_t rt_output_count(const aotc_model_t *self, size_t number) {
    const entry *entry = entry_at(self, number);
    return entry ? entry->view.record->outputs.count : 0;
}

const aotc_tensor_info *rt_input_info(const aotc_model_t *self, size_t number, size_t input) {
    return input < rt_input_count(self, number) ? &self->entries[number].inputs[input] : NULL;
}

const aotc_tensor_info *rt_output_info(const aotc_model_t *self, size_t number, size_t output) {
    return output < rt_output_count(self, number) ? &self->entries[number].outputs[output] : NULL;
}

aotc_status rt_infer_shape(const aotc_model_t *self, size_t number, const int64_t *const *input_shapes, size_t output, int64_t *shape,
                           aotc_error *error) {
    if (output >= rt_output_count(self, number))
        return fail(error, AOTC_INVALID_ARGUMENT, "there is no output %zu of entry point %zu; the model has %u entry points", output,
                    number, (unsigned)self->entry_count);
    const plan_view *view = &self->entries[number].view;
    if (!shape && view->outputs[output].dims.count) return fail(error, AOTC_INVALID_ARGUMENT, "the place for the shape is NULL");
    for (uint32_t i = 0; i < view->record->inputs.count; i++)
        if (view->inputs[i].dims.count && (!input_shapes || !input_shapes[i]))
            return fail(error, AOTC_INVALID_ARGUMENT, "the shape of input '%s' is NULL; give its %u dims",
                        plan_string(&self->plan, view->inputs[i].name), (unsigned)view->inputs[i].dims.count);
    int64_t symbols[PLAN_MAX_SYMBOLS];
    aotc_status status = shapes_symbols(&self->plan, view, input_shapes, symbols, error);
    if (status) return status;
    return shapes_output(&self->plan, view, symbols, output, shape, error);
}
