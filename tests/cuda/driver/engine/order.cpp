// In which order blocks, warps and lanes run. A right kernel gives the same result in each.
#include <cstdlib>
#include <cstring>
#include <random>

#include "machine.h"

namespace software_cuda {

namespace {
enum { FORWARD, REVERSE, RANDOM } direction;
std::minstd_rand generator;
std::vector<unsigned long> blocks_order;
}  // namespace

// AOTC_SOFTWARE_CUDA_ORDER: forward, reverse or random:SEED.
void read_order() {
  const char *asked = std::getenv("AOTC_SOFTWARE_CUDA_ORDER");
  direction = FORWARD;
  blocks_order.clear();
  if (!asked) return;
  if (!std::strcmp(asked, "reverse")) direction = REVERSE;
  if (!std::strncmp(asked, "random", 6)) {
    direction = RANDOM;
    generator.seed(asked[6] == ':' ? static_cast<unsigned>(std::strtoul(asked + 7, nullptr, 10)) + 1 : 1);
  }
}

void order(unsigned *places, unsigned count) {
  for (unsigned i = 0; i < count; ++i) places[i] = direction == REVERSE ? count - 1 - i : i;
  if (direction == RANDOM)
    for (unsigned i = count; i > 1; --i) std::swap(places[i - 1], places[generator() % i]);
}

unsigned long ordered_block(unsigned long position, unsigned long blocks) {
  if (direction == FORWARD) return position;
  if (direction == REVERSE) return blocks - 1 - position;
  if (blocks_order.empty()) {
    blocks_order.resize(blocks);
    for (unsigned long i = 0; i < blocks; ++i) blocks_order[i] = i;
    for (unsigned long i = blocks; i > 1; --i) std::swap(blocks_order[i - 1], blocks_order[generator() % i]);
  }
  return blocks_order[position];
}

}  // namespace software_cuda
