// hyper_mix of few columns in two launches (hyper_few.cu).
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
};
bool takes_few_columns(const HyperMix& mix);
void mix_few_columns(const Context& context, const HyperMix& mix);

}  // namespace tandem::ops::cuda
