// Hyper-connections on the card (docs/architecture.md, "Models").
//
// At most kMostFewColumns columns with BF16 weights of four streams take two launches, with what the last block
// answered or without: every byte of `down` and `inject`, then of `up`, is read once (6.5 MB each for Flash-Next), and
// the products go through the tensor cores. On an H200 a mix makes a sequence of products 7 us longer at one column, at
// eight 5 to 8; reading alone would take 3.
//
// More columns with BF16 inputs take four (hyper_many.cu), bound by the traffic of the state: 4,096 columns take
// 340 us, half of them for the norm, at the rate of copying. Otherwise
// norm, products and mix are launches of their own over slabs of tokens, bound by the traffic of three arrays [tokens,
// streams * hidden].
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

void hyper_mix(const Context& context, const HyperWeights& w, const float* state, int64_t tokens, int64_t streams,
               int64_t hidden, float eps, float* x, float* inject);
// hyper_inject and the next mix in the launches of the mix alone, where these are the few of above; else false, and
// nothing was done.
bool hyper_inject_mix(const Context& context, float* state, const float* y, const float* inject, const HyperWeights& w,
                      int64_t tokens, int64_t streams, int64_t hidden, float eps, float* x, float* next_inject);

}  // namespace tandem::ops::cuda
