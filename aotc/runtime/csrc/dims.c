#include "dims.h"

const char *dims_check(const plan_code *code, uint32_t count, uint32_t symbols) {
    uint32_t depth = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (code[i].op >= CODE_COUNT) return "an unknown operation";
        if (code[i].op == CODE_SYMBOL && (code[i].value < 0 || code[i].value >= (int64_t)symbols)) return "an unknown symbol";
        if (code[i].op == CODE_CONSTANT || code[i].op == CODE_SYMBOL) {
            if (++depth > PLAN_MAX_DEPTH) return "too deep a nesting";
        } else {
            if (depth < 2) return "too few operands";
            depth--;
        }
    }
    return depth == 1 ? NULL : "no single result";
}

static const char *apply(uint32_t op, int64_t a, int64_t b, int64_t *result) {
    switch (op) {
    case CODE_ADD: return __builtin_add_overflow(a, b, result) ? "leaves 64 bits" : NULL;
    case CODE_MULTIPLY: return __builtin_mul_overflow(a, b, result) ? "leaves 64 bits" : NULL;
    case CODE_MINIMUM: *result = a < b ? a : b; return NULL;
    case CODE_MAXIMUM: *result = a > b ? a : b; return NULL;
    default: break;
    }
    if (b == 0) return "divides by zero";
    if (b == -1 && a == INT64_MIN) return "leaves 64 bits";
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) { /* towards minus infinity, as in the compiler */
        quotient--;
        rest += b;
    }
    *result = op == CODE_FLOORDIV ? quotient : rest;
    return NULL;
}

const char *dims_evaluate(const plan_code *code, uint32_t count, const int64_t *symbols, int64_t *result) {
    int64_t stack[PLAN_MAX_DEPTH];
    uint32_t depth = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (code[i].op == CODE_CONSTANT) {
            stack[depth++] = code[i].value;
        } else if (code[i].op == CODE_SYMBOL) {
            stack[depth++] = symbols[code[i].value];
        } else {
            depth--;
            const char *reason = apply(code[i].op, stack[depth - 1], stack[depth], &stack[depth - 1]);
            if (reason) return reason;
        }
    }
    *result = stack[0];
    return NULL;
}
