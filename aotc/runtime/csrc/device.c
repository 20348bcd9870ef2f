/* The model's part of the GPU: context, code and weights. Several sessions share it. */
#include "device.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static aotc_status check(const device *self, CUresult result, const char *what, aotc_error *error) {
    return cuda_driver_check(&self->driver, result, what, error);
}

aotc_status device_enter(const device *self, aotc_error *error) {
    return check(self, self->driver.context_push(self->context), "making the GPU's context current", error);
}

void device_leave(const device *self) {
    CUcontext popped;
    self->driver.context_pop(&popped);
}

aotc_status device_allocate(const device *self, uint64_t bytes, const char *what, uint64_t *address, aotc_error *error) {
    CUdeviceptr made = 0;
    text tried = {0};
    text_add(&tried, "reserving %" PRIu64 " bytes on the GPU for %s", bytes, what);
    aotc_status status = check(self, self->driver.allocate(&made, (size_t)bytes), tried.data, error);
    *address = status ? 0 : (uint64_t)made;
    return status;
}

void device_release(const device *self, uint64_t address) {
    if (address) self->driver.release((CUdeviceptr)address);
}

aotc_status device_share(const device *self, uint64_t bytes, const char *what, shared_memory *memory, aotc_error *error) {
    void *host = NULL;
    CUdeviceptr address = 0;
    text tried = {0};
    text_add(&tried, "reserving %" PRIu64 " bytes that host and GPU see for %s", bytes, what);
    *memory = (shared_memory){0};
    unsigned flags = self->mapped ? CU_MEMHOSTALLOC_DEVICEMAP : 0;
    aotc_status status = check(self, self->driver.host_allocate(&host, (size_t)bytes, flags), tried.data, error);
    if (status) return status;
    memset(host, 0, (size_t)bytes);
    if (self->mapped) status = check(self, self->driver.host_device_pointer(&address, host, 0), tried.data, error);
    else status = check(self, self->driver.allocate(&address, (size_t)bytes), tried.data, error);
    if (status) self->driver.host_release(host);
    else *memory = (shared_memory){.host = host, .device = (uint64_t)address, .bytes = bytes};
    return status;
}

void device_unshare(const device *self, shared_memory *memory) {
    if (!memory->host) return;
    if (!self->mapped) self->driver.release((CUdeviceptr)memory->device);
    self->driver.host_release(memory->host);
    *memory = (shared_memory){0};
}

/* ---- Opening ---- */

/* The device's cubin of a kernel: code runs on the compute capability that it was made for and no other on Jetson. Where there is none,
 * PTX of an older one, of which the driver makes code. */
static int64_t cubin_for(const plan *plan, const plan_cuda_kernel *kernel, uint32_t sm) {
    int64_t found = -1;
    for (uint32_t i = 0; i < kernel->cubins.count; i++) {
        uint32_t number = plan->indices[kernel->cubins.first + i];
        const plan_cubin *cubin = &plan->cubins[number];
        if (cubin->sm == sm && !cubin->ptx) return number;
        if (cubin->sm <= sm && cubin->ptx) found = number;
    }
    return found;
}

static aotc_status wrong_device(const device *self, const plan *plan, const plan_cuda_kernel *kernel, aotc_error *error) {
    text has = {0};
    for (uint32_t i = 0; i < kernel->cubins.count; i++) {
        const plan_cubin *cubin = &plan->cubins[plan->indices[kernel->cubins.first + i]];
        text_add(&has, "%ssm_%u%s", i ? ", " : "", (unsigned)cubin->sm, cubin->ptx ? " and newer" : "");
    }
    return fail(error, AOTC_UNSUPPORTED,
                "the GPU here, %s, is sm_%u and the model was built for %s; build it for this board, or with --sm %u beside the others",
                self->name, (unsigned)self->sm, has.data, (unsigned)self->sm);
}

static aotc_status find_device(device *self, aotc_error *error) {
    const cuda_driver *driver = &self->driver;
    int count = 0, major = 0, minor = 0, integrated = 0, can_map = 0;
    CUresult result = driver->init(0);
    if (!result) result = driver->device_count(&count);
    if (result == CUDA_ERROR_NO_DEVICE || (!result && count == 0))
        return fail(error, AOTC_UNSUPPORTED, "the model needs a GPU and the CUDA driver finds none; check that it is visible to this process");
    if (result)
        return fail(error, AOTC_UNSUPPORTED,
                    "the model needs a GPU and the CUDA driver here does not start (error %d); check that it fits the kernel and that this "
                    "process may use it",
                    (int)result);
    result = driver->device_get(&self->number, 0);
    if (!result) result = driver->device_name(self->name, (int)sizeof self->name, self->number);
    if (!result) result = driver->device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self->number);
    if (!result) result = driver->device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self->number);
    if (!result) result = driver->device_attribute(&integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, self->number);
    if (!result) result = driver->device_attribute(&can_map, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, self->number);
    self->name[sizeof self->name - 1] = 0;
    self->sm = (uint32_t)(major * 10 + minor);
    /* Integrated GPUs from sm_72 on see the processor's caches; before that mapped memory is uncached on both sides. */
    self->mapped = integrated && can_map && self->sm >= 72;
    return check(self, result, "starting the GPU", error);
}

static aotc_status load_kernel(device *self, const plan *plan, uint32_t number, aotc_error *error) {
    const plan_cuda_kernel *kernel = &plan->cuda_kernels[number];
    int64_t cubin = cubin_for(plan, kernel, self->sm);
    if (cubin < 0) return wrong_device(self, plan, kernel, error);
    const char *symbol = plan_string(plan, kernel->symbol);
    text tried = {0};
    text_add(&tried, "loading the kernel %s", symbol);
    CUresult result = CUDA_SUCCESS;
    if (!self->modules[cubin]) result = self->driver.module_load(&self->modules[cubin], aotc_cubins_data + plan->cubins[cubin].offset);
    if (result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
        return fail(error, AOTC_UNSUPPORTED,
                    "the GPU here, %s, is sm_%u, for which the model has PTX alone, and the CUDA driver here is too old for it; update the "
                    "driver, or build it with --sm %u",
                    self->name, (unsigned)self->sm, (unsigned)self->sm);
    if (!result) result = self->driver.module_function(&self->functions[number], self->modules[cubin], symbol);
    if (!result && kernel->shared_bytes) /* with what the code itself declares it may pass the 48 KB that need no asking */
        result = self->driver.function_set(self->functions[number], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)kernel->shared_bytes);
    return check(self, result, tried.data, error);
}

/* The host does not need these pages again unless it reads them, and can fetch them from the file then. */
static void drop_pages(const char *data, uint64_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)data + bytes) / page * page;
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static aotc_status load_weights(device *self, const aotc_model_t *model, aotc_error *error) {
    self->weights_bytes = (uint64_t)plan_device_weights(&model->plan);
    if (self->weights_bytes == 0) return AOTC_OK;
    aotc_status status = device_allocate(self, self->weights_bytes, "the weights", &self->weights, error);
    if (status) return status;
    CUstream stream; /* of its own: the default one would wait for the application's */
    CUresult result = self->driver.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    if (!result) {
        result = self->driver.copy_to_device((CUdeviceptr)self->weights, model->weights, (size_t)self->weights_bytes, stream);
        if (!result) result = self->driver.stream_wait(stream);
        self->driver.stream_destroy(stream);
    }
    if (!result) drop_pages(model->weights, self->weights_bytes);
    return check(self, result, "copying the weights to the GPU", error);
}

static aotc_status load(device *self, const aotc_model_t *model, aotc_error *error) {
    aotc_status status = device_enter(self, error);
    if (status) return status;
    for (uint32_t i = 0; i < plan_cuda_kernel_count(&model->plan) && !status; i++) status = load_kernel(self, &model->plan, i, error);
    if (!status) status = load_weights(self, model, error);
    device_leave(self);
    return status;
}

static device *lay_out(const plan *plan, carver *memory) {
    device *self = carve(memory, 1, sizeof *self);
    uint32_t cubins = plan->header->tables[TABLE_CUBINS].count;
    CUmodule *modules = carve(memory, cubins, sizeof *modules);
    CUfunction *functions = carve(memory, plan_cuda_kernel_count(plan), sizeof *functions);
    if (!self) return NULL;
    self->module_count = cubins;
    self->modules = modules;
    self->functions = functions;
    return self;
}

static void destroy(device *self) {
    if (self->context && self->driver.context_push(self->context) == CUDA_SUCCESS) {
        for (uint32_t i = 0; i < self->module_count; i++)
            if (self->modules[i]) self->driver.module_unload(self->modules[i]);
        device_release(self, self->weights);
        device_leave(self);
    }
    if (self->context) self->driver.context_release(self->number);
    self->allocator.release(self->allocator.context, self, self->bytes);
}

static aotc_status make(aotc_model_t *model, device **made, aotc_error *error) {
    carver count = {0};
    lay_out(&model->plan, &count);
    void *base;
    aotc_status status = memory_allocate(&model->allocator, count.used, "the tables of the GPU's code", &base, error);
    if (status) return status;
    memset(base, 0, count.used);
    carver memory = {.base = base};
    device *self = lay_out(&model->plan, &memory);
    self->allocator = model->allocator;
    self->bytes = count.used;
    status = cuda_driver_open(&self->driver, error);
    if (!status) status = nvtx_open(&self->ranges, error);
    if (!status) status = find_device(self, error);
    if (!status) status = check(self, self->driver.context_retain(&self->context, self->number), "getting the GPU's context", error);
    if (!status) status = load(self, model, error);
    if (status) destroy(self);
    else *made = self;
    return status;
}

aotc_status device_open(aotc_model_t *model, aotc_error *error) {
    pthread_mutex_lock(&model->device_lock);
    aotc_status status = model->device ? AOTC_OK : make(model, &model->device, error);
    pthread_mutex_unlock(&model->device_lock);
    return status;
}

void device_close(aotc_model_t *model) {
    if (model->device) destroy(model->device);
    model->device = NULL;
}
