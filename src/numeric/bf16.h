// BF16: the upper half of an FP32. Decoding is exact; encoding rounds to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

namespace tandem::numeric {

constexpr float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Overflow gives infinity. A NaN keeps its sign and upper payload bits and becomes quiet, so that rounding can't carry
// it into infinity.
constexpr uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace tandem::numeric
