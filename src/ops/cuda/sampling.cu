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

// Loses to every token.
__device__ constexpr Candidate kNone = {-INFINITY, 0x7fffffff};
// Wins over every token: a logit is not finite.
__device__ constexpr Candidate kFault = {INFINITY, -1};

// Blocks (parts, rows); a warp reads a word of `allowed` for 32 tokens.
__global__ void __launch_bounds__(kThreads)
    best_of_part_kernel(const float* logits, int64_t vocab, int64_t tokens, const uint32_t* allowed, Candidate* best) {
  follow();
  const float* row = logits + blockIdx.y * vocab;
  const uint32_t* words = allowed == nullptr ? nullptr : allowed + blockIdx.y * ((tokens + 31) / 32);
  Candidate mine = kNone;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < tokens; i += kParts * kThreads) {
    Candidate here = {row[i], static_cast<int32_t>(i)};
    if (words != nullptr && (words[i / 32] >> (i % 32) & 1U) == 0) here = kNone;
    if (!(fabsf(row[i]) < INFINITY)) here = kFault;
    if (better(here, mine)) mine = here;
  }
  mine = block_best(mine);
  if (threadIdx.x == 0) best[blockIdx.y * kParts + blockIdx.x] = mine;
}

__global__ void __launch_bounds__(kThreads) best_of_row_kernel(const Candidate* best, int32_t* ids) {
  follow();
  const Candidate mine = block_best(threadIdx.x < kParts ? best[blockIdx.x * kParts + threadIdx.x] : kNone);
  if (threadIdx.x == 0) ids[blockIdx.x] = mine.id == kNone.id ? -1 : mine.id;
}

}  // namespace

void greedy(const Context& context, const Ops::Greedy& args) {
  const Scratch::Scope scope(context.scratch);
  auto* best = context.scratch.take<Candidate>(args.rows * kParts);
  if (context.plans() || args.rows == 0) return;
  const dim3 grid(kParts, static_cast<unsigned>(args.rows));
  launch_following(context, best_of_part_kernel, grid, kThreads, 0, args.logits, args.vocab, args.tokens, args.allowed,
                   best);
  TANDEM_CUDA_LAUNCHED("greedy, parts");
  launch_following(context, best_of_row_kernel, dim3(static_cast<unsigned>(args.rows)), kThreads, 0, best, args.ids);
  TANDEM_CUDA_LAUNCHED("greedy, rows");
}

}  // namespace tandem::ops::cuda
