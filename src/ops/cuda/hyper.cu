#include "ops/cuda/dense.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/hyper.h"
#include "ops/cuda/hyper_few.cuh"
#include "ops/cuda/hyper_many.cuh"
#include "ops/cuda/hyper_norm.cuh"
#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kSlabTokens = 2048;
constexpr int64_t kManySlabTokens = 4096;

__global__ void __launch_bounds__(kThreads) silu_scaled_kernel(float* x, int64_t count, float scale) {
  follow();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    x[i] = silu(x[i] * scale);
  }
}

// x[t, i] = mean over streams of sigmoid(gate[t, s, i]) * normed[t, s, i]; the first threads finish `inject`.
template <bool kFours>
__global__ void __launch_bounds__(kThreads) mix_kernel(const float* gate, const float* normed, int64_t tokens,
                                                       int64_t streams, int64_t hidden, float* x, float* inject) {
  follow();
  constexpr int kEach = kFours ? 4 : 1;
  const float share = 1.0F / static_cast<float>(streams);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t width = hidden / kEach;
  for (int64_t i = begin; i < tokens * width; i += step) {
    const int64_t t = i / width;
    const int64_t at = i % width * kEach;
    if constexpr (kFours) {
      float4 sum = {0, 0, 0, 0};
      for (int64_t s = 0; s < streams; ++s) {
        const float4 g = load4(gate + (t * streams + s) * hidden + at);
        const float4 v = load4(normed + (t * streams + s) * hidden + at);
        sum = {fmaf(sigmoid(g.x), v.x, sum.x), fmaf(sigmoid(g.y), v.y, sum.y), fmaf(sigmoid(g.z), v.z, sum.z),
               fmaf(sigmoid(g.w), v.w, sum.w)};
      }
      store4(x + t * hidden + at, {sum.x * share, sum.y * share, sum.z * share, sum.w * share});
    } else {
      float sum = 0;
      for (int64_t s = 0; s < streams; ++s) {
        const int64_t from = (t * streams + s) * hidden + at;
        sum = fmaf(sigmoid(gate[from]), normed[from], sum);
      }
      x[t * hidden + at] = sum * share;
    }
  }
  if (inject == nullptr) return;
  for (int64_t i = begin; i < tokens * streams; i += step) inject[i] = 2.0F * sigmoid(inject[i] * share);
}

void launch_mix(const Context& context, const float* gate, const float* normed, const HyperMix& mix) {
  if (context.plans()) return;
  if (by_fours(mix.hidden, gate, normed, mix.x)) {
    launch_following(context, mix_kernel<true>, dim3(grid_blocks(context, mix.tokens * mix.hidden / 4, kThreads)),
                     kThreads, 0, gate, normed, mix.tokens, mix.streams, mix.hidden, mix.x, mix.inject);
  } else {
    launch_following(context, mix_kernel<false>, dim3(grid_blocks(context, mix.tokens * mix.hidden, kThreads)),
                     kThreads, 0, gate, normed, mix.tokens, mix.streams, mix.hidden, mix.x, mix.inject);
  }
  TANDEM_CUDA_LAUNCHED("hyper_mix");
}

void launch_silu_scaled(const Context& context, float* x, int64_t count, float scale) {
  if (context.plans()) return;
  launch_following(context, silu_scaled_kernel, dim3(grid_blocks(context, count, kThreads)), kThreads, 0, x, count,
                   scale);
  TANDEM_CUDA_LAUNCHED("silu_scaled");
}

void mix_slab(const Context& context, const HyperMix& mix) {
  const Scratch::Scope scope(context.scratch);
  const int64_t width = mix.streams * mix.hidden;
  float* normed = context.scratch.take<float>(mix.tokens * width);
  float* gate = context.scratch.take<float>(mix.tokens * width);
  float* low = context.scratch.take<float>(mix.tokens * mix.w.down.rows);
  // A product of four rows with FP32 inputs would take as long as the rest together.
  const bool together =
      context.tensor_cores && mix.tokens > kMostFewColumns && mix.inject != nullptr && takes_norm_and_inject(mix);
  if (together) {
    norm_and_inject(context, mix, normed);
  } else {
    rms_norm(context, mix.state, mix.tokens, mix.streams, mix.hidden, mix.w.norm, mix.eps, normed);
    if (mix.inject != nullptr) linear(context, normed, mix.tokens, mix.w.inject, true, mix.inject);
  }
  linear(context, normed, mix.tokens, mix.w.down, false, low);
  launch_silu_scaled(context, low, mix.tokens * mix.w.down.rows, 1.0F / static_cast<float>(mix.streams));
  linear(context, low, mix.tokens, mix.w.up, false, gate);
  launch_mix(context, gate, normed, mix);
}

void in_slabs(const Context& context, const HyperMix& mix, int64_t most,
              void (*mix_slab)(const Context& context, const HyperMix& mix)) {
  const auto advance = [&](auto*& pointer, int64_t floats) {
    if (pointer != nullptr) pointer += floats;
  };
  for (int64_t begin = 0; begin < mix.tokens; begin += most) {
    HyperMix slab = mix;
    slab.tokens = std::min(mix.tokens - begin, most);
    advance(slab.state, begin * mix.streams * mix.hidden);
    advance(slab.updated, begin * mix.streams * mix.hidden);
    advance(slab.x, begin * mix.hidden);
    advance(slab.y, begin * mix.hidden);
    advance(slab.inject, begin * mix.streams);
    advance(slab.factors, begin * mix.streams);
    mix_slab(context, slab);
  }
}

// In few launches, with what mix.y adds: whether that is possible.
bool mix_quickly(const Context& context, const HyperMix& mix) {
  if (context.tensor_cores && takes_few_columns(mix)) {
    mix_few_columns(context, mix);
    return true;
  }
  if (!takes_many_columns(context, mix)) return false;
  in_slabs(context, mix, kManySlabTokens, mix_many_columns);
  return true;
}

}  // namespace

void hyper_mix(const Context& context, const HyperWeights& w, const float* state, int64_t tokens, int64_t streams,
               int64_t hidden, float eps, float* x, float* inject) {
  const HyperMix mix{w, state, tokens, streams, hidden, eps, x, inject};
  if (tokens == 0 || mix_quickly(context, mix)) return;
  in_slabs(context, mix, kSlabTokens, mix_slab);
}

bool hyper_inject_mix(const Context& context, float* state, const float* y, const float* inject, const HyperWeights& w,
                      int64_t tokens, int64_t streams, int64_t hidden, float eps, float* x, float* next_inject) {
  const HyperMix mix{w, state, tokens, streams, hidden, eps, x, next_inject, y, inject, state};
  return tokens > 0 && mix_quickly(context, mix);
}

}  // namespace tandem::ops::cuda
