// Keys and values in 8 bits: symmetric codes with one FP16 scale to 64 dimensions of a token's head.
//
// scale = amax / 127, rounded to FP16 and at most its largest number; code = x / scale, rounded to nearest even and
// bounded to +-127. A group of zeros, or of numbers whose scale FP16 cannot hold, has scale 0 and codes 0. A group with
// a number that is not finite has a NaN for its scale, so that the fault is seen where it is read. The number that a
// code stands for is code * scale, exact in FP32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "numeric/f16.h"

namespace tandem::numeric {

inline constexpr int64_t kInt8KvGroup = 64;
inline constexpr uint16_t kInt8KvFaultyScale = 0x7E00;

constexpr int64_t int8_kv_groups(int64_t head_dim) {
  return (head_dim + kInt8KvGroup - 1) / kInt8KvGroup;
}

// From the bits of the largest magnitude, of which those of numbers that are not finite are the largest.
constexpr uint16_t int8_kv_scale(uint32_t amax_bits) {
  if (amax_bits >= 0x7F800000u) return kInt8KvFaultyScale;
  const uint16_t scale = f16_from_float(std::bit_cast<float>(amax_bits) / 127.0F);
  return scale < 0x7BFF ? scale : uint16_t{0x7BFF};
}

inline int8_t int8_kv_code(float x, uint16_t scale) {
  if (scale == 0 || scale == kInt8KvFaultyScale) return 0;
  const float code = std::nearbyint(x / f16_to_float(scale));
  return static_cast<int8_t>(code > 127.0F ? 127.0F : code < -127.0F ? -127.0F : code);
}

// One group of at most 64 numbers; returns its scale.
inline uint16_t int8_kv_encode(const float* x, int64_t count, int8_t* codes) {
  uint32_t amax = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;
    amax = magnitude > amax ? magnitude : amax;
  }
  const uint16_t scale = int8_kv_scale(amax);
  for (int64_t i = 0; i < count; ++i) codes[i] = int8_kv_code(x[i], scale);
  return scale;
}

inline float int8_kv_decode(int8_t code, uint16_t scale) {
  return static_cast<float>(code) * f16_to_float(scale);
}

}  // namespace tandem::numeric
