/* The measuring half of aotc_board, which runs in a child process: a built file is opened by aotc's own loader, all entry points asked
 * for get a session over the same inputs and outputs, and then they run in turn. */
#define _GNU_SOURCE
#include "timing.h"

#include "../aotc.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE 64u /* bytes of a cache line on all machines that aotc builds for */
#define MAXIMUM_OUTPUTS 256u

typedef struct bench {
    const timing_job *job;
    timing_result *result;
    aotc_model_t *model;
    aotc_session_t *sessions[MAXIMUM_ENTRIES];
    DLTensor inputs[MAXIMUM_INPUTS], outputs[MAXIMUM_OUTPUTS];
    size_t output_count;
    double *reference; /* the first entry's outputs, one after another */
    char *sweep;
    double *times, *difference, *largest;
    double *steps[MAXIMUM_ENTRIES];
    size_t step_count[MAXIMUM_ENTRIES];
    aotc_error error;
} bench;

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

static int fail(bench *self, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fail(bench *self, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(self->result->message, sizeof self->result->message, format, arguments);
    va_end(arguments);
    return -1;
}

static int out_of_memory(bench *self) { return fail(self, "the board has not enough memory for the tensors of this function"); }

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* ---- Tensors ---- */

static size_t element_bytes(DLDataType dtype) { return (dtype.bits + 7u) / 8u; }

static uint64_t tensor_bytes(const DLTensor *tensor) {
    uint64_t bytes = element_bytes(tensor->dtype);
    for (int32_t axis = 0; axis < tensor->ndim; axis++) bytes *= (uint64_t)tensor->shape[axis];
    return bytes;
}

/* Floats of [-1, 1), in half precision +-[0.5, 1); integers of [0, 8); booleans. */
static void fill_random(DLTensor *tensor, uint64_t *state) {
    size_t bytes = element_bytes(tensor->dtype);
    uint64_t count = tensor_bytes(tensor) / bytes;
    char *data = tensor->data;
    for (uint64_t i = 0; i < count; i++, data += bytes) {
        uint64_t random = next_random(state), bits = random >> 61;
        double real = (double)(int64_t)(random >> 11) / 4503599627370496.0 - 1.0;
        float single = (float)real;
        if (tensor->dtype.code == kDLFloat && bytes == 8) memcpy(&bits, &real, 8);
        else if (tensor->dtype.code == kDLFloat && bytes == 4) memcpy(&bits, &single, 4);
        else if (tensor->dtype.code == kDLFloat) bits = (random & 0x8000u) | 0x3800u | (random >> 16 & 0x3FFu);
        else if (tensor->dtype.code == kDLBfloat) bits = (random & 0x8000u) | 0x3F00u | (random >> 16 & 0x7Fu);
        else if (tensor->dtype.code == kDLBool || tensor->dtype.bits < 4) bits &= 1u;
        memcpy(data, &bits, bytes);
    }
}

static double element(const DLTensor *tensor, uint64_t i) {
    const char *data = (const char *)tensor->data + i * element_bytes(tensor->dtype);
    double real;
    float single;
    int64_t integer = 0;
    if (tensor->dtype.code == kDLFloat && tensor->dtype.bits == 64) return memcpy(&real, data, 8), real;
    if (tensor->dtype.code == kDLFloat && tensor->dtype.bits == 32) return memcpy(&single, data, 4), single;
    if (tensor->dtype.code == kDLBfloat) {
        uint32_t bits = 0;
        memcpy((char *)&bits + 2, data, 2);
        return memcpy(&single, &bits, 4), single;
    }
    if (tensor->dtype.code == kDLInt || tensor->dtype.code == kDLUInt || tensor->dtype.code == kDLBool) {
        memcpy(&integer, data, element_bytes(tensor->dtype));
        unsigned unused = 64u - 8u * (unsigned)element_bytes(tensor->dtype);
        return tensor->dtype.code == kDLInt ? (double)((int64_t)((uint64_t)integer << unused) >> unused) : (double)(uint64_t)integer;
    }
    return 0.0; /* floats of other widths are not compared */
}

/* All tensors in one block, each at a cache line: as they lie in a session's memory. */
static int place(bench *self, DLTensor *tensors, size_t count) {
    uint64_t total = LINE;
    for (size_t i = 0; i < count; i++) total += (tensor_bytes(&tensors[i]) + 2 * LINE - 1) / LINE * LINE;
    char *block = NULL;
    if (posix_memalign((void **)&block, 4096, total)) return out_of_memory(self);
    memset(block, 0, total);
    for (size_t i = 0; i < count; i++) {
        tensors[i].data = block;
        block += (tensor_bytes(&tensors[i]) + 2 * LINE - 1) / LINE * LINE;
    }
    return 0;
}

static int make_inputs(bench *self) {
    const timing_job *job = self->job;
    uint64_t state = job->request.seed;
    for (uint32_t e = 0; e < job->request.entries; e++) {
        if (job->entries[e] >= aotc_entry_point_count(self->model)) return fail(self, "the file has no entry point %u", (unsigned)job->entries[e]);
        if (aotc_input_count(self->model, job->entries[e]) != job->request.inputs)
            return fail(self, "the entry point has %zu inputs, and shapes of %u were sent", aotc_input_count(self->model, job->entries[e]),
                        (unsigned)job->request.inputs);
    }
    for (uint32_t i = 0; i < job->request.inputs; i++) {
        const aotc_tensor_info *info = aotc_input_info(self->model, job->entries[0], i);
        DLTensor *tensor = &self->inputs[i];
        tensor->device.device_type = kDLCPU;
        tensor->dtype = info->dtype;
        tensor->ndim = (int32_t)job->inputs[i].rank;
        tensor->shape = (int64_t *)job->inputs[i].dims;
    }
    if (place(self, self->inputs, job->request.inputs)) return -1;
    for (uint32_t i = 0; i < job->request.inputs; i++) fill_random(&self->inputs[i], &state);
    return 0;
}

/* Outputs whose shapes are known before a run; others stay each session's own and are not compared. */
static int make_outputs(bench *self) {
    uint32_t entry = self->job->entries[0];
    self->output_count = aotc_output_count(self->model, entry);
    if (self->output_count > MAXIMUM_OUTPUTS) return fail(self, "the entry point has more than %u outputs", MAXIMUM_OUTPUTS);
    for (size_t i = 0; i < self->output_count; i++) {
        const aotc_tensor_info *info = aotc_output_info(self->model, entry, i);
        DLTensor *tensor = &self->outputs[i];
        tensor->device.device_type = kDLCPU;
        tensor->dtype = info->dtype;
        tensor->ndim = info->rank;
        tensor->shape = calloc((size_t)info->rank + 1, sizeof *tensor->shape);
        if (!tensor->shape) return out_of_memory(self);
        if (aotc_output_shape(self->sessions[0], i, tensor->shape, &self->error)) return fail(self, "%s", self->error.message);
        for (int32_t axis = 0; axis < info->rank; axis++)
            if (tensor->shape[axis] < 0) {
                self->output_count = 0;
                return 0;
            }
    }
    uint64_t values = 0;
    for (size_t i = 0; i < self->output_count; i++) values += tensor_bytes(&self->outputs[i]) / element_bytes(self->outputs[i].dtype);
    self->reference = malloc((values + 1) * sizeof *self->reference);
    return self->reference ? place(self, self->outputs, self->output_count) : out_of_memory(self);
}

/* ---- Sessions ---- */

static int open_sessions(bench *self) {
    const time_request *request = &self->job->request;
    if (aotc_open(self->job->path, &self->model, &self->error)) return fail(self, "%s", self->error.message);
    if (make_inputs(self)) return -1;
    for (uint32_t e = 0; e < request->entries; e++) {
        aotc_session_options how = {.size = sizeof how, .num_threads = request->threads, .profile = request->steps};
        how.entry_point = aotc_entry_point_name(self->model, self->job->entries[e]);
        if (aotc_session_create(self->model, &how, &self->sessions[e], &self->error)) return fail(self, "%s", self->error.message);
        for (uint32_t i = 0; i < request->inputs; i++)
            if (aotc_bind_input(self->sessions[e], i, &self->inputs[i], &self->error)) return fail(self, "%s", self->error.message);
        if (e == 0 && make_outputs(self)) return -1;
        for (size_t i = 0; i < self->output_count; i++)
            if (aotc_bind_output(self->sessions[e], i, &self->outputs[i], &self->error)) return fail(self, "%s", self->error.message);
    }
    return 0;
}

static int run(bench *self, uint32_t place) {
    *self->job->current = (int32_t)place;
    if (aotc_run(self->sessions[place], &self->error)) return fail(self, "%s", self->error.message);
    return 0;
}

/* The first runs, which also show whether all entry points compute the same. */
static int compare(bench *self) {
    for (uint32_t e = 0; e < self->job->request.entries; e++) {
        for (size_t i = 0; i < self->output_count; i++) memset(self->outputs[i].data, 0x55, tensor_bytes(&self->outputs[i]));
        if (run(self, e)) return -1;
        double *reference = self->reference;
        for (size_t i = 0; i < self->output_count; i++) {
            uint64_t count = tensor_bytes(&self->outputs[i]) / element_bytes(self->outputs[i].dtype);
            for (uint64_t k = 0; k < count; k++, reference++) {
                double value = element(&self->outputs[i], k);
                if (e == 0) *reference = value;
                if (isfinite(*reference)) self->largest[e] = fmax(self->largest[e], fabs(*reference));
                if (value == *reference || (isnan(value) && isnan(*reference))) continue;
                double distance = fabs(value - *reference);
                self->difference[e] = isfinite(distance) ? fmax(self->difference[e], distance) : INFINITY;
            }
        }
    }
    return 0;
}

/* ---- Timing ---- */

static void touch(DLTensor *tensor) {
    volatile char *data = tensor->data;
    uint64_t bytes = tensor_bytes(tensor);
    for (uint64_t at = 0; at < bytes; at += LINE) data[at] = data[at];
}

/* Other memory is read, then what the steps before would have written is touched. */
static void prepare(bench *self) {
    volatile const char *data = self->sweep;
    for (uint64_t at = 0; at < self->job->request.sweep_bytes; at += LINE) (void)data[at];
    for (size_t i = 0; i < self->output_count; i++) touch(&self->outputs[i]);
    for (uint32_t i = 0; i < self->job->request.inputs; i++)
        if (self->job->inputs[i].fresh) touch(&self->inputs[i]);
}

static int keep_steps(bench *self, uint32_t entry, uint32_t round) {
    for (size_t s = 0; s < self->step_count[entry]; s++) {
        aotc_step_info step = {.size = sizeof step};
        if (aotc_get_step_info(self->sessions[entry], s, &step, &self->error)) return fail(self, "%s", self->error.message);
        self->steps[entry][round * self->step_count[entry] + s] = (double)step.last_ns;
    }
    return 0;
}

static int time_rounds(bench *self, uint32_t *rounds) {
    const time_request *request = &self->job->request;
    uint32_t order[MAXIMUM_ENTRIES], entries = request->entries;
    uint64_t state = request->seed, begin = now_ns();
    for (uint32_t e = 0; e < entries; e++) order[e] = e;
    for (*rounds = 0; *rounds < request->rounds; (*rounds)++) {
        if (*rounds >= request->minimum_rounds && now_ns() - begin > request->budget_ns) break;
        for (uint32_t e = entries; e > 1; e--) { /* another order each round: a neighbour's traces must not favour anyone */
            uint32_t other = (uint32_t)(next_random(&state) % e), kept = order[e - 1];
            order[e - 1] = order[other];
            order[other] = kept;
        }
        for (uint32_t e = 0; e < entries; e++) {
            prepare(self);
            uint64_t start = now_ns();
            if (run(self, order[e])) return -1;
            self->times[*rounds * entries + order[e]] = (double)(now_ns() - start);
            if (request->steps && keep_steps(self, order[e], *rounds)) return -1;
        }
    }
    return 0;
}

static int allocate(bench *self) {
    const time_request *request = &self->job->request;
    self->times = calloc((size_t)request->rounds * request->entries, sizeof *self->times);
    self->difference = calloc(request->entries, sizeof *self->difference);
    self->largest = calloc(request->entries, sizeof *self->largest);
    self->sweep = malloc(request->sweep_bytes + 1);
    if (!self->times || !self->difference || !self->largest || !self->sweep) return out_of_memory(self);
    memset(self->sweep, 1, request->sweep_bytes); /* pages that were never written are all one page of zeros */
    for (uint32_t e = 0; e < request->entries && request->steps; e++) {
        self->step_count[e] = aotc_step_count(self->sessions[e]);
        self->steps[e] = calloc(request->rounds * self->step_count[e] + 1, sizeof *self->steps[e]);
        if (!self->steps[e]) return out_of_memory(self);
    }
    return 0;
}

static void *append(void *end, const void *data, size_t bytes) { return (char *)memcpy(end, data, bytes) + bytes; }

static int answer(bench *self, uint32_t rounds) {
    uint32_t entries = self->job->request.entries;
    time_answer head = {entries, rounds, 0};
    size_t bytes = sizeof head + ((size_t)rounds * entries + 2 * entries) * sizeof(double);
    for (uint32_t e = 0; e < entries && self->job->request.steps; e++)
        bytes += sizeof(uint64_t) + rounds * self->step_count[e] * sizeof(double);
    void *end = self->result->data = malloc(bytes);
    if (!end) return out_of_memory(self);
    self->result->bytes = bytes;
    end = append(end, &head, sizeof head);
    end = append(end, self->times, (size_t)rounds * entries * sizeof(double));
    end = append(end, self->difference, entries * sizeof(double));
    end = append(end, self->largest, entries * sizeof(double));
    for (uint32_t e = 0; e < entries && self->job->request.steps; e++) {
        uint64_t count = self->step_count[e];
        end = append(end, &count, sizeof count);
        end = append(end, self->steps[e], rounds * count * sizeof(double));
    }
    return 0;
}

int time_entries(const timing_job *job, timing_result *result) {
    static bench self;
    uint32_t rounds = 0;
    self.job = job;
    self.result = result;
    if (open_sessions(&self) || allocate(&self) || compare(&self) || time_rounds(&self, &rounds)) return -1;
    return answer(&self, rounds);
}
