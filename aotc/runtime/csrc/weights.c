/* The weights: in this file, or in one beside it (packaging/weights_file.py), mapped read-only. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

typedef struct weights_header {
    char magic[8];
    uint32_t version, bytes;
    uint64_t file_bytes, weights_bytes;
    unsigned char sha256[32];
} weights_header;

_Static_assert(sizeof(weights_header) == PLAN_ALIGNMENT, "weights_file.py writes this layout");

/* The path, cut short in a message that would not hold it. */
#define NAME "%.700s.weights"

static aotc_status map_file(const char *path, const char *name, const weights_header *expected, mapping *beside, aotc_error *error) {
    struct stat about;
    int descriptor = open(name, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return fail(error, AOTC_SYSTEM, NAME ", which holds the model's weights, cannot be opened (error %d); copy it beside the model", path,
                    errno);
    bool whole = fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode) && (uint64_t)about.st_size == expected->file_bytes;
    void *data = whole ? mmap(NULL, (size_t)expected->file_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0) : MAP_FAILED;
    int reason = errno;
    close(descriptor);
    if (!whole)
        return fail(error, AOTC_INVALID_FILE, NAME " should be a file of %llu bytes and is not; copy or build both files again", path,
                    (unsigned long long)expected->file_bytes);
    if (data == MAP_FAILED) return fail(error, AOTC_SYSTEM, NAME " cannot be mapped (error %d)", path, reason);
    *beside = (mapping){data, (size_t)expected->file_bytes};
    memory_prefer_huge_pages(beside->data, beside->size);
    if (memcmp(data, expected, sizeof *expected) == 0) return AOTC_OK;
    weights_close(beside);
    return fail(error, AOTC_INVALID_FILE, NAME " belongs to another build of the model; copy or build both files again", path);
}

aotc_status weights_open(const char *path, const char **weights, mapping *beside, aotc_error *error) {
    weights_header expected;
    char name[4096 + 16];
    memcpy(&expected, aotc_weights_header, sizeof expected);
    *weights = (const char *)aotc_weights_data;
    memory_prefer_huge_pages(aotc_weights_data, expected.magic[0] ? 0 : aotc_weights_size);
    if (expected.magic[0] == 0) return AOTC_OK;
    if (memcmp(expected.magic, "AOTCWGHT", 8) != 0 || expected.version != 1 || expected.bytes != sizeof expected ||
        expected.weights_bytes != aotc_weights_size || expected.file_bytes != sizeof expected + aotc_weights_size)
        return fail(error, AOTC_INVALID_FILE, "the model's note of its file of weights is damaged; build or copy it again");
    size_t length = strlen(path);
    if (length == 0 || length > 4096)
        return fail(error, AOTC_INVALID_ARGUMENT, "the model's weights lie beside it; give the path under which it was opened");
    memcpy(name, path, length);
    memcpy(name + length, ".weights", sizeof ".weights");
    aotc_status status = map_file(path, name, &expected, beside, error);
    if (!status) *weights = (const char *)beside->data + sizeof expected;
    return status;
}

void weights_close(mapping *beside) {
    if (beside->data) munmap(beside->data, beside->size);
    *beside = (mapping){0};
}
