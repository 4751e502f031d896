// What the speed of operations is measured with: launches recorded once and replayed, and the card's own rate of
// reading.
#pragma once

#include <cstdint>
#include <functional>

#include "ops/cuda/context.h"

namespace tandem::ops::cuda {

struct LaunchTime {
  double each_us = 0;    // of one among many in a recording: without the cost of launching
  double single_us = 0;  // of one launched by itself, from the launch to its end
};

// Records `count` calls of `launch`, which gets 0 … count - 1, and replays them; medians of `rounds`.
LaunchTime measure_launches(const Context& context, int count, int rounds, const std::function<void(int)>& launch);

// Reads all of `data`, a multiple of 16 bytes; `sink` (one word on the card) keeps it from being left out.
void read_all(const Context& context, const void* data, int64_t bytes, uint32_t* sink);
// Fills `data` with words of a hash of their place, of which `mask` keeps bits.
void fill_random(const Context& context, void* data, int64_t bytes, uint32_t seed, uint32_t mask);

}  // namespace tandem::ops::cuda
