/* CUDA graphs: steps of the device that follow one another are captured when a shape comes for the second time, and from then on are
 * one launch. A few sets of graphs are kept, for the latest shapes and addresses of the caller's memory. */
#include <string.h>

#include "device.h"

#define SETS 4u

/* The graphs of one shape plan with the caller's tensors at certain addresses. */
struct graph_set {
    const shape_plan *plan; /* NULL: none */
    uint64_t last_use, uses;
    uint64_t *addresses; /* of inputs and outputs on the device */
    CUgraphExec *segments;
};

typedef struct segment {
    uint32_t begin, end;
} segment;

typedef struct graphs {
    uint32_t segment_count, address_count;
    segment *segments;
    graph_set *sets, *current;
    uint64_t clock;
    bool off; /* the driver or the stream cannot */
    size_t bytes;
} graphs;

static bool is_target(const plan_view *view, uint32_t step) {
    for (uint32_t i = 0; i < view->record->steps.count; i++) {
        uint32_t kind = view->steps[i].kind;
        if ((kind == STEP_BRANCH || kind == STEP_JUMP) && view->steps[i].target == step) return true;
    }
    return false;
}

/* Runs of at least two steps of the device that nothing jumps into; the number of them. */
static uint32_t find_segments(const plan_view *view, segment *found) {
    uint32_t count = 0, steps = view->record->steps.count;
    for (uint32_t begin = 0, end; begin < steps; begin = end) {
        end = begin + 1;
        if (!plan_is_device_step(view->steps[begin].kind)) continue;
        while (end < steps && plan_is_device_step(view->steps[end].kind) && !is_target(view, end)) end++;
        if (end - begin < 2) continue;
        if (found) found[count] = (segment){begin, end};
        count++;
    }
    return count;
}

static graphs *lay_out(const plan_view *view, uint32_t segment_count, carver *memory) {
    uint32_t address_count = view->record->inputs.count + view->record->outputs.count;
    graphs *self = carve(memory, 1, sizeof *self);
    segment *segments = carve(memory, segment_count, sizeof *segments);
    graph_set *sets = carve(memory, SETS, sizeof *sets);
    uint64_t *addresses = carve(memory, (size_t)SETS * address_count, sizeof *addresses);
    CUgraphExec *execs = carve(memory, (size_t)SETS * segment_count, sizeof *execs);
    if (!self) return NULL;
    self->segment_count = segment_count;
    self->address_count = address_count;
    self->segments = segments;
    self->sets = sets;
    for (uint32_t i = 0; i < SETS; i++) {
        sets[i].addresses = addresses + (size_t)i * address_count;
        sets[i].segments = execs + (size_t)i * segment_count;
    }
    return self;
}

aotc_status graphs_open(aotc_session_t *self, aotc_error *error) {
    uint32_t segment_count = find_segments(self->view, NULL);
    carver count = {0};
    lay_out(self->view, segment_count, &count);
    void *base;
    aotc_status status = session_allocate(self, count.used, "the tables of CUDA graphs", &base, error);
    if (status) return status;
    memset(base, 0, count.used);
    carver memory = {.base = base};
    graphs *made = lay_out(self->view, segment_count, &memory);
    find_segments(self->view, made->segments);
    made->bytes = count.used;
    /* A graph is one launch, of which a profiler could not tell whose ranges it is. */
    made->off = segment_count == 0 || !self->cuda->device->driver.graph_instantiate || self->cuda->device->ranges.push;
    self->cuda->graphs = made;
    return AOTC_OK;
}

static void forget(aotc_session_t *self, graph_set *set) {
    const graphs *graphs = self->cuda->graphs;
    for (uint32_t i = 0; i < graphs->segment_count; i++) {
        if (set->segments[i]) device_wait(self, NULL); /* it may run; what goes wrong then is told by the next call */
        if (set->segments[i]) self->cuda->device->driver.graph_exec_destroy(set->segments[i]);
        set->segments[i] = NULL;
    }
    set->plan = NULL;
    set->last_use = set->uses = 0;
}

void graphs_forget(aotc_session_t *self, const shape_plan *plan) {
    graphs *graphs = self->cuda->graphs;
    for (uint32_t i = 0; i < SETS; i++)
        if (!plan || graphs->sets[i].plan == plan) forget(self, &graphs->sets[i]);
    graphs->current = NULL;
}

void graphs_close(aotc_session_t *self) {
    graphs *graphs = self->cuda->graphs;
    if (!graphs) return;
    graphs_forget(self, NULL);
    session_release(self, graphs, graphs->bytes);
    self->cuda->graphs = NULL;
}

static uint64_t side_address(const other_side *side) { return side->device ? side->device : side->mirror; }

static uint64_t address_of(const aotc_session_t *self, uint32_t number) {
    uint32_t inputs = self->view->record->inputs.count;
    return side_address(number < inputs ? &self->inputs[number].side : &self->outputs[number - inputs].side);
}

static bool fits(const aotc_session_t *self, const graph_set *set) {
    if (set->plan != self->current) return false;
    for (uint32_t i = 0; i < self->cuda->graphs->address_count; i++)
        if (set->addresses[i] != address_of(self, i)) return false;
    return true;
}

void graphs_select(aotc_session_t *self) {
    graphs *graphs = self->cuda->graphs;
    if (graphs->off) return;
    graph_set *chosen = graphs->sets;
    for (uint32_t i = 0; i < SETS && !fits(self, chosen); i++) chosen = &graphs->sets[i];
    if (!fits(self, chosen)) {
        for (uint32_t i = 0; i < SETS; i++)
            if (graphs->sets[i].last_use < chosen->last_use) chosen = &graphs->sets[i];
        forget(self, chosen);
        chosen->plan = self->current;
        for (uint32_t i = 0; i < graphs->address_count; i++) chosen->addresses[i] = address_of(self, i);
    }
    chosen->last_use = ++graphs->clock;
    chosen->uses++;
    graphs->current = chosen;
}

static bool is_sound(const aotc_session_t *self, const segment *segment) {
    for (uint32_t i = segment->begin; i < segment->end; i++)
        if (!self->current->sound[i]) return false;
    return true;
}

/* Capture the segment. Where the driver or the stream cannot, graphs are off from then on, and nothing is lost. */
static CUgraphExec capture(aotc_session_t *self, const segment *segment, aotc_error *error) {
    const cuda_driver *driver = &self->cuda->device->driver;
    CUgraph graph = NULL;
    CUgraphExec made = NULL;
    if (driver->capture_begin(self->cuda->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)) return NULL;
    aotc_status status = AOTC_OK;
    for (uint32_t i = segment->begin; i < segment->end && !status; i++) status = device_enqueue(self, &self->view->steps[i], error);
    if (driver->capture_end(self->cuda->stream, &graph) || !graph) return NULL;
    if (status || driver->graph_instantiate(&made, graph, 0)) made = NULL;
    driver->graph_destroy(graph);
    return made;
}

aotc_status graphs_run(aotc_session_t *self, uint32_t number, uint32_t *end, aotc_error *error) {
    graphs *graphs = self->cuda->graphs;
    graph_set *set = graphs->current;
    if (graphs->off || !set || set->uses < 2) return AOTC_OK;
    uint32_t at = 0;
    while (at < graphs->segment_count && graphs->segments[at].begin != number) at++;
    if (at == graphs->segment_count || !is_sound(self, &graphs->segments[at])) return AOTC_OK;
    if (!set->segments[at]) set->segments[at] = capture(self, &graphs->segments[at], error);
    graphs->off = !set->segments[at];
    if (graphs->off) return AOTC_OK;
    *end = graphs->segments[at].end;
    return cuda_driver_check(&self->cuda->device->driver, self->cuda->device->driver.graph_launch(set->segments[at], self->cuda->stream),
                             "launching a CUDA graph", error);
}
