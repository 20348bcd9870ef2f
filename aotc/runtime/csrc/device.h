/* A model on the GPU: the driver, the context, the code and the weights are the model's; memory, stream and graphs the session's. */
#ifndef AOTC_DEVICE_H
#define AOTC_DEVICE_H

#include "cuda_driver.h"
#include "internal.h"

/* ---- device.c: the model's part, made when the first session needs it ---- */

typedef struct device {
    cuda_driver driver;
    CUdevice number;
    CUcontext context; /* the device's primary one, which CUDA's runtime and PyTorch use too */
    bool mapped;       /* host memory that it can see without copies is as good as its own, and coherent */
    uint32_t sm;       /* compute capability: 87 for 8.7 */
    char name[64];
    nvtx_ranges ranges;
    uint64_t weights; /* the device's copy of the first bytes of the weights */
    uint64_t weights_bytes;
    uint32_t module_count;
    CUmodule *modules;     /* of each cubin of the plan; NULL: for other devices */
    CUfunction *functions; /* of each CUDA kernel of the plan */
    aotc_allocator allocator;
    size_t bytes; /* of this struct with all that follows it */
} device;

/* Make the model's device if it has none yet. AOTC_UNSUPPORTED where this machine cannot run the model's CUDA kernels. */
OPTIONAL_PART aotc_status device_open(aotc_model_t *model, aotc_error *error);
OPTIONAL_PART void device_close(aotc_model_t *model);

/* Make the context current for this thread, and what was current before again. Everything below runs between the two. */
OPTIONAL_PART aotc_status device_enter(const device *self, aotc_error *error);
OPTIONAL_PART void device_leave(const device *self);

/* Memory of the device. `what` names it in the message. */
aotc_status device_allocate(const device *self, uint64_t bytes, const char *what, uint64_t *address, aotc_error *error);
void device_release(const device *self, uint64_t address);

/* Memory that both see: one, mapped into the device, or one on each side. All bytes are zero on the host's. */
OPTIONAL_PART aotc_status device_share(const device *self, uint64_t bytes, const char *what, shared_memory *memory, aotc_error *error);
OPTIONAL_PART void device_unshare(const device *self, shared_memory *memory);

/* ---- device_session.c ---- */

typedef struct graph_set graph_set;

typedef struct device_session {
    device *device;
    CUstream stream;
    bool own_stream;
    bool pending; /* the device may still work on what the stream was given */
    CUevent finished;
    uint64_t arena, arena_bytes; /* on the device */
    shared_memory shared;        /* the arena that both see */
    bool *input_used, *output_used;         /* of each: whether the device reads or writes it */
    bool *input_on_host, *output_on_host;   /* whether the host does */
    uint64_t *addresses; /* scratch of one launch: pointers, */
    int32_t *dims;       /* dims, */
    void **parameters;   /* and where each is */
    struct graphs *graphs;
    size_t bytes; /* of this struct with all that follows it */
} device_session;

/* The session's part for an entry point that uses the device. `stream`: the application's, NULL for one of the session's own. */
OPTIONAL_PART aotc_status device_session_open(aotc_session_t *self, void *stream, aotc_error *error);
OPTIONAL_PART void device_session_close(aotc_session_t *self);

/* Where the GPU sees memory that the caller binds: as memory of its own, then *data becomes NULL, as memory that both see, or not. */
OPTIONAL_PART void device_bind(const aotc_session_t *self, other_side *side, char **data, int32_t device_type);

/* The arenas that the current plan needs. */
OPTIONAL_PART aotc_status device_reserve_arenas(aotc_session_t *self, aotc_error *error);

/* Memory for the current shapes and what is bound. */
OPTIONAL_PART aotc_status device_prepare(aotc_session_t *self, aotc_error *error);

/* Wait until the device has done all that it was given. */
OPTIONAL_PART aotc_status device_wait(aotc_session_t *self, aotc_error *error);

/* The host writes what the device may still read. */
OPTIONAL_PART aotc_status device_before_write(aotc_session_t *self, const plan_step *step, aotc_error *error);

/* Where the processors see a value. */
OPTIONAL_PART char *device_host_address(const aotc_session_t *self, const plan_value *value);
uint64_t device_address(const aotc_session_t *self, const plan_value *value);

/* ---- device_steps.c ---- */

/* Run step `number`, or with it all that follow and go into one graph; *next becomes the one to go on with. */
OPTIONAL_PART aotc_status device_step(aotc_session_t *self, uint32_t number, uint32_t *next, aotc_error *error);

/* Give the stream a launch or a copy on the device. */
aotc_status device_enqueue(aotc_session_t *self, const plan_step *step, aotc_error *error);

/* ---- graphs.c: runs of the device's steps that were captured ---- */

aotc_status graphs_open(aotc_session_t *self, aotc_error *error);
void graphs_close(aotc_session_t *self);

/* Choose the graphs for the current shapes and addresses; called when a run begins. */
OPTIONAL_PART void graphs_select(aotc_session_t *self);

/* Forget those of a shape plan, or all (NULL): memory that they use is gone. */
OPTIONAL_PART void graphs_forget(aotc_session_t *self, const shape_plan *plan);

/* The step after the last one of the segment that begins with step `number`, if a graph ran it; else `number`. */
aotc_status graphs_run(aotc_session_t *self, uint32_t number, uint32_t *end, aotc_error *error);

#endif
