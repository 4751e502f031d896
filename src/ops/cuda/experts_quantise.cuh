// The quantisers of numeric/activation.h and numeric/int8_activation.h, and SwiGLU, by the same operations.
#pragma once

#include "numeric/e4m3.h"
#include "ops/cuda/experts_nvfp4.cuh"

namespace tandem::ops::cuda::expert {

__device__ inline float swiglu(float gate, float up) {
  return silu(gate) * up;
}

__device__ inline uint32_t magnitude_bits(float x) {
  return __float_as_uint(x) & 0x7fffffffU;
}
inline constexpr uint32_t kInfinityBits = 0x7f800000U;

// The largest of kLanes lanes that stand side by side.
template <int kLanes>
__device__ inline uint32_t lanes_max(uint32_t x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = max(x, __shfl_xor_sync(kWholeWarp, x, distance));
  }
  return x;
}

// x / step rounded to a whole number, where x / step is itself rounded first, as divisions are: `about` is the quotient
// up to `error`, and only where it is close to the middle of two whole numbers is it divided.
__device__ inline float rounded_quotient(float about, float x, float step, float error) {
  const float whole = rintf(about);
  return fabsf(about - whole) < 0.5F - error ? whole : rintf(__fdiv_rn(x, step));
}

// The scale of a block of 16, from the bits of its largest magnitude.
struct Nvfp4Step {
  int32_t t;      // T'; 0 where a value is not finite
  float step;     // what A / 2 is in units of
  float inverse;  // of that, 0 where T' is
};
__device__ inline Nvfp4Step nvfp4_step(uint32_t largest, float input_scale) {
  if (largest >= kInfinityBits) return {0, 0.0F, 0.0F};
  const float ratio = __fdiv_rn(__uint_as_float(largest), 6.0F * input_scale);
  const uint32_t code = numeric::e4m3_from_float(ratio < 448.0F ? ratio : 448.0F);
  const int t = e4m3_times_512(code << 20);
  const float step = __fmul_rn(static_cast<float>(t) * 0x1p-9F, input_scale);
  return {t, step, t == 0 ? 0.0F : __frcp_rn(step)};
}
// A = 2 * E2M1 of x / step.
__device__ inline int nvfp4_value(float x, const Nvfp4Step& by) {
  if (by.t == 0) return 0;
  const float a = fminf(fabsf(x) * by.inverse, 6.0F);
  // Steps of A: 1 below 4, 2 below 8, then 4; ties to even. At 2 and 4 either unit gives the same.
  const float unit = a < 2.0F ? 2.0F : a < 4.0F ? 1.0F : 0.5F;
  // Below 2^3, with an error of three halves of 2^-23 of itself.
  const float steps = rounded_quotient(a * unit, fabsf(x) * unit, by.step, 0x1p-18F);
  const int magnitude = static_cast<int>(fminf(steps * (2.0F / unit), 12.0F));
  return x < 0 ? -magnitude : magnitude;
}

// numeric::dynamic_input_scale from the bits of the column's largest magnitude.
__device__ inline float dynamic_input_scale(uint32_t largest) {
  const float scale = __fdiv_rn(__uint_as_float(largest), 2688.0F);
  if (!(scale >= 0x1p-60F)) return 1.0F;
  return scale < 0x1p60F ? scale : 0x1p60F;
}

// s of a block of 32, and 1 / s, which is 0 where s is.
struct Int8Step {
  float step;
  float inverse;
};
__device__ inline Int8Step int8_step(uint32_t largest) {
  const float step = largest < kInfinityBits ? __fdiv_rn(__uint_as_float(largest), 127.0F) : 0.0F;
  if (step < 0x1p-126F) return {0.0F, 0.0F};
  return {step, __frcp_rn(step)};
}
__device__ inline int int8_value(float x, const Int8Step& by) {
  if (by.step == 0.0F) return 0;
  return static_cast<int>(fminf(fmaxf(rounded_quotient(x * by.inverse, x, by.step, 0x1p-13F), -127.0F), 127.0F));
}

__device__ inline uint32_t largest_bits(float4 x) {
  return max(max(magnitude_bits(x.x), magnitude_bits(x.y)), max(magnitude_bits(x.z), magnitude_bits(x.w)));
}
__device__ inline uint32_t as_bytes(int a, int b, int c, int d) {
  return (static_cast<uint32_t>(a) & 255) | (static_cast<uint32_t>(b) & 255) << 8 |
         (static_cast<uint32_t>(c) & 255) << 16 | static_cast<uint32_t>(d) << 24;
}

// Four lanes have a block of 16 inputs, four inputs each: the bytes A of these and the block's scale. False where a
// value is not finite.
__device__ inline bool quantise_quarter(float4 x, float input_scale, uint32_t& bytes, int32_t& t) {
  const uint32_t largest = lanes_max<4>(largest_bits(x));
  const Nvfp4Step step = nvfp4_step(largest, input_scale);
  bytes = as_bytes(nvfp4_value(x.x, step), nvfp4_value(x.y, step), nvfp4_value(x.z, step), nvfp4_value(x.w, step));
  t = step.t;
  return largest < kInfinityBits;
}
// The same into a column as few columns want it.
__device__ inline bool store_quarter(float4 x, float input_scale, int quarter, int64_t block, Nvfp4Inputs* column) {
  uint32_t bytes;
  int32_t t;
  const bool finite = quantise_quarter(x, input_scale, bytes, t);
  reinterpret_cast<uint32_t&>(nvfp4_byte(column, block, 4 * quarter)) = bytes;
  if (quarter == 0) nvfp4_scale(column, block) = t;
  return finite;
}

// A = 2 * E2M1 of x / step as the low byte of what comes, where no rounding is in doubt. E2M1 has one bit behind the
// first: c is what takes the others away when it is added; below 1 the steps are those of 1.
__device__ inline uint32_t nvfp4_value_quickly(float x, const Nvfp4Step& by, bool& doubtful) {
  const float a = fminf(fabsf(x) * by.inverse, 6.0F);
  const float c = __uint_as_float((__float_as_uint(fmaxf(a, 1.0F)) & kInfinityBits) + (22U << 23));
  const float rounded = __fsub_rn(__fadd_rn(a, c), c);
  // Half a step is c * 2^-24, and an eighth of a at least, whose error is three halves of 2^-23 of it. Doubts are rare:
  // what resolves them takes microseconds, for nearly always its instructions are far away.
  doubtful = doubtful || !(fabsf(__fsub_rn(a, rounded)) < c * (0x1p-24F - 0x1p-42F));
  return __float_as_uint(fmaf(copysignf(rounded, x), 2.0F, 0x1.8p23F));
}
// The bytes A of 4 * kWords values.
template <int kWords>
__device__ inline void nvfp4_words(const float (&x)[4 * kWords], const Nvfp4Step& step, uint32_t (&words)[kWords]) {
  uint32_t values[4 * kWords];
  bool doubtful = false;
#pragma unroll
  for (int i = 0; i < 4 * kWords; ++i) values[i] = nvfp4_value_quickly(x[i], step, doubtful);
  if (doubtful) {
#pragma unroll
    for (int i = 0; i < 4 * kWords; ++i) values[i] = static_cast<uint32_t>(nvfp4_value(x[i], step));
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    words[w] = __byte_perm(__byte_perm(values[4 * w], values[4 * w + 1], 0x0040),
                           __byte_perm(values[4 * w + 2], values[4 * w + 3], 0x0040), 0x5410);
  }
}
// Two lanes that stand side by side have a block of 16 inputs, eight each, of which this lane's are half `half` of the
// column's. False where a value is not finite.
__device__ inline bool store_half(float4 low, float4 high, float input_scale, int half, Nvfp4Inputs* column) {
  const uint32_t largest = lanes_max<2>(max(largest_bits(low), largest_bits(high)));
  const Nvfp4Step step = nvfp4_step(largest, input_scale);
  uint32_t words[2];
  nvfp4_words<2>({low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, step, words);
  const int64_t block = half / 2;
  reinterpret_cast<uint2&>(nvfp4_byte(column, block, half % 2 * 8)) = {words[0], words[1]};
  if (half % 2 == 0) nvfp4_scale(column, block) = step.t;
  return largest < kInfinityBits;
}

__noinline__ __device__ inline uint32_t nvfp4_value_slowly(float x, int32_t t, float step, float inverse) {
  return static_cast<uint32_t>(nvfp4_value(x, {t, step, inverse}));
}
// The same of a lane that has block `block` of the column's.
__device__ inline bool store_block(const float4 (&x)[4], float input_scale, int block, Nvfp4Inputs* column) {
  const uint32_t largest =
      max(max(largest_bits(x[0]), largest_bits(x[1])), max(largest_bits(x[2]), largest_bits(x[3])));
  const Nvfp4Step step = nvfp4_step(largest, input_scale);
  uint32_t words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float four[4] = {x[w].x, x[w].y, x[w].z, x[w].w};
    uint32_t values[4];
    bool doubtful = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = nvfp4_value_quickly(four[i], step, doubtful);
    if (doubtful) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = nvfp4_value_slowly(four[i], step.t, step.step, step.inverse);
    }
    words[w] =
        __byte_perm(__byte_perm(values[0], values[1], 0x0040), __byte_perm(values[2], values[3], 0x0040), 0x5410);
  }
  column[block / 4].a[block % 4] =
      block % 2 == 0 ? uint4{words[0], words[1], words[2], words[3]} : uint4{words[2], words[3], words[0], words[1]};
  nvfp4_scale(column, block) = step.t;
  return largest < kInfinityBits;
}

// Where input i of a block of 32 stands.
__device__ inline int place_in_order(InputOrder order, int i) {
  if (order == InputOrder::kFourApart) return (i & 16) + (i & 3) * 4 + (i >> 2 & 3);
  if (order == InputOrder::kNibbles) return (i & 15) / 4 * 8 + (i & 3) * 2 + (i >> 4);
  return i;
}

}  // namespace tandem::ops::cuda::expert
