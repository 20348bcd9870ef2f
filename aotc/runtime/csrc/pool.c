/* A pool of threads that sessions share. Sharing out tasks takes no lock.
 *
 * One job at a time: the caller cuts its tasks into as many fixed parts as there are threads, marks the parts as available and
 * wakes workers that sleep. Worker n takes part n if it can, and whoever is done takes any part that is left, so that no part
 * waits for a thread that the system has not scheduled. A caller that finds the pool at work for another session, or as many sessions
 * running as the pool has threads, runs all its tasks itself: the processors are busy anyway. How tasks are cut never changes a result,
 * see aotc_kernel.h.
 *
 * Workers look out for work for a moment before they sleep, only while some session runs and only when there is a processor for
 * each thread. Memory order: a part is published by storing 1 in `available` and taken by exchanging 0 for it; who takes it may
 * read the job, since the caller waits for every part before it writes the next. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define MAX_THREADS 1024u
#define SPIN_NS UINT64_C(50000)
#define JOIN_NS UINT64_C(20000)
#define PATIENCE 1024u /* looks at what another thread writes before its processor is offered to others */
#define LINE 64        /* bytes of a cache line */
#define GATHERING (UINT32_MAX - 1)
#define DISSOLVED UINT32_MAX

typedef struct worker {
    _Alignas(LINE) atomic_int available; /* part number + 1 of the job waits to be taken */
    atomic_int asleep;
    sem_t wake;
    pthread_t thread;
    aotc_pool_t *pool;
    uint32_t number;
} worker;

struct aotc_pool_t {
    const aotc_api *api;
    aotc_model_t *model;
    size_t bytes;
    uint32_t worker_count, started, processors;
    worker *workers;
    atomic_uint users;   /* sessions */
    atomic_uint callers; /* runs that go on now */
    atomic_bool stop;

    /* The job. */
    _Alignas(LINE) atomic_flag taken;
    aotc_task_fn task;
    void *context;
    int32_t tasks, round; /* tasks of a round; 0: all at once */
    uint32_t parts;
    uint64_t arithmetic;
    atomic_uint pending; /* parts that are not finished */
    sem_t done;          /* posted by the worker that finishes last */
    _Alignas(LINE) atomic_uint arrived; /* threads that have finished the round */
    atomic_bool disturbed;              /* one has waited for long */
    _Alignas(LINE) atomic_uint turn;    /* the round that goes on, or what else is defined above */
};

/* The rounding and denormal mode of this thread, which results depend on: workers take over the caller's. */
static uint64_t arithmetic_mode(void) {
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & ~UINT64_C(0x3f); /* without the sticky flags */
#elif defined(__aarch64__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
#else
    return 0;
#endif
}

static void set_arithmetic_mode(uint64_t mode) {
    if (arithmetic_mode() == mode) return;
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((unsigned)mode);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void wait_for(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0 && errno == EINTR) continue;
}

static bool may_spin(aotc_pool_t *self) {
    unsigned callers = atomic_load_explicit(&self->callers, memory_order_relaxed);
    return callers != 0 && self->worker_count + callers <= self->processors;
}

/* Wait while `turn` is what it was; what it becomes. Who waits for long has lost a thread to another program. */
static uint32_t turn_after(aotc_pool_t *self, uint32_t turn) {
    uint32_t now;
    for (uint32_t i = 1; (now = atomic_load_explicit(&self->turn, memory_order_acquire)) == turn; i++) {
        relax();
        if (i % PATIENCE != 0) continue;
        atomic_store_explicit(&self->disturbed, true, memory_order_relaxed);
        sched_yield();
    }
    return now;
}

/* The round after round number `turn`, once all threads have finished it. The last one to arrive decides whether they go on
 * together: threads without a processor of their own would wait for one another to be scheduled. */
static uint32_t next_turn(aotc_pool_t *self, uint32_t turn) {
    if (atomic_fetch_add_explicit(&self->arrived, 1, memory_order_acq_rel) + 1 == self->parts) {
        atomic_store_explicit(&self->arrived, 0, memory_order_relaxed);
        bool together = may_spin(self) && !atomic_load_explicit(&self->disturbed, memory_order_relaxed);
        atomic_store_explicit(&self->turn, together ? turn + 1 : DISSOLVED, memory_order_release);
    }
    return turn_after(self, turn);
}

/* Run part of each round that threads run together; the first task after these rounds. */
static int32_t run_rounds(aotc_pool_t *self, uint32_t part) {
    int32_t begin = (int32_t)((int64_t)self->round * part / self->parts);
    int32_t end = (int32_t)((int64_t)self->round * (part + 1) / self->parts);
    int32_t first = 0;
    for (uint32_t turn = turn_after(self, GATHERING); turn != DISSOLVED && first < self->tasks; turn = next_turn(self, turn)) {
        self->task(self->context, first + begin, first + end);
        first += self->round;
    }
    return first;
}

static bool finish(aotc_pool_t *self, uint32_t parts) {
    return atomic_fetch_sub_explicit(&self->pending, parts, memory_order_acq_rel) == parts;
}

/* Run one part; true if it was the last to finish. */
static bool run_part(aotc_pool_t *self, uint32_t part) {
    if (self->round) {
        run_rounds(self, part);
        return finish(self, 1);
    }
    int32_t begin = (int32_t)((int64_t)self->tasks * part / self->parts);
    int32_t end = (int32_t)((int64_t)self->tasks * (part + 1) / self->parts);
    self->task(self->context, begin, end);
    return finish(self, 1);
}

static bool take(worker *slot) {
    return atomic_load_explicit(&slot->available, memory_order_relaxed) &&
           atomic_exchange_explicit(&slot->available, 0, memory_order_acquire);
}

static bool any_available(aotc_pool_t *self, memory_order order) {
    for (uint32_t i = 0; i < self->worker_count; i++)
        if (atomic_load_explicit(&self->workers[i].available, order)) return true;
    return false;
}

/* ---- Workers ---- */

static bool work(worker *self) {
    aotc_pool_t *pool = self->pool;
    bool worked = false;
    for (uint32_t i = 0; i < pool->worker_count; i++) {
        uint32_t number = (self->number + i) % pool->worker_count;
        if (!take(&pool->workers[number])) continue;
        set_arithmetic_mode(pool->arithmetic);
        worked = true;
        if (run_part(pool, number + 1)) sem_post(&pool->done);
    }
    return worked;
}

/* Look out for work; false when it is time to sleep. */
static bool spin(aotc_pool_t *pool) {
    uint64_t start = 0;
    for (uint32_t i = 0; may_spin(pool); i++) {
        if (any_available(pool, memory_order_relaxed)) return true;
        relax();
        if (i % 64 != 0) continue;
        uint64_t now = now_ns();
        if (start == 0) start = now;
        else if (now - start > SPIN_NS) return false;
    }
    return false;
}

static void sleep_until_woken(worker *self) {
    atomic_store(&self->asleep, 1);
    /* Work that came before the caller could see us asleep: stay, unless the caller saw it after all and has posted. */
    bool stay = any_available(self->pool, memory_order_seq_cst) || atomic_load(&self->pool->stop);
    if (stay && atomic_exchange(&self->asleep, 0)) return;
    wait_for(&self->wake);
}

static void *worker_main(void *argument) {
    worker *self = argument;
    while (!atomic_load(&self->pool->stop)) {
        if (work(self) || spin(self->pool)) continue;
        sleep_until_woken(self);
    }
    return NULL;
}

/* ---- Callers ---- */

static void publish(aotc_pool_t *self, int32_t tasks, int32_t round, aotc_task_fn task, void *context) {
    uint32_t threads = self->worker_count + 1, most = (uint32_t)(round ? round : tasks);
    self->task = task;
    self->context = context;
    self->tasks = tasks;
    self->round = round;
    self->parts = most < threads ? most : threads;
    self->arithmetic = arithmetic_mode();
    atomic_store_explicit(&self->pending, self->parts, memory_order_relaxed);
    for (uint32_t i = 0; i + 1 < self->parts; i++) atomic_store(&self->workers[i].available, 1);
    for (uint32_t i = 0; i + 1 < self->parts; i++)
        if (atomic_load(&self->workers[i].asleep) && atomic_exchange(&self->workers[i].asleep, 0)) sem_post(&self->workers[i].wake);
}

static void wait_for_workers(aotc_pool_t *self) {
    uint64_t start = now_ns();
    for (uint32_t i = 1; may_spin(self) && atomic_load_explicit(&self->pending, memory_order_acquire) != 0; i++) {
        relax();
        if (i % 64 == 0 && now_ns() - start > SPIN_NS) break;
    }
    wait_for(&self->done); /* returns at once when the post is there already */
}

/* Whether a caller gains by sharing its tasks, and has the pool for it until it clears `taken`. */
static bool may_share(aotc_pool_t *self, int32_t tasks) {
    if (tasks < 2 || self->worker_count == 0) return false;
    if (atomic_load_explicit(&self->callers, memory_order_relaxed) > self->worker_count) return false;
    return !atomic_flag_test_and_set_explicit(&self->taken, memory_order_acquire);
}

void rt_pool_parallel_for(void *pool, int32_t tasks, aotc_task_fn task, void *context) {
    aotc_pool_t *self = pool;
    if (!may_share(self, tasks)) {
        task(context, 0, tasks);
        return;
    }
    publish(self, tasks, 0, task, context);
    uint32_t parts = self->parts;
    bool last = run_part(self, 0);
    for (uint32_t i = 0; i + 1 < parts; i++)
        if (take(&self->workers[i])) last = run_part(self, i + 1);
    if (!last) wait_for_workers(self);
    atomic_flag_clear_explicit(&self->taken, memory_order_release);
}

/* Give workers a moment to take their parts; how many parts are left, which no worker gets then. */
static uint32_t gather(aotc_pool_t *self) {
    uint64_t start = now_ns();
    while (any_available(self, memory_order_relaxed) && now_ns() - start < JOIN_NS) relax();
    uint32_t left = 0;
    for (uint32_t i = 0; i + 1 < self->parts; i++) left += take(&self->workers[i]);
    return left;
}

/* Rounds are short, so threads wait for one another without sleeping, the same part of each round for each. They do so only while
 * there is a processor for each; else, or when one does not come at once, the caller goes on alone. */
void rt_pool_rounds(void *pool, int32_t tasks, int32_t round, aotc_task_fn task, void *context) {
    aotc_pool_t *self = pool;
    int32_t first = 0;
    if (tasks > round && may_spin(self) && may_share(self, round)) {
        atomic_store_explicit(&self->turn, GATHERING, memory_order_relaxed);
        atomic_store_explicit(&self->disturbed, false, memory_order_relaxed);
        publish(self, tasks, round, task, context);
        uint32_t left = gather(self);
        atomic_store_explicit(&self->turn, left ? DISSOLVED : 0, memory_order_release);
        first = run_rounds(self, 0);
        if (!finish(self, left + 1)) wait_for_workers(self);
        atomic_flag_clear_explicit(&self->taken, memory_order_release);
    }
    if (first < tasks) task(context, first, tasks);
}

void rt_pool_acquire(aotc_pool_t *self) { atomic_fetch_add(&self->users, 1); }
void rt_pool_release(aotc_pool_t *self) { atomic_fetch_sub(&self->users, 1); }
void rt_pool_begin(aotc_pool_t *self) { atomic_fetch_add_explicit(&self->callers, 1, memory_order_relaxed); }
void rt_pool_end(aotc_pool_t *self) { atomic_fetch_sub_explicit(&self->callers, 1, memory_order_relaxed); }

/* ---- Making and ending ---- */

static uint32_t usable_processors(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count<1 ? 1u : count>(int) MAX_THREADS ? MAX_THREADS : (uint32_t)count;
}

static void end_workers(aotc_pool_t *self) {
    atomic_store(&self->stop, true);
    for (uint32_t i = 0; i < self->started; i++) sem_post(&self->workers[i].wake);
    for (uint32_t i = 0; i < self->started; i++) pthread_join(self->workers[i].thread, NULL);
    for (uint32_t i = 0; i < self->worker_count; i++) sem_destroy(&self->workers[i].wake);
    sem_destroy(&self->done);
}

/* Start the threads, with the application's signals kept from them. Returns an errno value. */
static int start_workers(aotc_pool_t *self) {
    sigset_t all, before;
    int problem = 0;
    sem_init(&self->done, 0, 0);
    for (uint32_t i = 0; i < self->worker_count; i++) {
        worker *worker = &self->workers[i];
        sem_init(&worker->wake, 0, 0);
        worker->pool = self;
        worker->number = i;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (self->started < self->worker_count && !problem) {
        worker *worker = &self->workers[self->started];
        problem = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (!problem) self->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return problem;
}

static void release_memory(aotc_pool_t *self) {
    aotc_model_t *model = self->model;
    model->allocator.release(model->allocator.context, self, self->bytes);
    atomic_fetch_sub(&model->users, 1);
}

aotc_status rt_pool_create(aotc_model_t *model, uint32_t num_threads, aotc_pool_t **pool, aotc_error *error) {
    if (!pool) return fail(error, AOTC_INVALID_ARGUMENT, "the place for the pool is NULL");
    *pool = NULL;
    uint32_t processors = usable_processors();
    if (num_threads == 0) num_threads = processors;
    if (num_threads > MAX_THREADS)
        return fail(error, AOTC_INVALID_ARGUMENT,
                    "%u threads were asked for, a pool has at most %u; ask for fewer, or 0 for one a processor", (unsigned)num_threads,
                    MAX_THREADS);
    size_t head = (sizeof(aotc_pool_t) + LINE - 1) / LINE * LINE, bytes = head + (num_threads - 1) * sizeof(worker);
    void *memory;
    aotc_status status = memory_allocate(&model->allocator, bytes, "a pool", &memory, error);
    if (status) return status;
    aotc_pool_t *self = memory;
    memset(self, 0, bytes);
    self->api = &rt_api;
    self->model = model;
    self->bytes = bytes;
    self->worker_count = num_threads - 1;
    self->processors = processors;
    self->workers = (worker *)(void *)((char *)self + head);
    atomic_flag_clear(&self->taken);
    atomic_fetch_add(&model->users, 1);
    int problem = start_workers(self);
    if (problem) {
        uint32_t started = self->started;
        end_workers(self);
        release_memory(self);
        return fail(error, AOTC_SYSTEM, "the system started %u of %u threads (error %d); ask for fewer, or raise its limits",
                    (unsigned)started, (unsigned)(num_threads - 1), problem);
    }
    *pool = self;
    return succeed(error);
}

aotc_status rt_pool_destroy(aotc_pool_t *self, aotc_error *error) {
    if (!self) return succeed(error);
    unsigned users = atomic_load(&self->users);
    if (users) return fail(error, AOTC_BUSY, "%u sessions still use the pool; destroy them first", users);
    end_workers(self);
    release_memory(self);
    return succeed(error);
}
