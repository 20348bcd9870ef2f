/* From the shapes of inputs to symbols and to the shapes of outputs. */
#include <inttypes.h>

#include "dims.h"
#include "internal.h"

aotc_status shapes_evaluate(const plan *plan, const plan_view *view, uint32_t expr, const int64_t *symbols, int64_t *result,
                            aotc_error *error) {
    plan_range code = view->exprs[expr];
    const char *problem = dims_evaluate(plan->code + code.first, code.count, symbols, result);
    if (!problem) return AOTC_OK;
    return fail(error, AOTC_INVALID_ARGUMENT, "a size that follows from these input shapes %s; use other input sizes", problem);
}

void shapes_declared(text *self, const plan *plan, const plan_view *view, const plan_tensor *tensor) {
    text_add(self, "[");
    for (uint32_t axis = 0; axis < tensor->dims.count; axis++) {
        const plan_dim *dim = &plan->dims[tensor->dims.first + axis];
        plan_range code = view->exprs[dim->expr];
        if (axis) text_add(self, ", ");
        if (code.count == 1 && plan->code[code.first].op == CODE_CONSTANT) text_add(self, "%" PRId64, plan->code[code.first].value);
        else text_add(self, "%s", plan_string(plan, dim->text));
    }
    text_add(self, "]");
}

static aotc_status wrong_shape(const plan *plan, const plan_view *view, uint32_t input, const int64_t *shape, uint32_t axis,
                               int64_t expected, aotc_error *error) {
    text declared = {0}, got = {0};
    shapes_declared(&declared, plan, view, &view->inputs[input]);
    text_shape(&got, shape, view->inputs[input].dims.count);
    return fail(error, AOTC_INVALID_ARGUMENT,
                "input '%s' should have the shape %s and has %s: dim %u must be %" PRId64
                " here; change the input, or build the model for such shapes",
                plan_string(plan, view->inputs[input].name), declared.data, got.data, (unsigned)axis, expected);
}

bool shapes_countable(const int64_t *dims, uint32_t rank) {
    int64_t elements = 1;
    bool empty = false;
    for (uint32_t i = 0; i < rank; i++) {
        if (dims[i] < 0 || dims[i] > MAX_ELEMENTS) return false;
        empty |= dims[i] == 0;
    }
    for (uint32_t i = 0; i < rank && !empty; i++) {
        elements *= dims[i];
        if (elements > MAX_ELEMENTS) return false;
    }
    return true;
}

aotc_status shapes_too_large(const char *what, const char *name, const int64_t *dims, uint32_t rank, aotc_error *error) {
    text shape = {0};
    text_shape(&shape, dims, rank);
    return fail(
        error, AOTC_INVALID_ARGUMENT,
        "%s '%s' would have the shape %s; dims may not be negative and a tensor holds fewer than 2^31 elements: change the inputs",
        what, name, shape.data);
}

aotc_status shapes_symbols(const plan *plan, const plan_view *view, const int64_t *const *input_shapes, int64_t *symbols,
                           aotc_error *error) {
    for (uint32_t i = 0; i < view->record->inputs.count; i++)
        if (!shapes_countable(input_shapes[i], view->inputs[i].dims.count))
            return shapes_too_large("input", plan_string(plan, view->inputs[i].name), input_shapes[i], view->inputs[i].dims.count, error);
    for (uint32_t i = 0; i < view->record->symbols.count; i++) {
        const plan_symbol *symbol = &view->symbols[i];
        symbols[i] = symbol->lower; /* of a dynamic one, until a step sets it */
        if (symbol->input == PLAN_NO_INPUT) continue;
        int64_t value = input_shapes[symbol->input][symbol->axis];
        symbols[i] = value;
        if (value >= symbol->lower && (!symbol->has_upper || value <= symbol->upper)) continue;
        text bound = {0};
        if (symbol->has_upper) text_add(&bound, " to %" PRId64, symbol->upper);
        else text_add(&bound, " or more");
        return fail(error, AOTC_INVALID_ARGUMENT,
                    "input '%s' has %" PRId64 " in dim %u ('%s'), the model was built for %" PRId64
                    "%s; change the input, or build the model with wider bounds",
                    plan_string(plan, view->inputs[symbol->input].name), value, (unsigned)symbol->axis, plan_string(plan, symbol->name),
                    symbol->lower, bound.data);
    }
    for (uint32_t i = 0; i < view->record->inputs.count; i++) {
        for (uint32_t axis = 0; axis < view->inputs[i].dims.count; axis++) {
            int64_t expected;
            aotc_status status = shapes_evaluate(plan, view, plan->dims[view->inputs[i].dims.first + axis].expr, symbols, &expected, error);
            if (status) return status;
            if (expected != input_shapes[i][axis]) return wrong_shape(plan, view, i, input_shapes[i], axis, expected, error);
        }
    }
    return AOTC_OK;
}

aotc_status shapes_output(const plan *plan, const plan_view *view, const int64_t *symbols, size_t output, int64_t *shape,
                          aotc_error *error) {
    const plan_tensor *tensor = &view->outputs[output];
    int64_t known[PLAN_MAX_RANK];
    for (uint32_t axis = 0; axis < tensor->dims.count; axis++) {
        uint32_t expr = plan->dims[tensor->dims.first + axis].expr;
        aotc_status status = AOTC_OK;
        if (view->dynamic[expr]) shape[axis] = -1;
        else status = shapes_evaluate(plan, view, expr, symbols, &shape[axis], error);
        if (status) return status;
        known[axis] = view->dynamic[expr] ? 1 : shape[axis];
    }
    if (!shapes_countable(known, tensor->dims.count))
        return shapes_too_large("output", plan_string(plan, tensor->name), shape, tensor->dims.count, error);
    return succeed(error);
}

uint64_t shapes_tensor_bytes(const plan *plan, const plan_tensor *tensor, const int64_t *exprs) {
    uint64_t bytes = plan_itemsize(tensor->dtype);
    for (uint32_t axis = 0; axis < tensor->dims.count; axis++) bytes *= (uint64_t)exprs[plan->dims[tensor->dims.first + axis].expr];
    return bytes;
}

uint64_t shapes_value_bytes(const plan *plan, const plan_value *value, const int64_t *exprs) {
    uint64_t bytes = plan_itemsize(value->dtype);
    for (uint32_t axis = 0; axis < value->shape.count; axis++) bytes *= (uint64_t)exprs[plan->indices[value->shape.first + axis]];
    return bytes;
}
