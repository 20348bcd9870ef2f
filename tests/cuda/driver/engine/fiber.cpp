// Fibers: a stack each and a switch in a dozen instructions, without system calls.
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "machine.h"

#ifndef __x86_64__
#error "the software CUDA driver's context switch is written for x86-64"
#endif

asm(R"(
.text
.globl software_cuda_switch
.hidden software_cuda_switch
.type software_cuda_switch, @function
software_cuda_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size software_cuda_switch, . - software_cuda_switch
)");
extern "C" void software_cuda_switch(void **saved, void *stack);

namespace software_cuda {

struct Fiber {
  void *stack;
  unsigned number;
};

namespace {
constexpr size_t STACK = 256 << 10, PAGE = 4096;
Fiber fibers[MAX_THREADS];
Fiber *idle[MAX_THREADS];
unsigned idle_count;
unsigned char *stacks;
void *scheduler;

// Runs threads of the warp one after another as long as none stops; a kernel without barriers is a plain loop here.
void run_threads(Fiber *self) {
  for (;;) {
    const Launch &launch = *machine.launch;
    launch.kernel->invoke(launch.parameters);
    machine.current->wait = Wait::done;
    if (machine.cursor + 1 < machine.lanes) {
      Thread *next = &machine.thread[machine.warp * WARP + machine.lane_order[machine.cursor + 1]];
      if (next->wait == Wait::unstarted) {
        ++machine.cursor;
        next->fiber = self;
        enter(next);
        continue;
      }
    }
    idle[idle_count++] = self;
    software_cuda_switch(&self->stack, scheduler);
  }
}

void first_steps() { run_threads(machine.current->fiber); }

// Tops of stacks lie at different places, or they would all want the same lines of the caches.
void prepare(Fiber &fiber) {
  auto top = reinterpret_cast<uintptr_t>(stacks + (fiber.number + 1) * STACK) - fiber.number * (PAGE + 320) % (STACK / 2) / 64 * 64 - 64;
  auto frame = reinterpret_cast<void **>(top) - 8;
  frame[6] = reinterpret_cast<void *>(&first_steps);
  fiber.stack = frame;
}
}  // namespace

void forget_fibers() {
  if (!stacks) {
    void *room = mmap(nullptr, MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) abort();
    stacks = static_cast<unsigned char *>(room);
    for (unsigned i = 0; i < MAX_THREADS; ++i) mprotect(stacks + i * STACK, PAGE, PROT_NONE);
  }
  idle_count = MAX_THREADS;
  for (unsigned i = 0; i < MAX_THREADS; ++i) {
    fibers[i].number = i;
    prepare(fibers[i]);
    idle[MAX_THREADS - 1 - i] = &fibers[i];
  }
}

bool on_fiber_stack(uintptr_t address) { return address - reinterpret_cast<uintptr_t>(stacks) < MAX_THREADS * STACK; }

void tell_stacks(State &state) {
  state.stacks = stacks;
  state.stacks_bytes = MAX_THREADS * STACK;
}

void start_fiber(Thread *thread) {
  thread->fiber = idle[--idle_count];
  resume_fiber(thread);
}

void resume_fiber(Thread *thread) {
  enter(thread);
  software_cuda_switch(&scheduler, thread->fiber->stack);
}

void leave_fiber() { software_cuda_switch(&machine.current->fiber->stack, scheduler); }

}  // namespace software_cuda
