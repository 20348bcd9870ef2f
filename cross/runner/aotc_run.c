/* Runs any built file on the board, or under qemu: inputs from .npy files or random, outputs to .npy files, times to stdout.
 *
 *     aotc_run model.so [--input NAME=FILE.npy]... [--shape NAME=1x3x224x224]... [--random-seed N] [--output-dir DIR]
 *              [--threads N] [--runs N] [--profile] [--memory] [--marks]
 *
 * An input that no --input names is filled with random numbers; a dim that is known only at run time is then its least value, at least
 * 1, unless --shape gives it. --marks tells a plugin of qemu (cross/plugin) where each run begins and ends. Exit status: 0, 1 when opening or
 * running failed, 2 for a wrong command line. */
#define _GNU_SOURCE
#include "aotc.h"
#include "aotc_npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAXIMUM_TENSORS 256
#define MAXIMUM_RANK 16

typedef struct options {
    const char *model, *output_dir;
    const char *inputs[MAXIMUM_TENSORS], *shapes[MAXIMUM_TENSORS]; /* NAME=VALUE */
    int input_count, shape_count;
    uint64_t seed;
    uint32_t threads;
    long runs;
    int profile, memory, marks, manifest;
} options;

static void usage(const char *reason, const char *what) {
    fprintf(stderr, "aotc_run: %s%s\nusage: aotc_run model.so [--input NAME=FILE.npy]... [--shape NAME=1x3x224x224]... [--random-seed N]\n"
                    "                [--output-dir DIR] [--threads N] [--runs N] [--profile] [--memory] [--marks]\n"
                    "       aotc_run model.so --manifest\n", reason, what);
    exit(2);
}

static void die(const char *message) {
    fprintf(stderr, "aotc_run: %s\n", message);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

/* A system call that does nothing: there is no such kind of priority. */
static void mark(const options *choice, long run) {
    if (choice->marks) syscall(SYS_getpriority, 0x5eed, run);
}

static options parse(int count, char **words) {
    options out = {.threads = 1, .runs = 1, .seed = 1};
    for (int i = 1; i < count; i++) {
        const char *word = words[i];
        if (strcmp(word, "--profile") == 0) {
            out.profile = 1;
            continue;
        }
        if (strcmp(word, "--memory") == 0) {
            out.memory = 1;
            continue;
        }
        if (strcmp(word, "--manifest") == 0) {
            out.manifest = 1;
            continue;
        }
        if (strcmp(word, "--marks") == 0) {
            out.marks = 1;
            continue;
        }
        if (word[0] != '-') {
            if (out.model) usage("more than one model: ", word);
            out.model = word;
            continue;
        }
        const char *value = i + 1 < count ? words[++i] : NULL;
        if (!value) usage("a value is missing after ", word);
        if (strcmp(word, "--output-dir") == 0) out.output_dir = value;
        else if (strcmp(word, "--threads") == 0) out.threads = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(word, "--runs") == 0) out.runs = strtol(value, NULL, 10);
        else if (strcmp(word, "--random-seed") == 0) out.seed = strtoull(value, NULL, 10);
        else if (strcmp(word, "--input") == 0 && strchr(value, '=') && out.input_count < MAXIMUM_TENSORS) out.inputs[out.input_count++] = value;
        else if (strcmp(word, "--shape") == 0 && strchr(value, '=') && out.shape_count < MAXIMUM_TENSORS) out.shapes[out.shape_count++] = value;
        else usage("cannot understand ", word);
    }
    if (!out.model) usage("no model is named", "");
    if (out.runs < 1 || out.threads < 1) usage("--runs and --threads must be at least 1", "");
    return out;
}

/* The value of the NAME=VALUE for `name`, or NULL. A name may hold '='; the longest match is the name. */
static const char *value_of(const char *const *pairs, int count, const char *name) {
    size_t length = strlen(name);
    for (int i = 0; i < count; i++)
        if (strncmp(pairs[i], name, length) == 0 && pairs[i][length] == '=') return pairs[i] + length + 1;
    return NULL;
}

/* Each pair must name an input: a spelling mistake would otherwise run on random numbers. */
static void check_names(const aotc_model_t *model, const char *const *pairs, int count) {
    for (int i = 0; i < count; i++) {
        int known = 0;
        for (size_t input = 0; input < aotc_input_count(model, 0); input++) {
            const char *name = aotc_input_info(model, 0, input)->name;
            known |= value_of(&pairs[i], 1, name) != NULL;
        }
        if (!known) usage("the model has no such input: ", pairs[i]);
    }
}

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static uint16_t half_of(float value) { /* of [-1, 1), by cutting off */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    int exponent = (int)(bits >> 23 & 255u) - 127 + 15;
    return exponent <= 0 ? 0 : (uint16_t)(bits >> 16 & 0x8000u) | (uint16_t)(exponent << 10) | (uint16_t)(bits >> 13 & 0x3FFu);
}

/* Floats in [-1, 1), integers in [0, 8), booleans. */
static void fill_random(DLTensor *tensor, uint64_t *state) {
    unsigned bytes = (tensor->dtype.bits + 7u) / 8u;
    uint64_t count = npy_bytes(tensor) / bytes;
    char *data = tensor->data;
    for (uint64_t i = 0; i < count; i++, data += bytes) {
        uint64_t random = next_random(state), integer = random >> 61;
        double real = (double)(int64_t)(random >> 11) / 4503599627370496.0 - 1.0;
        float single = (float)real;
        uint16_t half = half_of(single);
        if (tensor->dtype.code == kDLBfloat) memcpy(data, (char *)&single + 2, bytes);
        else if (tensor->dtype.code != kDLFloat) {
            if (tensor->dtype.code == kDLBool || tensor->dtype.bits < 4) integer &= 1;
            memcpy(data, &integer, bytes);
        } else memcpy(data, bytes == 8 ? (void *)&real : bytes == 4 ? (void *)&single : (void *)&half, bytes);
    }
}

static void make_random(const aotc_tensor_info *info, const char *shape, uint64_t *state, DLTensor *out) {
    memset(out, 0, sizeof *out);
    out->device.device_type = kDLCPU;
    out->dtype = info->dtype;
    out->ndim = info->rank;
    out->shape = calloc((size_t)info->rank + 1, sizeof *out->shape);
    if (!out->shape) die("out of memory");
    for (int32_t axis = 0; axis < info->rank; axis++) {
        const aotc_dim *dim = &info->dims[axis];
        out->shape[axis] = dim->value >= 0 ? dim->value : dim->minimum > 1 ? dim->minimum : 1;
        if (!shape) continue;
        char *end;
        out->shape[axis] = strtoll(shape, &end, 10);
        if (end == shape || (*end != 'x' && *end) || out->shape[axis] < 0) usage("cannot understand the shape of ", info->name);
        if (!*end && axis + 1 < info->rank) usage("too few dims are given for ", info->name);
        shape = *end ? end + 1 : end;
    }
    uint64_t bytes = npy_bytes(out);
    out->data = malloc(bytes ? bytes : 1);
    if (!out->data) die("out of memory");
    fill_random(out, state);
}

/* A file has the bits of types that NumPy lacks as unsigned integers. */
static void take_for(DLDataType declared, DLTensor *tensor) {
    int plain = declared.code <= kDLFloat ? declared.bits >= 8 : declared.code == kDLBool;
    if (!plain && tensor->dtype.code == kDLUInt && tensor->dtype.bits == (declared.bits + 7) / 8 * 8) tensor->dtype = declared;
}

static void write_outputs(const aotc_model_t *model, aotc_session_t *session, const char *folder) {
    aotc_error error;
    char path[4096], message[256];
    for (size_t i = 0; i < aotc_output_count(model, 0); i++) {
        DLTensor tensor;
        if (aotc_get_output(session, i, &tensor, &error)) die(error.message);
        int used = snprintf(path, sizeof path, "%s/", folder);
        for (const char *c = aotc_output_info(model, 0, i)->name; *c && used + 6 < (int)sizeof path; c++) path[used++] = *c == '/' ? '_' : *c;
        snprintf(path + used, sizeof path - (size_t)used, ".npy");
        if (npy_write(path, &tensor, message)) die(message);
    }
}

static void print_profile(aotc_session_t *session) {
    aotc_error error;
    for (size_t i = 0; i < aotc_step_count(session); i++) {
        aotc_step_info step = {.size = sizeof step};
        if (aotc_get_step_info(session, i, &step, &error)) die(error.message);
        printf("step %zu %.3f ms %s [%s]\n", i, step.runs ? (double)step.total_ns / (double)step.runs * 1e-6 : 0.0, step.name, step.label);
    }
}

/* What the process holds in memory and has held at most, by the kernel's count, and what of it is the model's. */
static void print_memory(aotc_session_t *session) {
    aotc_error error;
    aotc_memory_info memory = {.size = sizeof memory};
    if (aotc_get_memory_info(session, &memory, &error)) die(error.message);
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kilobytes;
    while (status && fgets(line, sizeof line, status)) {
        if (sscanf(line, "VmHWM: %ld", &kilobytes) == 1) printf("peak_resident_bytes %ld\n", kilobytes * 1024);
        if (sscanf(line, "VmRSS: %ld", &kilobytes) == 1) printf("resident_bytes %ld\n", kilobytes * 1024);
    }
    if (status) fclose(status);
    printf("weights_bytes %" PRIu64 "\nsession_bytes %" PRIu64 "\nlargest_live_bytes %" PRIu64 "\n", memory.weights, memory.total, memory.lower_bound);
}

int main(int count, char **words) {
    options choice = parse(count, words);
    aotc_error error;
    aotc_model_t *model;
    aotc_session_t *session;
    static DLTensor inputs[MAXIMUM_TENSORS];
    char message[256];

    double begin = now();
    if (aotc_open(choice.model, &model, &error)) die(error.message);
    if (choice.manifest) {
        puts(aotc_manifest(model, NULL));
        return aotc_close(model, &error) != AOTC_OK;
    }
    aotc_session_options how = {.size = sizeof how, .num_threads = choice.threads, .profile = (uint32_t)choice.profile};
    if (aotc_session_create(model, &how, &session, &error)) die(error.message);
    double opened = now();

    size_t input_count = aotc_input_count(model, 0);
    if (input_count > MAXIMUM_TENSORS) die("the model has too many inputs for this program");
    check_names(model, choice.inputs, choice.input_count);
    check_names(model, choice.shapes, choice.shape_count);
    for (size_t i = 0; i < input_count; i++) {
        const aotc_tensor_info *info = aotc_input_info(model, 0, i);
        const char *file = value_of(choice.inputs, choice.input_count, info->name);
        if (!file) make_random(info, value_of(choice.shapes, choice.shape_count, info->name), &choice.seed, &inputs[i]);
        else if (npy_read(file, &inputs[i], message)) die(message);
        take_for(info->dtype, &inputs[i]);
        if (aotc_bind_input(session, i, &inputs[i], &error)) die(error.message);
    }

    double first = now();
    mark(&choice, 0);
    if (aotc_run(session, &error)) die(error.message);
    mark(&choice, 1);
    double ran = now(), best = ran - first, later = ran;
    for (long i = 1; i < choice.runs; i++) {
        double start = now();
        if (aotc_run(session, &error)) die(error.message);
        mark(&choice, i + 1);
        later = now();
        if (later - start < best) best = later - start;
    }
    printf("load_ms %.3f\nfirst_run_ms %.3f\n", opened - begin, ran - first);
    if (choice.runs > 1) printf("mean_run_ms %.3f\nbest_run_ms %.3f\n", (later - ran) / (double)(choice.runs - 1), best);
    if (choice.memory) print_memory(session);
    if (choice.profile) print_profile(session);
    if (choice.output_dir) write_outputs(model, session, choice.output_dir);

    if (aotc_session_destroy(session, &error) || aotc_close(model, &error)) die(error.message);
    for (size_t i = 0; i < input_count; i++) npy_free(&inputs[i]);
    return 0;
}
