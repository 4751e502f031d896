// What the warps of a product of few columns keep in their registers: the inputs.
#pragma once

#include "ops/cuda/dense_few_formats.cuh"

namespace tandem::ops::cuda::dense {

__device__ inline int lane_number() {  // kept: the compiler would ask for the thread's number again and again
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

__device__ inline float4 load_inputs(const float* from) {  // which an earlier kernel wrote
  float4 out;
  asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
               : "l"(from)
               : "memory");
  return out;
}

// The inputs of a warp's units, all columns, as operands of the tensor cores: lane 4 g + l has those of column g, or,
// where columns have slots, of slot g / columns of column g % columns; zeros for the products of other slots.
template <typename F>
__device__ inline void gather_inputs(const Product& p, int lane, int unit, int units,
                                     uint2 (&inputs)[kWarpUnits * kUnitProducts]) {
  constexpr int kColumns = 8 / F::kSlots;
  constexpr int kOwn = kUnitProducts / F::kSlots;  // products of a unit that the lane has inputs for
  const int column = lane / 4 % kColumns;
  const int slot = lane / 4 / kColumns;
  float4 loaded[kWarpUnits][kOwn] = {};
  if (column < p.tokens) {
    const float* x = p.x + column * p.w.inputs + static_cast<int64_t>(unit) * kUnit + F::input(lane % 4, 0, 0);
    if constexpr (F::kSlots > 1) x += slot * (kUnit / F::kSlots);
#pragma unroll
    for (int i = 0; i < kWarpUnits; ++i) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        if (i < units) loaded[i][j] = load_inputs(x + (i * kUnit + F::input(0, j / 2, j % 2)));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpUnits; ++i) {
    uint2 own[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) own[j] = F::pack(loaded[i][j], j);
#pragma unroll
    for (int j = 0; j < kUnitProducts; ++j) {
      uint2& to = inputs[i * kUnitProducts + j];
      to = own[j % kOwn];
      if constexpr (F::kSlots > 1) {
        if (j / kOwn != slot) to = make_uint2(0, 0);
        asm volatile("" : "+r"(to.x), "+r"(to.y));  // chosen here, not again and again where it is used
      }
    }
  }
}

}  // namespace tandem::ops::cuda::dense
