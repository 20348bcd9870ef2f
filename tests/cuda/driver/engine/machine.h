// The simulated multiprocessor: runs the blocks of a launch one after another, the threads of a block as fibers.
#pragma once
#include <string>
#include <vector>

#include "../include/software_cuda/interface.h"

namespace software_cuda {

constexpr unsigned WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP;
constexpr size_t DYNAMIC_SHARED_ROOM = 256 << 10;

// CUresult values; cuda_errors.h has their names.
enum Status : int;

struct Launch {
  const Module *module;
  const Kernel *kernel;
  dim3 grid, block;
  unsigned shared_bytes;
  void **parameters;
};

// What a checker or the scheduler found wrong; the launch ends there.
struct Finding {
  Status status;
  const char *kind;
  std::string text;
  const void *where;  // an address in the kernel's code, or null
};

// Runs the launch. False: `finding` says why not to its end.
bool run(const Launch &launch, Finding &finding);

// ---- inside the machine ----

enum class Wait : unsigned char { unstarted, ready, warp, active_mask, barrier, done };

struct AsyncCopy {
  unsigned char *target;
  const unsigned char *source;
  unsigned bytes, source_bytes, group;
};

struct WarpCall;
struct Fiber;
struct Thread {
  uint3 index;
  Wait wait;
  int line;  // of the barrier or warp call at which it waits
  WarpCall *call;
  Fiber *fiber;
  unsigned group;  // of asynchronous copies: the one that is open
  std::vector<AsyncCopy> copies;
};

// A call that the lanes in `mask` make together: the last to arrive runs `all` for every one of them.
struct WarpCall {
  unsigned mask;
  void (*all)(WarpCall **calls, unsigned lanes);
  bool whole = false;  // there must be 32
};

struct Machine {
  const Launch *launch;
  State *state;
  unsigned threads, warps;
  Thread thread[MAX_THREADS];
  Thread *current;
  unsigned lane_order[WARP], warp_order[MAX_WARPS];
  unsigned warp, lanes, cursor;  // the warp that runs, how many threads it has, the place in lane_order
  Finding finding;
  bool failed;
};
extern Machine machine;

inline unsigned thread_number() { return static_cast<unsigned>(machine.current - machine.thread); }
std::string thread_name(unsigned number);
[[noreturn]] void fail(Status status, const char *kind, std::string text, const void *where = nullptr);

// Stops the current thread until the scheduler makes it ready again.
void wait(Wait reason, int line);
void enter(Thread *thread);  // makes it the current one
void wait_for_warp(int line, WarpCall &call);
void resolve_active_masks();
Engine engine_table();

// fiber.cpp
void start_fiber(Thread *thread);
void resume_fiber(Thread *thread);
void leave_fiber();
void tell_stacks(State &state);
void forget_fibers();  // after a failure: threads in the middle of a kernel never go on

// order.cpp: forward, reverse or random, by the environment
void read_order();
void order(unsigned *places, unsigned count);
unsigned long ordered_block(unsigned long position, unsigned long blocks);

// async.cpp
void copy_async(void *shared, const void *global, unsigned bytes, unsigned source_bytes);
void commit_async();
void wait_async(unsigned groups);

// warp.cpp, product.cpp
void product(int line, const Product &product);
void load_matrix(int line, uint32_t *registers, const void *row, int count, bool transposed);

}  // namespace software_cuda
