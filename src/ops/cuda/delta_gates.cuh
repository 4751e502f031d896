// The gates of Gated DeltaNet.
#pragma once

#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda {

// log(1 + e^x) without overflow; torch's threshold of 20, above which the result is x.
__device__ inline float softplus(float x) {
  return x > 20.0F ? x : log1pf(exp_exact(x));
}

// Logarithm of the state's decay at a column; not above 0.
__device__ inline float log_decay(float a, float a_log, float dt_bias) {
  return -exp_exact(a_log) * softplus(a + dt_bias);
}

}  // namespace tandem::ops::cuda
