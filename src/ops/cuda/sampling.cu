#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/sampling.h"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kParts = 64;  // of a row

struct Candidate {
  float value;
  int32_t id;
};

__device__ inline bool better(Candidate a, Candidate b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// The best of the block, in thread 0.
__device__ inline Candidate block_best(Candidate mine) {
  __shared__ Candidate shared[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Candidate other = {__shfl_xor_sync(kWholeWarp, mine.value, distance),
                             __shfl_xor_sync(kWholeWarp, mine.id, distance)};
    if (better(other, mine)) mine = other;
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (better(shared[warp], mine)) mine = shared[warp];
  }
  return mine;
}

// Of the part's thread; entries that are no candidate (NaN) are passed over. -infinity at the largest id loses to all.
constexpr int32_t kNone = 0x7fffffff;

// Blocks (parts, rows).
__global__ void __launch_bounds__(kThreads) best_of_part_kernel(const float* logits, int64_t vocab, Candidate* best) {
  follow();
  const float* row = logits + blockIdx.y * vocab;
  Candidate mine = {-INFINITY, kNone};
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vocab; i += kParts * kThreads) {
    const Candidate here = {row[i], static_cast<int32_t>(i)};
    if (better(here, mine)) mine = here;
  }
  mine = block_best(mine);
  if (threadIdx.x == 0) best[blockIdx.y * kParts + blockIdx.x] = mine;
}

__global__ void __launch_bounds__(kThreads) best_of_row_kernel(const Candidate* best, int32_t* ids) {
  follow();
  const Candidate mine =
      block_best(threadIdx.x < kParts ? best[blockIdx.x * kParts + threadIdx.x] : Candidate{-INFINITY, kNone});
  if (threadIdx.x == 0) ids[blockIdx.x] = mine.id == kNone ? 0 : mine.id;
}

// Blocks (parts, rows); a warp reads a word of the mask for 32 entries.
__global__ void __launch_bounds__(kThreads) mask_kernel(float* logits, int64_t vocab, const uint32_t* allowed) {
  follow();
  const uint32_t* words = allowed + blockIdx.y * ((vocab + 31) / 32);
  float* row = logits + blockIdx.y * vocab;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vocab; i += gridDim.x * kThreads) {
    if ((words[i / 32] >> (i % 32) & 1U) == 0) row[i] = -INFINITY;
  }
}

}  // namespace

void argmax(const Context& context, const float* logits, int64_t rows, int64_t vocab, int32_t* ids) {
  const Scratch::Scope scope(context.scratch);
  auto* best = context.scratch.take<Candidate>(rows * kParts);
  if (context.plans() || rows == 0) return;
  const dim3 grid(kParts, static_cast<unsigned>(rows));
  launch_following(context, best_of_part_kernel, grid, kThreads, 0, logits, vocab, best);
  TANDEM_CUDA_LAUNCHED("argmax of parts");
  launch_following(context, best_of_row_kernel, dim3(static_cast<unsigned>(rows)), kThreads, 0, best, ids);
  TANDEM_CUDA_LAUNCHED("argmax of rows");
}

void apply_mask(const Context& context, float* logits, int64_t rows, int64_t vocab, const uint32_t* allowed_bits) {
  if (context.plans() || rows == 0) return;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(base::ceil_div(vocab, kThreads), 256)),
                  static_cast<unsigned>(rows));
  launch_following(context, mask_kernel, grid, kThreads, 0, logits, vocab, allowed_bits);
  TANDEM_CUDA_LAUNCHED("apply_mask");
}

}  // namespace tandem::ops::cuda
