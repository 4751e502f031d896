// The exponential of the canonical expert arithmetic. It is defined by its operations, so that a vector or device
// version that performs the same ones gives the same bits: no branch depends on the size of the argument, every
// multiply-add is fused, and nothing may be contracted, reordered or flushed to zero.
//
// Largest error found against long double over every seventh FP32 argument: 0.952 units in the last place where the
// result is normal, 0.854 where it is subnormal.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tandem::numeric {

namespace detail {

// 2^n for -126 <= n <= 127.
inline float exp2_integer(int32_t n) {
  return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

}  // namespace detail

// e^x. +inf above 88.72, 0 below -103.97 and at -inf; NaN stays NaN.
inline float exp_f32(float x) {
  if (x != x) return x;
  // Beyond these bounds the result is 0 or infinity already.
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  // x = n ln2 + f with |f| <= ln2 / 2. Adding 1.5 * 2^23 rounds to an integer that stands in the low bits.
  constexpr float kRound = 0x1.8p23f;
  const float shifted = std::fma(x, 0x1.715476p0f, kRound);
  const int32_t n = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float whole = shifted - kRound;
  float f = std::fma(whole, -0x1.62e4p-1f, x);
  f = std::fma(whole, -0x1.7f7d1cp-20f, f);
  // e^f = 1 + f + f^2 (1/2 + ...): interpolated at Chebyshev nodes, relative error below 1.1e-8.
  float p = 0x1.6d113cp-10f;
  p = std::fma(p, f, 0x1.120ba2p-7f);
  p = std::fma(p, f, 0x1.55551ap-5f);
  p = std::fma(p, f, 0x1.5554dcp-3f);
  p = std::fma(p, f, 0.5f);
  p = std::fma(p, f, 1.0f);
  p = std::fma(p, f, 1.0f);
  // -150 <= n <= 128 does not fit one exponent field; of two factors only the second can round.
  const int32_t half = n >> 1;
  return p * detail::exp2_integer(half) * detail::exp2_integer(n - half);
}

// x * sigmoid(x), with the same guarantee.
inline float silu_f32(float x) {
  return x / (1.0f + exp_f32(-x));
}

}  // namespace tandem::numeric
