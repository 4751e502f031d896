// What the kernels of state, norms and gates share: the exponential of numeric/exp.h operation by operation, sums over
// a warp and over a block in a fixed tree, grids of grid-stride loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cuda_bf16.h>

#include "ops/cuda/context.h"

namespace tandem::ops::cuda {

inline constexpr unsigned kWholeWarp = 0xffffffffU;

// exp_exact() of what lies between -104 and 89.
__device__ inline float exp_bounded(float x) {
  constexpr float kRound = 0x1.8p23F;
  const float shifted = fmaf(x, 0x1.715476p0F, kRound);
  const int n = __float_as_int(shifted) - __float_as_int(kRound);
  const float whole = shifted - kRound;
  float f = fmaf(whole, -0x1.62e4p-1F, x);
  f = fmaf(whole, -0x1.7f7d1cp-20F, f);
  float p = 0x1.6d113cp-10F;
  p = fmaf(p, f, 0x1.120ba2p-7F);
  p = fmaf(p, f, 0x1.55551ap-5F);
  p = fmaf(p, f, 0x1.5554dcp-3F);
  p = fmaf(p, f, 0.5F);
  p = fmaf(p, f, 1.0F);
  p = fmaf(p, f, 1.0F);
  const int half = n >> 1;
  return p * __int_as_float((half + 127) << 23) * __int_as_float((n - half + 127) << 23);
}
// numeric::exp_f32, the same bits.
__device__ inline float exp_exact(float x) {
  if (x != x) return x;
  x = x < -104.0F ? -104.0F : x;
  x = x > 89.0F ? 89.0F : x;
  return exp_bounded(x);
}

__device__ inline float sigmoid(float x) {
  return 1.0F / (1.0F + exp_exact(0.0F - x));
}
__device__ inline float silu(float x) {
  return x / (1.0F + exp_exact(0.0F - x));
}

// To BF16 and back, to nearest even.
__device__ inline float rounded_to_bf16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

__device__ inline float4 rounded_to_bf16(float4 x) {
  return {rounded_to_bf16(x.x), rounded_to_bf16(x.y), rounded_to_bf16(x.z), rounded_to_bf16(x.w)};
}

// 1 / rms of `width` values with this sum of squares.
__device__ inline float inverse_rms(float squares, int64_t width, float eps) {
  return 1.0F / sqrtf(squares / static_cast<float>(width) + eps);
}

// The sum over the warp, in every lane.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kWholeWarp, x, distance);
  return x;
}
// The sum over the warp of each of kCount values, of value lane / (32 / kCount): the tree of warp_sum, of which a lane
// follows one value's branch alone where it can.
template <int kCount, int kDistance = 16>
__device__ inline float sum_of_warp(float (&values)[kCount]) {
  if constexpr (kDistance == 0) {
    return values[0];
  } else if constexpr (kCount == 1) {
    values[0] += __shfl_xor_sync(kWholeWarp, values[0], kDistance);
    return sum_of_warp<1, kDistance / 2>(values);
  } else {
    const bool upper = (threadIdx.x & kDistance) != 0;
    float halves[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float given = upper ? values[i] : values[i + kCount / 2];
      halves[i] = (upper ? values[i + kCount / 2] : values[i]) + __shfl_xor_sync(kWholeWarp, given, kDistance);
    }
    return sum_of_warp<kCount / 2, kDistance / 2>(halves);
  }
}
// The same of a pair; the shuffles overlap.
__device__ inline float2 warp_sum(float2 x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x.x += __shfl_xor_sync(kWholeWarp, x.x, distance);
    x.y += __shfl_xor_sync(kWholeWarp, x.y, distance);
  }
  return x;
}

// The sum over a warp's lanes up to the own one.
template <typename T>
__device__ inline T sum_up_to_lane(T x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const T before = __shfl_up_sync(kWholeWarp, x, distance);
    if (lane >= distance) x += before;
  }
  return x;
}

// The sum over a block of kThreads, in every thread. `shared` holds a value for each warp and is free again only behind
// the next barrier.
template <int kThreads, typename T>
__device__ inline T block_sum(T x, T* shared) {
  x = warp_sum(x);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0) shared[warp] = x;
  __syncthreads();
  T sum = shared[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) {
    if constexpr (sizeof(T) == sizeof(float)) {
      sum += shared[w];
    } else {
      sum.x += shared[w].x;
      sum.y += shared[w].y;
    }
  }
  return sum;
}

__device__ inline float4 load4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
__device__ inline void store4(float* p, float4 a) {
  *reinterpret_cast<float4*>(p) = a;
}

// Blocks of a grid-stride loop over `items` threads' work.
inline unsigned grid_blocks(const Context& context, int64_t items, int64_t threads) {
  const int64_t most = static_cast<int64_t>(context.multiprocessors) * 8;
  return static_cast<unsigned>(std::clamp<int64_t>((items + threads - 1) / threads, 1, most));
}

// Whether four values at a time may be taken: `width` is a multiple of four and the arrays begin at multiples of 16
// bytes.
template <typename... Pointers>
inline bool by_fours(int64_t width, Pointers... arrays) {
  return width % 4 == 0 && ((reinterpret_cast<uintptr_t>(arrays) % 16 == 0) && ...);
}

}  // namespace tandem::ops::cuda
