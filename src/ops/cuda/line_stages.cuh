// Lines of 32 inputs, 64 bytes each, in stages of shared memory that are filled while others are multiplied.
#pragma once

#include "ops/cuda/async_copy.cuh"

namespace tandem::ops::cuda {

// Byte offset of 16 bytes (eight inputs) of a line: lines lie in pairs of 128 bytes, whose eight places are permuted so
// that eight lines' loads meet no bank twice.
__device__ inline uint32_t place(int line, int chunk) {
  return static_cast<uint32_t>(line * 64 + ((chunk ^ (line >> 1 & 3)) << 4));
}

// All steps of a block: `copy(step, stage)` asks for what a step multiplies, `multiply(stage)` does it. `base` is where
// the kStages stages lie.
template <int kStages, int kStageBytes, typename Copy, typename Multiply>
__device__ inline void run_stages(uint32_t base, int steps, const Copy& copy, const Multiply& multiply) {
  const auto fetch = [&](int step) {
    if (step < steps) copy(step, base + step % kStages * kStageBytes);
    commit_copies();
  };
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) fetch(step);
  for (int step = 0; step < steps; ++step) {
    await_copies<kStages - 2>();
    __syncthreads();
    fetch(step + kStages - 1);
    multiply(base + step % kStages * kStageBytes);
  }
}

}  // namespace tandem::ops::cuda
