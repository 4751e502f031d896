// hyper_mix of few columns, hyper_inject before it, in two launches (hyper_few.cu).
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

struct HyperMix {
  HyperWeights w;
  const float* state = nullptr;
  int64_t tokens = 0;
  int64_t streams = 0;
  int64_t hidden = 0;
  float eps = 0;
  float* x = nullptr;
  float* inject = nullptr;
  // Where y is set: state + factors * y is mixed, and goes to `updated`, which is `state`.
  const float* y = nullptr;        // [tokens, hidden]
  const float* factors = nullptr;  // [tokens, streams]
  float* updated = nullptr;
};
bool takes_few_columns(const HyperMix& mix);
void mix_few_columns(const Context& context, const HyperMix& mix);

}  // namespace tandem::ops::cuda
