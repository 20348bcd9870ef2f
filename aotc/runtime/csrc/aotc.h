/* aotc: load and run a compiled model. This is all an application includes; it links aotc_loader.c (or compiles it in).
 *
 *     aotc_error error;
 *     aotc_model_t *model;
 *     aotc_session_t *session;
 *     if (aotc_open("model.so", &model, &error)) die(error.message);
 *     if (aotc_session_create(model, NULL, &session, &error)) die(error.message);
 *     aotc_bind_input(session, 0, &image, &error);
 *     aotc_run(session, &error);
 *     aotc_get_output(session, 0, &scores, &error);
 *
 * Rules for every function here:
 * - Errors: a function that can fail returns an aotc_status, AOTC_OK being 0. Its last argument, if not NULL, is the caller's
 *   and gets the status and a message that says what was expected, what came and what to do; on success the message is "".
 *   A call that failed changed nothing, unless its text says otherwise. Nothing here prints, aborts or installs a handler.
 * - Threads: a model and a pool may be used by any number of threads at once. A session is for one thread at a time: a second
 *   thread that enters meanwhile gets AOTC_BUSY. Handles may move from thread to thread.
 * - Ownership: what a *_create or open returned is the caller's to give to *_destroy or aotc_close, sessions before pools
 *   before their model. Strings and tables that are returned belong to the handle and live as long as it, or as stated.
 * - Numbers of inputs, outputs, entry points and steps count from 0.
 *
 * ABI rule: within one AOTC_ABI_VERSION structs and the function table only grow at their end (each begins with its size), enum
 * values are only added, and meanings stay. Anything else raises the version; a file serves exactly the versions it names.
 */
#ifndef AOTC_H
#define AOTC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AOTC_ABI_VERSION 1u

/* ---- DLPack 1.x tensors. An application that uses dlpack.h includes it before this file. ---- */

#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_

#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
    kDLCPU = 1,
    kDLCUDA = 2,
    kDLCUDAHost = 3,
    kDLCUDAManaged = 13
} DLDeviceType;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef enum {
    kDLInt = 0U,
    kDLUInt = 1U,
    kDLFloat = 2U,
    kDLOpaqueHandle = 3U,
    kDLBfloat = 4U,
    kDLComplex = 5U,
    kDLBool = 6U
} DLDataTypeCode;

typedef struct {
    uint8_t code; /* DLDataTypeCode */
    uint8_t bits;
    uint16_t lanes; /* 1 */
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL for row-major without gaps */
    uint64_t byte_offset;
} DLTensor;

#endif

/* The codes of DLPack 1.1 for floats of 8 bits and less. An element of 6, 4 or 2 bits takes a byte of its own here, its low bits. */
enum {
    AOTC_FLOAT8_E4M3FN = 10,
    AOTC_FLOAT8_E4M3FNUZ = 11,
    AOTC_FLOAT8_E5M2 = 12,
    AOTC_FLOAT8_E5M2FNUZ = 13,
    AOTC_FLOAT8_E8M0FNU = 14,
    AOTC_FLOAT6_E2M3FN = 15,
    AOTC_FLOAT6_E3M2FN = 16,
    AOTC_FLOAT4_E2M1FN = 17
};

/* ---- Status ---- */

typedef enum aotc_status {
    AOTC_OK = 0,
    AOTC_INVALID_ARGUMENT = 1, /* a handle, name, number, dtype, shape, pointer or option that cannot be */
    AOTC_INVALID_FILE = 2,     /* not a built model, truncated or damaged */
    AOTC_WRONG_VERSION = 3,    /* built for another ABI version */
    AOTC_UNSUPPORTED = 4,      /* this machine lacks what the file needs */
    AOTC_OUT_OF_MEMORY = 5,    /* the allocator refused, or the memory cap would be passed */
    AOTC_BUSY = 6,             /* a session in use by another thread; a model or pool that still has users */
    AOTC_KERNEL_FAILED = 7,    /* a step returned an error, or parallel_for did not run all tasks */
    AOTC_SYSTEM = 8,           /* the system refused a file, a thread or a library */
    AOTC_CANCELLED = 9,        /* aotc_cancel ended the run */
    AOTC_DEVICE_FAILED = 10    /* the GPU or its driver reported an error */
} aotc_status;

#define AOTC_MESSAGE_BYTES 1024

typedef struct aotc_error {
    aotc_status status;
    char message[AOTC_MESSAGE_BYTES]; /* ends with a zero byte; UTF-8; cut short rather than overrun */
} aotc_error;

/* ---- Handles ---- */

typedef struct aotc_model_t aotc_model_t;     /* one opened file: immutable, shared by sessions */
typedef struct aotc_session_t aotc_session_t; /* one caller's inputs, outputs and working memory */
typedef struct aotc_pool_t aotc_pool_t;       /* worker threads that sessions of one or several models share */

/* ---- What the application may provide ---- */

/* Work to share out: call it with ranges that together are [0, tasks), each task once. Non-zero is a failure that the runtime
 * remembers by itself. */
typedef int32_t (*aotc_task_fn)(void *task_context, int32_t begin, int32_t end);

/* The application's own parallel loop: runs all tasks on threads of its choice and returns when all are done. It must not throw
 * or jump out. Every session that uses it may call it from its own thread at the same time. */
typedef void (*aotc_parallel_for_fn)(void *context, int32_t tasks, aotc_task_fn task, void *task_context);

/* Memory for sessions and models. allocate returns `bytes` bytes at a multiple of `alignment` (a power of two), or NULL;
 * release gets the same number of bytes. Called by the thread that calls the runtime, never by workers. */
typedef struct aotc_allocator {
    void *context;
    void *(*allocate)(void *context, size_t bytes, size_t alignment);
    void (*release)(void *context, void *pointer, size_t bytes);
} aotc_allocator;

typedef enum aotc_log_level { AOTC_LOG_ERROR = 0, AOTC_LOG_WARNING = 1, AOTC_LOG_INFO = 2 } aotc_log_level;

/* One message without a line end. The text lives for the call. Called by the thread that calls the runtime, never by workers. */
typedef void (*aotc_log_fn)(void *context, aotc_log_level level, const char *message);

typedef struct aotc_model_options {
    uint32_t size;                   /* sizeof(aotc_model_options) */
    const char *path;                /* where the file was opened, for messages; copied; may be NULL */
    void *library;                   /* the loader's own, given back by aotc_api.model_library */
    const aotc_allocator *allocator; /* NULL: malloc. Copied; its context must outlive the model and its pools */
    aotc_log_fn log;                 /* NULL: silent */
    void *log_context;
} aotc_model_options;

typedef struct aotc_session_options {
    uint32_t size;           /* sizeof(aotc_session_options) */
    const char *entry_point; /* NULL: number 0 */

    /* Threads: at most one of these three. None of them: one thread, the caller's. */
    uint32_t num_threads;              /* 1: the caller alone; n: a private pool with n - 1 workers */
    aotc_pool_t *pool;                 /* a shared pool; must outlive the session */
    aotc_parallel_for_fn parallel_for; /* the application's loop */
    void *parallel_for_context;

    const aotc_allocator *allocator; /* NULL: the model's. Copied; its context must outlive the session */
    uint64_t memory_limit;           /* bytes that the session may hold at any time, weights apart; 0: no limit */
    aotc_log_fn log;                 /* NULL: the model's */
    void *log_context;
    uint32_t profile;     /* non-zero: time each step from the start */
    uint32_t shape_plans; /* how many input shapes are remembered with their memory plans; 0: 16. Static models need one */

    /* Use the states of this session, of the same model and mostly of another entry point, instead of states of one's own. Either may
     * be destroyed first; the allocator that holds the states must outlive both. NULL: states of one's own. */
    aotc_session_t *share_state;

    void *cuda_stream; /* a CUstream of the GPU's primary context, in which the session works; must outlive it. NULL: one of its own */
} aotc_session_options;

/* ---- What the runtime tells ---- */

typedef struct aotc_dim {
    int64_t value;      /* the extent, or -1 when it follows from the inputs' shapes or is known only after a run */
    int64_t minimum;    /* value, or the least extent */
    int64_t maximum;    /* value, or the largest extent; -1: without bound */
    const char *symbol; /* NULL for a known extent, else the name, or the expression over names, e.g. "2*sequence" */
} aotc_dim;

typedef struct aotc_tensor_info {
    const char *name;
    DLDataType dtype;
    int32_t rank;
    const aotc_dim *dims; /* rank of them; NULL for a scalar */
} aotc_tensor_info;

typedef enum aotc_step_kind {
    AOTC_STEP_KERNEL = 0,
    AOTC_STEP_COPY = 1,
    AOTC_STEP_SHAPE = 2,  /* reads a size that the model computes */
    AOTC_STEP_CHECK = 3,  /* compares two sizes */
    AOTC_STEP_BRANCH = 4, /* goes on elsewhere, or not */
    AOTC_STEP_JUMP = 5,
    AOTC_STEP_LAUNCH = 6,      /* a kernel on the GPU */
    AOTC_STEP_DEVICE_COPY = 7, /* a copy in the GPU's memory */
    AOTC_STEP_TO_DEVICE = 8,   /* the GPU gets to see what the host wrote */
    AOTC_STEP_TO_HOST = 9,     /* the host waits for the GPU and sees what it wrote */
    AOTC_STEP_DELIVER = 10     /* outputs get to the caller's memory where they are elsewhere */
} aotc_step_kind;

typedef struct aotc_step_info {
    uint32_t size;      /* set by the caller: sizeof(aotc_step_info) */
    uint32_t is_copy;   /* 1: a copy, 0: another kind */
    const char *name;   /* the user's name of the node; lives as long as the model */
    const char *label;  /* the operators fused into the step */
    const char *kernel; /* the kernel's symbol; "" where there is none */
    uint64_t runs;      /* timed runs since profiling was last switched on; a step in a loop counts each time */
    uint64_t total_ns;  /* wall-clock nanoseconds of these */
    uint64_t last_ns;   /* of the latest */
    int64_t flops;      /* floating-point operations in one run at the latest shape; 0: unknown or none yet */
    int64_t tasks;      /* parts into which the step can be cut at the latest shape */
    uint32_t kind;      /* aotc_step_kind */
    uint32_t target;    /* of a branch or jump: the step with which it goes on */
} aotc_step_info;

typedef struct aotc_memory_info {
    uint32_t size;        /* set by the caller: sizeof(aotc_memory_info) */
    uint32_t shape_plans; /* input shapes remembered now */
    uint64_t weights;     /* bytes of weights in the file, shared by all sessions and processes */
    uint64_t arena;       /* bytes that the session's arena has now */
    uint64_t planned;     /* bytes that the latest shape needs of it */
    uint64_t lower_bound; /* bytes of the largest set of buffers that are alive at once at the latest shape */
    uint64_t outputs;     /* bytes held for outputs that are not bound */
    uint64_t total;       /* all bytes that the session holds, its own tables included, weights not */
    uint64_t peak;        /* the most that total has been */
    uint64_t dynamic;     /* bytes of buffers whose size is known only while running, outside the arena */
    uint64_t states;      /* bytes of states; in the total of the session that made them */
    uint64_t device;         /* bytes on the GPU: the arena there, and inputs and outputs that are not bound there */
    uint64_t shared;         /* bytes of the arena that host and GPU see */
    uint64_t device_weights; /* bytes of weights on the GPU, shared by the sessions of the model; not in the total */
} aotc_memory_info;

/* ---- The file's function table. Applications use the functions below it. ---- */

typedef struct aotc_api aotc_api;
typedef void (*aotc_rounds_fn)(void *context, int32_t tasks, int32_t round, aotc_task_fn task, void *task_context);

/* Every handle begins with `const aotc_api *`, so a loader finds the table of the file that made it. */
struct aotc_api {
    uint32_t size; /* sizeof(aotc_api) where the file was built: a function beyond it is absent */
    uint32_t abi_version;
    const char *runtime_version; /* of the aotc that built the file */
    aotc_status (*model_create)(const aotc_model_options *options, aotc_model_t **model, aotc_error *error);
    aotc_status (*model_destroy)(aotc_model_t *model, aotc_error *error);
    void *(*model_library)(const aotc_model_t *model);
    const char *(*manifest)(const aotc_model_t *model, size_t *length);
    size_t (*entry_point_count)(const aotc_model_t *model);
    const char *(*entry_point_name)(const aotc_model_t *model, size_t entry_point);
    size_t (*input_count)(const aotc_model_t *model, size_t entry_point);
    size_t (*output_count)(const aotc_model_t *model, size_t entry_point);
    const aotc_tensor_info *(*input_info)(const aotc_model_t *model, size_t entry_point, size_t input);
    const aotc_tensor_info *(*output_info)(const aotc_model_t *model, size_t entry_point, size_t output);
    aotc_status (*infer_shape)(const aotc_model_t *model, size_t entry_point, const int64_t *const *input_shapes, size_t output,
                               int64_t *shape, aotc_error *error);
    aotc_status (*pool_create)(aotc_model_t *model, uint32_t num_threads, aotc_pool_t **pool, aotc_error *error);
    aotc_status (*pool_destroy)(aotc_pool_t *pool, aotc_error *error);
    aotc_status (*session_create)(aotc_model_t *model, const aotc_session_options *options, aotc_session_t **session, aotc_error *error);
    aotc_status (*session_destroy)(aotc_session_t *session, aotc_error *error);
    aotc_status (*bind_input)(aotc_session_t *session, size_t input, const DLTensor *tensor, aotc_error *error);
    aotc_status (*bind_output)(aotc_session_t *session, size_t output, const DLTensor *tensor, aotc_error *error);
    aotc_status (*output_shape)(aotc_session_t *session, size_t output, int64_t *shape, aotc_error *error);
    aotc_status (*run)(aotc_session_t *session, aotc_error *error);
    aotc_status (*get_output)(aotc_session_t *session, size_t output, DLTensor *tensor, aotc_error *error);
    aotc_status (*set_profiling)(aotc_session_t *session, int on, aotc_error *error);
    size_t (*step_count)(const aotc_session_t *session);
    aotc_status (*step_info)(aotc_session_t *session, size_t step, aotc_step_info *info, aotc_error *error);
    aotc_status (*memory_info)(aotc_session_t *session, aotc_memory_info *info, aotc_error *error);

    /* For the sessions of other files that share a pool of this one: count a user in and out, say that a run goes on (workers
     * may then spin for a moment between steps), share out tasks. */
    void (*pool_acquire)(aotc_pool_t *pool);
    void (*pool_release)(aotc_pool_t *pool);
    void (*pool_begin)(aotc_pool_t *pool);
    void (*pool_end)(aotc_pool_t *pool);
    aotc_parallel_for_fn pool_parallel_for; /* context: the pool */

    /* Absent in files of aotc 0.1, whose `size` ends before them. */
    aotc_status (*session_reset)(aotc_session_t *session, aotc_error *error);
    aotc_status (*cancel)(aotc_session_t *session, aotc_error *error);
    size_t (*state_count)(const aotc_model_t *model);
    const aotc_tensor_info *(*state_info)(const aotc_model_t *model, size_t state);
    aotc_status (*get_state)(aotc_session_t *session, size_t state, DLTensor *tensor, aotc_error *error);

    /* Absent in files of aotc before CUDA. */
    aotc_status (*run_async)(aotc_session_t *session, void **event, aotc_error *error);
    aotc_status (*wait)(aotc_session_t *session, aotc_error *error);

    /* As pool_parallel_for, for tasks in rounds of `round`, each after the one before it. Absent in files of older aotc. */
    aotc_rounds_fn pool_rounds;
};

/* The one symbol that a built file exports: the table for `abi_version`, or NULL if the file does not serve that version (its
 * manifest tells which it serves). The table is constant and lives while the file is loaded. */
typedef const aotc_api *(*aotc_model_fn)(uint32_t abi_version);

/* ---- Models (aotc_loader.c) ---- */

/* Open a built file. Checks that it is an ELF file for this machine, whole, and of an ABI version that this loader knows, before
 * any of its code runs. options may be NULL; its path and library are ignored. AOTC_SYSTEM when the file cannot be read. */
aotc_status aotc_open(const char *path, aotc_model_t **model, aotc_error *error);
aotc_status aotc_open_with(const char *path, const aotc_model_options *options, aotc_model_t **model, aotc_error *error);

/* Close the file. AOTC_BUSY while it has sessions or pools: destroy those first, then call again. NULL is fine. */
aotc_status aotc_close(aotc_model_t *model, aotc_error *error);

/* The manifest as JSON text (UTF-8, `*length` bytes and a zero byte): name, versions, target, the user's metadata. `length` may
 * be NULL. */
const char *aotc_manifest(const aotc_model_t *model, size_t *length);

/* Entry points: what a session can run. The name is NULL for a number that is too large. */
size_t aotc_entry_point_count(const aotc_model_t *model);
const char *aotc_entry_point_name(const aotc_model_t *model, size_t entry_point);

/* States: tensors that a session keeps from run to run. All entry points of a model have the same ones. NULL for a number that is too
 * large. */
size_t aotc_state_count(const aotc_model_t *model);
const aotc_tensor_info *aotc_state_info(const aotc_model_t *model, size_t state);

/* Inputs and outputs of an entry point; NULL or 0 for a number that is too large. They live as long as the model. */
size_t aotc_input_count(const aotc_model_t *model, size_t entry_point);
size_t aotc_output_count(const aotc_model_t *model, size_t entry_point);
const aotc_tensor_info *aotc_input_info(const aotc_model_t *model, size_t entry_point, size_t input);
const aotc_tensor_info *aotc_output_info(const aotc_model_t *model, size_t entry_point, size_t output);

/* The number of the entry point, input or output of that name, or -1. */
int64_t aotc_find_entry_point(const aotc_model_t *model, const char *name);
int64_t aotc_find_input(const aotc_model_t *model, size_t entry_point, const char *name);
int64_t aotc_find_output(const aotc_model_t *model, size_t entry_point, const char *name);
int64_t aotc_find_state(const aotc_model_t *model, const char *name);

/* The shape of an output for given shapes of all inputs, without data: input_shapes[i] points to as many extents as input i has
 * dims (it may be NULL for a scalar); `shape` gets the output's, with -1 for a dim that depends on the data and is known only after
 * a run. AOTC_INVALID_ARGUMENT where the inputs' shapes do not fit. */
aotc_status aotc_infer_shape(const aotc_model_t *model, size_t entry_point, const int64_t *const *input_shapes, size_t output,
                             int64_t *shape, aotc_error *error);

/* ---- Pools ---- */

/* num_threads - 1 worker threads, which with a caller make num_threads; 0: as many as this process may use processors. The pool
 * runs code of `model`'s file, which therefore cannot be closed before it; sessions of other models may share it. Several
 * sessions may run at once on one pool. Affinity is never changed. AOTC_SYSTEM when a thread cannot be started. */
aotc_status aotc_pool_create(aotc_model_t *model, uint32_t num_threads, aotc_pool_t **pool, aotc_error *error);

/* Ends the threads. AOTC_BUSY while sessions use it. NULL is fine. */
aotc_status aotc_pool_destroy(aotc_pool_t *pool, aotc_error *error);

/* ---- Sessions ---- */

/* A session for one entry point. options may be NULL. The arena is reserved here when all shapes are known, otherwise on the first
 * run of each larger shape; memory for outputs that are not bound on the first run that needs it. For an entry point that uses a GPU the
 * CUDA driver is looked for here, and code and weights are loaded for the first session: AOTC_UNSUPPORTED without a driver or on another
 * GPU than the file has code for, unless the file has code for the CPU to stand in. */
aotc_status aotc_session_create(aotc_model_t *model, const aotc_session_options *options, aotc_session_t **session, aotc_error *error);

/* Frees the session and the outputs it holds. AOTC_BUSY while it runs. NULL is fine. */
aotc_status aotc_session_destroy(aotc_session_t *session, aotc_error *error);

/* Use the tensor as input, from now until it is bound anew. Its struct and shape are copied, its data are not: they must stay
 * valid and unchanged while a run goes on, and may be refilled between runs. The input's dtype and rank, row-major without gaps, aligned
 * to its element size. Host memory; where the entry point uses a GPU also memory of the GPU (kDLCUDA, kDLCUDAManaged), aligned to 16
 * bytes. Memory that the GPU sees is used where it is, pinned memory (kDLCUDAHost) included; of the rest it gets copies. Work of the
 * GPU that fills the memory must be done before the run, or stand before it in the session's stream (cuda_stream). Sizes that depend on
 * other inputs are checked when running. */
aotc_status aotc_bind_input(aotc_session_t *session, size_t input, const DLTensor *tensor, aotc_error *error);

/* Write the output straight into the tensor's memory in each run, until bound anew; NULL: back to memory of the session. The same
 * rules as for inputs; its shape must be the output's shape in every run, and its memory must overlap no input's and no other
 * output's. An output whose shape depends on the data cannot be bound: it is always the session's. */
aotc_status aotc_bind_output(aotc_session_t *session, size_t output, const DLTensor *tensor, aotc_error *error);

/* The shape that the output will have with the inputs bound now, with -1 for a dim that depends on the data; after a run, with nothing
 * bound since, the shape that it has. `shape` has room for its rank. */
aotc_status aotc_output_shape(aotc_session_t *session, size_t output, int64_t *shape, aotc_error *error);

/* Run the entry point with the tensors bound. Every input must be bound. Once a shape has been seen, this takes no lock and
 * allocates nothing; sizes that depend on the data count as seen when larger ones were. After an error the contents of outputs, and
 * of states that the entry point changes, are undefined, and the session can be used again (after aotc_session_reset where there are
 * states). AOTC_BUSY also while another session runs on the same states. */
aotc_status aotc_run(aotc_session_t *session, aotc_error *error);

/* Run, and return as soon as the GPU has all its work; `event`, if not NULL, gets a CUevent of the session that has occurred when the run is
 * done (a stream can wait for it), or NULL where nothing runs on. Inputs and outputs must stay until then. An entry point whose last
 * steps are the host's, that has states, or whose outputs are bound to pageable memory, returns later. What is done with the session next waits by
 * itself, aotc_cancel and aotc_output_shape apart. */
aotc_status aotc_run_async(aotc_session_t *session, void **event, aotc_error *error);

/* Wait for the run that aotc_run_async started, and say how it ended. Without one, nothing happens. */
aotc_status aotc_wait(aotc_session_t *session, aotc_error *error);

/* End the run that goes on in the session, at its next turn of a loop, with AOTC_CANCELLED; without one, nothing happens. The one
 * function that other threads, and signal handlers, may call while the session runs. */
aotc_status aotc_cancel(aotc_session_t *session, aotc_error *error);

/* Put the first values back into all states, also for the sessions that share them. AOTC_BUSY while one of them runs. */
aotc_status aotc_session_reset(aotc_session_t *session, aotc_error *error);

/* A state's memory, to be read, saved or filled between runs; `tensor` is filled in. It lives as long as the last session that has the
 * states. */
aotc_status aotc_get_state(aotc_session_t *session, size_t state, DLTensor *tensor, aotc_error *error);

/* The output of the latest successful run: the memory bound, or the session's own, which stays as it is until the next run, bind
 * or destroy. `tensor` is filled in; its shape points into the session and lives as long. */
aotc_status aotc_get_output(aotc_session_t *session, size_t output, DLTensor *tensor, aotc_error *error);

/* Switch per-step timing on (from zero) or off (the figures stay). Costs two clock reads a step. */
aotc_status aotc_set_profiling(aotc_session_t *session, int on, aotc_error *error);

/* The steps of the entry point, in the order in which they run. */
size_t aotc_step_count(const aotc_session_t *session);
aotc_status aotc_get_step_info(aotc_session_t *session, size_t step, aotc_step_info *info, aotc_error *error);

/* What the session holds. */
aotc_status aotc_get_memory_info(aotc_session_t *session, aotc_memory_info *info, aotc_error *error);

/* A fixed word for a status, e.g. "invalid argument". */
const char *aotc_status_name(aotc_status status);

#ifdef __cplusplus
}
#endif

#endif
