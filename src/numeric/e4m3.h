// E4M3FN: 1 sign, 4 exponent (bias 7) and 3 mantissa bits; no infinity, 0x7F and 0xFF are NaN, the largest value is
// 448. Decoding is exact. As an unsigned block scale (UE4M3) bit 7 must be clear.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace tandem::numeric {

inline constexpr float kE4m3Max = 448.0f;

constexpr bool e4m3_is_nan(uint8_t code) {
  return (code & 0x7Fu) == 0x7Fu;
}

namespace detail {

constexpr std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> values{};
  for (uint32_t code = 0; code < 256; ++code) {
    const uint32_t exponent = (code >> 3) & 15u;
    const uint32_t mantissa = code & 7u;
    const uint32_t significand = exponent == 0 ? mantissa : 8u + mantissa;
    // 2^-9 is the value of the lowest bit of a subnormal; each exponent beyond 1 doubles it.
    const float unit = static_cast<float>(1u << (exponent == 0 ? 0 : exponent - 1)) * 0x1p-9f;
    const float magnitude = static_cast<float>(significand) * unit;
    values[code] = (code & 0x80u) != 0 ? -magnitude : magnitude;
  }
  values[0x7F] = std::numeric_limits<float>::quiet_NaN();
  values[0xFF] = std::bit_cast<float>(std::bit_cast<uint32_t>(values[0x7F]) | 0x80000000u);
  return values;
}

}  // namespace detail

// Value of each code.
inline constexpr std::array<float, 256> kE4m3Values = detail::make_e4m3_values();

constexpr float e4m3_to_float(uint8_t code) {
  return kE4m3Values[code];
}

// 512 times the value: an integer of magnitude at most 229,376. NaN codes give 0; whoever can meet them refuses first.
constexpr int32_t e4m3_times_512(uint8_t code) {
  return e4m3_is_nan(code) ? 0 : static_cast<int32_t>(kE4m3Values[code] * 512.0f);
}

// Rounds to nearest, ties to even, and saturates: magnitudes beyond 448 and infinities give +-448. NaN gives 0x7F or
// 0xFF by its sign.
constexpr uint8_t e4m3_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Max)) return static_cast<uint8_t>(sign | 0x7Eu);
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Subnormal: adding 2^14 puts the unit of the last place at 2^-9, so the addition does the rounding.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - ((127u - 7u) << 3)));
}

}  // namespace tandem::numeric
