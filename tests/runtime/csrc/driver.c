/* driver FOLDER CASE: run one case on the models in the folder. driver --list: the names of all cases. */
#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>

static const char *folder;

const char *models_folder(void) { return folder; }

opened open_model(const char *name, const aotc_model_options *options) {
    char path[4096];
    aotc_error error;
    snprintf(path, sizeof path, "%s/%s.so", folder, name);
    opened self = {.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    if (!self.library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    aotc_model_fn entry;
    *(void **)&entry = dlsym(self.library, "aotc_model");
    CHECK(entry);
    CHECK(entry(AOTC_ABI_VERSION + 1) == NULL);
    self.api = entry(AOTC_ABI_VERSION);
    CHECK(self.api && self.api->size >= sizeof(aotc_api) && self.api->abi_version == AOTC_ABI_VERSION);
    OK(self.api->model_create(options, &self.model, &error));
    return self;
}

void close_model(opened *self) {
    aotc_error error;
    OK(self->api->model_destroy(self->model, &error));
    dlclose(self->library);
}

DLDataType dtype_of(const char *name) {
    static const struct {
        const char *name;
        DLDataType dtype;
    } known[] = {{"float32", {kDLFloat, 32, 1}}, {"float64", {kDLFloat, 64, 1}}, {"int32", {kDLInt, 32, 1}},
                 {"int64", {kDLInt, 64, 1}},     {"int8", {kDLInt, 8, 1}},       {"bool", {kDLBool, 8, 1}}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) return known[i].dtype;
    abort();
}

void make_tensor(tensor *self, const char *dtype, void *data, int rank, ...) {
    va_list dims;
    va_start(dims, rank);
    for (int i = 0; i < rank; i++) self->shape[i] = va_arg(dims, int);
    va_end(dims);
    self->dl = (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = rank, .dtype = dtype_of(dtype), .shape = self->shape};
}

void fill(float *data, size_t count, uint32_t seed) {
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (float)(int32_t)state / 2147483648.0f;
    }
}

static void *counting_allocate(void *context, size_t bytes, size_t alignment) {
    counter *self = context;
    if (self->total >= self->refuse_after) return NULL;
    char *memory =
        aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment + self->offset / alignment * alignment + alignment);
    if (!memory) return NULL;
    self->total++;
    self->live++;
    self->live_bytes += bytes;
    return memory + self->offset;
}

static void counting_release(void *context, void *pointer, size_t bytes) {
    counter *self = context;
    self->live--;
    self->live_bytes -= bytes;
    free((char *)pointer - self->offset);
}

aotc_allocator counting_allocator(counter *self) {
    *self = (counter){.refuse_after = SIZE_MAX};
    return (aotc_allocator){self, counting_allocate, counting_release};
}

/* Without those of files: code is read in when it first runs. */
size_t resident_pages(void) {
    size_t size, resident, shared;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%zu %zu %zu", &size, &resident, &shared) == 3);
    fclose(file);
    return resident - shared;
}

int main(int count, char **arguments) {
    const test_case *groups[] = {basic_cases, error_cases, memory_cases, thread_cases, control_cases, state_cases, cuda_cases, cuda_driver_cases};
    bool list = count == 2 && strcmp(arguments[1], "--list") == 0;
    if (!list && count != 3) return 2;
    folder = arguments[1];
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        for (const test_case *test = groups[i]; test->name; test++) {
            if (list) puts(test->name);
            else if (strcmp(test->name, arguments[2]) == 0) {
                test->run();
                return 0;
            }
        }
    }
    return list ? 0 : 2;
}
