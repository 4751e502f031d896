// FP32 values as sums of BF16 ones, for the tensor cores.
#pragma once

#include "ops/cuda/tensor_cores.cuh"

namespace tandem::ops::cuda {

// x = high + low up to 2^-18 of x.
struct Split {
  uint32_t high, low;
};
__device__ inline Split split_pair(float first, float second) {
  const __nv_bfloat162 high = __floats2bfloat162_rn(first, second);
  const float2 left = __bfloat1622float2(high);
  const __nv_bfloat162 low = __floats2bfloat162_rn(first - left.x, second - left.y);
  return {pair_of(high.x, high.y), pair_of(low.x, low.y)};
}

}  // namespace tandem::ops::cuda
