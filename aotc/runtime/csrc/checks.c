/* What a step relies on, checked once its sizes are known: at a new shape, or while running where they depend on the data. */
#include <inttypes.h>

#include "internal.h"

aotc_status checks_wrong(const char *what, uint32_t number, const char *problem, aotc_error *error) {
    return fail(error, AOTC_INVALID_FILE, "the plan is wrong at these shapes: %s %u %s; report this with the model", what, (unsigned)number,
                problem);
}

static uint64_t storage_bytes(const plan *plan, const plan_view *view, const plan_value *value, const int64_t *exprs, bool on_device) {
    switch (value->storage) {
    case STORAGE_INPUT: return shapes_tensor_bytes(plan, &view->inputs[value->index], exprs);
    case STORAGE_OUTPUT: return shapes_tensor_bytes(plan, &view->outputs[value->index], exprs);
    case STORAGE_WEIGHT: return on_device ? (uint64_t)plan_device_weights(plan) : aotc_weights_size;
    case STORAGE_STATE: return plan_state_bytes(plan, value->index);
    default: return memory_buffer_bytes(view, exprs, value->index);
    }
}

/* The value lies within its input, output, buffer, state or the weights. */
static aotc_status check_value(const plan *plan, const plan_view *view, uint32_t number, const plan_step *step, const int64_t *exprs,
                               aotc_error *error) {
    const char *source = plan_string(plan, step->source);
    const plan_value *value = &view->values[number];
    int64_t shape[PLAN_MAX_RANK], offset = exprs[value->offset];
    for (uint32_t axis = 0; axis < value->shape.count; axis++) shape[axis] = exprs[plan->indices[value->shape.first + axis]];
    if (!shapes_countable(shape, value->shape.count))
        return shapes_too_large("a tensor of step", source, shape, value->shape.count, error);
    uint64_t room = storage_bytes(plan, view, value, exprs, plan_is_device_step(step->kind)), bytes = shapes_value_bytes(plan, value, exprs);
    if (offset < 0 || (uint64_t)offset > room || bytes > room - (uint64_t)offset)
        return checks_wrong("value", number, "leaves its memory", error);
    uint32_t alignment = step->kind == STEP_LAUNCH ? DEVICE_ALIGNMENT : plan_itemsize(value->dtype);
    if (offset % alignment != 0) return checks_wrong("value", number, "is not aligned", error);
    return AOTC_OK;
}

/* Whether two values share bytes. */
static bool overlap(const plan *plan, const int64_t *exprs, const plan_value *a, const plan_value *b) {
    if (a->storage != b->storage || a->index != b->index) return false;
    uint64_t a_start = (uint64_t)exprs[a->offset], a_end = a_start + shapes_value_bytes(plan, a, exprs);
    uint64_t b_start = (uint64_t)exprs[b->offset], b_end = b_start + shapes_value_bytes(plan, b, exprs);
    return a_start < a_end && b_start < b_end && a_start < b_end && b_start < a_end;
}

/* Parameters of a kernel that it writes share no bytes with its others: its code relies on that. */
static bool writes_what_it_reads(const plan *plan, const plan_view *view, const plan_step *step, const int64_t *exprs) {
    const uint32_t *arguments = plan->indices + step->arguments.first;
    for (uint32_t k = step->arguments.count - step->outputs; k < step->arguments.count; k++)
        for (uint32_t m = 0; m < k; m++)
            if (overlap(plan, exprs, &view->values[arguments[k]], &view->values[arguments[m]])) return true;
    return false;
}

static const char *kernel_problem(const plan *plan, const plan_step *step, const int64_t *exprs) {
    if (exprs[step->tasks] < 0 || exprs[step->tasks] > MAX_ELEMENTS) return "has an impossible number of tasks";
    for (uint32_t k = 0; k < step->dims.count; k++) {
        int64_t dim = exprs[plan->indices[step->dims.first + k]];
        if (dim < -MAX_ELEMENTS || dim > MAX_ELEMENTS) return "has a dim beyond 32 bits";
    }
    return NULL;
}

/* The extents of a grid are what a device takes at most. */
static const char *grid_problem(const plan *plan, const plan_step *step, const int64_t *exprs) {
    const uint32_t *grid = plan->indices + step->dims.first + step->dims.count - 3;
    for (uint32_t axis = 0; axis < 3; axis++)
        if (exprs[grid[axis]] < 0 || exprs[grid[axis]] > (axis ? 65535 : MAX_ELEMENTS)) return "has an impossible grid";
    return NULL;
}

static const char *copy_problem(const plan *plan, const plan_view *view, const plan_step *step, const int64_t *exprs) {
    const uint32_t *arguments = plan->indices + step->arguments.first;
    uint64_t from = shapes_value_bytes(plan, &view->values[arguments[0]], exprs);
    return from != shapes_value_bytes(plan, &view->values[arguments[1]], exprs) ? "copies between sizes" : NULL;
}

/* A step that reads one element, or compares dims. */
static const char *control_problem(const plan *plan, const plan_view *view, const plan_step *step, const int64_t *exprs) {
    for (uint32_t k = 0; k < step->dims.count; k++)
        if (exprs[plan->indices[step->dims.first + k]] == UNKNOWN) return "has a dim that cannot be computed";
    if (step->arguments.count == 0) return NULL;
    const plan_value *value = &view->values[plan->indices[step->arguments.first]];
    int64_t element = step->kind == STEP_SHAPE ? exprs[plan->indices[step->dims.first]] : 0;
    uint64_t elements = shapes_value_bytes(plan, value, exprs) / plan_itemsize(value->dtype);
    return element < 0 || (uint64_t)element >= elements ? "reads an element that its argument has not" : NULL;
}

aotc_status checks_step(const plan *plan, const plan_view *view, uint32_t number, const int64_t *exprs, aotc_error *error) {
    const plan_step *step = &view->steps[number];
    for (uint32_t i = 0; i < step->arguments.count; i++) {
        uint32_t value = plan->indices[step->arguments.first + i];
        aotc_status status = check_value(plan, view, value, step, exprs, error);
        if (status) return status;
    }
    const char *problem = NULL;
    switch (step->kind) {
    case STEP_KERNEL: problem = kernel_problem(plan, step, exprs); break;
    case STEP_LAUNCH:
        problem = kernel_problem(plan, step, exprs);
        if (!problem) problem = grid_problem(plan, step, exprs);
        break;
    case STEP_COPY:
    case STEP_DEVICE_COPY: problem = copy_problem(plan, view, step, exprs); break;
    case STEP_TO_DEVICE:
    case STEP_TO_HOST:
    case STEP_DELIVER: break;
    default: problem = control_problem(plan, view, step, exprs); break;
    }
    if (!problem && writes_what_it_reads(plan, view, step, exprs)) problem = "writes what it also reads";
    return problem ? checks_wrong("step", number, problem, error) : AOTC_OK;
}
