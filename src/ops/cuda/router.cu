#include "ops/cuda/dense.h"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/router.h"
#include "ops/cuda/router_choose.cuh"
#include "ops/cuda/router_few.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 256;

// A warp takes a token.
template <int kEach>
__global__ void __launch_bounds__(32)
    choose_kernel(const float* logits, int experts, int top_k, int32_t* ids, float* weights) {
  __shared__ ChoiceMemory memory;
  follow();
  const int lane = static_cast<int>(threadIdx.x);
  const Chosen mine =
      choose_for_token<kEach>(logits + static_cast<int64_t>(blockIdx.x) * experts, experts, top_k, memory);
  if (lane >= top_k) return;
  ids[static_cast<int64_t>(blockIdx.x) * top_k + lane] = mine.id;
  weights[static_cast<int64_t>(blockIdx.x) * top_k + lane] = mine.weight;
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
