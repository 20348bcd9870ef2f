/* A plugin of qemu-user (API version 1, qemu 6 and later): how often each block of instructions ran.
 *
 *     qemu-aarch64 -plugin blocks.so -d plugin -D blocks.txt PROGRAM
 *
 * At exit it prints a line "EXECUTIONS ADDRESS WORD WORD ..." in hexadecimal words for each block that ran; blocks.py reads it. The few
 * functions of qemu that it calls are declared here, since Debian has no package of its header. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct tb;
struct instruction;
enum { ADD_U64 = 0 };
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct tb *));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct tb *, int operation, void *place, uint64_t value);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct tb *);
extern uint64_t qemu_plugin_tb_vaddr(const struct tb *);
extern struct instruction *qemu_plugin_tb_get_insn(const struct tb *, size_t);
extern const void *qemu_plugin_insn_data(const struct instruction *);
extern void qemu_plugin_outs(const char *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

struct block {
    struct block *next;
    uint64_t executions, address;
    size_t count;
    uint32_t words[];
};
static struct block *blocks;

static void translated(plugin_id id, struct tb *tb) {
    (void)id;
    size_t count = qemu_plugin_tb_n_insns(tb);
    struct block *block = calloc(1, sizeof *block + count * sizeof block->words[0]);
    if (!block) abort();
    block->count = count;
    block->address = qemu_plugin_tb_vaddr(tb);
    for (size_t i = 0; i < count; i++)
        memcpy(&block->words[i], qemu_plugin_insn_data(qemu_plugin_tb_get_insn(tb, i)), sizeof block->words[0]);
    block->next = __atomic_load_n(&blocks, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&blocks, &block->next, block, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {}
    qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &block->executions, 1);
}

static void ended(plugin_id id, void *data) {
    (void)id;
    (void)data;
    char word[40];
    for (struct block *block = blocks; block; block = block->next) {
        if (!block->executions) continue;
        snprintf(word, sizeof word, "%" PRIu64 " %" PRIx64, block->executions, block->address);
        qemu_plugin_outs(word);
        for (size_t i = 0; i < block->count; i++) {
            snprintf(word, sizeof word, " %08" PRIx32, block->words[i]);
            qemu_plugin_outs(word);
        }
        qemu_plugin_outs("\n");
    }
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int count, char **words) {
    (void)info;
    (void)count;
    (void)words;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
