#include "aotc_npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES 256
#define MAXIMUM_HEADER 65536u
#define MAXIMUM_RANK 32

static int failed(char *message, const char *path, const char *reason) {
    snprintf(message, MESSAGE_BYTES, "%.160s: %s", path, reason);
    return -1;
}

uint64_t npy_bytes(const DLTensor *tensor) {
    uint64_t bytes = (tensor->dtype.bits + 7u) / 8u;
    for (int32_t i = 0; i < tensor->ndim; i++) bytes *= (uint64_t)tensor->shape[i];
    return bytes;
}

void npy_free(DLTensor *tensor) {
    free(tensor->data);
    free(tensor->shape);
    memset(tensor, 0, sizeof *tensor);
}

/* "<f4" and the like; one byte items may have any byte order mark. */
static int parse_dtype(const char *text, DLDataType *dtype) {
    unsigned bytes = (unsigned)(text[2] - '0');
    if (text[0] == '>' || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)) return -1;
    switch (text[1]) {
    case 'f': dtype->code = kDLFloat; break;
    case 'i': dtype->code = kDLInt; break;
    case 'u': dtype->code = kDLUInt; break;
    case 'b': dtype->code = kDLBool; break;
    default: return -1;
    }
    dtype->bits = (uint8_t)(8 * bytes);
    dtype->lanes = 1;
    return 0;
}

/* The header is a Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), } */
static const char *parse_header(const char *header, DLTensor *out) {
    int64_t dims[MAXIMUM_RANK];
    uint64_t elements = 1;
    const char *descr = strstr(header, "'descr':"), *order = strstr(header, "'fortran_order':"), *shape = strstr(header, "'shape':");
    if (!descr || !order || !shape) return "its header is not one of .npy";
    descr = strchr(descr + 8, '\'');
    if (!descr || strlen(descr) < 5 || descr[4] != '\'' || parse_dtype(descr + 1, &out->dtype)) return "expected integers, floats or booleans in little-endian order";
    if (strncmp(order + 16 + strspn(order + 16, " "), "False", 5) != 0) return "expected C order; save numpy.ascontiguousarray(x)";
    shape = strchr(shape, '(');
    if (!shape) return "its header has no shape";
    out->ndim = 0;
    for (const char *at = shape + 1; *(at += strspn(at, " ,")) != ')';) {
        char *end;
        dims[out->ndim] = strtoll(at, &end, 10);
        if (end == at || dims[out->ndim] < 0 || out->ndim + 1 == MAXIMUM_RANK) return "its shape cannot be read";
        if (dims[out->ndim] > 0 && elements > (UINT64_MAX >> 4) / (uint64_t)dims[out->ndim]) return "its shape is too large";
        elements *= (uint64_t)dims[out->ndim++];
        at = end;
    }
    out->shape = malloc((size_t)(out->ndim + 1) * sizeof *out->shape);
    if (!out->shape) return "out of memory";
    memcpy(out->shape, dims, (size_t)out->ndim * sizeof *dims);
    return NULL;
}

static const char *read_file(FILE *file, DLTensor *out) {
    unsigned char start[12];
    uint32_t length;
    if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6) != 0) return "not a .npy file";
    if (start[6] == 1) {
        length = (uint32_t)start[8] | (uint32_t)start[9] << 8;
    } else {
        if (fread(start + 10, 1, 2, file) != 2) return "cut short";
        length = (uint32_t)start[8] | (uint32_t)start[9] << 8 | (uint32_t)start[10] << 16 | (uint32_t)start[11] << 24;
    }
    if (length > MAXIMUM_HEADER) return "its header is too long";
    char *header = calloc(length + 1u, 1);
    if (!header) return "out of memory";
    const char *reason = fread(header, 1, length, file) == length ? parse_header(header, out) : "cut short";
    free(header);
    if (reason) return reason;
    uint64_t bytes = npy_bytes(out);
    out->device.device_type = kDLCPU;
    out->data = malloc(bytes ? bytes : 1);
    if (!out->data) return "out of memory";
    return fread(out->data, 1, bytes, file) == bytes ? NULL : "cut short";
}

int npy_read(const char *path, DLTensor *out, char *message) {
    memset(out, 0, sizeof *out);
    FILE *file = fopen(path, "rb");
    if (!file) return failed(message, path, strerror(errno));
    const char *reason = read_file(file, out);
    fclose(file);
    if (!reason) return 0;
    npy_free(out);
    return failed(message, path, reason);
}

int npy_write(const char *path, const DLTensor *tensor, char *message) {
    static const char codes[] = {'i', 'u', 'f', 'u', 'u', 'u', 'b'};
    char header[1024];
    int plain = tensor->dtype.code <= kDLBool && tensor->dtype.bits >= 8;
    int used = snprintf(header, sizeof header, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (", tensor->dtype.bits <= 8 ? '|' : '<',
                        plain ? codes[tensor->dtype.code] : 'u', (tensor->dtype.bits + 7) / 8);
    for (int32_t i = 0; i < tensor->ndim; i++)
        used += snprintf(header + used, sizeof header - (size_t)used, "%s%" PRId64 "%s", i ? " " : "", tensor->shape[i], ",");
    used += snprintf(header + used, sizeof header - (size_t)used, "), }");
    while ((used + 11) % 64) header[used++] = ' ';
    header[used++] = '\n';
    const unsigned char start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(used & 255), (unsigned char)(used >> 8)};
    uint64_t bytes = npy_bytes(tensor);
    FILE *file = fopen(path, "wb");
    if (!file) return failed(message, path, strerror(errno));
    int whole = fwrite(start, 1, sizeof start, file) == sizeof start && fwrite(header, 1, (size_t)used, file) == (size_t)used &&
                fwrite((const char *)tensor->data + tensor->byte_offset, 1, bytes, file) == bytes;
    if (fclose(file) != 0 || !whole) return failed(message, path, strerror(errno));
    return 0;
}
