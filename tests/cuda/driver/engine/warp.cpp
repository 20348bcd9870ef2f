// Barriers and what the lanes of a warp do together.
#include <cstring>

#include "checks.h"
#include "cuda_api.h"
#include "machine.h"

namespace software_cuda {

namespace {

constexpr uint64_t NO_VALUE = ~uint64_t{0};  // a NaN: what a lane gets from one that takes no part

struct Vote : WarpCall {
  bool value;
  unsigned result;
};

struct Exchange : WarpCall {
  uint64_t value, result;
  Shuffle kind;
  int operand, width;
};

unsigned source_lane(unsigned lane, const Exchange &call) {
  const unsigned width = static_cast<unsigned>(call.width), first = lane - lane % width, operand = static_cast<unsigned>(call.operand);
  switch (call.kind) {
    case Shuffle::index: return first + operand % width;
    case Shuffle::up: return lane % width < operand ? lane : lane - operand;
    case Shuffle::down: return lane % width + operand < width ? lane + operand : lane;
    case Shuffle::exclusive_or: return (lane ^ operand) < first + width ? lane ^ operand : lane;
  }
  return lane;
}

void barrier(int line) { wait(Wait::barrier, line); }

void warp_barrier(int line, unsigned mask) {
  WarpCall call{mask, [](WarpCall **, unsigned) { pass_warp_barrier(machine.warp); }};
  wait_for_warp(line, call);
}

unsigned active_mask(int line) {
  WarpCall call{};
  machine.current->call = &call;
  wait(Wait::active_mask, line);
  return call.mask;
}

unsigned vote(int line, unsigned mask, bool value) {
  Vote call;
  call.mask = mask;
  call.value = value;
  call.all = [](WarpCall **calls, unsigned lanes) {
    unsigned result = 0;
    for (unsigned i = 0; i < WARP; ++i)
      if (lanes >> i & 1) result |= static_cast<unsigned>(static_cast<Vote *>(calls[i])->value) << i;
    for (unsigned i = 0; i < WARP; ++i)
      if (lanes >> i & 1) static_cast<Vote *>(calls[i])->result = result;
  };
  wait_for_warp(line, call);
  return call.result;
}

uint64_t shuffle(int line, unsigned mask, uint64_t value, Shuffle kind, int operand, int width) {
  Exchange call;
  call.mask = mask;
  call.value = value;
  call.kind = kind;
  call.operand = operand;
  call.width = width;
  call.all = [](WarpCall **calls, unsigned lanes) {
    for (unsigned i = 0; i < WARP; ++i) {
      if (!(lanes >> i & 1)) continue;
      Exchange &mine = *static_cast<Exchange *>(calls[i]);
      unsigned source = source_lane(i, mine);
      mine.result = source < WARP && lanes >> source & 1 ? static_cast<Exchange *>(calls[source])->value : NO_VALUE;
    }
  };
  wait_for_warp(line, call);
  return call.result;
}

alignas(64) unsigned char memory_of_warps[MAX_WARPS][8192];
void *warp_memory() { return memory_of_warps[thread_number() / WARP]; }

}  // namespace

bool in_warp_memory(uintptr_t address) { return address - reinterpret_cast<uintptr_t>(memory_of_warps) < sizeof memory_of_warps; }

Engine engine_table() {
  return {barrier, warp_barrier, active_mask, vote,        shuffle, product,    load_matrix,
          copy_async, commit_async, wait_async, warp_memory, access,  misaligned, out_of_bounds};
}

}  // namespace software_cuda
