/* Runs on a board and measures what `aotc tune --board HOST:PORT` sends it: built files with candidate kernels. Needs only libc.
 * Built from this file, timing.c and ../aotc_loader.c by `aotc board`. One session at a time; each measurement runs in a child
 * process with a time limit, so that a crash or a hang costs one answer. */
#define _GNU_SOURCE
#include "timing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_BYTES 4096

typedef struct board {
    const char *address, *scratch;
    uint16_t port;
    int pipe, once;
    uint64_t file_limit;
    unsigned idle_seconds;
    char folder[PATH_BYTES], file[PATH_BYTES + 32];
    unsigned files;
    volatile int32_t *current; /* shared with the child that measures */
} board;

typedef struct connection {
    int in, out;
} connection;

static volatile sig_atomic_t stopped;
static void stop(int number) { (void)number, stopped = 1; }

static void usage(FILE *where) {
    fputs("usage: aotc_board [--port N] [--bind ADDRESS] [--dir FOLDER] [--max-megabytes N] [--idle SECONDS] [--once]\n"
          "       aotc_board --pipe\n\n"
          "Measures candidate kernels for `aotc tune --board HOST:PORT`.\n\n"
          "THIS PROGRAM RUNS WHATEVER IT IS SENT, as native code with the rights of the user who started it. There is no password.\n"
          "It listens on 127.0.0.1 unless --bind says otherwise; over a network that others share, leave that so and use\n"
          "`ssh -L 7878:127.0.0.1:7878 board`.\n\n"
          "  --port N             TCP port, 7878 by default; 0 takes a free one. The line `listening on ADDRESS:PORT` tells it\n"
          "  --bind ADDRESS       IPv4 address to listen on; 0.0.0.0 is all of the board's\n"
          "  --dir FOLDER         where files are kept while they are measured; TMPDIR or /tmp by default\n"
          "  --max-megabytes N    largest file taken, 4096 by default\n"
          "  --idle SECONDS       a session that sends nothing for so long is ended, 900 by default\n"
          "  --once               end after one session\n"
          "  --pipe               speak on standard input and output instead of TCP, for one session\n",
          where);
}

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("aotc_board: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

/* ---- Frames ---- */

/* 0, or -1 where the connection ended or stayed silent for too long. */
static int transfer(int descriptor, void *data, size_t bytes, int sending) {
    char *at = data;
    while (bytes) {
        ssize_t moved = sending ? write(descriptor, at, bytes) : read(descriptor, at, bytes);
        if (moved < 0 && errno == EINTR && !stopped) continue;
        if (moved <= 0) return -1;
        at += moved;
        bytes -= (size_t)moved;
    }
    return 0;
}

static int send_frame(const connection *peer, enum frame_kind kind, const void *data, size_t bytes) {
    frame_header header = {BOARD_MAGIC, BOARD_VERSION, (uint16_t)kind, bytes};
    return transfer(peer->out, &header, sizeof header, 1) || transfer(peer->out, (void *)data, bytes, 1) ? -1 : 0;
}

static int send_error(const connection *peer, enum error_code code, int32_t entry, const char *format, ...) __attribute__((format(printf, 4, 5)));

static int send_error(const connection *peer, enum error_code code, int32_t entry, const char *format, ...) {
    struct {
        error_answer head;
        char text[1400];
    } answer = {{(uint32_t)code, entry}, ""};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(answer.text, sizeof answer.text, format, arguments);
    va_end(arguments);
    return send_frame(peer, FRAME_ERROR, &answer, sizeof answer.head + strlen(answer.text));
}

/* ---- Files ---- */

static void forget_file(board *self) {
    if (self->file[0]) unlink(self->file);
    self->file[0] = 0;
}

static int take_file(board *self, const connection *peer, uint64_t bytes) {
    static char buffer[1 << 16];
    forget_file(self);
    snprintf(self->file, sizeof self->file, "%s/candidate-%u.so", self->folder, self->files++);
    int file = open(self->file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), failure = file < 0 ? errno : 0;
    while (bytes) { /* to the end even where the disk is full, so that the next frame can be read */
        size_t some = bytes < sizeof buffer ? (size_t)bytes : sizeof buffer;
        if (transfer(peer->in, buffer, some, 0)) return close(file), -1;
        if (!failure && transfer(file, buffer, some, 1)) failure = errno ? errno : EIO;
        bytes -= some;
    }
    if (file >= 0 && close(file) && !failure) failure = errno;
    if (!failure) return send_frame(peer, FRAME_DONE, NULL, 0);
    forget_file(self);
    return send_error(peer, ERROR_SYSTEM, -1, "the file cannot be kept in %s: %s; free space there or start aotc_board with another --dir",
                      self->folder, strerror(failure));
}

/* ---- Measuring ---- */

typedef struct received {
    timing_job job;
    uint32_t entries[MAXIMUM_ENTRIES];
    input_request inputs[MAXIMUM_INPUTS];
} received;

/* NULL, or why the request cannot be. */
static const char *parse(const char *data, uint64_t bytes, received *out) {
    time_request *request = &out->job.request;
    if (bytes < sizeof *request) return "it is too short";
    memcpy(request, data, sizeof *request);
    if (request->entries < 1 || request->entries > MAXIMUM_ENTRIES || request->inputs > MAXIMUM_INPUTS) return "too many entry points or inputs";
    if (request->rounds < 1 || request->rounds > MAXIMUM_ROUNDS || request->threads < 1 || request->threads > 1024)
        return "its number of rounds or threads cannot be";
    if (request->sweep_bytes > UINT64_C(1) << 30) return "it sweeps more than 1 GiB";
    size_t entries = request->entries * sizeof *out->entries, inputs = request->inputs * sizeof *out->inputs;
    if (bytes != sizeof *request + entries + inputs) return "its length does not fit its counts";
    memcpy(out->entries, data + sizeof *request, entries);
    memcpy(out->inputs, data + sizeof *request + entries, inputs);
    for (uint32_t i = 0; i < request->inputs; i++) {
        if (out->inputs[i].rank > MAXIMUM_RANK) return "a tensor has too many dims";
        int64_t elements = 1;
        for (uint32_t axis = 0; axis < out->inputs[i].rank; axis++)
            if (out->inputs[i].dims[axis] < 0 || __builtin_mul_overflow(elements, out->inputs[i].dims[axis], &elements) || elements >= INT64_C(1) << 36)
                return "a tensor is too large";
    }
    out->job.entries = out->entries;
    out->job.inputs = out->inputs;
    return NULL;
}

/* In the child: measures and writes the answer, or the reason, to `out`. */
static void measure(const timing_job *job, int out) {
    timing_result result = {0};
    uint8_t failed = time_entries(job, &result) != 0;
    uint64_t bytes = failed ? strlen(result.message) : result.bytes;
    int lost = transfer(out, &failed, 1, 1) || transfer(out, &bytes, sizeof bytes, 1) ||
               transfer(out, failed ? result.message : result.data, (size_t)bytes, 1);
    _exit(lost);
}

typedef struct reply {
    uint8_t failed;
    char *data;
    uint64_t bytes;
} reply;

/* Reads `bytes` bytes before the deadline: 0, -1 at the end of the stream, 1 when the time is over. */
static int read_until(int descriptor, void *data, size_t bytes, uint64_t deadline) {
    char *at = data;
    while (bytes) {
        uint64_t now = now_ns();
        if (now >= deadline || stopped) return 1;
        struct pollfd wait = {descriptor, POLLIN, 0};
        int ready = poll(&wait, 1, (int)((deadline - now) / 1000000 % 1000000) + 1);
        if (ready <= 0) continue;
        ssize_t moved = read(descriptor, at, bytes);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return -1;
        at += moved;
        bytes -= (size_t)moved;
    }
    return 0;
}

static int collect(int descriptor, uint64_t deadline, reply *out) {
    int ended = read_until(descriptor, &out->failed, 1, deadline);
    if (!ended) ended = read_until(descriptor, &out->bytes, sizeof out->bytes, deadline);
    if (!ended && out->bytes > UINT64_C(1) << 31) return -1; /* candidates run in that process: what it says is not to be trusted */
    if (!ended && !(out->data = malloc((size_t)out->bytes + 1))) return -1;
    return ended ? ended : read_until(descriptor, out->data, (size_t)out->bytes, deadline);
}

static int time_file(board *self, const connection *peer, const received *request) {
    int ends[2], status = 0;
    reply reply = {0};
    if (!self->file[0]) return send_error(peer, ERROR_REFUSED, -1, "no file was sent before the request to measure");
    if (pipe2(ends, O_CLOEXEC)) return send_error(peer, ERROR_SYSTEM, -1, "no pipe can be made: %s", strerror(errno));
    *self->current = -1;
    pid_t parent = getpid(), child = fork();
    if (child < 0) {
        close(ends[0]), close(ends[1]);
        return send_error(peer, ERROR_SYSTEM, -1, "no process can be started: %s", strerror(errno));
    }
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        signal(SIGINT, SIG_DFL), signal(SIGTERM, SIG_DFL);
        if (self->pipe) dup2(2, 1); /* what a kernel prints must not mix with the answers */
        measure(&request->job, ends[1]);
    }
    close(ends[1]);
    int ended = collect(ends[0], now_ns() + request->job.request.limit_ns, &reply);
    close(ends[0]);
    if (ended) kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    int32_t entry = *self->current;
    int sent;
    if (ended > 0) sent = send_error(peer, ERROR_TIMEOUT, entry, "it did not end within %.1f s", (double)request->job.request.limit_ns * 1e-9);
    else if (ended < 0 && WIFSIGNALED(status)) sent = send_error(peer, ERROR_CRASHED, entry, "it ended with signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (ended < 0) sent = send_error(peer, ERROR_CRASHED, entry, "it ended by itself with status %d", WEXITSTATUS(status));
    else if (reply.failed) sent = send_error(peer, ERROR_FAILED, entry, "%.*s", (int)reply.bytes, reply.data);
    else sent = send_frame(peer, FRAME_TIME, reply.data, (size_t)reply.bytes);
    free(reply.data);
    return sent;
}

/* ---- Sessions ---- */

static int say_hello(const board *self, const connection *peer) {
    char name[256] = "", text[768];
#if defined(__aarch64__)
    const char *machine = "aarch64";
#else
    const char *machine = "x86_64";
#endif
    if (gethostname(name, sizeof name - 1)) name[0] = 0;
    for (char *c = name; *c; c++)
        if (*c == '"' || *c == '\\' || *c < ' ') *c = '_';
    int length = snprintf(text, sizeof text, "{\"machine\": \"%s\", \"cores\": %ld, \"name\": \"%s\", \"file_limit\": %" PRIu64 "}", machine,
                          sysconf(_SC_NPROCESSORS_ONLN), name, self->file_limit);
    return send_frame(peer, FRAME_HELLO, text, (size_t)length);
}

/* One request; -1 where the session is over. */
static int answer(board *self, const connection *peer) {
    static char data[MAXIMUM_REQUEST];
    static received request;
    frame_header header;
    if (transfer(peer->in, &header, sizeof header, 0)) return -1;
    if (header.magic != BOARD_MAGIC) return -1; /* not ours: nothing that it would understand can be said */
    if (header.version != BOARD_VERSION) {
        send_error(peer, ERROR_REFUSED, -1, "this aotc_board speaks version %u of the protocol, the request is of version %u: copy the program of the "
                   "same aotc to the board", BOARD_VERSION, (unsigned)header.version);
        return -1;
    }
    if (header.length > (header.kind == FRAME_FILE ? self->file_limit : MAXIMUM_REQUEST)) {
        send_error(peer, ERROR_REFUSED, -1, "a frame of %" PRIu64 " bytes is too large for this board; start aotc_board with a larger --max-megabytes", header.length);
        return -1;
    }
    if (header.kind == FRAME_FILE) return take_file(self, peer, header.length);
    if (transfer(peer->in, data, (size_t)header.length, 0)) return -1;
    if (header.kind == FRAME_HELLO) return say_hello(self, peer);
    if (header.kind != FRAME_TIME) return send_error(peer, ERROR_REFUSED, -1, "there is no request of kind %u", (unsigned)header.kind);
    memset(&request, 0, sizeof request);
    request.job.path = self->file;
    request.job.current = self->current;
    const char *wrong = parse(data, header.length, &request);
    return wrong ? send_error(peer, ERROR_REFUSED, -1, "the request to measure cannot be: %s", wrong) : time_file(self, peer, &request);
}

static void serve(board *self, const connection *peer) {
    while (!stopped && answer(self, peer) == 0) continue;
    forget_file(self);
}

static int listening(const board *self) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(self->port)};
    socklen_t size = sizeof address;
    int one = 1, server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char text[INET_ADDRSTRLEN];
    if (inet_pton(AF_INET, self->address, &address.sin_addr) != 1) die("--bind %s is not an IPv4 address such as 127.0.0.1", self->address);
    if (server < 0) die("no socket can be made: %s", strerror(errno));
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 4))
        die("cannot listen on %s:%u: %s; choose another --port", self->address, (unsigned)self->port, strerror(errno));
    getsockname(server, (struct sockaddr *)&address, &size);
    printf("listening on %s:%u\n", inet_ntop(AF_INET, &address.sin_addr, text, sizeof text), (unsigned)ntohs(address.sin_port));
    fflush(stdout);
    return server;
}

static void serve_tcp(board *self, int server) {
    int one = 1;
    struct timeval idle = {.tv_sec = (time_t)self->idle_seconds};
    do {
        int client = accept4(server, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) continue;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
        setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle); /* a client that is gone must not keep the board */
        setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &idle, sizeof idle);
        serve(self, &(connection){client, client});
        close(client);
    } while (!stopped && !self->once);
    close(server);
}

static uint64_t number(const char *option, const char *text, uint64_t maximum) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || value > maximum) die("%s %s is not a number from 0 to %" PRIu64, option, text, maximum);
    return value;
}

static void parse_options(board *self, int count, char **words) {
    for (int i = 1; i < count; i++) {
        const char *word = words[i], *value = i + 1 < count ? words[i + 1] : NULL;
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) usage(stdout), exit(0);
        if (strcmp(word, "--pipe") == 0) self->pipe = 1;
        else if (strcmp(word, "--once") == 0) self->once = 1;
        else if (!value) usage(stderr), exit(2);
        else if (strcmp(word, "--port") == 0) self->port = (uint16_t)number(word, words[++i], UINT16_MAX);
        else if (strcmp(word, "--bind") == 0) self->address = words[++i];
        else if (strcmp(word, "--dir") == 0) self->scratch = words[++i];
        else if (strcmp(word, "--max-megabytes") == 0) self->file_limit = number(word, words[++i], 1 << 20) << 20;
        else if (strcmp(word, "--idle") == 0) self->idle_seconds = (unsigned)number(word, words[++i], 1 << 30);
        else usage(stderr), exit(2);
    }
}

int main(int count, char **words) {
    const char *temporary = getenv("TMPDIR");
    static board self = {.address = "127.0.0.1", .port = 7878, .file_limit = UINT64_C(4096) << 20, .idle_seconds = 900};
    self.scratch = temporary && *temporary ? temporary : "/tmp";
    parse_options(&self, count, words);
    struct sigaction on_stop = {.sa_handler = stop};
    sigaction(SIGINT, &on_stop, NULL);
    sigaction(SIGTERM, &on_stop, NULL);
    signal(SIGPIPE, SIG_IGN);
    self.current = mmap(NULL, sizeof *self.current, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (self.current == MAP_FAILED) die("no memory");
    int server = self.pipe ? -1 : listening(&self);
    if (snprintf(self.folder, sizeof self.folder, "%s/aotc_board.XXXXXX", self.scratch) >= (int)sizeof self.folder || !mkdtemp(self.folder))
        die("no folder can be made in %s: %s; name one by --dir", self.scratch, strerror(errno));
    if (self.pipe) serve(&self, &(connection){0, 1});
    else serve_tcp(&self, server);
    rmdir(self.folder);
    return 0;
}
