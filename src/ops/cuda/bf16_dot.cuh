// Products of weights in BF16 with FP32 inputs, four of each, in order of the inputs.
#pragma once

#include <cstdint>

namespace tandem::ops::cuda {

// `sum` with four products added; `w` has the weights, of which lower halves of words come first.
__device__ inline float dot_bf16(uint2 w, float4 x, float sum) {
  sum = fmaf(__uint_as_float(w.x << 16), x.x, sum);
  sum = fmaf(__uint_as_float(w.x & 0xffff0000U), x.y, sum);
  sum = fmaf(__uint_as_float(w.y << 16), x.z, sum);
  return fmaf(__uint_as_float(w.y & 0xffff0000U), x.w, sum);
}

}  // namespace tandem::ops::cuda
