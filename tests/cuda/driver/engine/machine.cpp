// The scheduler: warps one after another, each until all of its threads wait at a barrier or are done.
#include "machine.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "checks.h"
#include "cuda_api.h"

namespace software_cuda {

Machine machine;

namespace {

// Threads of the warp that can go on do so; true if any could.
bool run_ready_threads() {
  bool any = false;
  for (machine.cursor = 0; machine.cursor < machine.lanes && !machine.failed; ++machine.cursor) {
    Thread *thread = &machine.thread[machine.warp * WARP + machine.lane_order[machine.cursor]];
    if (thread->wait == Wait::unstarted) {
      start_fiber(thread);
    } else if (thread->wait == Wait::ready) {
      resume_fiber(thread);
    } else {
      continue;
    }
    any = true;
  }
  return any;
}

void complain(Status status, const char *kind, const Thread &thread, const std::string &text) {
  if (machine.failed) return;
  machine.failed = true;
  auto number = static_cast<unsigned>(&thread - machine.thread);
  machine.finding = {status, kind, thread_name(number) + " " + text + " line " + std::to_string(thread.line), nullptr};
}

// Every thread of the warp waits or is done. Completes the calls whose lanes are all there.
bool complete_warp_calls() {
  Thread *warp = &machine.thread[machine.warp * WARP];
  const unsigned existing = machine.lanes == WARP ? ~0u : (1u << machine.lanes) - 1;
  bool any = false;
  for (unsigned i = 0; i < machine.lanes; ++i) {
    if (warp[i].wait != Wait::warp) continue;
    const WarpCall &call = *warp[i].call;
    unsigned expected = call.mask & existing, here = 0;
    WarpCall *calls[WARP] = {};
    for (unsigned j = 0; j < machine.lanes; ++j) {
      if (warp[j].wait != Wait::warp || warp[j].line != warp[i].line || warp[j].call->mask != call.mask || warp[j].call->all != call.all) continue;
      here |= 1u << j;
      calls[j] = warp[j].call;
    }
    if (!(call.mask >> i & 1)) complain(CUDA_ERROR_LAUNCH_FAILED, "divergent warp call", warp[i], "is not in the mask of its own call,");
    if (here != expected) continue;
    if (call.whole && here != ~0u) complain(CUDA_ERROR_LAUNCH_FAILED, "divergent warp call", warp[i], "is in a warp of less than 32 threads,");
    if (machine.failed) return false;
    call.all(calls, here);
    for (unsigned j = 0; j < machine.lanes; ++j)
      if (here >> j & 1) warp[j].wait = Wait::ready;
    any = true;
  }
  return any;
}

// Lanes that ask at the same line which of them are active, when all others wait elsewhere: they are.
bool complete_active_masks() {
  Thread *warp = &machine.thread[machine.warp * WARP];
  for (unsigned i = 0; i < machine.lanes; ++i) {
    if (warp[i].wait != Wait::active_mask) continue;
    unsigned mask = 0;
    for (unsigned j = 0; j < machine.lanes; ++j)
      if (warp[j].wait == Wait::active_mask && warp[j].line == warp[i].line) mask |= 1u << j;
    for (unsigned j = 0; j < machine.lanes; ++j) {
      if (!(mask >> j & 1)) continue;
      warp[j].call->mask = mask;
      warp[j].wait = Wait::ready;
    }
    return true;
  }
  return false;
}

void run_warp(unsigned number) {
  machine.warp = number;
  machine.lanes = machine.threads - number * WARP < WARP ? machine.threads - number * WARP : WARP;
  order(machine.lane_order, machine.lanes);
  do {
    run_ready_threads();
  } while (!machine.failed && (complete_warp_calls() || complete_active_masks()));
  for (unsigned i = 0; i < machine.lanes; ++i) {
    const Thread &thread = machine.thread[number * WARP + i];
    if (thread.wait == Wait::warp)
      complain(CUDA_ERROR_LAUNCH_FAILED, "divergent warp call", thread, "waits for lanes of its warp that never make the same call,");
  }
}

// True when threads were released.
bool complete_barrier() {
  const Thread *waits = nullptr, *done = nullptr;
  for (unsigned i = 0; i < machine.threads; ++i) {
    const Thread &thread = machine.thread[i];
    if (thread.wait == Wait::done) {
      done = &thread;
      continue;
    }
    if (waits && waits->line != thread.line) {
      complain(CUDA_ERROR_LAUNCH_FAILED, "divergent barrier", thread,
               "waits at another barrier than " + thread_name(static_cast<unsigned>(waits - machine.thread)) + " (line " +
                   std::to_string(waits->line) + "),");
      return false;
    }
    waits = &thread;
  }
  if (!waits) return false;
  if (done) {
    complain(CUDA_ERROR_LAUNCH_FAILED, "divergent barrier", *waits,
             "waits at a barrier that " + thread_name(static_cast<unsigned>(done - machine.thread)) + " never reaches,");
    return false;
  }
  for (unsigned i = 0; i < machine.threads; ++i) machine.thread[i].wait = Wait::ready;
  pass_barrier();
  return true;
}

void run_block(unsigned long number) {
  const dim3 &grid = machine.launch->grid;
  machine.state->block = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                          static_cast<unsigned>(number / grid.x / grid.y)};
  for (unsigned i = 0; i < machine.threads; ++i) {
    machine.thread[i].wait = Wait::unstarted;
    machine.thread[i].group = 0;
    machine.thread[i].copies.clear();
  }
  enter_block();
  order(machine.warp_order, machine.warps);
  do {
    for (unsigned i = 0; i < machine.warps && !machine.failed; ++i) run_warp(machine.warp_order[i]);
  } while (!machine.failed && complete_barrier());
}

void begin(const Launch &launch) {
  static bool ready = false;
  if (!ready || machine.failed) forget_fibers();
  ready = true;
  machine.launch = &launch;
  machine.failed = false;
  machine.state = launch.module->state;
  machine.threads = launch.block.x * launch.block.y * launch.block.z;
  machine.warps = (machine.threads + WARP - 1) / WARP;
  machine.state->block_size = launch.block;
  machine.state->grid_size = launch.grid;
  const char *mutation = std::getenv("AOTC_SOFTWARE_CUDA_MUTATION");
  machine.state->mutation = mutation ? std::atoi(mutation) : -1;
  tell_stacks(*machine.state);
  machine.state->engine = engine_table();
  for (unsigned i = 0; i < machine.threads; ++i)
    machine.thread[i].index = {i % launch.block.x, i / launch.block.x % launch.block.y, i / launch.block.x / launch.block.y};
}

}  // namespace

bool run(const Launch &launch, Finding &finding) {
  begin(launch);
  read_order();
  enter_launch();
  const unsigned long blocks = 1ul * launch.grid.x * launch.grid.y * launch.grid.z;
  for (unsigned long i = 0; i < blocks && !machine.failed; ++i) run_block(ordered_block(i, blocks));
  leave_launch();
  if (machine.failed) finding = machine.finding;
  return !machine.failed;
}

std::string thread_name(unsigned number) {
  const uint3 &index = machine.thread[number].index;
  char text[64];
  std::snprintf(text, sizeof text, "thread (%u,%u,%u)", index.x, index.y, index.z);
  return text;
}

void enter(Thread *thread) {
  machine.current = thread;
  machine.state->thread = thread->index;
}

void wait(Wait reason, int line) {
  machine.current->wait = reason;
  machine.current->line = line;
  leave_fiber();
}

void wait_for_warp(int line, WarpCall &call) {
  machine.current->call = &call;
  wait(Wait::warp, line);
}

void fail(Status status, const char *kind, std::string text, const void *where) {
  machine.failed = true;
  machine.finding = {status, kind, std::move(text), where};
  leave_fiber();
  __builtin_unreachable();
}

}  // namespace software_cuda
