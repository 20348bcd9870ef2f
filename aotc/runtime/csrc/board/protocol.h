/* How `aotc tune` talks to a board: frames over one connection, one answer to each request. aotc/tuning/board.py is the other end.
 *
 * A frame is a header and `length` bytes. All numbers are little-endian, as both ends are. */
#ifndef AOTC_BOARD_PROTOCOL_H
#define AOTC_BOARD_PROTOCOL_H

#include <stdint.h>

#define BOARD_MAGIC UINT32_C(0x42544F41) /* "AOTB" */
#define BOARD_VERSION 1u
#define MAXIMUM_REQUEST (UINT64_C(1) << 20) /* bytes of any frame but a file */
#define MAXIMUM_ENTRIES 64u
#define MAXIMUM_INPUTS 256u
#define MAXIMUM_RANK 16u
#define MAXIMUM_ROUNDS 10000u

typedef struct frame_header {
    uint32_t magic;
    uint16_t version, kind;
    uint64_t length;
} frame_header;

enum frame_kind {
    FRAME_HELLO = 1, /* request: nothing. Answer: JSON text that describes the board */
    FRAME_FILE = 2,  /* request: a built file, which takes the place of the one before. Answer: FRAME_DONE */
    FRAME_TIME = 3,  /* request: time_request, uint32_t entries[], input_request inputs[]. Answer: time_answer and what it says */
    FRAME_DONE = 4,  /* answer: nothing */
    FRAME_ERROR = 5  /* answer: error_answer and a message */
};

enum error_code {
    ERROR_REFUSED = 1, /* the request cannot be: too large, of another version, inconsistent */
    ERROR_FAILED = 2,  /* the file could not be opened, or a run returned an error */
    ERROR_CRASHED = 3, /* a signal ended the run */
    ERROR_TIMEOUT = 4, /* the time limit ended the run */
    ERROR_SYSTEM = 5   /* the board lacks memory, disk or processes */
};

typedef struct error_answer {
    uint32_t code;
    int32_t entry; /* the entry point that ran, as its place in the request; -1: none */
} error_answer;

/* Entry points of one file are run in turn, in another order each round, all on the same inputs and outputs. Before each run the
 * board reads `sweep_bytes` of other memory, as the rest of a network would, and then touches what the step before would have
 * written. So weights are as cold, and activations as warm, as in the network. */
typedef struct time_request {
    uint32_t threads;
    uint32_t rounds;         /* at most */
    uint32_t minimum_rounds; /* also where they take longer than budget_ns */
    uint32_t steps;          /* non-zero: also time each step of the entry points */
    uint64_t budget_ns;      /* no round begins after it */
    uint64_t limit_ns;       /* after it the run is killed */
    uint64_t sweep_bytes;
    uint64_t seed;
    uint32_t entries, inputs;
} time_request;

typedef struct input_request {
    uint32_t fresh; /* non-zero: an activation, which is warm */
    uint32_t rank;
    int64_t dims[MAXIMUM_RANK];
} input_request;

/* Followed by: double nanoseconds[rounds][entries]; double difference[entries], the largest absolute difference of any output from
 * the first entry's; double largest[entries], the largest absolute value of the first entry's outputs; and, where steps were asked for,
 * for each entry: uint64_t step_count, then double nanoseconds[rounds][step_count]. */
typedef struct time_answer {
    uint32_t entries, rounds;
    uint64_t reserved;
} time_answer;

#endif
