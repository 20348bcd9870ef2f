// The shadow of memory. For each granule (the kernel's smallest element) it keeps who wrote it last and two of those who read it,
// each as a stamp: when (a tick that goes up at every barrier) and which thread.
#include "checks.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_api.h"
#include "memory.h"

namespace software_cuda {

namespace {

using Stamp = uint32_t;
constexpr unsigned THREAD_BITS = 11;
constexpr Stamp TICK = 1u << THREAD_BITS, THREAD_MASK = TICK - 1;
constexpr Stamp OUTSIDE = ~Stamp{0};                // no array has this granule
constexpr Stamp COPYING = 2046, BY_ATOMIC = 2045;  // in place of a thread
constexpr Stamp LAST_TICK = OUTSIDE / 16 * 15;

struct Granule {
  Stamp write, reads[2];
};

Stamp now = TICK, launch_start, block_start, barrier_start, warp_start[MAX_WARPS];
alignas(4096) unsigned char dynamic_room[2 * SHARED_GAP + DYNAMIC_SHARED_ROOM];
Granule dynamic_granules[sizeof dynamic_room];
std::vector<Granule> static_granules;
Allocation last_allocation;

struct Array {
  unsigned char *data;
  size_t bytes;
};
std::vector<Array> arrays;  // of shared memory, in this launch

// One access, as trace.py reads it: for judging the checks themselves.
struct TraceRecord {
  uint64_t address;
  uint32_t block, interval, warp_interval;
  uint16_t thread;
  uint8_t bytes, kind;
  uint32_t launch, shared;
};
FILE *trace;
uint32_t trace_launch, trace_block, trace_interval, trace_warp_interval[MAX_WARPS];

void write_trace(uintptr_t address, unsigned bytes, Access kind, bool shared) {
  const unsigned thread = thread_number();
  const TraceRecord record{address, trace_block, trace_interval, trace_warp_interval[thread / WARP], static_cast<uint16_t>(thread), static_cast<uint8_t>(bytes),
                           static_cast<uint8_t>(kind), trace_launch, shared};
  std::fwrite(&record, sizeof record, 1, trace);
}

// AOTC_SOFTWARE_CUDA_TRACE: the file that each access of the launch is added to.
void open_trace() {
  const char *path = std::getenv("AOTC_SOFTWARE_CUDA_TRACE");
  trace = path ? std::fopen(path, "ab") : nullptr;
  ++trace_launch;
  trace_block = 0;
}

// A place in memory, with its granules.
struct Range {
  Granule *first;
  unsigned count;
  Stamp floor;  // accesses before it do not matter
  bool shared;
};

Granule *memory_granules() {
  static Granule *const granules = [] {
    void *room = mmap(nullptr, MEMORY_RANGE * sizeof(Granule), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) abort();
    return static_cast<Granule *>(room);
  }();
  return granules;
}

const char *verb(Access kind) { return kind == Access::read ? "reads" : kind == Access::write ? "writes" : "changes"; }

std::string place_name(uintptr_t address) {
  char text[96];
  for (size_t i = 0; i < arrays.size(); ++i) {
    const size_t offset = address - reinterpret_cast<uintptr_t>(arrays[i].data);
    if (offset >= arrays[i].bytes) continue;
    const bool dynamic = arrays[i].data == dynamic_shared();
    std::snprintf(text, sizeof text, "byte %zu of %s shared memory", offset, dynamic ? "dynamic" : ("array " + std::to_string(i) + " in").c_str());
    return text;
  }
  for (unsigned i = 0; i < machine.launch->kernel->parameters; ++i) {
    uintptr_t pointer;
    if (!machine.launch->kernel->pointers[i]) continue;
    std::memcpy(&pointer, machine.launch->parameters[i], sizeof pointer);
    const Allocation *allocation = find_allocation(pointer);
    if (!allocation || address - pointer >= allocation->base + allocation->bytes - pointer) continue;
    std::snprintf(text, sizeof text, "byte %zu of parameter %u", static_cast<size_t>(address - pointer), i);
    return text;
  }
  std::snprintf(text, sizeof text, "address %#zx", static_cast<size_t>(address));
  return text;
}

std::string describe(uintptr_t address, unsigned bytes, Access kind) {
  return thread_name(thread_number()) + " " + verb(kind) + " " + std::to_string(bytes) + " bytes at " + place_name(address);
}

void mark_arrays() {
  const unsigned granule = machine.launch->module->granule;
  const Module &module = *machine.launch->module;
  static_granules.assign(static_cast<size_t>(module.shared_end - module.shared_begin) / granule, {OUTSIDE, {0, 0}});
  std::fill(std::begin(dynamic_granules), std::begin(dynamic_granules) + sizeof dynamic_room / granule, Granule{OUTSIDE, {0, 0}});
  for (const Array &array : arrays) {
    Granule *first = array.data == dynamic_shared() ? dynamic_granules + SHARED_GAP / granule : &static_granules[static_cast<size_t>(array.data - module.shared_begin) / granule];
    std::fill(first, first + (array.bytes + granule - 1) / granule, Granule{0, {0, 0}});
  }
}

void find_arrays() {
  const Module &module = *machine.launch->module;
  arrays.clear();
  for (unsigned char *at = module.shared_begin; at < module.shared_end; at += SHARED_GAP) {
    uint64_t header[3];
    std::memcpy(header, at, sizeof header);
    const auto [magic, offset, bytes] = header;
    if (magic != SHARED_MAGIC) continue;
    arrays.push_back({at + offset, bytes});
    at += offset + (bytes + SHARED_GAP - 1) / SHARED_GAP * SHARED_GAP;
  }
  if (machine.launch->shared_bytes) arrays.push_back({dynamic_shared(), machine.launch->shared_bytes});
}

bool same_warp(Stamp stamp) {
  const Stamp other = stamp & THREAD_MASK;
  return other < MAX_THREADS && other / WARP == thread_number() / WARP;
}

bool same_thread(Stamp stamp) { return stamp >= block_start && (stamp & THREAD_MASK) == thread_number(); }

// Whether nothing orders the access that left this stamp before the one now made by another thread.
bool unordered(Stamp stamp, Stamp floor) {
  if (stamp < floor || same_thread(stamp)) return false;
  if (stamp < block_start) return true;
  return stamp >= (same_warp(stamp) ? warp_start[thread_number() / WARP] : barrier_start);
}

// Of other blocks both, or of one warp of this block.
bool alike(Stamp a, Stamp b) {
  if (a < block_start || b < block_start) return a < block_start && b < block_start;
  return (a & THREAD_MASK) / WARP == (b & THREAD_MASK) / WARP;
}

[[noreturn]] void race(const Range &range, uintptr_t address, unsigned bytes, Access kind, Stamp other, bool wrote, const void *where) {
  const Stamp thread = other & THREAD_MASK;
  std::string text = describe(address, bytes, kind) + ", which ";
  if (thread == BY_ATOMIC) {
    text += "another thread changes";
  } else {
    text += other < block_start ? "a thread of another block" : thread_name(thread);
    text += wrote ? " writes" : " reads";
  }
  fail(CUDA_ERROR_LAUNCH_FAILED, range.shared ? "race on shared memory" : "race on global memory", text + " with no barrier between", where);
}

// Two readers are kept such that whoever writes meets one of them, if there is any that it is not ordered with: of two warps, or one
// of another block, wherever there have been such.
void note_read(Granule &granule, Stamp stamp, Stamp floor) {
  Stamp &first = granule.reads[0], &second = granule.reads[1];
  if (!unordered(first, floor)) {
    first = stamp;
  } else if (!unordered(second, floor) || alike(first, second)) {
    second = stamp;
  }
}

void touch(const Range &range, uintptr_t address, unsigned bytes, Access kind, const void *where) {
  const Stamp stamp = now | thread_number();
  for (unsigned i = 0; i < range.count; ++i) {
    Granule &granule = range.first[i];
    if (granule.write == OUTSIDE)
      fail(CUDA_ERROR_ILLEGAL_ADDRESS, "out of bounds of shared memory", describe(address, bytes, kind), where);
    if (granule.write >= range.floor && (granule.write & THREAD_MASK) == COPYING)
      fail(CUDA_ERROR_LAUNCH_FAILED, "asynchronous copy", describe(address, bytes, kind) + ", to which a copy is under way", where);
    if (range.shared && kind != Access::write && granule.write < range.floor)
      fail(CUDA_ERROR_LAUNCH_FAILED, "uninitialised shared memory", describe(address, bytes, kind) + ", which no thread has written", where);
    const bool both_atomic = kind == Access::atomic && (granule.write & THREAD_MASK) == BY_ATOMIC;
    if (!both_atomic && unordered(granule.write, range.floor)) race(range, address, bytes, kind, granule.write, true, where);
    if (kind == Access::read) {
      note_read(granule, stamp, range.floor);
      continue;
    }
    for (Stamp read : granule.reads)
      if (unordered(read, range.floor)) race(range, address, bytes, kind, read, false, where);
    granule.write = kind == Access::atomic ? now | BY_ATOMIC : stamp;
  }
}

bool locate(uintptr_t address, unsigned bytes, Range &range) {
  const Module &module = *machine.launch->module;
  const unsigned granule = module.granule;
  range.shared = true;
  range.floor = block_start;
  if (size_t offset = address - reinterpret_cast<uintptr_t>(dynamic_room); offset < sizeof dynamic_room) {
    range.first = dynamic_granules + offset / granule;
  } else if (offset = address - reinterpret_cast<uintptr_t>(module.shared_begin); offset < static_cast<size_t>(module.shared_end - module.shared_begin)) {
    range.first = &static_granules[offset / granule];
  } else if (offset = address - memory_base(); offset < MEMORY_RANGE) {
    range = {memory_granules() + offset / granule, 0, launch_start, false};
  } else {
    return false;
  }
  range.count = static_cast<unsigned>((address + bytes - 1) / granule - address / granule + 1);
  return true;
}

bool within_allocation(uintptr_t address, unsigned bytes) {
  if (address - last_allocation.base >= last_allocation.bytes) {
    const Allocation *allocation = find_allocation(address);
    if (!allocation) return false;
    last_allocation = *allocation;
  }
  return address + bytes <= last_allocation.base + last_allocation.bytes;
}

void advance() { now += TICK; }

// When the ticks run out, what came before this block is forgotten.
void reset_shadow() {
  now = launch_start = TICK;
  madvise(memory_granules(), MEMORY_RANGE * sizeof(Granule), MADV_DONTNEED);
  mark_arrays();
}

}  // namespace

unsigned char *dynamic_shared() { return dynamic_room + SHARED_GAP; }

void enter_launch() {
  last_allocation = {};
  find_arrays();
  machine.state->dynamic_shared = dynamic_shared();
  if (!machine.launch->module->checked) return;
  open_trace();
  mark_arrays();
  advance();
  launch_start = now;
}

void leave_launch() {
  if (trace) std::fclose(trace);
  trace = nullptr;
}

void enter_block() {
  for (const Array &array : arrays) std::memset(array.data, 0xFF, array.bytes);
  if (!machine.launch->module->checked) return;
  if (now >= LAST_TICK) reset_shadow();
  pass_barrier();
  block_start = now;
  ++trace_block;
}

void pass_barrier() {
  if (!machine.launch->module->checked) return;
  advance();
  barrier_start = now;
  ++trace_interval;
  for (unsigned i = 0; i < machine.warps; ++i) warp_start[i] = now;
}

void pass_warp_barrier(unsigned warp) {
  if (!machine.launch->module->checked) return;
  advance();
  warp_start[warp] = now;
  ++trace_warp_interval[warp];
}

void access(const void *pointer, unsigned bytes, Access kind, const void *where) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  Range range;
  if (!machine.launch->module->checked) return;
  if (!locate(address, bytes, range)) {
    if (on_fiber_stack(address) || in_warp_memory(address)) return;
    fail(CUDA_ERROR_ILLEGAL_ADDRESS, "out of bounds", describe(address, bytes, kind) + ", which is no memory of the device", where);
  }
  if (!range.shared && !within_allocation(address, bytes))
    fail(CUDA_ERROR_ILLEGAL_ADDRESS, "out of bounds of global memory", describe(address, bytes, kind), where);
  if (bytes <= 16 && address % bytes)
    fail(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned", describe(address, bytes, kind), where);
  if (trace) write_trace(address, bytes, kind, range.shared);
  touch(range, address, bytes, kind, where);
}

void misaligned(const void *pointer, unsigned alignment, unsigned line) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::string user = thread_name(thread_number()) + " uses " + place_name(address), at = ", line " + std::to_string(line);
  if (address % alignment) fail(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned", user + ", no multiple of " + std::to_string(alignment) + at);
  fail(CUDA_ERROR_ILLEGAL_ADDRESS, address ? "out of bounds of an array" : "null pointer", user + ", which is in no array" + at);
}

void out_of_bounds(int64_t index, unsigned line) {
  fail(CUDA_ERROR_ILLEGAL_ADDRESS, "out of bounds of an array", thread_name(thread_number()) + " uses index " + std::to_string(index) + ", line " + std::to_string(line));
}

void begin_async_write(const void *pointer, unsigned bytes) {
  access(pointer, bytes, Access::write, nullptr);
  Range range;
  if (!machine.launch->module->checked || !locate(reinterpret_cast<uintptr_t>(pointer), bytes, range)) return;
  for (unsigned i = 0; i < range.count; ++i) range.first[i].write = now | COPYING;
}

void end_async_write(const void *pointer, unsigned bytes) {
  Range range;
  if (!machine.launch->module->checked || !locate(reinterpret_cast<uintptr_t>(pointer), bytes, range)) return;
  if (trace) write_trace(reinterpret_cast<uintptr_t>(pointer), bytes, Access::write, range.shared);
  for (unsigned i = 0; i < range.count; ++i) range.first[i].write = now | thread_number();
}

}  // namespace software_cuda
