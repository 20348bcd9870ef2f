/* Damaged plans: each change is refused or runs without touching memory that is not its own (a sanitizer watches).
 *
 * fuzz flip: every byte changed, the hash left: all must be refused. fuzz repair: the hash is made right again, so that only the
 * checks stand between the change and the runtime. fuzz fields: the same with one to four words set to telling values, 40,000 times.
 * fuzz cut: every shorter length. Kernels touch nothing. A timer cancels runs that a change makes endless. */
#include "internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

extern unsigned char fuzzed_plan[] __asm__("aotc_plan_data");
extern uint64_t fuzzed_size __asm__("aotc_plan_size");

const aotc_api *aotc_model(uint32_t abi_version);

static unsigned char data[1 << 16];

/* Inputs of the sizes 3, 2 and what else the model fixes; wrong shapes are part of the game. */
static void bind_all(const aotc_api *api, aotc_model_t *model, aotc_session_t *session, size_t entry) {
    for (size_t i = 0; i < api->input_count(model, entry) && i < 64; i++) {
        const aotc_tensor_info *info = api->input_info(model, entry, i);
        int64_t shape[PLAN_MAX_RANK], elements = 1;
        for (int32_t axis = 0; axis < info->rank; axis++) {
            shape[axis] = info->dims[axis].value >= 0 ? info->dims[axis].value : strchr(info->dims[axis].symbol, '*') ? 4 : 3 - axis;
            elements = shape[axis] > 4096 || elements > 4096 ? 4097 : elements * shape[axis];
        }
        DLTensor tensor = {.data = data, .device = {kDLCPU, 0}, .ndim = info->rank, .dtype = info->dtype, .shape = shape};
        if (elements <= 4096) api->bind_input(session, i, &tensor, NULL);
    }
}

static _Atomic(aotc_session_t *) running;
static unsigned endless;

static void cancel_running(int signal) {
    (void)signal;
    if (running) aotc_model(AOTC_ABI_VERSION)->cancel(running, NULL);
}

static aotc_status run(const aotc_api *api, aotc_session_t *session) {
    aotc_error error;
    running = session;
    aotc_status status = api->run(session, &error);
    running = NULL;
    endless += status == AOTC_CANCELLED;
    return status;
}

static void look_at_states(const aotc_api *api, aotc_model_t *model, aotc_session_t *session) {
    aotc_error error;
    for (size_t i = 0; i < api->state_count(model); i++) {
        const aotc_tensor_info *info = api->state_info(model, i);
        DLTensor state;
        if (api->get_state(session, i, &state, &error) || state.ndim != info->rank) abort();
        for (int32_t axis = 0; axis < info->rank; axis++)
            if (state.shape[axis] != info->dims[axis].value) abort();
    }
    if (api->session_reset(session, &error)) abort();
}

/* Open and run everything; true if the file was refused. */
static bool attempt(void) {
    const aotc_api *api = aotc_model(AOTC_ABI_VERSION);
    aotc_error error;
    aotc_model_t *model;
    if (api->model_create(NULL, &model, &error)) return true;
    for (size_t entry = 0; entry < api->entry_point_count(model); entry++) {
        aotc_session_options options = {
            .size = sizeof options, .memory_limit = 1 << 20, .entry_point = api->entry_point_name(model, entry)};
        aotc_session_t *session;
        DLTensor got;
        if (api->session_create(model, &options, &session, &error)) continue;
        bind_all(api, model, session, entry);
        for (int i = 0; i < 2 && run(api, session) != AOTC_CANCELLED; i++) continue;
        look_at_states(api, model, session);
        for (size_t i = 0; i < api->output_count(model, entry); i++) (void)api->get_output(session, i, &got, &error);
        for (size_t i = 0; i < api->step_count(session); i++) {
            aotc_step_info info = {.size = sizeof info};
            (void)api->step_info(session, i, &info, &error);
            if (strlen(info.name) + strlen(info.label) + strlen(info.kernel) > fuzzed_size * 3) abort();
        }
        api->session_destroy(session, &error);
    }
    if (api->model_destroy(model, &error)) abort();
    return false;
}

static void repair(void) {
    uint64_t hash = plan_hash(fuzzed_plan, fuzzed_size);
    memcpy(fuzzed_plan + offsetof(plan_header, hash), &hash, sizeof hash);
}

static uint32_t next_random(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static void set_fields(void) {
    static const uint32_t telling[] = {0, 1, 2, 3, 5, 8, 0x40, 0x7fffffff, 0x80000000, 0xffffffff};
    for (uint32_t left = 1 + next_random() % 4; left > 0; left--) {
        uint32_t choice = next_random() % 14, value = choice < 10 ? telling[choice] : next_random() % 64;
        memcpy(fuzzed_plan + next_random() % (fuzzed_size / 4) * 4, &value, sizeof value);
    }
}

static unsigned refused, accepted;

static void count_attempt(void) {
    if (attempt()) refused++;
    else accepted++;
}

int main(int count, char **arguments) {
    static const unsigned char masks[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff, 0x7f};
    if (count != 2) return 2;
    struct itimerval often = {{0, 300}, {0, 300}};
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = cancel_running}, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    bool flip = strcmp(arguments[1], "flip") == 0, cut = strcmp(arguments[1], "cut") == 0, fields = strcmp(arguments[1], "fields") == 0;
    if (attempt()) return 3; /* the plan itself is right */
    uint64_t size = fuzzed_size;
    unsigned char *whole = malloc(size);
    memcpy(whole, fuzzed_plan, size);
    for (uint64_t at = 0; at < (fields ? 40000 : cut ? size : size * sizeof masks); at++) {
        if (cut) fuzzed_size = at;
        else if (fields) set_fields();
        else fuzzed_plan[at / sizeof masks] ^= masks[at % sizeof masks];
        if (!cut && !flip) repair();
        count_attempt();
        fuzzed_size = size;
        memcpy(fuzzed_plan, whole, size);
    }
    free(whole);
    printf("%u refused, %u accepted, %u endless\n", refused, accepted, endless);
    return (flip || cut) && accepted ? 4 : 0;
}
