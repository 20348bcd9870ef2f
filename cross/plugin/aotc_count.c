/* qemu-user plugin: counts the instructions that a program executes, by class, exactly.
 *
 *     cc -O2 -shared -fPIC -o aotc_count.so aotc_count.c
 *     qemu-aarch64 -plugin ./aotc_count.so -d plugin -D counts.txt PROGRAM
 *
 * A line "mark N total=... fma=..." is written each time the program calls getpriority(0x5eed, N), which fails and does nothing, as aotc_run
 * --marks does around each run. Counts are of one thread's program: with more, two may add to a counter at once. The declarations are those
 * of plugin API version 1 (qemu 6.1 to 8.2), so that no header of qemu is needed; newer ones refuse the plugin with a message. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MARK 0x5eedu

typedef uint64_t plugin_id;
struct block;
struct instruction;
typedef struct machine {
    const char *name; /* "aarch64", "x86_64" */
    struct {
        int least, current;
    } version;
} machine;

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern struct instruction *qemu_plugin_tb_get_insn(const struct block *, size_t);
extern const void *qemu_plugin_insn_data(const struct instruction *);
extern size_t qemu_plugin_insn_size(const struct instruction *);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct block *, int operation, void *counter, uint64_t immediate);
extern void qemu_plugin_register_vcpu_syscall_cb(plugin_id, void (*)(plugin_id, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                                                    uint64_t, uint64_t, uint64_t, uint64_t));
extern void qemu_plugin_outs(const char *);
EXPORT int qemu_plugin_version = 1;

/* FMA: vectors of floats multiplied and added, fused; DOT: products of small integers or bfloat16, summed, and of matrices of them. */
enum { TOTAL, FMA, DOT, VECTOR_LOAD, VECTOR_STORE, VECTOR, LOAD, STORE, INTEGER, BRANCH, OTHER, CLASSES };
static const char *const names[CLASSES] = {"total", "fma",   "dot",     "vector_load", "vector_store", "vector",
                                           "load",  "store", "integer", "branch",      "other"};
static uint64_t counts[CLASSES];
static int (*classify)(const uint8_t *, size_t);
static int64_t mark_call;

static unsigned bits(uint32_t word, int high, int low) { return word >> low & ((1u << (high - low + 1)) - 1); }

/* Advanced SIMD and scalar floating point: Arm Architecture Reference Manual, section C4.1, "Data processing: scalar floating-point and
 * Advanced SIMD". */
static int classify_simd(uint32_t word) {
    unsigned u = bits(word, 29, 29), size = bits(word, 23, 22), group = bits(word, 28, 24);
    if (word >> 31) return VECTOR;
    if (group == 0x0e && bits(word, 21, 21) && bits(word, 10, 10)) { /* three registers alike */
        unsigned opcode = bits(word, 15, 11);
        return !u && (opcode == 0x19 || (opcode == 0x1d && !(size & 1))) ? FMA : VECTOR; /* fmla, fmls; fmlal, fmlsl */
    }
    if (group == 0x0e && bits(word, 22, 21) == 2 && bits(word, 15, 14) == 0 && bits(word, 10, 10)) /* the same of half floats */
        return bits(word, 13, 11) == 1 && !u ? FMA : VECTOR;
    if (group == 0x0e && !bits(word, 21, 21) && bits(word, 15, 15) && bits(word, 10, 10)) { /* three registers alike, extra */
        unsigned opcode = bits(word, 14, 11);
        int is_dot = opcode == 2 || (opcode == 3 && size == 2) || opcode == 4 || opcode == 5; /* [su]dot, usdot, [su]mmla */
        return is_dot || (u && (opcode == 13 || opcode == 15)) ? DOT : VECTOR;               /* bfmmla, bfdot, bfmlal */
    }
    if (group == 0x0f && !bits(word, 10, 10)) { /* by element */
        unsigned opcode = bits(word, 15, 12);
        if ((opcode == 1 || opcode == 5) && !u && size != 1) return FMA;
        if ((opcode == 0 || opcode == 4 || opcode == 8 || opcode == 12) && size == 2 && (opcode >= 8) == u) return FMA; /* fmlal */
        return (opcode == 14 && size == 2) || opcode == 15 ? DOT : VECTOR;
    }
    return VECTOR;
}

static int classify_aarch64(const uint8_t *code, size_t size) {
    uint32_t word;
    if (size != sizeof word) return OTHER;
    memcpy(&word, code, sizeof word);
    unsigned group = bits(word, 28, 25);
    if ((group & 5) == 4) { /* loads and stores */
        unsigned vector = bits(word, 26, 26), kind = bits(word, 29, 27), load = bits(word, 22, 22);
        if (kind == 3) load = 1; /* literals */
        else if (kind == 7 && !vector) load = bits(word, 23, 22) != 0 || (bits(word, 21, 21) && bits(word, 11, 10) == 0);
        return vector ? (load ? VECTOR_LOAD : VECTOR_STORE) : (load ? LOAD : STORE);
    }
    if ((group & 14) == 8 || (group & 7) == 5) return INTEGER;
    if ((group & 14) == 10) return BRANCH;
    if ((group & 7) == 7) return bits(word, 31, 24) == 0x1f ? VECTOR : classify_simd(word);
    return OTHER; /* SVE, system */
}

/* Of x86-64 only fused multiply-adds are told apart: the VEX and EVEX opcodes 96-9F, A6-AF and B6-BF of map 2. */
static int classify_x86_64(const uint8_t *code, size_t size) {
    size_t at = 0;
    if (size > 4 && code[0] == 0xc4 && (code[1] & 0x1f) == 2) at = 3;
    else if (size > 5 && code[0] == 0x62 && (code[1] & 7) == 2) at = 4;
    unsigned opcode = code[at], row = opcode >> 4;
    return at && row >= 9 && row <= 11 && (opcode & 15) >= 6 ? FMA : OTHER;
}

static void on_translate(plugin_id id, struct block *block) {
    (void)id;
    uint64_t found[CLASSES] = {0};
    size_t count = qemu_plugin_tb_n_insns(block);
    for (size_t i = 0; i < count; i++) {
        const struct instruction *instruction = qemu_plugin_tb_get_insn(block, i);
        found[classify(qemu_plugin_insn_data(instruction), qemu_plugin_insn_size(instruction))]++;
    }
    found[TOTAL] = count;
    for (int class = 0; class < CLASSES; class++)
        if (found[class]) qemu_plugin_register_vcpu_tb_exec_inline(block, 0 /* add to 64 bits */, &counts[class], found[class]);
}

static void on_call(plugin_id id, unsigned cpu, int64_t number, uint64_t first, uint64_t second, uint64_t c, uint64_t d, uint64_t e,
                    uint64_t f, uint64_t g, uint64_t h) {
    (void)id, (void)cpu, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number != mark_call || (uint32_t)first != MARK) return;
    char line[1024];
    int at = snprintf(line, sizeof line, "mark %" PRId32, (int32_t)second);
    for (int class = 0; class < CLASSES; class++)
        at += snprintf(line + at, sizeof line - (size_t)at, " %s=%" PRIu64, names[class], counts[class]);
    snprintf(line + at, sizeof line - (size_t)at, "\n");
    qemu_plugin_outs(line);
}

EXPORT int qemu_plugin_install(plugin_id id, const machine *guest, int count, char **words) {
    (void)count, (void)words;
    int is_arm = strcmp(guest->name, "aarch64") == 0;
    if (!is_arm && strcmp(guest->name, "x86_64") != 0) return -1;
    classify = is_arm ? classify_aarch64 : classify_x86_64;
    mark_call = is_arm ? 141 : 140;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    qemu_plugin_register_vcpu_syscall_cb(id, on_call);
    return 0;
}
