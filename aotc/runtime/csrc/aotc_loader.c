/* The application's side: judges a built file before any of its code runs, opens it, and calls through its function table.
 * Compile it into the application (C99 or newer, Linux), with -ldl and -lpthread where glibc is older than 2.34. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "aotc.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#define HERE_MACHINE EM_X86_64
#define HERE_NAME "x86-64"
#define HERE_TARGET "host"
#elif defined(__aarch64__)
#define HERE_MACHINE EM_AARCH64
#define HERE_NAME "aarch64"
#define HERE_TARGET "jetson or aarch64"
#else
#error "aotc models run on x86-64 and aarch64"
#endif

static aotc_status report(aotc_error *error, aotc_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

static aotc_status report(aotc_error *error, aotc_status status, const char *format, ...) {
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        error->status = status;
        if (vsnprintf(error->message, sizeof error->message, format, arguments) < 0) error->message[0] = 0;
        va_end(arguments);
    }
    return status;
}

static aotc_status done(aotc_error *error) {
    if (error) {
        error->status = AOTC_OK;
        error->message[0] = 0;
    }
    return AOTC_OK;
}

/* ---- The file, before any of its code runs ---- */

/* The content of .aotc.header; packaging/header.py writes it. Little-endian. */
typedef struct file_header {
    char magic[8];
    uint32_t version, bytes;
    uint32_t abi_version, machine;
    uint32_t checksum, reserved0;
    uint64_t file_bytes, plan_bytes, manifest_bytes, weights_bytes;
    uint32_t kernel_text, runtime_text;
    uint16_t glibc_major, glibc_minor;
    uint32_t reserved1;
    char target[48];
    char features[384];
} file_header;

typedef struct image {
    const char *path;
    const unsigned char *data;
    uint64_t size;
} image;

typedef struct section {
    uint64_t offset, size;
} section;

#define DAMAGED "%s is not a whole model built by aotc: "
#define COPY_AGAIN "; copy or build the file again"

static int inside(const image *file, uint64_t offset, uint64_t size) { return offset <= file->size && size <= file->size - offset; }

static aotc_status cut_short(const image *file, aotc_error *error) {
    return report(error, AOTC_INVALID_FILE, DAMAGED "it is cut short, tables that it names lie beyond its %" PRIu64 " bytes" COPY_AGAIN,
                  file->path, file->size);
}

/* The ELF header, and that all segments and sections lie in the file. */
static aotc_status check_elf(const image *file, Elf64_Ehdr *header, aotc_error *error) {
    if (file->size < SELFMAG || memcmp(file->data, ELFMAG, SELFMAG) != 0)
        return report(error, AOTC_INVALID_FILE, DAMAGED "it does not begin as an ELF file does" COPY_AGAIN, file->path);
    if (file->size < sizeof *header) return cut_short(file, error);
    memcpy(header, file->data, sizeof *header);
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB || header->e_type != ET_DYN ||
        header->e_shentsize != sizeof(Elf64_Shdr) || header->e_phentsize != sizeof(Elf64_Phdr))
        return report(error, AOTC_INVALID_FILE, DAMAGED "it is an ELF file, but not a 64-bit shared library" COPY_AGAIN, file->path);
    if (!inside(file, header->e_phoff, (uint64_t)header->e_phnum * sizeof(Elf64_Phdr)) ||
        !inside(file, header->e_shoff, (uint64_t)header->e_shnum * sizeof(Elf64_Shdr)))
        return cut_short(file, error);
    for (unsigned i = 0; i < header->e_phnum; i++) {
        Elf64_Phdr segment;
        memcpy(&segment, file->data + header->e_phoff + i * sizeof segment, sizeof segment);
        if (!inside(file, segment.p_offset, segment.p_filesz)) return cut_short(file, error);
    }
    return AOTC_OK;
}

static Elf64_Shdr section_header(const image *file, const Elf64_Ehdr *header, unsigned index) {
    Elf64_Shdr found;
    memcpy(&found, file->data + header->e_shoff + index * sizeof found, sizeof found);
    return found;
}

static aotc_status find_section(const image *file, const Elf64_Ehdr *header, const char *name, section *out, aotc_error *error) {
    size_t length = strlen(name) + 1;
    if (header->e_shstrndx >= header->e_shnum) return cut_short(file, error);
    Elf64_Shdr names = section_header(file, header, header->e_shstrndx);
    if (!inside(file, names.sh_offset, names.sh_size)) return cut_short(file, error);
    for (unsigned i = 0; i < header->e_shnum; i++) {
        Elf64_Shdr each = section_header(file, header, i);
        if (names.sh_size < length || each.sh_name > names.sh_size - length) continue;
        if (memcmp(file->data + names.sh_offset + each.sh_name, name, length) != 0) continue;
        if (each.sh_type != SHT_PROGBITS || !inside(file, each.sh_offset, each.sh_size)) return cut_short(file, error);
        out->offset = each.sh_offset;
        out->size = each.sh_size;
        return AOTC_OK;
    }
    return report(error, AOTC_INVALID_FILE, DAMAGED "it is an ELF file without the section %s" COPY_AGAIN, file->path, name);
}

/* CRC-32 (zlib's), eight bytes at a time. */
typedef struct crc_tables {
    uint32_t of[8][256];
} crc_tables;

static void crc_prepare(crc_tables *tables) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ (0xEDB88320u & (0u - (value & 1u)));
        tables->of[0][i] = value;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) tables->of[k][i] = (tables->of[k - 1][i] >> 8) ^ tables->of[0][tables->of[k - 1][i] & 255u];
}

static uint32_t crc_update(const crc_tables *tables, uint32_t crc, const unsigned char *data, uint64_t size) {
    crc = ~crc;
    for (; size >= 8; size -= 8, data += 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= crc;
        crc = tables->of[7][low & 255u] ^ tables->of[6][low >> 8 & 255u] ^ tables->of[5][low >> 16 & 255u] ^ tables->of[4][low >> 24] ^
              tables->of[3][high & 255u] ^ tables->of[2][high >> 8 & 255u] ^ tables->of[1][high >> 16 & 255u] ^ tables->of[0][high >> 24];
    }
    for (; size > 0; size--, data++) crc = (crc >> 8) ^ tables->of[0][(crc ^ *data) & 255u];
    return ~crc;
}

/* Of the whole file but the weights, the checksum itself taken as zero. */
static uint32_t file_checksum(const image *file, section header, section weights) {
    static const unsigned char zeros[4];
    crc_tables tables;
    section first = {header.offset + offsetof(file_header, checksum), sizeof zeros}, second = weights;
    int header_first = first.offset < weights.offset;
    if (!header_first) {
        second = first;
        first = weights;
    }
    crc_prepare(&tables);
    uint32_t crc = crc_update(&tables, 0, file->data, first.offset);
    if (header_first) crc = crc_update(&tables, crc, zeros, sizeof zeros);
    uint64_t position = first.offset + first.size;
    if (second.offset < position) return 0; /* they overlap: no file of ours */
    crc = crc_update(&tables, crc, file->data + position, second.offset - position);
    if (!header_first) crc = crc_update(&tables, crc, zeros, sizeof zeros);
    position = second.offset + second.size;
    return crc_update(&tables, crc, file->data + position, file->size - position);
}

/* ---- The processor ---- */

typedef struct feature {
    const char *llvm; /* as the header names it */
#if defined(__aarch64__)
    unsigned word, bit; /* AT_HWCAP or AT_HWCAP2 */
#else
    const char *linux_name; /* in /proc/cpuinfo */
#endif
} feature;

#if defined(__aarch64__)
static const feature features[] = {
    {"neon", AT_HWCAP, 1},      {"aes", AT_HWCAP, 3},       {"sha2", AT_HWCAP, 6},  {"crc", AT_HWCAP, 7},
    {"lse", AT_HWCAP, 8},       {"fullfp16", AT_HWCAP, 10}, {"rdm", AT_HWCAP, 12},  {"jsconv", AT_HWCAP, 13},
    {"complxnum", AT_HWCAP, 14}, {"rcpc", AT_HWCAP, 15},     {"dotprod", AT_HWCAP, 20}, {"sve", AT_HWCAP, 22},
    {"fp16fml", AT_HWCAP, 23},  {"sve2", AT_HWCAP2, 1},     {"i8mm", AT_HWCAP2, 13}, {"bf16", AT_HWCAP2, 14},
};

static const char *read_flags(char *line, int size) { return size > 0 ? line : NULL; } /* the kernel passes them to each program */

static int has_feature(const feature *wanted, const char *flags) {
    (void)flags;
    return (int)(getauxval(wanted->word) >> wanted->bit & 1u);
}
#else
static const feature features[] = {
    {"sse3", "pni"},           {"ssse3", "ssse3"},       {"sse4.1", "sse4_1"},        {"sse4.2", "sse4_2"},
    {"popcnt", "popcnt"},      {"avx", "avx"},           {"avx2", "avx2"},            {"fma", "fma"},
    {"f16c", "f16c"},          {"bmi", "bmi1"},          {"bmi2", "bmi2"},            {"lzcnt", "abm"},
    {"movbe", "movbe"},        {"avx512f", "avx512f"},   {"avx512bw", "avx512bw"},    {"avx512dq", "avx512dq"},
    {"avx512vl", "avx512vl"},  {"avx512cd", "avx512cd"}, {"avx512vnni", "avx512_vnni"}, {"avx512bf16", "avx512_bf16"},
    {"avx512fp16", "avx512_fp16"}, {"avxvnni", "avx_vnni"}, {"amx-tile", "amx_tile"}, {"amx-int8", "amx_int8"},
    {"amx-bf16", "amx_bf16"},
};

/* The line of /proc/cpuinfo that says what the processor has and the system lets programs use; NULL where it cannot be read. */
static const char *read_flags(char *line, int size) {
    const char *found = NULL;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && !found && fgets(line, size, file))
        if (strncmp(line, "flags", 5) == 0) found = line;
    if (found) line[strcspn(line, "\n")] = ' ';
    if (file) fclose(file);
    return found;
}

/* Where flags cannot be read, nothing is refused. */
static int has_feature(const feature *wanted, const char *flags) {
    char name[32];
    snprintf(name, sizeof name, " %s ", wanted->linux_name);
    return !flags || strstr(flags, name) != NULL;
}
#endif

/* Writes those of the header's features that this processor is known to lack, separated by ", ". */
static void missing_features(const file_header *header, char *out, size_t size) {
    char names[sizeof header->features], line[8192];
    char *rest = NULL;
    const char *flags = read_flags(line, sizeof line);
    memcpy(names, header->features, sizeof names);
    names[sizeof names - 1] = 0;
    out[0] = 0;
    for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
            size_t used = strlen(out);
            if (strcmp(features[i].llvm, name) == 0 && !has_feature(&features[i], flags))
                snprintf(out + used, size - used, "%s%s", used ? ", " : "", name);
        }
}

static const char *machine_name(uint32_t machine) {
    return machine == EM_X86_64 ? "x86-64" : machine == EM_AARCH64 ? "aarch64" : "another processor";
}

static aotc_status check_machine(const image *file, const file_header *header, aotc_error *error) {
    char missing[256];
    int target = (int)strnlen(header->target, sizeof header->target);
    if (header->machine != HERE_MACHINE)
        return report(error, AOTC_UNSUPPORTED, "%s is built for %s (target %.*s), this is %s: build it again with --target %s", file->path,
                      machine_name(header->machine), target, header->target, HERE_NAME, HERE_TARGET);
    if (header->abi_version != AOTC_ABI_VERSION)
        return report(error, AOTC_WRONG_VERSION,
                      "%s has ABI version %" PRIu32 ", this application's loader knows version %u: build the file with the aotc of the "
                      "application's headers, or the application with the aotc of the file",
                      file->path, header->abi_version, AOTC_ABI_VERSION);
    missing_features(header, missing, sizeof missing);
    if (missing[0])
        return report(error, AOTC_UNSUPPORTED,
                      "%s is built for target %.*s, which has processor features that this machine lacks (%s): build it again with a "
                      "target that fits this machine",
                      file->path, target, header->target, missing);
    return AOTC_OK;
}

static aotc_status check_image(const image *file, aotc_error *error) {
    Elf64_Ehdr elf;
    section place, plan, manifest, weights;
    file_header header;
    aotc_status status = check_elf(file, &elf, error);
    if (!status) status = find_section(file, &elf, ".aotc.header", &place, error);
    if (!status) status = find_section(file, &elf, ".aotc.plan", &plan, error);
    if (!status) status = find_section(file, &elf, ".aotc.manifest", &manifest, error);
    if (!status) status = find_section(file, &elf, ".aotc.weights", &weights, error);
    if (status) return status;
    if (place.size < sizeof header || memcmp(file->data + place.offset, "AOTCFILE", 8) != 0)
        return report(error, AOTC_INVALID_FILE, DAMAGED "its header is not one of aotc's" COPY_AGAIN, file->path);
    memcpy(&header, file->data + place.offset, sizeof header);
    if (header.version != 1)
        return report(error, AOTC_WRONG_VERSION, "%s has header version %" PRIu32 ", this loader reads version 1: use the loader of the aotc that built it",
                      file->path, header.version);
    if (header.file_bytes != file->size)
        return report(error, AOTC_INVALID_FILE, DAMAGED "it should have %" PRIu64 " bytes and has %" PRIu64 COPY_AGAIN, file->path,
                      header.file_bytes, file->size);
    if (plan.size != header.plan_bytes || manifest.size != header.manifest_bytes + 1 || weights.size != header.weights_bytes ||
        file_checksum(file, place, weights) != header.checksum)
        return report(error, AOTC_INVALID_FILE, DAMAGED "its checksum is wrong, so it was changed after it was built" COPY_AGAIN, file->path);
    return check_machine(file, &header, error);
}

static aotc_status check_file(const char *path, aotc_error *error) {
    struct stat about;
    image file = {path, NULL, 0};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return report(error, AOTC_SYSTEM, "%s cannot be opened: %s; check the path", path, strerror(errno));
    if (fstat(descriptor, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(descriptor);
        return report(error, AOTC_INVALID_FILE, "%s is not a file; expected a model built by aotc: check the path", path);
    }
    if (about.st_size == 0) {
        close(descriptor);
        return report(error, AOTC_INVALID_FILE, DAMAGED "it is empty" COPY_AGAIN, path);
    }
    file.size = (uint64_t)about.st_size;
    void *data = mmap(NULL, (size_t)file.size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    int reason = errno;
    close(descriptor);
    if (data == MAP_FAILED) return report(error, AOTC_SYSTEM, "%s cannot be read: %s", path, strerror(reason));
    file.data = data;
    aotc_status status = check_image(&file, error);
    munmap(data, (size_t)file.size);
    return status;
}

/* ---- Opening ---- */

/* dlopen of the file that `path` (absolute) names now. The dynamic loader knows libraries by their names first: where a file was built
 * again while its former content is loaded, it would hand out the former. So a name in use is spelt another way, which tells the
 * file's identity: "./" and "/" in front of the file's name change nothing but the spelling. */
static void *open_library(const char *path) {
    char spelling[PATH_MAX + 80];
    struct stat about;
    void *loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!loaded) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    dlclose(loaded);
    if (stat(path, &about) != 0) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    uint64_t identity[] = {about.st_ino, about.st_dev, (uint64_t)about.st_mtim.tv_sec, (uint64_t)about.st_mtim.tv_nsec, (uint64_t)about.st_size};
    crc_tables tables;
    crc_prepare(&tables);
    uint32_t crc = crc_update(&tables, 0, (const unsigned char *)identity, sizeof identity);
    size_t folder = (size_t)(strrchr(path, '/') - path) + 1, used = folder;
    memcpy(spelling, path, folder);
    for (int bit = 0; bit < 32; bit++) {
        if (crc >> bit & 1u) spelling[used++] = '.';
        spelling[used++] = '/';
    }
    strcpy(spelling + used, path + folder);
    return dlopen(spelling, RTLD_NOW | RTLD_LOCAL);
}

aotc_status aotc_open_with(const char *path, const aotc_model_options *options, aotc_model_t **model, aotc_error *error) {
    aotc_model_options own = {0};
    aotc_model_fn entry;
    char absolute[PATH_MAX];
    if (!path || !model) return report(error, AOTC_INVALID_ARGUMENT, "aotc_open: path and model must not be NULL");
    if (options && options->size < offsetof(aotc_model_options, size) + sizeof options->size)
        return report(error, AOTC_INVALID_ARGUMENT, "aotc_open: options.size must be sizeof(aotc_model_options)");
    aotc_status status = check_file(path, error);
    if (status) return status;
    /* An absolute path: dlopen would look a bare name up in the system's folders. */
    if (!realpath(path, absolute)) return report(error, AOTC_SYSTEM, "%s cannot be opened: %s; check the path", path, strerror(errno));
    void *library = open_library(absolute);
    if (!library) {
        const char *reason = dlerror();
        return report(error, AOTC_SYSTEM, "%s could not be loaded: %s; check that it is built for this board's system", path, reason ? reason : "");
    }
    void *symbol = dlsym(library, "aotc_model");
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from void * to a function */
    const aotc_api *api = symbol ? entry(AOTC_ABI_VERSION) : NULL;
    if (!api || api->size < offsetof(aotc_api, session_reset)) { /* what files of any aotc have */
        status = report(error, AOTC_WRONG_VERSION, "%s does not serve ABI version %u fully: build it again with the aotc of this application's headers",
                        path, AOTC_ABI_VERSION);
    } else {
        if (options) memcpy(&own, options, options->size < sizeof own ? options->size : sizeof own);
        own.size = sizeof own;
        own.path = path;
        own.library = library;
        status = api->model_create(&own, model, error);
        if (status == AOTC_INVALID_FILE && error && !strstr(error->message, path)) {
            aotc_error reason = *error; /* the file's code judges its plan and does not say which file it is */
            report(error, status, "%s: %s", path, reason.message);
        }
    }
    if (status) dlclose(library);
    return status;
}

aotc_status aotc_open(const char *path, aotc_model_t **model, aotc_error *error) { return aotc_open_with(path, NULL, model, error); }

/* Every handle begins with its file's function table. */
static const aotc_api *api_of(const void *handle) { return *(const aotc_api *const *)handle; }

aotc_status aotc_close(aotc_model_t *model, aotc_error *error) {
    if (!model) return done(error);
    void *library = api_of(model)->model_library(model);
    aotc_status status = api_of(model)->model_destroy(model, error);
    if (!status && library) dlclose(library);
    return status;
}

/* ---- Through the table ---- */

static aotc_status no_handle(const char *function, const char *what, aotc_error *error) {
    return report(error, AOTC_INVALID_ARGUMENT, "%s: %s must not be NULL", function, what);
}

#define NEED(handle) \
    if (!(handle)) return no_handle(__func__, #handle, error)

/* Whether the file's table reaches to a function: tables of older files end before newer functions. */
#define HAS(handle, function) (api_of(handle)->size >= offsetof(aotc_api, function) + sizeof api_of(handle)->function)

static aotc_status absent(const char *function, const char *version, aotc_error *error) {
    return report(error, AOTC_WRONG_VERSION, "%s: the file was built by aotc %s, which lacks it: build it again", function, version);
}

#define NEED_FUNCTION(handle, function) \
    if (!HAS(handle, function)) return absent(__func__, api_of(handle)->runtime_version, error)

const char *aotc_manifest(const aotc_model_t *model, size_t *length) { return model ? api_of(model)->manifest(model, length) : NULL; }

size_t aotc_entry_point_count(const aotc_model_t *model) { return model ? api_of(model)->entry_point_count(model) : 0; }

const char *aotc_entry_point_name(const aotc_model_t *model, size_t entry_point) {
    return model ? api_of(model)->entry_point_name(model, entry_point) : NULL;
}

size_t aotc_input_count(const aotc_model_t *model, size_t entry_point) { return model ? api_of(model)->input_count(model, entry_point) : 0; }

size_t aotc_output_count(const aotc_model_t *model, size_t entry_point) {
    return model ? api_of(model)->output_count(model, entry_point) : 0;
}

const aotc_tensor_info *aotc_input_info(const aotc_model_t *model, size_t entry_point, size_t input) {
    return model ? api_of(model)->input_info(model, entry_point, input) : NULL;
}

const aotc_tensor_info *aotc_output_info(const aotc_model_t *model, size_t entry_point, size_t output) {
    return model ? api_of(model)->output_info(model, entry_point, output) : NULL;
}

size_t aotc_state_count(const aotc_model_t *model) {
    return model && HAS(model, state_count) ? api_of(model)->state_count(model) : 0;
}

const aotc_tensor_info *aotc_state_info(const aotc_model_t *model, size_t state) {
    return model && HAS(model, state_info) ? api_of(model)->state_info(model, state) : NULL;
}

int64_t aotc_find_state(const aotc_model_t *model, const char *name) {
    size_t count = name ? aotc_state_count(model) : 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(aotc_state_info(model, i)->name, name) == 0) return (int64_t)i;
    return -1;
}

int64_t aotc_find_entry_point(const aotc_model_t *model, const char *name) {
    size_t count = name ? aotc_entry_point_count(model) : 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(aotc_entry_point_name(model, i), name) == 0) return (int64_t)i;
    return -1;
}

int64_t aotc_find_input(const aotc_model_t *model, size_t entry_point, const char *name) {
    size_t count = name ? aotc_input_count(model, entry_point) : 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(aotc_input_info(model, entry_point, i)->name, name) == 0) return (int64_t)i;
    return -1;
}

int64_t aotc_find_output(const aotc_model_t *model, size_t entry_point, const char *name) {
    size_t count = name ? aotc_output_count(model, entry_point) : 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(aotc_output_info(model, entry_point, i)->name, name) == 0) return (int64_t)i;
    return -1;
}

aotc_status aotc_infer_shape(const aotc_model_t *model, size_t entry_point, const int64_t *const *input_shapes, size_t output,
                             int64_t *shape, aotc_error *error) {
    NEED(model);
    return api_of(model)->infer_shape(model, entry_point, input_shapes, output, shape, error);
}

aotc_status aotc_pool_create(aotc_model_t *model, uint32_t num_threads, aotc_pool_t **pool, aotc_error *error) {
    NEED(model);
    return api_of(model)->pool_create(model, num_threads, pool, error);
}

aotc_status aotc_pool_destroy(aotc_pool_t *pool, aotc_error *error) {
    return pool ? api_of(pool)->pool_destroy(pool, error) : done(error);
}

aotc_status aotc_session_create(aotc_model_t *model, const aotc_session_options *options, aotc_session_t **session, aotc_error *error) {
    NEED(model);
    int shares = options && options->size >= offsetof(aotc_session_options, share_state) + sizeof options->share_state && options->share_state;
    if (shares && !HAS(model, session_reset)) return absent("share_state", api_of(model)->runtime_version, error);
    int streams = options && options->size >= offsetof(aotc_session_options, cuda_stream) + sizeof options->cuda_stream && options->cuda_stream;
    if (streams && !HAS(model, run_async)) return absent("cuda_stream", api_of(model)->runtime_version, error);
    return api_of(model)->session_create(model, options, session, error);
}

aotc_status aotc_session_destroy(aotc_session_t *session, aotc_error *error) {
    return session ? api_of(session)->session_destroy(session, error) : done(error);
}

aotc_status aotc_bind_input(aotc_session_t *session, size_t input, const DLTensor *tensor, aotc_error *error) {
    NEED(session);
    return api_of(session)->bind_input(session, input, tensor, error);
}

aotc_status aotc_bind_output(aotc_session_t *session, size_t output, const DLTensor *tensor, aotc_error *error) {
    NEED(session);
    return api_of(session)->bind_output(session, output, tensor, error);
}

aotc_status aotc_output_shape(aotc_session_t *session, size_t output, int64_t *shape, aotc_error *error) {
    NEED(session);
    return api_of(session)->output_shape(session, output, shape, error);
}

aotc_status aotc_run(aotc_session_t *session, aotc_error *error) {
    NEED(session);
    return api_of(session)->run(session, error);
}

aotc_status aotc_cancel(aotc_session_t *session, aotc_error *error) {
    NEED(session);
    NEED_FUNCTION(session, cancel);
    return api_of(session)->cancel(session, error);
}

aotc_status aotc_session_reset(aotc_session_t *session, aotc_error *error) {
    NEED(session);
    NEED_FUNCTION(session, session_reset);
    return api_of(session)->session_reset(session, error);
}

aotc_status aotc_run_async(aotc_session_t *session, void **event, aotc_error *error) {
    NEED(session);
    NEED_FUNCTION(session, run_async);
    return api_of(session)->run_async(session, event, error);
}

aotc_status aotc_wait(aotc_session_t *session, aotc_error *error) {
    NEED(session);
    NEED_FUNCTION(session, wait);
    return api_of(session)->wait(session, error);
}

aotc_status aotc_get_state(aotc_session_t *session, size_t state, DLTensor *tensor, aotc_error *error) {
    NEED(session);
    NEED_FUNCTION(session, get_state);
    return api_of(session)->get_state(session, state, tensor, error);
}

aotc_status aotc_get_output(aotc_session_t *session, size_t output, DLTensor *tensor, aotc_error *error) {
    NEED(session);
    return api_of(session)->get_output(session, output, tensor, error);
}

aotc_status aotc_set_profiling(aotc_session_t *session, int on, aotc_error *error) {
    NEED(session);
    return api_of(session)->set_profiling(session, on, error);
}

size_t aotc_step_count(const aotc_session_t *session) { return session ? api_of(session)->step_count(session) : 0; }

aotc_status aotc_get_step_info(aotc_session_t *session, size_t step, aotc_step_info *info, aotc_error *error) {
    NEED(session);
    return api_of(session)->step_info(session, step, info, error);
}

aotc_status aotc_get_memory_info(aotc_session_t *session, aotc_memory_info *info, aotc_error *error) {
    NEED(session);
    return api_of(session)->memory_info(session, info, error);
}

const char *aotc_status_name(aotc_status status) {
    static const char *const names[] = {"ok",          "invalid argument", "invalid file",  "wrong version", "unsupported",
                                        "out of memory", "busy",             "kernel failed", "system",        "cancelled",
                                        "device failed"};
    return (size_t)status < sizeof names / sizeof *names ? names[status] : "unknown";
}
