#include "ops/cuda/dense.h"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/router.h"

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

// A warp takes a token; lane l has experts l, l + 32, …. The softmax's sum over all experts falls out of the weights,
// so that only the chosen logits become exponents.
template <int kEach>
__global__ void __launch_bounds__(32)
    choose_kernel(const float* logits, int experts, int top_k, int32_t* ids, float* weights) {
  follow();
  const int lane = static_cast<int>(threadIdx.x);
  const float* row = logits + static_cast<int64_t>(blockIdx.x) * experts;
  uint32_t keys[kEach];  // 0: no expert, or chosen
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys[i] = i * 32 + lane < experts ? order_key(row[i * 32 + lane]) : 0;
  float largest = 0;
  float kept = 0;
  float mine = 0;  // of rank `lane`
  int32_t mine_id = 0;
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
    const float logit = of_order_key(most);
    if (k == 0) largest = logit;
    const float p = exp_exact(logit - largest);
    kept += p;
    if (lane == k) {
      mine = p;
      mine_id = static_cast<int32_t>(chosen);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (id == chosen && i == place) keys[i] = 0;
    }
  }
  if (lane >= top_k) return;
  ids[static_cast<int64_t>(blockIdx.x) * top_k + lane] = mine_id;
  weights[static_cast<int64_t>(blockIdx.x) * top_k + lane] = mine / kept;
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
