// Tensor-core products of BF16 with FP32 sums, and FP32 values as sums of BF16 ones.
//
// A fragment's lane is (g, t) = (lane / 4, lane % 4). mma m16n8k16 takes of A rows g and g + 8, of B and C column g and
// columns 2t, 2t + 1; registers hold pairs along k: {2t, 2t + 1} and {2t + 8, 2t + 9}.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

namespace tandem::ops::cuda {

// c += a b of [16, 16] and [16, 8]. a: (row g, low k), (row g + 8, low k), (row g, high k), (row g + 8, high k).
__device__ inline void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The first in the lower half.
__device__ inline uint32_t pair_of(__nv_bfloat16 first, __nv_bfloat16 second) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(first)) | static_cast<uint32_t>(__bfloat16_as_ushort(second)) << 16;
}

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
