/* A libcuda.so for the runtime's tests under sanitizers: its device runs C functions of this file, late, and hides its memory.
 *
 * What a stream is given happens when somebody waits for it, so that a missing wait shows. Memory of the device cannot be touched
 * but while it works. tests/cuda/driver is the driver that runs real kernels. */
#include "fake_cuda.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define API __attribute__((visibility("default")))
#define MAX_OPERATIONS 256
#define MAX_PARAMETERS 8
#define MAX_BLOCKS 64

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719 };

typedef uint64_t address;

static float *floats(address at) { return (float *)(uintptr_t)at; }

typedef struct kernel {
    const char *name;
    int pointers, dims;
    void (*run)(const address *p, const int32_t *d, unsigned blocks);
} kernel;

/* y[row][j] = x[row][j] * w[j] */
static void scale(const address *p, const int32_t *d, unsigned blocks) {
    for (unsigned row = 0; row < blocks; row++)
        for (int32_t j = 0; j < d[0]; j++) floats(p[2])[row * (unsigned)d[0] + (unsigned)j] = floats(p[0])[row * (unsigned)d[0] + (unsigned)j] * floats(p[1])[j];
}

/* y[row][j] = max(x[row][j] + b[j], 0) */
static void bias_relu(const address *p, const int32_t *d, unsigned blocks) {
    for (unsigned row = 0; row < blocks; row++)
        for (int32_t j = 0; j < d[0]; j++) {
            float sum = floats(p[0])[row * (unsigned)d[0] + (unsigned)j] + floats(p[1])[j];
            floats(p[2])[row * (unsigned)d[0] + (unsigned)j] = sum > 0 ? sum : 0;
        }
}

/* y[i] = a[i] + b[i] */
static void add(const address *p, const int32_t *d, unsigned blocks) {
    for (unsigned i = 0; i < blocks * (unsigned)d[0]; i++) floats(p[2])[i] = floats(p[0])[i] + floats(p[1])[i];
}

static const kernel kernels[] = {{"c_scale", 3, 1, scale}, {"c_bias_relu", 3, 1, bias_relu}, {"c_add", 3, 1, add}};

/* A launch, or a copy where `kernel` is NULL. */
typedef struct operation {
    const kernel *kernel;
    address pointers[MAX_PARAMETERS];
    int32_t dims[MAX_PARAMETERS];
    unsigned blocks;
    char *to;
    const char *from;
    char *staged; /* what pageable memory held when it was given; freed when the copy is done */
    size_t bytes;
} operation;

typedef struct stream {
    operation waiting[MAX_OPERATIONS];
    int count, captured; /* captured: -1, or the first of the operations that are captured */
} stream;

typedef struct graph {
    operation operations[MAX_OPERATIONS];
    int count;
} graph;

typedef struct block {
    char *data;
    size_t bytes;
    bool pinned;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block blocks[MAX_BLOCKS];
static stream default_stream = {.captured = -1};
API fake_cuda fake = {.sm = 87, .integrated = 1};

static _Thread_local int pushed;

static void protect(int protection) {
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (blocks[i].data && !blocks[i].pinned) mprotect(blocks[i].data, blocks[i].bytes, protection);
}

static block *block_of(const void *pointer) {
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (blocks[i].data && (const char *)pointer >= blocks[i].data && (const char *)pointer < blocks[i].data + blocks[i].bytes) return &blocks[i];
    return NULL;
}

static void work(stream *self) {
    protect(PROT_READ | PROT_WRITE);
    for (int i = 0; i < self->count; i++) {
        operation *each = &self->waiting[i];
        if (each->kernel && !fake.idle) each->kernel->run(each->pointers, each->dims, each->blocks);
        else if (!each->kernel) memcpy(each->to, each->from, each->bytes);
        free(each->staged);
    }
    self->count = 0;
    protect(PROT_NONE);
}

static int give(stream *self, operation given) {
    if (self->count == MAX_OPERATIONS) work(self);
    self->waiting[self->count++] = given;
    return 0;
}

#define ENTER()                                                                                                                            \
    if (!pushed) return INVALID_CONTEXT;                                                                                                   \
    pthread_mutex_lock(&lock)
#define LEAVE(result)                                                                                                                      \
    do {                                                                                                                                   \
        int result_ = (result);                                                                                                            \
        pthread_mutex_unlock(&lock);                                                                                                       \
        return result_;                                                                                                                    \
    } while (0)

static stream *stream_at(void *pointer) { return pointer ? pointer : &default_stream; }

static int allocate(void **made, size_t bytes, bool pinned) {
    *made = NULL;
    if (bytes == 0) return INVALID_VALUE;
    if (fake.memory_left && bytes > fake.memory_left) return OUT_OF_MEMORY;
    for (int i = 0; i < MAX_BLOCKS; i++) {
        if (blocks[i].data) continue;
        size_t whole = (bytes + 65535) & ~(size_t)65535;
        char *data = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) return OUT_OF_MEMORY;
        memset(data, 0xff, whole);
        blocks[i] = (block){data, whole, pinned};
        if (!pinned) mprotect(data, whole, PROT_NONE);
        fake.blocks++;
        *made = data;
        return 0;
    }
    return OUT_OF_MEMORY;
}

static int release(void *pointer) {
    block *found = block_of(pointer);
    if (!found) return INVALID_VALUE;
    if (fake.idle) munmap(found->data, found->bytes);
    else mmap(found->data, found->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0); /* no address comes again */
    *found = (block){0};
    fake.blocks--;
    return 0;
}

/* ---- The driver's functions ---- */

API int cuInit(unsigned flags) {
    fake.idle = getenv("FAKE_CUDA_IDLE") != NULL;
    return flags ? INVALID_VALUE : fake.no_device ? NO_DEVICE : 0;
}

API int cuDriverGetVersion(int *version) { return *version = 12060, 0; }
API int cuDeviceGetCount(int *count) { return *count = 1, 0; }
API int cuDeviceGet(int *device, int number) { return *device = number, 0; }
API int cuDeviceGetName(char *name, int size, int device) { return snprintf(name, (size_t)size, "Fake GPU %d", device), 0; }

API int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
    case 18: *value = fake.integrated; return 0;
    case 19: *value = 1; return 0;
    case 75: *value = fake.sm / 10; return 0;
    case 76: *value = fake.sm % 10; return 0;
    default: return INVALID_VALUE;
    }
}

API int cuDevicePrimaryCtxRetain(void **context, int device) {
    fake.contexts++;
    *context = &fake;
    return device;
}

#ifdef OLD_DRIVER /* as that of CUDA 10.2 */
#define cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRelease
#define cuGraphInstantiateWithFlags cuGraphInstantiateOfALaterTime
#endif

API int cuDevicePrimaryCtxRelease_v2(int device) {
    fake.contexts--;
    return device;
}

API int cuCtxPushCurrent_v2(void *context) { return pushed++, context == &fake ? 0 : INVALID_VALUE; }
API int cuCtxPopCurrent_v2(void **context) { return *context = &fake, pushed-- > 0 ? 0 : INVALID_CONTEXT; }

API int cuModuleLoadData(void **module, const void *image) {
    ENTER();
    bool known = memcmp(image, "fake cubin", 10) == 0;
    fake.modules += known;
    *module = (void *)(uintptr_t)image;
    LEAVE(known ? 0 : INVALID_VALUE);
}

API int cuModuleUnload(void *module) {
    ENTER();
    fake.modules--;
    LEAVE(module ? 0 : INVALID_VALUE);
}

API int cuModuleGetFunction(const void **function, void *module, const char *name) {
    (void)module;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0) return *function = &kernels[i], 0;
    return NOT_FOUND;
}

API int cuFuncSetAttribute(void *function, int attribute, int value) { return function && attribute == 8 && value > 0 ? 0 : INVALID_VALUE; }

API int cuMemAlloc_v2(address *made, size_t bytes) {
    void *pointer;
    ENTER();
    int result = allocate(&pointer, bytes, false);
    *made = (uintptr_t)pointer;
    LEAVE(result);
}

API int cuMemFree_v2(address at) {
    ENTER();
    LEAVE(release((void *)(uintptr_t)at));
}

API int cuMemHostAlloc(void **made, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER();
    LEAVE(allocate(made, bytes, true));
}

API int cuMemFreeHost(void *pointer) {
    ENTER();
    LEAVE(release(pointer));
}

API int cuMemHostGetDevicePointer_v2(address *at, void *pointer, unsigned flags) {
    ENTER();
    const block *found = block_of(pointer);
    *at = (uintptr_t)pointer;
    LEAVE(found && found->pinned && !flags ? 0 : INVALID_VALUE);
}

API int cuPointerGetAttribute(unsigned *value, int attribute, address at) {
    ENTER();
    const block *found = block_of((const void *)(uintptr_t)at);
    if (found) *value = found->pinned ? 1 : 2;
    LEAVE(found && attribute == 2 ? 0 : INVALID_VALUE);
}

API int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *at) {
    ENTER();
    operation copy = {.to = (char *)(uintptr_t)to, .from = from, .bytes = bytes};
    if (!block_of(from)) copy.from = memcpy(copy.staged = malloc(bytes), from, bytes);
    fake.copies_to_device++;
    LEAVE(give(stream_at(at), copy));
}

API int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *at) {
    ENTER();
    give(stream_at(at), (operation){.to = to, .from = (const char *)(uintptr_t)from, .bytes = bytes});
    if (!block_of(to)) work(stream_at(at));
    fake.copies_to_host++;
    LEAVE(0);
}

API int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *at) {
    ENTER();
    LEAVE(give(stream_at(at), (operation){.to = (char *)(uintptr_t)to, .from = (const char *)(uintptr_t)from, .bytes = bytes}));
}

API int cuLaunchKernel(const kernel *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                       void *at, void **parameters, void **extra) {
    (void)shared;
    ENTER();
    if (!gx || gy != 1 || gz != 1 || bx != 32 || by != 1 || bz != 1 || extra) LEAVE(INVALID_VALUE);
    if (fake.fail_launch) LEAVE(LAUNCH_FAILED);
    operation launch = {.kernel = function, .blocks = gx};
    for (int i = 0; i < function->pointers; i++) memcpy(&launch.pointers[i], parameters[i], sizeof(address));
    for (int i = 0; i < function->dims; i++) memcpy(&launch.dims[i], parameters[function->pointers + i], sizeof(int32_t));
    fake.launches++;
    LEAVE(give(stream_at(at), launch));
}

API int cuStreamCreate(void **made, unsigned flags) {
    (void)flags;
    stream *self = calloc(1, sizeof *self);
    self->captured = -1;
    fake.streams++;
    return *made = self, 0;
}

API int cuStreamSynchronize(void *at) {
    ENTER();
    work(stream_at(at));
    fake.waits++;
    LEAVE(fake.fail_wait ? LAUNCH_FAILED : 0);
}

API int cuStreamDestroy_v2(void *at) {
    free(at);
    fake.streams--;
    return 0;
}


API int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    fake.events++;
    *event = calloc(1, sizeof(void *));
    return 0;
}

API int cuEventRecord(void **event, void *at) { return *event = stream_at(at), 0; }

API int cuEventSynchronize(void **event) {
    ENTER();
    work(*event);
    LEAVE(0);
}

API int cuEventDestroy_v2(void *event) {
    free(event);
    fake.events--;
    return 0;
}


API int cuStreamBeginCapture_v2(stream *at, int mode) {
    (void)mode;
    ENTER();
    if (fake.no_capture || !at) LEAVE(INVALID_VALUE);
    work(at); /* what was given before is not captured, and the fake keeps but one list */
    at->captured = 0;
    LEAVE(0);
}

API int cuStreamEndCapture(stream *at, graph **made) {
    ENTER();
    *made = calloc(1, sizeof **made);
    memcpy((*made)->operations, at->waiting, sizeof at->waiting);
    (*made)->count = at->count;
    at->count = 0;
    at->captured = -1;
    fake.graphs++;
    LEAVE(0);
}

API int cuGraphInstantiateWithFlags(graph **made, const graph *from, unsigned long long flags) {
    *made = malloc(sizeof **made);
    **made = *from;
    fake.graphs++;
    return flags != 0;
}

API int cuGraphLaunch(const graph *self, stream *at) {
    ENTER();
    for (int i = 0; i < self->count; i++) give(stream_at(at), self->operations[i]);
    fake.graph_launches++;
    LEAVE(0);
}

API int cuGraphExecDestroy(graph *self) {
    free(self);
    fake.graphs--;
    return 0;
}

API int cuGraphDestroy(graph *self) {
    free(self);
    fake.graphs--;
    return 0;
}

API int cuGetErrorName(int error, const char **name) { return *name = error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR", 0; }
API int cuGetErrorString(int error, const char **text) { return *text = "what the fake says", error < 0; }
