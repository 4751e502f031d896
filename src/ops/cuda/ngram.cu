#include "ops/cuda/dense.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/ngram.h"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 256;

struct Gate {
  const float* key;    // [tokens, streams, hidden]
  const float* value;  // [tokens, hidden]
  const float* norm_key;
  const float* norm_query;
  const float* norm_conv;
  int64_t streams, hidden;
  float eps;
  float* state;   // [tokens, streams, hidden]
  float* normed;  // the same: the convolution's input
};

// One block a stream of a token: state += gate * value, normed = N(gate * value; norm_conv).
__global__ void __launch_bounds__(kThreads) gate_kernel(const Gate args) {
  follow();
  __shared__ float2 pairs[kThreads / 32];
  __shared__ float scores[kThreads / 32];
  __shared__ float squares[kThreads / 32];
  const int64_t first = blockIdx.x * args.hidden;
  const int64_t stream = blockIdx.x % args.streams * args.hidden;
  const float* key = args.key + first;
  const float* value = args.value + blockIdx.x / args.streams * args.hidden;
  float* state = args.state + first;
  float2 both = {0, 0};
  for (int64_t i = threadIdx.x; i < args.hidden; i += kThreads) {
    both.x = fmaf(key[i], key[i], both.x);
    both.y = fmaf(state[i], state[i], both.y);
  }
  both = block_sum<kThreads>(both, pairs);
  const float key_scale = inverse_rms(both.x, args.hidden, args.eps);
  const float query_scale = inverse_rms(both.y, args.hidden, args.eps);
  float score = 0;
  for (int64_t i = threadIdx.x; i < args.hidden; i += kThreads) {
    const float k = key[i] * key_scale * (args.norm_key[stream + i] + 1.0F);
    const float q = state[i] * query_scale * (args.norm_query[stream + i] + 1.0F);
    score = fmaf(q, k, score);
  }
  score = block_sum<kThreads>(score, scores) / sqrtf(static_cast<float>(args.hidden));
  const float gate = sigmoid(score == 0.0F ? 0.0F : copysignf(sqrtf(fmaxf(fabsf(score), 1e-6F)), score));
  float sum = 0;
  for (int64_t i = threadIdx.x; i < args.hidden; i += kThreads) {
    const float gated = value[i] * gate;
    sum = fmaf(gated, gated, sum);
    state[i] += gated;
  }
  const float scale = inverse_rms(block_sum<kThreads>(sum, squares), args.hidden, args.eps);
  for (int64_t i = threadIdx.x; i < args.hidden; i += kThreads) {
    args.normed[first + i] = value[i] * gate * scale * (args.norm_conv[stream + i] + 1.0F);
  }
}

}  // namespace

void ngram_memory(const Context& context, const Columns& columns, const NgramWeights& w, const float* rows,
                  int64_t streams, int64_t hidden, float eps, int64_t history, float* state) {
  const int64_t tokens = columns.count();
  const int64_t width = streams * hidden;
  if (tokens == 0) return;
  const Scratch::Scope scope(context.scratch);
  float* key = context.scratch.take<float>(tokens * width);
  float* value = context.scratch.take<float>(tokens * hidden);
  float* normed = context.scratch.take<float>(tokens * width);
  const Ops::Product products[] = {{w.key, key}, {w.value, value}};
  linear_group(context, rows, tokens, products, false);
  if (context.plans()) return;
  const Gate gate{key, value, w.norm_key, w.norm_query, w.norm_conv, streams, hidden, eps, state, normed};
  launch_following(context, gate_kernel, dim3(static_cast<unsigned>(tokens * streams)), kThreads, 0, gate);
  TANDEM_CUDA_LAUNCHED("ngram_memory");
  add_causal_conv(context, columns, normed, width, w.conv, w.kernel, w.dilation, history, state);
}

}  // namespace tandem::ops::cuda
