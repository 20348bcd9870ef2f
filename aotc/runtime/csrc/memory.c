/* Memory of a session, counted and limited; and where buffers go in the arena. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

static size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) & ~(multiple - 1); }

/* Memory that holds a huge page is made of them where the system has them to give, which saves most of its page faults and of the
 * processor's searches for pages. Its end becomes a whole one too where that costs little. */
static void *default_allocate(void *context, size_t bytes, size_t alignment) {
    (void)context;
    if (bytes > SIZE_MAX - HUGE_PAGE) return NULL;
    if (bytes < HUGE_PAGE) return aligned_alloc(alignment, round_up(bytes, alignment));
    size_t whole = round_up(bytes, HUGE_PAGE);
    if (whole - bytes > bytes / 16) whole = round_up(bytes, alignment);
    void *made = aligned_alloc(HUGE_PAGE, whole);
    if (made) memory_prefer_huge_pages(made, whole);
    return made;
}

void memory_prefer_huge_pages(const void *memory, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), begin = round_up((uintptr_t)memory, page), end = ((uintptr_t)memory + bytes) & ~(page - 1);
    if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* an advice: a system without them goes on as it is */
}

static void default_release(void *context, void *pointer, size_t bytes) {
    (void)context;
    (void)bytes;
    free(pointer);
}

const aotc_allocator memory_default = {NULL, default_allocate, default_release};

aotc_status memory_allocate(const aotc_allocator *allocator, uint64_t bytes, const char *what, void **memory, aotc_error *error) {
    *memory = NULL;
    void *made = bytes > SIZE_MAX ? NULL : allocator->allocate(allocator->context, (size_t)bytes, PLAN_ALIGNMENT);
    if (!made)
        return fail(error, AOTC_OUT_OF_MEMORY, "the allocator refused %" PRIu64 " bytes for %s; free memory or use smaller inputs", bytes,
                    what);
    if ((uintptr_t)made % PLAN_ALIGNMENT != 0) {
        allocator->release(allocator->context, made, (size_t)bytes);
        return fail(error, AOTC_INVALID_ARGUMENT, "the allocator was asked for memory aligned to %u bytes and gave %p; align it",
                    PLAN_ALIGNMENT, made);
    }
    *memory = made;
    return AOTC_OK;
}

aotc_status session_count(aotc_session_t *self, uint64_t bytes, const char *what, aotc_error *error) {
    if (self->limit && (self->held > self->limit || bytes > self->limit - self->held)) {
        return fail(error, AOTC_OUT_OF_MEMORY,
                    "%s needs %" PRIu64 " bytes and the session holds %" PRIu64 " already, its memory_limit is %" PRIu64
                    "; raise the limit or use smaller inputs",
                    what, bytes, self->held, self->limit);
    }
    self->held += bytes;
    if (self->held > self->peak) self->peak = self->held;
    return AOTC_OK;
}

void session_discount(aotc_session_t *self, uint64_t bytes) { self->held -= bytes; }

aotc_status session_allocate(aotc_session_t *self, uint64_t bytes, const char *what, void **memory, aotc_error *error) {
    *memory = NULL;
    aotc_status status = session_count(self, bytes, what, error);
    if (status) return status;
    status = memory_allocate(&self->allocator, bytes, what, memory, error);
    if (status) session_discount(self, bytes);
    return status;
}

void session_release(aotc_session_t *self, void *pointer, uint64_t bytes) {
    if (!pointer) return;
    self->allocator.release(self->allocator.context, pointer, (size_t)bytes);
    session_discount(self, bytes);
}

aotc_status session_grow(aotc_session_t *self, char **memory, uint64_t *size, uint64_t bytes, const char *what, aotc_error *error) {
    if (*memory && *size >= bytes) return AOTC_OK;
    uint64_t least = bytes ? bytes : PLAN_ALIGNMENT, wanted = *size * 2 > least ? *size * 2 : least; /* bytes, so that there is an address */
    void *made;
    aotc_status status = session_allocate(self, wanted, what, &made, error);
    if (status && wanted > least) status = session_allocate(self, wanted = least, what, &made, error);
    if (status) return status;
    if (*memory) memcpy(made, *memory, (size_t)*size);
    session_release(self, *memory, *size);
    *memory = made;
    *size = wanted;
    return AOTC_OK;
}

static uint64_t aligned_size(const plan_view *view, const int64_t *exprs, uint32_t buffer) {
    return (memory_buffer_bytes(view, exprs, buffer) + PLAN_ALIGNMENT - 1) & ~(uint64_t)(PLAN_ALIGNMENT - 1);
}

/* Whether `a` is placed before `b`: the larger first, then the lower number. */
static bool comes_first(const plan_view *view, const int64_t *exprs, uint32_t a, uint32_t b) {
    uint64_t size_a = aligned_size(view, exprs, a), size_b = aligned_size(view, exprs, b);
    return size_a != size_b ? size_a > size_b : a < b;
}

/* Restore the heap below `root`, whose top is the buffer that is placed last. */
static void sift(const plan_view *view, const int64_t *exprs, uint32_t *order, uint32_t root, uint32_t count) {
    for (uint32_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && comes_first(view, exprs, order[child], order[child + 1])) child++;
        if (comes_first(view, exprs, order[child], order[root])) return;
        uint32_t swapped = order[root];
        order[root] = order[child];
        order[child] = swapped;
    }
}

/* Heap sort: qsort may allocate. */
static void sort_by_size(const plan_view *view, const int64_t *exprs, uint32_t *order, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) order[i] = i;
    for (uint32_t i = count / 2; i-- > 0;) sift(view, exprs, order, i, count);
    for (uint32_t end = count; end-- > 1;) {
        uint32_t last = order[0];
        order[0] = order[end];
        order[end] = last;
        sift(view, exprs, order, 0, end);
    }
}

static bool alive_together(const plan_buffer *a, const plan_buffer *b) {
    return a->memory == b->memory && a->first_step <= b->last_step && b->first_step <= a->last_step;
}

/* The start of the smallest gap that holds `buffer` between those placed (by rising offset) that are alive with it. */
static uint64_t best_fit(const plan_view *view, const int64_t *exprs, const uint32_t *placed, uint32_t count, const uint64_t *offsets,
                         uint32_t buffer) {
    uint64_t size = aligned_size(view, exprs, buffer), end = 0, best = 0, best_gap = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        if (!alive_together(&view->buffers[placed[i]], &view->buffers[buffer])) continue;
        uint64_t start = offsets[placed[i]], stop = start + aligned_size(view, exprs, placed[i]);
        if (start > end && start - end >= size && start - end < best_gap) {
            best = end;
            best_gap = start - end;
        }
        if (stop > end) end = stop;
    }
    return best_gap == UINT64_MAX ? end : best;
}

void memory_place(const plan_view *view, const int64_t *exprs, uint32_t *order, uint32_t *placed, uint64_t *offsets,
                  uint64_t *arena_bytes) {
    uint32_t count = view->record->buffers.count;
    sort_by_size(view, exprs, order, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t buffer = order[i], at = i;
        offsets[buffer] = best_fit(view, exprs, placed, i, offsets, buffer);
        for (; at > 0 && offsets[placed[at - 1]] > offsets[buffer]; at--) placed[at] = placed[at - 1];
        placed[at] = buffer;
        uint64_t stop = offsets[buffer] + aligned_size(view, exprs, buffer), *total = &arena_bytes[view->buffers[buffer].memory];
        if (stop > *total) *total = stop;
    }
}

uint64_t memory_lower_bound(const plan_view *view, const int64_t *exprs) {
    uint64_t bound = 0;
    /* The live set is largest at the step where one of its buffers begins. */
    for (uint32_t i = 0; i < view->record->buffers.count; i++) {
        uint64_t live = 0;
        uint32_t step = view->buffers[i].first_step;
        for (uint32_t k = 0; k < view->record->buffers.count; k++)
            if (view->buffers[k].memory == MEMORY_HOST && view->buffers[k].first_step <= step && step <= view->buffers[k].last_step) live += aligned_size(view, exprs, k);
        if (live > bound) bound = live;
    }
    return bound;
}
