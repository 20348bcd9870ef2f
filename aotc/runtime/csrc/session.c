/* Sessions: made and destroyed. */
#include <string.h>

#include "device.h"

#define DEFAULT_SHAPE_PLANS 16u

aotc_status session_is_busy(aotc_error *error) {
    return fail(error, AOTC_BUSY,
                "the session is in use by another thread; give each thread a session of its own (they share the weights)");
}

static aotc_status read_options(const aotc_model_t *model, const aotc_session_options *given, aotc_session_options *options,
                                aotc_error *error) {
    *options = (aotc_session_options){.size = sizeof *options};
    if (given) {
        if (given->size < sizeof(uint32_t))
            return fail(error, AOTC_INVALID_ARGUMENT, "aotc_session_options.size is %u; set it to sizeof(aotc_session_options)",
                        (unsigned)given->size);
        memcpy(options, given, given->size < sizeof *options ? given->size : sizeof *options);
    }
    if (!options->allocator) options->allocator = &model->allocator;
    if (!options->allocator->allocate || !options->allocator->release)
        return fail(error, AOTC_INVALID_ARGUMENT, "the allocator lacks allocate or release; give both or no allocator");
    if (!options->log) {
        options->log = model->log;
        options->log_context = model->log_context;
    }
    if ((options->num_threads != 0) + (options->pool != NULL) + (options->parallel_for != NULL) > 1)
        return fail(error, AOTC_INVALID_ARGUMENT, "num_threads, pool and parallel_for exclude each other; give one of them");
    if (options->shape_plans > 4096)
        return fail(error, AOTC_INVALID_ARGUMENT, "shape_plans is %u, at most 4096 are kept; give fewer, or 0 for %u",
                    (unsigned)options->shape_plans, DEFAULT_SHAPE_PLANS);
    if (options->shape_plans == 0) options->shape_plans = DEFAULT_SHAPE_PLANS;
    return AOTC_OK;
}

/* Get the GPU ready for an entry point that uses it. Without one, its fallback runs on the host instead, where it has one. */
static aotc_status find_device(aotc_model_t *model, const aotc_session_options *options, const plan_view **view, aotc_error *error) {
    if (!(*view)->uses_device) return AOTC_OK;
    if (!device_open)
        return fail(error, AOTC_INVALID_FILE, "%s: the plan uses a GPU, and the file has no code for one; build it again", model->path);
    aotc_error why = {0};
    aotc_status status = device_open(model, &why);
    if (status == AOTC_UNSUPPORTED && (*view)->record->fallback != PLAN_NO_FALLBACK) {
        text message = {0};
        text_add(&message, "running on the CPU instead of the GPU: %s", why.message);
        if (options->log) options->log(options->log_context, AOTC_LOG_WARNING, message.data);
        *view = &model->entries[(*view)->record->fallback].view;
        return AOTC_OK;
    }
    return status ? fail(error, status, "%s", why.message) : AOTC_OK;
}

static aotc_status find_entry(const aotc_model_t *model, const char *name, const plan_view **view, aotc_error *error) {
    text known = {0};
    for (uint32_t i = 0; i < model->entry_count; i++) {
        const char *candidate = rt_entry_point_name(model, i);
        text_add(&known, i ? ", %s" : "%s", candidate);
        if (name ? strcmp(name, candidate) != 0 : i != 0) continue;
        *view = &model->entries[i].view;
        return AOTC_OK;
    }
    return fail(error, AOTC_INVALID_ARGUMENT, "there is no entry point '%s'; the model has %s", name, known.data);
}

/* Lay the session out in `memory`; with base NULL only its size is found. */
static aotc_session_t *lay_out(const plan_view *view, uint32_t plan_limit, carver *memory) {
    const plan_entry *record = view->record;
    aotc_session_t *self = carve(memory, 1, sizeof *self);
    input_slot *inputs = carve(memory, record->inputs.count, sizeof *inputs);
    output_slot *outputs = carve(memory, record->outputs.count, sizeof *outputs);
    int64_t *key = carve(memory, view->input_dims, sizeof *key);
    const int64_t **input_shapes = carve(memory, record->inputs.count, sizeof *input_shapes);
    int64_t *output_dims = carve(memory, (size_t)view->output_dims * 3, sizeof *output_dims);
    shape_plan *plans = carve(memory, plan_limit, sizeof *plans);
    growing *buffers = carve(memory, record->buffers.count, sizeof *buffers);
    uint32_t *order = carve(memory, (size_t)record->buffers.count * 2, sizeof *order);
    void **pointers = carve(memory, view->max_arguments, sizeof *pointers);
    int64_t *dims = carve(memory, view->max_dims, sizeof *dims);
    step_clock *clocks = carve(memory, record->steps.count, sizeof *clocks);
    if (!self) return NULL;
    self->inputs = inputs;
    self->outputs = outputs;
    self->key = key;
    self->input_shapes = input_shapes;
    for (uint32_t i = 0; i < record->inputs.count; key += view->inputs[i++].dims.count) input_shapes[i] = inputs[i].dims = key;
    for (uint32_t i = 0; i < record->outputs.count; output_dims += 3 * (size_t)view->outputs[i++].dims.count) {
        outputs[i].dims = output_dims;
        outputs[i].strides = output_dims + view->outputs[i].dims.count;
        outputs[i].bound_dims = output_dims + 2 * (size_t)view->outputs[i].dims.count;
    }
    self->plans = plans;
    self->plan_limit = plan_limit;
    self->plan_bytes =
        (view->input_dims + record->symbols.count + record->exprs.count + (size_t)record->buffers.count) * sizeof(int64_t) + record->steps.count;
    if (self->plan_bytes == 0) self->plan_bytes = sizeof(int64_t);
    self->buffers = buffers;
    self->order = order;
    self->placed = order + record->buffers.count;
    self->pointers = pointers;
    self->dims = dims;
    self->clocks = clocks;
    return self;
}

static aotc_status allocate(const plan_view *view, const aotc_session_options *options, aotc_session_t **session, aotc_error *error) {
    uint32_t plan_limit = view->record->symbols.count ? options->shape_plans : 1;
    carver count = {0};
    lay_out(view, plan_limit, &count);
    /* The session that counts and limits memory is itself such memory: begin with one on the stack. */
    aotc_session_t first = {.allocator = *options->allocator, .limit = options->memory_limit};
    void *base;
    aotc_status status = session_allocate(&first, count.used, "the session", &base, error);
    if (status) return status;
    memset(base, 0, count.used);
    carver memory = {.base = base};
    aotc_session_t *self = lay_out(view, plan_limit, &memory);
    self->allocator = first.allocator;
    self->limit = first.limit;
    self->held = self->peak = first.held;
    self->bytes = count.used;
    *session = self;
    return AOTC_OK;
}

static aotc_status set_up_threads(aotc_session_t *self, const aotc_session_options *options, aotc_error *error) {
    if (options->parallel_for) {
        self->parallel_for = options->parallel_for;
        self->parallel_for_context = options->parallel_for_context;
        return AOTC_OK;
    }
    self->pool = options->pool;
    if (options->num_threads > 1) {
        aotc_status status = rt_pool_create(self->model, options->num_threads, &self->own_pool, error);
        if (status) return status;
        self->pool = self->own_pool;
    }
    if (!self->pool) return AOTC_OK;
    const aotc_api *api = *(const aotc_api *const *)self->pool; /* the pool may be another file's */
    if (api->abi_version != AOTC_ABI_VERSION) {
        uint32_t version = api->abi_version;
        self->pool = NULL;
        return fail(error, AOTC_WRONG_VERSION,
                    "the pool was made by a file of ABI version %u, this one has %u; make the pool with this model", (unsigned)version,
                    AOTC_ABI_VERSION);
    }
    api->pool_acquire(self->pool);
    self->parallel_for = api->pool_parallel_for;
    self->parallel_for_context = self->pool;
    if (api->size >= offsetof(aotc_api, pool_rounds) + sizeof api->pool_rounds) self->rounds = api->pool_rounds;
    return AOTC_OK;
}

/* Shapes that are all known are planned now, and the arena is reserved. */
static aotc_status plan_static(aotc_session_t *self, aotc_error *error) {
    const plan_view *view = self->view;
    if (view->record->symbols.count) return AOTC_OK;
    for (uint32_t i = 0; i < view->record->inputs.count; i++) {
        for (uint32_t axis = 0; axis < view->inputs[i].dims.count; axis++) {
            uint32_t expr = self->plan->dims[view->inputs[i].dims.first + axis].expr;
            aotc_status status = shapes_evaluate(self->plan, view, expr, NULL, &self->inputs[i].dims[axis], error);
            if (status) return status;
        }
    }
    aotc_status status = planning_select(self, error);
    if (!status) status = run_reserve_arena(self, error);
    if (status || !self->cuda) return status;
    status = device_enter(self->cuda->device, error);
    if (status) return status;
    status = device_reserve_arenas(self, error);
    device_leave(self->cuda->device);
    return status;
}

static void release_all(aotc_session_t *self) {
    if (self->pool) (*(const aotc_api *const *)self->pool)->pool_release(self->pool);
    if (self->own_pool) rt_pool_destroy(self->own_pool, NULL);
    for (uint32_t i = 0; i < self->plan_count; i++) session_release(self, self->plans[i].key, self->plan_bytes);
    for (uint32_t i = 0; i < self->view->record->outputs.count; i++)
        session_release(self, self->outputs[i].owned, self->outputs[i].owned_bytes);
    for (uint32_t i = 0; i < self->view->record->buffers.count; i++) session_release(self, self->buffers[i].data, self->buffers[i].bytes);
    session_release(self, self->arena, self->arena_bytes);
    if (self->cuda) device_session_close(self);
    states_detach(self);
    aotc_model_t *model = self->model;
    aotc_allocator allocator = self->allocator;
    allocator.release(allocator.context, self, self->bytes);
    atomic_fetch_sub(&model->users, 1);
}

aotc_status rt_session_create(aotc_model_t *model, const aotc_session_options *given, aotc_session_t **session, aotc_error *error) {
    if (!session) return fail(error, AOTC_INVALID_ARGUMENT, "the place for the session is NULL");
    *session = NULL;
    aotc_session_options options;
    const plan_view *view = NULL;
    aotc_session_t *self = NULL;
    aotc_status status = read_options(model, given, &options, error);
    if (!status) status = find_entry(model, options.entry_point, &view, error);
    if (!status) status = find_device(model, &options, &view, error);
    if (!status) status = allocate(view, &options, &self, error);
    if (status) return status;
    self->api = &rt_api;
    self->model = model;
    self->plan = &model->plan;
    self->view = view;
    self->log = options.log;
    self->log_context = options.log_context;
    self->profile = options.profile != 0;
    atomic_flag_clear(&self->busy);
    atomic_fetch_add(&model->users, 1);
    status = view->uses_device ? device_session_open(self, options.cuda_stream, error) : AOTC_OK;
    if (!status) status = states_attach(self, options.share_state, error);
    if (!status) status = set_up_threads(self, &options, error);
    if (!status) status = plan_static(self, error);
    if (status) {
        release_all(self);
        return status;
    }
    *session = self;
    return succeed(error);
}

aotc_status rt_session_destroy(aotc_session_t *self, aotc_error *error) {
    if (!self) return succeed(error);
    if (!session_enter(self)) return session_is_busy(error);
    release_all(self);
    return succeed(error);
}
