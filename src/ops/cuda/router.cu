#include "ops/cuda/dense.h"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/router.h"
#include "ops/cuda/router_few.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 256;

// Orders as the numbers do; 0 is a NaN.
__device__ inline uint32_t order_key(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0F);  // one zero
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float of_order_key(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}

// How many of a warp's keys come before the lane's own: larger ones, and equal ones of lower lanes.
__device__ inline int rank_in_warp(uint32_t key) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int rank = 0;
#pragma unroll 8
  for (int distance = 1; distance < 32; ++distance) {
    const int other = (lane + distance) % 32;
    const uint32_t others = __shfl_sync(kWholeWarp, key, other);
    rank += others > key || (others == key && other < lane) ? 1 : 0;
  }
  return rank;
}

// Of the `top_k` largest keys that a warp holds, lane l those of experts l, l + 32, …: that of rank `lane`, and its id.
// The lower id goes before an equal.
struct Choice {
  uint32_t key;
  int32_t id;
};
// One after the other.
template <int kEach>
__device__ inline Choice choose_in_rounds(uint32_t (&keys)[kEach], int top_k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Choice mine = {0, 0};
#pragma unroll 1
  for (int k = 0; k < top_k; ++k) {
    uint32_t best = keys[0];
    int place = 0;
#pragma unroll
    for (int i = 1; i < kEach; ++i) {
      if (keys[i] > best) {
        best = keys[i];
        place = i;
      }
    }
    const uint32_t most = __reduce_max_sync(kWholeWarp, best);
    const unsigned id = best == most ? static_cast<unsigned>(place * 32 + lane) : 0xffffffffU;
    const unsigned chosen = __reduce_min_sync(kWholeWarp, id);
    if (lane == k) mine = {most, static_cast<int32_t>(chosen)};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (id == chosen && i == place) keys[i] = 0;
    }
  }
  return mine;
}
// All at once. At least top_k keys are not below the top_k-th largest of the lanes' largest ones, and hardly more:
// where they are no more than lanes, each lane takes one and finds its rank.
template <int kEach>
__device__ inline Choice choose(uint32_t (&keys)[kEach], int top_k) {
  __shared__ Choice candidates[32];
  __shared__ Choice ranked[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t largest = keys[0];
#pragma unroll
  for (int i = 1; i < kEach; ++i) largest = max(largest, keys[i]);
  const unsigned last = __ballot_sync(kWholeWarp, rank_in_warp(largest) == top_k - 1);
  const uint32_t least = __shfl_sync(kWholeWarp, largest, __ffs(static_cast<int>(last)) - 1);
  int count = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const unsigned takers = __ballot_sync(kWholeWarp, keys[i] >= least);
    const int place = count + __popc(takers & ((1U << lane) - 1));
    if (keys[i] >= least && place < 32) candidates[place] = {keys[i], i * 32 + lane};  // by ascending id
    count += __popc(takers);
  }
  if (least == 0 || count > 32) return choose_in_rounds(keys, top_k);
  __syncwarp();
  const Choice mine = lane < count ? candidates[lane] : Choice{0, 0};
  ranked[rank_in_warp(mine.key)] = mine;
  __syncwarp();
  return ranked[lane];
}

// A warp takes a token. The softmax's sum over all experts falls out of the weights, so that only the chosen logits
// become exponents.
template <int kEach>
__global__ void __launch_bounds__(32)
    choose_kernel(const float* logits, int experts, int top_k, int32_t* ids, float* weights) {
  __shared__ float exponents[32];
  follow();
  const int lane = static_cast<int>(threadIdx.x);
  const float* row = logits + static_cast<int64_t>(blockIdx.x) * experts;
  uint32_t keys[kEach];  // 0: no expert
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys[i] = i * 32 + lane < experts ? order_key(row[i * 32 + lane]) : 0;
  const Choice mine = choose(keys, top_k);
  const float logit = of_order_key(mine.key);
  exponents[lane] = exp_exact(logit - __shfl_sync(kWholeWarp, logit, 0));
  __syncwarp();
  float kept = 0;
  for (int k = 0; k < top_k; ++k) kept += exponents[k];
  if (lane >= top_k) return;
  ids[static_cast<int64_t>(blockIdx.x) * top_k + lane] = mine.id;
  weights[static_cast<int64_t>(blockIdx.x) * top_k + lane] = exponents[lane] / kept;
}

template <bool kFours>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const float* lower, const float* upper, const float* shared_lower, const float* shared_upper,
                   const float* gate, int64_t tokens, int64_t hidden, float* out) {
  follow();
  constexpr int kEach = kFours ? 4 : 1;
  const auto both = [](float low, float high, float g, float shared_low, float shared_high) {
    return (low + g * shared_low) + (high + g * shared_high);
  };
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t width = hidden / kEach;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < tokens * width; i += step) {
    const float g = sigmoid(gate[i / width]);
    const int64_t at = i * kEach;
    if constexpr (kFours) {
      const float4 a = load4(lower + at);
      const float4 b = load4(upper + at);
      const float4 c = load4(shared_lower + at);
      const float4 d = load4(shared_upper + at);
      store4(out + at, {both(a.x, b.x, g, c.x, d.x), both(a.y, b.y, g, c.y, d.y), both(a.z, b.z, g, c.z, d.z),
                        both(a.w, b.w, g, c.w, d.w)});
    } else {
      out[at] = both(lower[at], upper[at], g, shared_lower[at], shared_upper[at]);
    }
  }
}

template <int kEach>
void launch_choice(const Context& context, const float* logits, int64_t tokens, int64_t experts, int64_t top_k,
                   int32_t* ids, float* weights) {
  launch_following(context, choose_kernel<kEach>, dim3(static_cast<unsigned>(tokens)), dim3(32), 0, logits,
                   static_cast<int>(experts), static_cast<int>(top_k), ids, weights);
  TANDEM_CUDA_LAUNCHED("choose_experts");
}

}  // namespace

void choose_experts(const Context& context, const float* logits, int64_t tokens, int64_t experts, int64_t top_k,
                    int32_t* ids, float* weights) {
  if (experts > kMostExperts || top_k > 32 || top_k > experts) {
    base::internal_error("cuda", "a router takes {} of {} experts: 32 of {} are served", top_k, experts, kMostExperts);
  }
  if (context.plans() || tokens == 0) return;
  if (experts <= 32) {
    launch_choice<1>(context, logits, tokens, experts, top_k, ids, weights);
  } else if (experts <= 128) {
    launch_choice<4>(context, logits, tokens, experts, top_k, ids, weights);
  } else if (experts <= 512) {
    launch_choice<16>(context, logits, tokens, experts, top_k, ids, weights);
  } else {
    launch_choice<32>(context, logits, tokens, experts, top_k, ids, weights);
  }
}

void router(const Context& context, const float* x, int64_t tokens, const Weight& w, int64_t top_k, int32_t* ids,
            float* weights) {
  const Scratch::Scope scope(context.scratch);
  float* logits = context.scratch.take<float>(tokens * w.rows);
  linear(context, x, tokens, w, true, logits);
  choose_experts(context, logits, tokens, w.rows, top_k, ids, weights);
}

void router_and_gate(const Context& context, const float* x, int64_t tokens, const Weight& w, const Weight& gate,
                     int64_t top_k, int32_t* ids, float* weights, float* gates) {
  const Scratch::Scope scope(context.scratch);
  float* logits = context.scratch.take<float>(tokens * w.rows);
  if (context.tensor_cores && takes_few_logits(x, tokens, w, gate)) {
    few_logits(context, x, tokens, w, gate, logits, gates);
  } else {
    linear(context, x, tokens, w, true, logits);
    linear(context, x, tokens, gate, true, gates);
  }
  choose_experts(context, logits, tokens, w.rows, top_k, ids, weights);
}

void combine_experts(const Context& context, const float* lower, const float* upper, const float* shared_lower,
                     const float* shared_upper, const float* gate, int64_t tokens, int64_t hidden, float* out) {
  if (context.plans() || tokens == 0) return;
  if (by_fours(hidden, lower, upper, shared_lower, shared_upper, out)) {
    launch_following(context, combine_kernel<true>, dim3(grid_blocks(context, tokens * hidden / 4, kThreads)), kThreads,
                     0, lower, upper, shared_lower, shared_upper, gate, tokens, hidden, out);
  } else {
    launch_following(context, combine_kernel<false>, dim3(grid_blocks(context, tokens * hidden, kThreads)), kThreads, 0,
                     lower, upper, shared_lower, shared_upper, gate, tokens, hidden, out);
  }
  TANDEM_CUDA_LAUNCHED("combine_experts");
}

}  // namespace tandem::ops::cuda
